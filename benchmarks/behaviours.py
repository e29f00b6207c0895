"""Libraries and gateways in the same scenarios with a server that misbehaves: what each of them is seen to do.

Each scenario of a contender is a process of its own with a time limit. All is run twice. A cell has what was seen both
times, with the span of the seconds; what differs is said to vary. `--write` puts all into results/behaviours.json, and
the tables into docs/explanation/comparison.md; `--page` does the latter alone, without a run.
"""

import argparse
import itertools
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from environments import REQUIREMENTS, CannotInstall, installed_version, npm_program, python_of
from gateway import tree
from harness import HERE, machine

RESULTS = HERE / "results" / "behaviours.json"
SERVER = [str(Path(sys.executable).resolve()), "-I", "-S", str(HERE / "peers" / "behaving_server.py")]
SUPERGATEWAY = "supergateway@4.0.0"
ROWS = {
    "between": "the server is killed between two calls: does a call succeed within 10 s?",
    "during": "the server dies during a call: when is the caller told, and also whether the server may have acted?",
    "twice": "how often has that call had its effect, 3 s and another call later?",
    "unanswered": "a call without an answer, with a timeout of 2 s: is the caller back, and is the server told?",
    "wedged": "one of two servers reads nothing any more: does a call to the other take less than 1 s?",
    "one_exits": "one of three servers exits at its start: are the tools of the other two there?",
    "one_silent": "one of three servers is silent at its start: are the tools of the other two there?",
    "noise": "20,000 lines of garbage on stdout before an answer: does the call come back?",
    "stderr": "200 MiB on stderr before an answer: does the call come back?",
    "ends": "the program ends: is a process that its server has started gone within 5 s?",
    "raises": "the program ends by an exception, or the gateway by SIGINT: is such a process gone?",
}
SCENARIOS = tuple(row for row in ROWS if row != "twice")
"""The row `twice` comes with `during`."""
LIMIT = 60.0
"""Seconds for one scenario."""
GONE_WITHIN = 5.0
AT_ONCE = 3
RUNS = 2


@dataclass(frozen=True)
class Contender:
    name: str
    environment: str
    script: str
    distribution: str
    """The package whose version is told."""
    arguments: tuple[str, ...] = ()
    gateway: Callable[[dict[str, list[str]], int, Path], list[str]] | None = None
    """The command that serves these servers on a port, at `/mcp`; a folder is for its files."""
    single: bool = False
    """Whether a gateway has one server."""
    on_http: bool = True


def nursery_serve(servers: dict[str, list[str]], port: int, folder: Path) -> list[str]:
    program = str(Path(sys.executable).with_name("mcp-nursery"))
    config = folder / "servers.json"
    entries = {name: {"command": command, "args": args} for name, (command, *args) in servers.items()}
    config.write_text(json.dumps({"mcpServers": entries}))
    return [program, "serve", "--no-project", "--config", str(config), "--http", f"127.0.0.1:{port}"]


def supergateway(servers: dict[str, list[str]], port: int, folder: Path) -> list[str]:  # noqa: ARG001
    (command,) = servers.values()
    options = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none", "--port", str(port)]
    return [*npm_program(SUPERGATEWAY), "--stdio", shlex.join(command), *options]


def hangar(servers: dict[str, list[str]], port: int, folder: Path) -> list[str]:  # noqa: ARG001
    """On standard streams: over HTTP it shows no tools to a client without an identity."""
    config = folder / "config.yaml"  # JSON is YAML
    document = {
        "mcp_servers": {name: {"mode": "subprocess", "command": command} for name, command in servers.items()},
        "tool_access": {"mode": "front_door"},
        "auth": {"stdio": {"principal": {"id": "local-user", "tenant_id": "local", "roles": ["viewer"]}}},
    }
    config.write_text(json.dumps(document))
    program = str(python_of("mcp-hangar").with_name("mcp-hangar"))
    return [program, "--config", str(config), "serve", "--log-level", "ERROR"]


LIBRARIES = (
    Contender("mcp-nursery", "here", "behave_nursery.py", "mcp-nursery"),
    Contender("FastMCP Client, one block", "fastmcp", "behave_fastmcp.py", "fastmcp", ("block",)),
    Contender("FastMCP Client, a block a call", "fastmcp", "behave_fastmcp.py", "fastmcp", ("each",)),
    Contender(
        "langchain-mcp-adapters, session a call",
        "langchain",
        "behave_langchain.py",
        "langchain-mcp-adapters",
        ("call",),
    ),
    Contender(
        "langchain-mcp-adapters, session stays",
        "langchain",
        "behave_langchain.py",
        "langchain-mcp-adapters",
        ("session",),
    ),
    Contender("mcp-use", "mcp-use", "behave_mcp_use.py", "mcp-use"),
)
GATEWAYS = (
    Contender("mcp-nursery serve", "sdk", "behave_gateway.py", "mcp-nursery", ("auto",), gateway=nursery_serve),
    Contender("supergateway", "sdk", "behave_gateway.py", "supergateway", ("auto",), gateway=supergateway, single=True),
    Contender(
        "supergateway, client of the handshake era",
        "sdk",
        "behave_gateway.py",
        "supergateway",
        ("legacy",),
        gateway=supergateway,
        single=True,
    ),
    Contender("mcp-hangar", "sdk", "behave_gateway.py", "mcp-hangar", ("auto",), gateway=hangar, on_http=False),
)
LEFT_OUT = {"1mcp": "npm has no package `@1mcp/agent` where this was run (404)"}
PAGE = HERE.parent / "docs" / "explanation" / "comparison.md"
CALLS = "tests/real/test_calls.py"
OUTPUT = "tests/real/test_output.py"
SUPERVISOR_PROOFS = {
    "between": "tests/real/test_restarts.py::test_a_loss_while_idle_is_noticed_and_mended",
    "during": f"{CALLS}::test_every_pending_call_learns_of_a_death",
    "twice": f"{CALLS}::test_a_side_effect_happens_once",
    "unanswered": f"{CALLS}::test_the_server_hears_of_every_kind_of_cancel",
    "wedged": f"{CALLS}::test_a_wedged_server_holds_nobody",
    "one_exits": "tests/real/test_restarts.py::test_the_failures_of_some_are_nothing_to_the_others",
    "one_silent": "tests/supervisor/test_gate_and_listing.py::test_four_ways_at_the_gate",
    "noise": f"{OUTPUT}::test_lines_that_are_no_json_are_counted",
    "stderr": f"{OUTPUT}::test_ten_megabytes_of_stderr_in_a_call",
    "ends": "tests/real/test_endings.py::test_nobody_of_a_server_outlives_it",
    "raises": "tests/real/test_endings.py::test_nobody_of_a_server_outlives_it",
}
GATEWAY_PROOFS = {
    "between": "tests/real/test_gateway.py::test_the_session_of_a_client_outlasts_its_server",
    "during": "tests/real/test_gateway.py::test_the_session_of_a_client_outlasts_its_server",
    "twice": "tests/real/test_gateway_kill_loop.py::test_every_request_is_answered_once_while_servers_are_killed",
    "unanswered": "tests/real/test_gateway_vanishing.py::test_a_call_is_cancelled_when_its_client_vanishes",
    "one_silent": "tests/real/test_first_lists.py::test_what_comes_after_the_gate_is_told",
}
"""What the gateway adds; the rest is proved for the supervisor that it runs."""
PROOFS = {"mcp-nursery": SUPERVISOR_PROOFS, "mcp-nursery serve": SUPERVISOR_PROOFS | GATEWAY_PROOFS}


# -- one scenario -----------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    text: str
    """With a `{}` for each figure."""
    seconds: list[float] = field(default_factory=list)


def servers_of(scenario: str, folder: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Commands and journals by name."""
    names = {"wedged": ("first", "second"), "one_exits": ("a", "b", "c"), "one_silent": ("a", "b", "c")}
    journals = {name: str(folder / f"{name}.journal") for name in names.get(scenario, ("only",))}
    commands = {name: [*SERVER, path, f"{name}_" if len(journals) > 1 else ""] for name, path in journals.items()}
    if scenario in ("one_exits", "one_silent"):
        commands["b"].append(scenario.removeprefix("one_"))
    return commands, journals


def run(contender: Contender, scenario: str, *, loud: bool = False) -> dict[str, Seen]:
    """The rows of one scenario."""
    if contender.single and scenario in ("wedged", "one_exits", "one_silent"):
        return {scenario: Seen("one server a gateway")}
    with tempfile.TemporaryDirectory(prefix="behaviours-") as name:
        folder = Path(name)
        servers, journals = servers_of(scenario, folder)
        job: dict[str, Any] = {"scenario": scenario, "servers": servers, "journals": journals}
        if contender.gateway is not None:
            port = free_port()
            job["gateway"] = contender.gateway(servers, port, folder)
            job["url"] = f"http://127.0.0.1:{port}/mcp" if contender.on_http else ""
        command = [str(python_of(contender.environment)), str(HERE / "contenders" / contender.script)]
        environment = os.environ | {
            "HOME": name,
            "XDG_STATE_HOME": f"{name}/state",
            "XDG_CONFIG_HOME": f"{name}/config",
            "XDG_CACHE_HOME": f"{name}/cache",
        }
        process = subprocess.Popen(
            [*command, json.dumps(job), *contender.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if loud else subprocess.DEVNULL,
            env=environment,
            cwd=name,
            start_new_session=True,
        )
        try:
            if scenario in ("ends", "raises"):
                return {scenario: at_the_end(process, folder)}
            return {row: Seen(**seen) for row, seen in heard(process, scenario).items()}
        finally:
            end(process, folder)


def heard(process: subprocess.Popen[bytes], scenario: str) -> dict[str, dict[str, Any]]:
    """What the contender says of its rows, until it has said all."""
    assert process.stdout is not None
    wanted = {"during", "twice"} if scenario == "during" else {scenario}
    rows: dict[str, dict[str, Any]] = {}
    until = time.monotonic() + LIMIT
    text = b""
    missing = f"hangs: nothing in {LIMIT:.0f} s"
    while wanted - set(rows) and select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
        data = os.read(process.stdout.fileno(), 1 << 16)
        if not data:
            missing = f"the program ended with {process.wait()}"
            break
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # a library may print something
                said = json.loads(line)
                rows[said.pop("row")] = said
    return {row: rows.get(row, {"text": missing}) for row in wanted}


def at_the_end(process: subprocess.Popen[bytes], folder: Path) -> Seen:
    """Whether the process that the server has started is gone soon after the program."""
    try:
        process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return Seen(f"the program has not ended in {LIMIT:.0f} s")
    ended = time.monotonic()
    children = [entry["child"] for entry in journal(folder) if entry["what"] == "child"]
    if not children:
        return Seen(f"the server was not asked; the program ended with {process.returncode}")
    while any(map(is_ours, children)):
        if time.monotonic() > ended + GONE_WITHIN:
            return Seen("no")
        time.sleep(0.05)
    return Seen("yes")


def journal(folder: Path) -> list[dict[str, Any]]:
    lines = itertools.chain.from_iterable(path.read_text().splitlines() for path in folder.glob("*.journal"))
    return [json.loads(line) for line in lines]


def is_ours(pid: int) -> bool:
    """Whether a process of that number is alive, and a server of this command or what one has started."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"behaving_server.py" in words or words == b"sleep\x007654\x00"


def end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Leave nothing behind: neither the contender, nor a gateway, nor servers, nor what they have started."""
    below = tree(process.pid) if process.poll() is None else []
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    for entry in journal(folder):
        for pid in (entry["pid"], entry.get("child", 0)):
            if pid and is_ours(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# -- all of them ------------------------------------------------------------------------------------------------------


def merged(seen: Sequence[Seen]) -> str:
    """What was seen each time, or that it varies."""
    if len({one.text for one in seen}) == 1:
        figures = [span(values) for values in zip(*(one.seconds for one in seen), strict=True)]
        return seen[0].text.format(*figures)
    return "varies: " + " / ".join(sorted({one.text.format(*map("{:.1f}".format, one.seconds)) for one in seen}))


def span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def observe(contenders: Sequence[Contender], scenarios: Sequence[str], runs: int, *, loud: bool) -> dict[str, Any]:
    """Cells by contender and row."""
    jobs = [(contender, scenario) for _ in range(runs) for contender in contenders for scenario in scenarios]
    found: dict[str, dict[str, list[Seen]]] = {contender.name: {} for contender in contenders}

    def one(job: tuple[Contender, str]) -> dict[str, Seen]:
        rows = run(*job, loud=loud)
        for row, seen in rows.items():
            print(f"{job[0].name}, {row}: {seen.text.format(*map('{:.1f}'.format, seen.seconds))}", file=sys.stderr)
        return rows

    with ThreadPoolExecutor(1 if loud else AT_ONCE) as pool:
        for (contender, _), rows in zip(jobs, pool.map(one, jobs), strict=True):
            for row, seen in rows.items():
                found[contender.name].setdefault(row, []).append(seen)
    return {name: {row: merged(rows[row]) for row in ROWS if row in rows} for name, rows in found.items()}


def version_of(contender: Contender) -> str:
    if contender.environment == "here" or contender.distribution == "mcp-nursery":
        return version(contender.distribution)
    if contender.distribution in REQUIREMENTS:
        return installed_version(python_of(contender.distribution), contender.distribution)
    if contender.environment == "sdk":
        return SUPERGATEWAY.rpartition("@")[2]
    return installed_version(python_of(contender.environment), contender.distribution)


def available(contenders: Sequence[Contender], left_out: dict[str, str]) -> list[Contender]:
    """Those that can be installed; the others get a reason."""
    there = []
    for contender in contenders:
        try:
            python_of(contender.environment)
            version_of(contender)
            if contender.single:
                npm_program(SUPERGATEWAY)
        except CannotInstall as reason:
            left_out[contender.name] = str(reason)
        else:
            there.append(contender)
    return there


def markdown(table: dict[str, dict[str, str]]) -> str:
    """Rows are scenarios, columns are contenders. A cell that a test here proves has a link to it."""

    def cell(name: str, row: str) -> str:
        text, proof = table[name].get(row, ""), PROOFS.get(name, {}).get(row)
        return f'{text} ([proof](../../{proof.partition("::")[0]} "{proof.partition("::")[2]}"))' if proof else text

    lines = [["", *table], ["---"] * (len(table) + 1)]
    lines += [[question, *(cell(name, row) for name in table)] for row, question in ROWS.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_page(document: dict[str, Any]) -> None:
    """Put the tables, and when and where they were made, between the marks of the page."""
    text = PAGE.read_text()
    of_each = [f"{name} {number}" for name, number in document["versions"].items()]
    parts = {
        "made": f"Seen on {document['date']}: {document['machine']}. {'; '.join(of_each)}.",
        "libraries": markdown(document["libraries"]),
        "gateways": markdown(document["gateways"]),
    }
    for name, part in parts.items():
        before, rest = text.split(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n\n{part}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="contenders whose name has one of these in it")
    parser.add_argument("--scenario", nargs="*", choices=SCENARIOS, default=SCENARIOS, help="these alone")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"{RUNS} by default")
    parser.add_argument("--loud", action="store_true", help="one at a time, with what they write on stderr")
    parser.add_argument("--write", action="store_true", help=f"write results/{RESULTS.name}")
    parser.add_argument("--page", action="store_true", help="write the page from the results that are there")
    options = parser.parse_args()
    if options.page:
        write_page(json.loads(RESULTS.read_text()))
        return
    left_out = dict(LEFT_OUT)
    wanted = [
        [one for one in group if not options.only or any(part.lower() in one.name.lower() for part in options.only)]
        for group in (LIBRARIES, GATEWAYS)
    ]
    there = [available(group, left_out) for group in wanted]
    started = machine()
    cells = observe([one for group in there for one in group], options.scenario, options.runs, loud=options.loud)
    document = {
        "date": f"{datetime.now(UTC):%F}",
        "machine": started,
        "runs": options.runs,
        "versions": {one.name: version_of(one) for group in there for one in group},
        "left_out": left_out,
        "rows": ROWS,
        "libraries": {one.name: cells[one.name] for one in there[0]},
        "gateways": {one.name: cells[one.name] for one in there[1]},
    }
    if options.write:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        write_page(document)
    print(started)
    for key in ("libraries", "gateways"):
        if document[key]:
            print(f"\n{markdown(document[key])}")
    for name, reason in left_out.items():
        print(f"\nLeft out: {name}: {reason}.")


if __name__ == "__main__":
    main()
