"""The wheel alone in an empty environment: the README works with it, and what is not there is named."""

import json
import os
import re
import shutil

import pytest
from packaging.requirements import Requirement

from mcp_nursery.actors.version import VERSION

from ..test_readme import EXAMPLES, MODEL_LOOP
from .conftest import Installed

pytestmark = pytest.mark.push

MOST = 11
"""Packages besides this one and those that `mcp` and `trio` need."""
NEEDS_AN_EXTRA = {
    "mcp_nursery.supervisor.pytest_plugin": "pytest",
    "mcp_nursery.supervisor.integrations.inspect_ai": "inspect_ai",
    "mcp_nursery.supervisor.integrations.langchain": "langchain_core",
    "mcp_nursery.supervisor.integrations.openai_agents": "agents",
    "mcp_nursery.supervisor.integrations.pydantic_ai": "pydantic_ai",
}
"""Modules that do not load without an extra, and what they miss. PyJWT, cryptography and the API of OpenTelemetry come
with `mcp`."""
LIST = """
import json
from importlib.metadata import distributions
print(json.dumps({each.metadata["Name"]: each.requires or [] for each in distributions()}))
"""
IMPORT_ALL = """
import importlib, json, pkgutil, mcp_nursery.actors, mcp_nursery.supervisor
missing = {}
for package in (mcp_nursery.actors, mcp_nursery.supervisor):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing[module.name] = error.name
print(json.dumps(missing))
"""


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(roots, requires):
    """The packages that these need here, with themselves."""
    found, waiting = set(), [(name, frozenset()) for name in roots]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        for requirement in map(Requirement, requires[name]):
            chosen = [{"extra": extra} for extra in extras] or [{"extra": ""}]
            if requirement.marker is None or any(requirement.marker.evaluate(each) for each in chosen):
                waiting.append((canonical(requirement.name), frozenset(requirement.extras)))
    return found


def test_it_brings_few_packages(installed, tmp_path):
    done = installed.run("python", "-c", LIST, cwd=tmp_path)
    requires = {canonical(name): needs for name, needs in json.loads(done.stdout).items()}
    more = requires.keys() - closure(["mcp", "trio"], requires) - {"mcp-nursery"}
    assert requires.keys() == closure(["mcp-nursery"], requires)
    assert len(more) <= MOST, sorted(more)


def test_it_says_what_it_is(installed, distributions, tmp_path):
    done = installed.run("mcp-nursery", "--version", cwd=tmp_path)
    assert done.stderr == ""
    first, commit, *rest = done.stdout.splitlines()
    assert (first, commit) == (f"mcp-nursery {VERSION}", f"commit {distributions.commit}")
    names = [line.split()[0] for line in rest]
    assert {"python", "mcp", "trio", "httpx2", "orjson"} <= set(names)
    assert not {"psycopg", "keyring", "pytest"} & set(names)


def test_the_readme_works(installed, tmp_path):
    (tmp_path / "app.py").write_text(EXAMPLES[0])
    (tmp_path / "model.py").write_text(MODEL_LOOP)
    done = installed.run("python", "app.py", cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("hello ['mcp_lab_echo', 'mcp_lab_now']\n", "", 0)
    done = installed.run("python", "model.py", cwd=tmp_path, given="y\n")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.endswith("\nhello\n</mcp_tool_output>\n")


def test_the_demo_works(installed, tmp_path):
    done = installed.run("mcp-nursery", "demo", cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.endswith("all servers ended, no process is left\n")


def test_a_server_behind_it_works(installed, tmp_path):
    """The command that the README has for hosts."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    said = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}},
    ]
    command = ["serve", "--", installed.python, "-m", "mcp_nursery.supervisor.cli.demo_server"]
    done = installed.run("mcp-nursery", *command, cwd=tmp_path, given="".join(json.dumps(each) + "\n" for each in said))
    assert done.returncode == 0, done.stderr
    answers = {each["id"]: each for each in map(json.loads, done.stdout.splitlines()) if "id" in each}
    assert answers[2]["result"]["content"] == [{"type": "text", "text": "hi"}]


# -- without extras ---------------------------------------------------------------------------------------------------


def test_every_other_module_loads(installed, tmp_path):
    done = installed.run("python", "-c", IMPORT_ALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == NEEDS_AN_EXTRA


SERVE = ("serve", "--http", "127.0.0.1:0")
NAMED = [
    ([*SERVE, "--metrics", "--", "true"], "field '--metrics': opentelemetry.exporter", "otel"),
    ([*SERVE, "--state", "postgresql://h/db", "--", "true"], "field 'state': psycopg", "postgres"),
    (["status", "--state", "postgresql://h/db", "--config", "servers.json"], "field 'state': psycopg", "postgres"),
]


@pytest.mark.parametrize(("arguments", "problem", "extra"), NAMED, ids=[f"{each[0][0]} {each[2]}" for each in NAMED])
def test_a_missing_extra_is_named(installed, tmp_path, arguments, problem, extra):
    (tmp_path / "servers.json").write_text('{"mcpServers": {}}')
    done = installed.run("mcp-nursery", *arguments, cwd=tmp_path)
    assert done.returncode in (2, 3)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if " is missing: " in line]
    assert lines, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(rf"{re.escape(problem)}\S* is missing: pip install 'mcp-nursery\[{extra}\]'$", lines[-1])


@pytest.fixture(scope="session")
def without_cryptography(made, installed):
    """The same environment without what only `mcp` brings: an SDK that does not is no reason to fail without a word."""

    def copy(folder):
        shutil.copytree(installed.folder, folder, symlinks=True, dirs_exist_ok=True, copy_function=os.link)
        for package in ("cryptography", "jwt"):
            (found,) = folder.glob(f"lib/python*/site-packages/{package}")
            shutil.rmtree(found)

    return Installed(made("without-cryptography", copy))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--replica-key", "key"], "field '--replica-key': cryptography"),
        (["--oauth-issuer", "https://i.example", "--public-url", "https://h.example"], "field '--oauth-issuer': jwt"),
    ],
    ids=["sessions", "tokens"],
)
def test_the_extra_of_the_gateway_is_named(without_cryptography, tmp_path, options, problem):
    (tmp_path / "key").write_text("mcpnkey_" + "k" * 43)
    (tmp_path / "key").chmod(0o600)
    main = "from mcp_nursery.supervisor.cli import main; main()"  # the command has the path of the other environment
    done = without_cryptography.run("python", "-c", main, *SERVE, *options, "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(rf"{re.escape(problem)}\S* is missing: pip install 'mcp-nursery\[gateway\]'$", line)


@pytest.mark.parametrize("module", [name.rpartition(".")[2] for name in NEEDS_AN_EXTRA if "integrations" in name])
def test_a_missing_framework_is_named(installed, tmp_path, module):
    done = installed.run("python", "-c", f"import mcp_nursery.supervisor.integrations.{module}", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f" is missing: pip install 'mcp-nursery[{module.replace('_', '-')}]'")
