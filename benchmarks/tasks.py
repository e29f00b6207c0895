"""The costs of tasks that calls wait for: bytes of the host for each, and requests a second to their server."""

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import plot
import psutil
import trio
from harness import Table, command, verdict

from mcp_nursery.supervisor import MemoryStore, ServerSpec, StdioTransport, Supervisor, open_supervisor

PEER = Path(__file__).parent / "peers" / "tasks_server.py"
PICTURE = Path(__file__).parent / "tasks.svg"
NOTIFIES, POLLED = "notifies", "does not, every 5 s"
AT_ONCE = 200
"""Calls that are made at once: a server has room for 512."""
SETTLED = 90.0
"""Seconds after which the server has been asked for notifications about all of them."""
WATCHED = 60.0
"""Seconds in which requests are counted."""
MOST_BYTES, MOST_REQUESTS = 8192, 1.0


async def counted(supervisor: Supervisor) -> tuple[int, int]:
    """The tasks that the server has made, and the requests that it got about them."""
    made, asked = json.loads((await supervisor.call_tool("count", server="lab", timeout=60)).full_text)
    return made, asked


async def one(tasks: int, notifies: bool) -> dict[str, float]:  # noqa: FBT001
    arguments = ["-I", "-S", str(PEER), *(["notifies"] if notifies else [])]
    spec = ServerSpec("lab", StdioTransport(sys.executable, arguments))
    async with open_supervisor([spec], gate=20, state=MemoryStore()) as supervisor, trio.open_nursery() as nursery:

        async def begin(count: int) -> None:
            before, _ = await counted(supervisor)
            for _ in range(count):
                nursery.start_soon(supervisor.call_tool, tools["work"])
            while (await counted(supervisor))[0] < before + count:  # noqa: ASYNC110 - it is another process
                await trio.sleep(0.05)

        tools = {tool.tool: tool.name for tool in await supervisor.list_tools()}
        await begin(10)
        gc.collect()
        resident = psutil.Process().memory_info().rss
        for done in range(0, tasks, AT_ONCE):
            await begin(min(AT_ONCE, tasks - done))
        await trio.sleep(SETTLED)
        gc.collect()
        taken = psutil.Process().memory_info().rss - resident
        _, before = await counted(supervisor)
        await trio.sleep(WATCHED)
        _, after = await counted(supervisor)
        nursery.cancel_scope.cancel()
    return {"bytes": taken / tasks, "requests": (after - before) / WATCHED}


def run(what: tuple[int, bool]) -> dict[str, float]:
    """The figures, of a process of its own, of so many tasks of a server that notifies or does not."""
    tasks, notifies = what
    ours = [sys.executable, __file__, "--one", str(tasks), *(["--notifies"] if notifies else [])]
    found: dict[str, float] = json.loads(subprocess.run(ours, capture_output=True, check=True).stdout)
    return found


def subject(options: argparse.Namespace) -> Iterator[Table]:
    sizes = (100, 1_000) if options.quick else (100, 1_000, 10_000)
    runs = [(tasks, True) for tasks in sizes] + [(tasks, False) for tasks in sizes[:2]]
    with ThreadPoolExecutor(len(runs)) as threads:  # at the same time, because no time is measured
        found = dict(zip(runs, threads.map(run, runs), strict=True))
    PICTURE.write_text(plot.tasks({size: found[size] for size in runs}))
    rows: dict[str, dict[str, Any]] = {
        f"{tasks:,} of a server that {NOTIFIES if notifies else POLLED}": found[tasks, notifies]
        for tasks, notifies in runs
    }
    cells = [[name, f"{each['bytes']:,.0f}", f"{each['requests']:.2f}"] for name, each in rows.items()]
    most = found[sizes[-1], True]
    notes = [
        verdict(most["bytes"], MOST_BYTES, "bytes of a task"),
        verdict(most["requests"], MOST_REQUESTS, "requests a second to a server that notifies"),
    ]
    header = ["tasks", "bytes each", "requests a second"]
    yield Table("Tasks that calls wait for, at one stdio server", header, cells, rows, notes)


if __name__ == "__main__":
    if "--one" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one", type=int)
        parser.add_argument("--notifies", action="store_true")
        single = parser.parse_args()
        print(json.dumps(trio.run(one, single.one, single.notifies)))
    else:
        command(subject, rounds=1)
