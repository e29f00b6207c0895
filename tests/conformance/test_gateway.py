"""The official server scenarios, through the gateway, in front of a server of either era."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ..real.gateways import served_over_http
from .suite import suite

pytestmark = pytest.mark.ci

SERVER = Path(__file__).parents[1] / "servers" / "conformance_server.py"
REVISIONS = {"2025-11-25": 30, "2026-07-28": 37}
ASKING = "input-required-"
"""Of scenarios in which the server asks. They leave calls waiting for their client, and meanwhile a server on a single
stream that asks by requests can ask nobody else: each has a gateway of its own then."""


NOT_YET = {("2026-07-28", "handshake"): {"input-required-result-ignore-extra-params"}}
"""It comes back without what it was told to bring. That is a call of its own, while the first one is still held."""


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


async def run(url, revision, folder, *scenario):
    command = [*suite(), "server", "--url", url, "--output-dir", str(folder)]
    command += ["--scenario", *scenario, "--spec-version", revision] if scenario else ["--requirements", revision]
    with trio.fail_after(240):
        return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)


def gateway(era):
    return served_over_http("--", sys.executable, "-I", str(SERVER), era)


@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_gateway_is_invisible_to_the_official_suite(revision, era, tmp_path):
    wanted = required(revision)
    assert len(wanted) == REVISIONS[revision]
    async with gateway(era) as (_, url):
        ran = await run(url, revision, tmp_path / "all")
    passed = verdicts(tmp_path / "all")
    if era == "handshake":
        async with trio.open_nursery() as nursery:
            limit = trio.CapacityLimiter(3)
            for name in (name for name in wanted if name.startswith(ASKING)):
                nursery.start_soon(run_alone, limit, revision, era, tmp_path / name, name)
        for name in (name for name in wanted if name.startswith(ASKING)):
            passed[name] = verdicts(tmp_path / name).get(name)
    failed = {name for name in wanted if not passed.get(name)}
    assert failed <= NOT_YET.get((revision, era), set()), ran.stdout.decode()[-3000:]


async def run_alone(limit, revision, era, folder, name):
    async with limit, gateway(era) as (_, url):
        await run(url, revision, folder, name)
