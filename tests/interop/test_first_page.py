"""The lines of the first page for a host's file, as somebody uses them who has just cloned the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import installing

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
HOST = Path(__file__).with_name("host_of_a_file.py")


@pytest.fixture
def environment(tmp_path):
    """A new virtual environment with this tree and with uv, as PATH."""
    clone = tmp_path / "mcp-nursery"
    for name in ("actors", "supervisor"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    venv = tmp_path / "venv"
    with installing.needed_by_test("the package"):
        installing.run([sys.executable, "-m", "venv", venv])
        installing.run([venv / "bin" / "python", "-m", "pip", "install", "--quiet", clone, "uv"])
    return {**os.environ, "PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"}


def test_the_lines_of_the_first_page_give_a_supervised_server(tmp_path, environment):
    (lines,) = re.findall(r"^```json\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert lines.count("\n") == 3
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".mcp.json").write_text(lines)
    with installing.needed_by_test("mcp-server-time"):
        installing.run(["uvx", "mcp-server-time", "--help"], environment)
    run = subprocess.run(
        [sys.executable, HOST], cwd=empty, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert (said["name"], said["server"]) == ("time", "mcp-time")
    assert {"get_current_time", "convert_time"} <= set(said["tools"])
    assert said["killed"]
    assert said["restarted"]
    (_, first), *lost, (_, last) = said["answers"]
    assert "T21:30:00+09:00" in first
    assert "T21:30:00+09:00" in last
    assert all("It restarts in" in text for _, text in lost)  # none, where the server says that it can be asked again
    assert [path.name for path in empty.iterdir()] == [".mcp.json"]
