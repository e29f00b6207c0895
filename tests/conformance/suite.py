"""Runs a scenario of the official conformance suite against a client program, and says whether it was passed."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import trio
from attrs import frozen

from ..interop.installing import npm_package
from .script import TIME

PACKAGE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
CLIENTS = {"supervisor": "tests.conformance.client", "sdk": "tests.conformance.sdk_client"}
"""Modules that can be run with a URL."""

CLIENT_TIME = TIME + 10
"""Seconds the suite gives a client; its own 30 are few for all at once on two cores."""

_ROOT = Path(__file__).parents[2]
_OF_ANY_SCENARIO = {"wire-schema-valid", "wire-schema-harness-error"}
"""Checks that say nothing of the scenario itself."""


@frozen
class Result:
    """What the suite says of one scenario."""

    revision: str
    scenario: str
    successes: int
    failures: int
    """Warnings included: the suite takes a scenario with one for failed."""
    passed: bool
    """Nothing failed, and something succeeded: the suite takes a scenario without a check for passed."""
    output: str
    """All that the suite printed, and the client."""

    @property
    def row(self) -> str:
        """Its row of the table."""
        verdict = "passed" if self.passed else "not passed"
        return f"| {self.scenario} | {self.revision} | {self.successes} | {self.failures} | {verdict} |"


HEAD = "| Scenario | Revision | Successes | Failures | Verdict |\n|---|---|---|---|---|"
"""Of the table."""


def suite() -> list[str]:
    """The command of the suite, installed at the first use."""
    return npm_package(PACKAGE, least_node=22)


async def run(revision: str, scenario: str, client: str = "supervisor") -> Result:
    """Run one scenario, with whatever the client starts, in a process group that ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*suite(), "client", "--command", f"'{sys.executable}' -m {CLIENTS[client]}"]
        command += ["--scenario", scenario, "--spec-version", revision, "--force"]
        command += ["--timeout", str(CLIENT_TIME * 1000), "--output-dir", folder]
        code = await _run(command, Path(folder, "suite.txt"))
        checks, output = _left_in(Path(folder))
    counts = Counter(check["status"] for check in checks if check["id"] not in _OF_ANY_SCENARIO)
    failures = sum(check["status"] in ("FAILURE", "WARNING") for check in checks)
    passed = code == 0 and counts["SUCCESS"] > 0
    return Result(revision, scenario, counts["SUCCESS"], failures, passed, output)


def _left_in(folder: Path) -> tuple[list[dict[str, str]], str]:
    """Each check that was made, and all that was printed."""
    checks = [check for path in folder.rglob("checks.json") for check in json.loads(path.read_text())]
    return checks, "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*.txt")))


async def _run(command: list[str], log: Path) -> int:
    with log.open("wb") as file:
        process = await trio.lowlevel.open_process(
            command,
            cwd=_ROOT,
            env={**os.environ, "NODE_NO_WARNINGS": "1"},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        with trio.fail_after(CLIENT_TIME + 60):
            return await process.wait()
    finally:
        with suppress(ProcessLookupError):  # none of the group is left
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()


def required(revision: str) -> Iterator[str]:
    """The client scenarios that the suite itself lists as required."""
    lines = _listed("--client", "--requirements", revision).partition("Client scenarios")[2].partition("\n\n")[0]
    return (line.strip().removeprefix("- ") for line in lines.splitlines()[1:])


def of_extensions(side: str) -> set[str]:
    """The scenarios of extensions that the suite has for a `client` or a `server`."""
    return set(re.findall(r"- (\S+) \[extension\]", _listed(f"--{side}")))


def _listed(*options: str) -> str:
    """What the suite prints of its scenarios."""
    command = [*suite(), "list", *options]
    said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
    return said.stdout
