"""(g) Starting: commands, imports and first answers against `import mcp`, each in a fresh process with warm caches.

Modules are compiled before, as in an installation that was used once: into a folder of this run's own.
"""

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from harness import Samples, Table, command, ratio_table, verdict

IMPORT_MCP, HELP = "import mcp", "mcp-nursery --help"
IMPORT_OURS = "import open_supervisor"
PROGRAM = str(Path(sys.executable).parent / "mcp-nursery")
COMMANDS = {
    IMPORT_MCP: [sys.executable, "-c", "import mcp"],
    HELP: [PROGRAM, "--help"],
    "mcp-nursery status --help": [PROGRAM, "status", "--help"],
    "import mcp_nursery.supervisor": [sys.executable, "-c", "import mcp_nursery.supervisor"],
    IMPORT_OURS: [sys.executable, "-c", "from mcp_nursery.supervisor import open_supervisor"],
    "import trio": [sys.executable, "-c", "import trio"],
    "Python alone": [sys.executable, "-c", "pass"],
}


SERVER = """
import json, sys
tools = [{"name": f"tool_{n}", "inputSchema": {"type": "object"}} for n in range(20)]
answers = {
    "initialize": {
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
    },
    "tools/list": {"tools": tools},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        said = answers.get(message["method"])
        found = {"result": said} if said else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **found}), flush=True)
"""
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
COMMAND_ALONE, COLD = "the command alone", "serve -- COMMAND, cold"
WARM, WARM_HTTP = "serve --config, warm", "serve --http, warm"
STATUS, CALL, IMPORT_TYPES = "status", "call", "import mcp_types"


def message(method: str, params: dict[str, Any], request_id: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()


def first_list(program: list[str], samples: Samples) -> None:
    """To the answer of a first `tools/list` on standard streams."""
    wall, cpu = time.perf_counter(), children_cpu()
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        answer = exchange(process)
        samples.wall.append(time.perf_counter() - wall)
        assert len(json.loads(answer)["result"]["tools"]) == 20
        assert process.stdin is not None
        process.stdin.close()
    samples.cpu.append(children_cpu() - cpu)


def exchange(process: subprocess.Popen[bytes]) -> bytes:
    """The answer of a first `tools/list`."""
    assert process.stdin is not None
    assert process.stdout is not None
    answer = b""
    for request_id, (method, params) in enumerate([("initialize", HELLO), ("tools/list", {})]):
        process.stdin.write(message(method, params, request_id) + b"\n")
        process.stdin.flush()
        while json.loads(answer := process.stdout.readline()).get("id") != request_id:
            pass
    return answer


def first_list_over_http(program: list[str], samples: Samples) -> None:
    wall, cpu = time.perf_counter(), children_cpu()
    with subprocess.Popen(program, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while (found := re.search(rb"serving on (\S+)", process.stderr.readline())) is None:
            pass
        url, headers = found[1].decode(), dict(JSON)
        for request_id, (method, params) in enumerate([("initialize", HELLO), ("tools/list", {})]):
            with urlopen(Request(url, message(method, params, request_id), headers)) as answer:
                headers |= {"mcp-session-id": answer.headers.get("mcp-session-id", headers.get("mcp-session-id", ""))}
                said = answer.read()
        samples.wall.append(time.perf_counter() - wall)
        assert said.count(b'"inputSchema"') == 20
        process.terminate()
        process.stderr.read()
    samples.cpu.append(children_cpu() - cpu)


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(program: list[str], samples: Samples) -> None:
    wall, cpu = time.perf_counter(), children_cpu()
    subprocess.run(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    samples.wall.append(time.perf_counter() - wall)
    samples.cpu.append(children_cpu() - cpu)


def whole_commands(options: argparse.Namespace) -> Table:
    samples = {name: Samples() for name in COMMANDS}
    for program in COMMANDS.values():
        run(program, Samples())
    for _ in range(options.rounds):
        for name in random.sample(list(COMMANDS), len(COMMANDS)):
            run(COMMANDS[name], samples[name])
    figures = {name: one.summary() for name, one in samples.items()}
    table = ratio_table("From the start of the process to its end", figures, base=IMPORT_MCP, unit="ms")
    for name, target in ((HELP, 0.35), (IMPORT_OURS, 0.5)):
        ratio = figures[name]["wall_p25"] / figures[IMPORT_MCP]["wall_p25"]
        table.notes.append(verdict(ratio, target, f"wall p25 of `{name}` against `{IMPORT_MCP}`"))
    return table


def first_answers(options: argparse.Namespace, folder: Path) -> Table:
    server, config = folder / "server.py", folder / "servers.json"
    server.write_text(SERVER)
    config.write_text(json.dumps({"mcpServers": {"one": {"command": sys.executable, "args": [str(server)]}}}))
    alone, given = [sys.executable, str(server)], ["--config", str(config)]
    cases = {
        IMPORT_MCP: (run, COMMANDS[IMPORT_MCP]),
        IMPORT_TYPES: (run, [sys.executable, "-c", IMPORT_TYPES]),
        COMMAND_ALONE: (first_list, alone),
        COLD: (first_list, [PROGRAM, "serve", "--", *alone]),
        WARM: (first_list, [PROGRAM, "serve", *given]),
        WARM_HTTP: (first_list_over_http, [PROGRAM, "serve", *given, "--http", "127.0.0.1:0"]),
        STATUS: (run, [PROGRAM, "status", *given]),
        CALL: (run, [PROGRAM, "call", "mcp_one_tool_1", "--yes", *given]),
    }
    samples = {name: Samples() for name in cases}
    for measured, program in cases.values():
        measured(program, Samples())
    for _ in range(options.rounds):
        for name in random.sample(list(cases), len(cases)):
            measured, program = cases[name]
            measured(program, samples[name])
    figures = {name: one.summary() for name, one in samples.items()}
    table = ratio_table("From the start of the process to its first answers", figures, base=IMPORT_MCP, unit="ms")
    basis = figures[IMPORT_MCP]["wall_p25"]
    for name in (WARM, WARM_HTTP):
        table.notes.append(
            verdict(figures[name]["wall_p25"] / basis, 0.5, f"wall p25 of `{name}` against `{IMPORT_MCP}`")
        )
    for name, target, without in (
        (COLD, 0.3, [COMMAND_ALONE]),
        (STATUS, 0.5, [COMMAND_ALONE]),
        (CALL, 0.5, [COMMAND_ALONE, IMPORT_TYPES]),
    ):
        more = (figures[name]["wall_p25"] - sum(figures[each]["wall_p25"] for each in without)) / basis
        known = " and ".join(f"`{each}`" for each in without)
        table.notes.append(verdict(more, target, f"wall p25 that `{name}` adds to {known}, against `{IMPORT_MCP}`"))
    return table


IMPORTED = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\w+)", re.MULTILINE)


def imports(folder: Path) -> Table:
    """What is imported until the first answers of a cold start, by package, as the interpreter counts it."""
    program = [sys.executable, "-X", "importtime", PROGRAM, "serve", "--", sys.executable, str(folder / "server.py")]
    written = folder / "imports"
    with written.open("w") as log:
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    with process:
        exchange(process)
        log_of_both = written.read_text()
        assert process.stdin is not None
        process.stdin.close()
    times: dict[str, list[int]] = {}
    for took, name in IMPORTED.findall(log_of_both):
        times.setdefault(name, []).append(int(took))
    longest = sorted(times.items(), key=lambda each: sum(each[1]), reverse=True)
    rows = [[name, str(len(each)), f"{sum(each) / 1e3:.1f}"] for name, each in longest[:20]]
    rows.append(["all", str(sum(map(len, times.values()))), f"{sum(map(sum, times.values())) / 1e3:.1f}"])
    title = f"What `{COLD}` imports until its first answers (one run, counted by the interpreter)"
    return Table(title, ["package", "modules", "ms"], rows, {}, [])


def subject(options: argparse.Namespace) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as name:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ |= {"PYTHONPYCACHEPREFIX": f"{name}/compiled", "XDG_STATE_HOME": f"{name}/state"}
        yield whole_commands(options)
        yield first_answers(options, Path(name))
        yield imports(Path(name))


if __name__ == "__main__":
    command(subject, rounds=24)
