import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import installing
from .cases import CASES


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with a file and a git repository, for servers that look at some."""
    place = tmp_path_factory.mktemp("place")
    (place / "hello.txt").write_text("good morning\n")
    repository = place / "repository"
    author = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org"]
    for arguments in (["init", "-q", "-b", "trunk"], ["commit", "-q", "--allow-empty", "-m", "first words"]):
        repository.mkdir(exist_ok=True)
        subprocess.run(["git", *author, *arguments], cwd=repository, check=True, timeout=60)
    return place


@pytest.fixture(scope="session")
def commands(place):
    """Gives the command of a case, installed at the first use; skips where that cannot be."""
    found = {}

    def command_of(name):
        if name not in found:
            found[name] = CASES[name].command(place)
        return found[name]

    def or_skip(name):
        with installing.needed_by_test(name):
            return command_of(name)

    return or_skip


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture
def command(case, commands):
    return commands(case.name)


@pytest.fixture
def mcp_nursery(tmp_path, place):
    """Runs the installed command on a configuration in the folder with a file, and gives its exit code and its JSON."""
    program = shutil.which("mcp-nursery", path=Path(sys.executable).parent)
    assert program is not None

    def run(servers, *arguments):
        config = tmp_path / "servers.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        done = subprocess.run(
            [program, *arguments, "--config", config, "--json"],
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run
