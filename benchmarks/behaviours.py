"""What clients do when a server misbehaves: observed, and not timed against each other.

    python benchmarks/behaviours.py [--json]

Each contender runs each scenario as a process of its own, as its documentation says, with a server that dies, stalls or
does not start. A cell is what was seen. `results/behaviours.json` has the last run; docs/explanation/comparison.md
shows it.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from environments import CannotInstall, installed_version, python_of
from harness import HERE, Contender, Worker, WorkerFailed

SERVER = [str(Path(sys.executable).resolve()), "-I", "-S", str(HERE / "peers" / "behaving_server.py")]
CONTENDERS = (
    Contender("mcp-nursery", "here", "nursery.py"),
    Contender("mcp-nursery, asyncio", "here", "portal.py", ("asyncio",)),
    Contender("SDK", "sdk", "sdk_client.py", ("asyncio",)),
    Contender("FastMCP", "fastmcp", "fastmcp_clients.py", ("multi",)),
    Contender("FastMCP ClientGroup", "fastmcp", "fastmcp_clients.py", ("group",)),
    Contender("langchain-mcp-adapters, a session", "langchain", "langchain_adapters.py"),
    Contender("langchain-mcp-adapters, one a call", "langchain", "langchain_adapters.py", ("each",)),
    Contender("mcp-use", "mcp-use", "mcp_use_client.py"),
)
PACKAGES = {"sdk": "mcp", "fastmcp": "fastmcp", "langchain": "langchain-mcp-adapters", "mcp-use": "mcp-use"}
PATIENCE = 15.0
"""Seconds after which a contender that has said nothing hangs."""
BACK = 10.0
"""Seconds within which a server that has died is to be of use again."""
TIMEOUT = 2.0
"""Seconds that a call may take."""


class Subject:
    """One contender with its servers."""

    def __init__(self, contender: Contender, servers: dict[str, list[str]], timeout: float) -> None:
        first = next(iter(servers))
        commands = {name: [*SERVER, *arguments] for name, arguments in servers.items()}
        plan = [(first, "echo", {"text": "hello"})]
        job = {"commands": commands, "plan": plan, "timeout": timeout}
        self.worker = Worker(contender, job, patience=PATIENCE)
        self.first = first
        self.worker.hear()  # it is connected, and has been answered

    def call(self, tool: str, text: str = "") -> dict[str, Any]:
        return self.worker.ask("call " + json.dumps([self.first, tool, {"text": text}]))


def after_a_death(contender: Contender, _folder: Path) -> str:
    subject = Subject(contender, {"lab": []}, BACK)
    try:
        with suppress(ProcessLookupError):  # of a session a call
            os.kill(int(subject.call("pid")["text"]), signal.SIGKILL)
        began, last = time.monotonic(), ""
        while time.monotonic() < began + BACK:
            found = subject.call("echo", "again")
            if found["text"] == "again":
                return f"yes, after {time.monotonic() - began:.0f} s"
            last = found["error"]
            time.sleep(0.25)
        return f"no: {last}"
    finally:
        subject.worker.close()


def death_in_a_call(contender: Contender, _folder: Path) -> str:
    subject = Subject(contender, {"lab": []}, BACK)
    try:
        found = subject.call("die")
        known = f", delivery {found['delivery']}" if found["delivery"] else ""
        return f"after {found['seconds']:.1f} s: {found['error']}{known}"
    finally:
        subject.worker.close()


def no_answer(contender: Contender, folder: Path) -> str:
    log = folder / "log"
    subject = Subject(contender, {"lab": [f"log={log}"]}, TIMEOUT)
    try:
        found = subject.call("stall")
        time.sleep(1)
        told = "told" if log.exists() else "not told"
        return f"after {found['seconds']:.1f} s, the server is {told}"
    finally:
        subject.worker.close()


def one_does_not_start(contender: Contender, _folder: Path) -> str:
    began = time.monotonic()
    subject = Subject(contender, {"good": [], "bad": ["fails"], "fine": []}, BACK)
    try:
        return f"yes, after {time.monotonic() - began:.0f} s" if subject.call("echo", "x")["text"] == "x" else "no"
    finally:
        subject.worker.close()


def spent_once(contender: Contender, folder: Path) -> str:
    purse = folder / "purse"
    subject = Subject(contender, {"lab": []}, BACK)
    try:
        subject.call("spend", str(purse))
        time.sleep(4)  # long enough for a restart, and for a second try
        with suppress(WorkerFailed):
            subject.call("echo", "x")
        return {1: "once", 2: "twice"}.get(len(purse.read_text().splitlines()), "more than twice")
    finally:
        subject.worker.close()


def grandchildren(contender: Contender, _folder: Path) -> str:
    subject = Subject(contender, {"lab": []}, BACK)
    try:
        pid = int(subject.call("child")["text"])
    finally:
        subject.worker.close()
    time.sleep(1)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return "gone"
    return "left behind"


SCENARIOS: dict[str, Callable[[Contender, Path], str]] = {
    "its server has died: is the next call answered, within 10 s, without code of the user?": after_a_death,
    "the server dies in a call: when does the caller know?": death_in_a_call,
    "no answer: is the caller back after its timeout of 2 s?": no_answer,
    "one of three servers does not start: can the others be called?": one_does_not_start,
    "a call with an effect, in which the server dies: how often was it done?": spent_once,
    "a process that the server has started, after the end of the program": grandchildren,
}


def seen(scenario: Callable[[Contender, Path], str], contender: Contender) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return scenario(contender, Path(folder))
        except WorkerFailed as error:
            return "hangs" if "said nothing" in str(error) else "no: the program ends"


def version_of(contender: Contender) -> str:
    if contender.environment == "here":
        return "this commit"
    return installed_version(python_of(contender.environment), PACKAGES[contender.environment])


def table(document: dict[str, Any]) -> str:
    """Markdown: a row for each scenario."""
    names = list(document["versions"])
    head = [f"seen on {document['date']}", *(f"{name} ({document['versions'][name]})" for name in names)]
    rows = [[scenario, *(cells[name] for name in names)] for scenario, cells in document["seen"].items()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    document: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "versions": {}, "seen": {}}
    for contender in CONTENDERS:
        try:
            document["versions"][contender.name] = version_of(contender)
        except CannotInstall as error:
            print(f"{contender.name} is left out: {error}", file=sys.stderr)
    for name, scenario in SCENARIOS.items():
        document["seen"][name] = {
            contender.name: seen(scenario, contender)
            for contender in CONTENDERS
            if contender.name in document["versions"]
        }
        print(name, document["seen"][name], file=sys.stderr)
    print(json.dumps(document, indent=1) if "--json" in sys.argv else table(document))


if __name__ == "__main__":
    main()
