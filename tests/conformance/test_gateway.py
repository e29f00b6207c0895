"""The official server scenarios, through the gateway, in front of a server of either era, over stdio and over HTTP."""

import json
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from ..lab import PROGRAMS
from ..lab.gateways import served_over_http
from ..lab.processes import eventually
from ..lab.raw_clients import http_client, request
from .suite import of_extensions, suite

pytestmark = pytest.mark.push

SERVER = PROGRAMS / "conformance_server.py"
REVISIONS = {"2025-11-25": 30, "2026-07-28": 37}


def required(revision):
    """The server scenarios that the suite lists as required."""
    command = [*suite(), "list", "--server", "--requirements", revision]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL)
    lines = said.stdout.partition("Server scenarios")[2].partition("\n\n")[0].splitlines()
    return [line.strip().removeprefix("- ") for line in lines[1:]]


def verdicts(folder):
    """By scenario: whether nothing failed, and something succeeded."""
    found = {}
    for path in folder.rglob("checks.json"):
        statuses = {check["status"] for check in json.loads(path.read_text())}
        name = path.parent.name.removeprefix("server-").partition("-20")[0]
        found[name] = "SUCCESS" in statuses and not statuses & {"FAILURE", "WARNING"}
    return found


async def run(url, revision, folder):
    command = [*suite(), "server", "--url", url, "--output-dir", str(folder), "--requirements", revision]
    with trio.fail_after(240):
        return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)


@asynccontextmanager
async def gateway(era, upstream, folder):
    """The URL of a gateway in front of a server of that era, over stdio or HTTP."""
    command = [sys.executable, "-I", str(SERVER), era]
    if upstream == "stdio":
        async with served_over_http("--", *command) as (_, url):
            yield url
        return
    async with over_http(era, folder) as address:
        config = folder / "servers.json"
        config.write_text(json.dumps({"mcpServers": {"it": {"url": address}}}))
        async with served_over_http("--config", str(config)) as (_, url):
            yield f"{url}/it"


@asynccontextmanager
async def over_http(era, folder):
    """The URL of the server itself."""
    async with await trio.open_file(folder / "port", "wb") as port:
        process = await trio.lowlevel.open_process([sys.executable, "-I", str(SERVER), era, "http"], stdout=port)
    try:
        await eventually(lambda: (folder / "port").read_text().endswith("\n"))
        yield f"http://127.0.0.1:{int((folder / 'port').read_text())}/mcp"
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@pytest.mark.parametrize("upstream", ["stdio", "http"])
@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_gateway_is_invisible_to_the_official_suite(revision, era, upstream, tmp_path):
    wanted = required(revision)
    assert len(wanted) == REVISIONS[revision]
    async with gateway(era, upstream, tmp_path) as url:
        ran = await run(url, revision, tmp_path / "all")
    passed = verdicts(tmp_path / "all")
    assert {name for name in wanted if not passed.get(name)} == set(), ran.stdout.decode()[-3000:]


SKILLS = ["sep-2640-skills-directory", "sep-2640-skills-enumeration", "sep-2640-skills-manifest"]
QUALIFIED = {"sep-2640-skill-uri-scheme"}
"""What the suite advises against, and a view of all servers does: its URIs name their servers."""


def test_no_scenario_of_skills_is_left_out():
    assert {name for name in of_extensions("server") if "skills" in name} == set(SKILLS)


async def checks_of(url, scenario, revision, folder):
    """What the suite says of one scenario: the checks by status."""
    command = [*suite(), "server", "--url", url, "--output-dir", str(folder), "--scenario", scenario]
    with trio.fail_after(120):
        await trio.run_process(
            [*command, "--spec-version", revision, "--force"], capture_stdout=True, capture_stderr=True, check=False
        )
    found = {}
    for path in folder.rglob("checks.json"):
        for check in json.loads(path.read_text()):
            found.setdefault(check["status"], set()).add(check["id"])
    return found


@pytest.mark.parametrize(("front", "era"), [("one", "modern"), ("named", "handshake"), ("all", "modern")])
@pytest.mark.parametrize("scenario", SKILLS)
async def test_skills_behind_the_gateway(scenario, front, era, tmp_path):
    """Of one server as it is, and of several as one, with URIs that name their servers."""
    command = [sys.executable, "-I", str(PROGRAMS / "skill_server.py"), era]
    other = {"command": sys.executable, "args": ["-I", str(SERVER), era]}
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"it": {"command": command[0], "args": command[1:]}, "other": other}}))
    args = ["--", *command] if front == "one" else ["--config", str(config)]
    async with served_over_http(*args) as (_, url):
        for revision in REVISIONS:
            address = f"{url}/it" if front == "named" else url
            found = await checks_of(address, scenario, revision, tmp_path / revision)
            assert len(found["SUCCESS"] - {"wire-schema-valid"}) > 3
            assert found.get("FAILURE", set()) == set()
            assert found.get("WARNING", set()) <= (QUALIFIED if front == "all" else set())


TASKS = {
    *("tasks-capability-negotiation", "tasks-dispatch-and-envelope", "tasks-lifecycle", "tasks-mrtr-composition"),
    *("tasks-mrtr-input", "tasks-request-headers", "tasks-request-state-removal", "tasks-required-task-error"),
    *("tasks-status-notifications", "tasks-wire-fields"),
}
ONLY_A_PLACE = "tasks-status-notifications"
"""A scenario without a check."""
DRIVEN = "tasks-required-task-error"
"""The gateway follows the task of a client that does not, unless the entry has the server told of no extension."""


def test_no_scenario_of_tasks_is_left_out():
    assert {name for name in of_extensions("server") if name.startswith("tasks")} == TASKS


@pytest.mark.night
@pytest.mark.parametrize("front", ["one", "named"])
@pytest.mark.parametrize("scenario", sorted(TASKS - {ONLY_A_PLACE}))
async def test_tasks_behind_the_gateway(scenario, front, tmp_path):
    """All that the server passes by itself."""
    command, revision = [sys.executable, "-I", str(SERVER), "modern"], "2026-07-28"
    entry = {"command": command[0], "args": command[1:]} | ({"extensions": {}} if scenario == DRIVEN else {})
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": {"it": entry}}))
    async with over_http("modern", tmp_path) as url:
        alone = await checks_of(url, scenario, revision, tmp_path / "alone")
    args = ["--", *command] if front == "one" and scenario != DRIVEN else ["--config", str(config)]
    async with served_over_http(*args) as (_, url):
        address = url if front == "one" and scenario != DRIVEN else f"{url}/it"
        async with http_client(address, revision) as client:
            await client.ask(request(revision, 1, "tools/list"))  # the suite waits only seconds for a first start
        found = await checks_of(address, scenario, revision, tmp_path / "behind")
    passed = alone["SUCCESS"] - alone.get("FAILURE", set())
    assert passed - {"wire-schema-valid"}
    assert passed <= found["SUCCESS"] - found.get("FAILURE", set())
