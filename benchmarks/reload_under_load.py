"""What a reload costs the servers that it does not change: ten servers under 200 calls a second, one of which changes.

Each call is started on time, whatever became of those before it. No call is sent a second time, so that a lost one is
seen. The changed server takes a second to end: a call that waited for the reload would take as long.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator

import trio
from attrs import evolve
from harness import ECHO, Table, command

from mcp_nursery.supervisor import NurseryError, ServerSpec, StdioTransport, Supervisor, open_supervisor

SERVERS, RATE, SECONDS = 10, 200, 2.0
CHANGED = "s0"
SLOW = (
    "import atexit, runpy, sys, time; atexit.register(time.sleep, 1); runpy.run_path(sys.argv[1], run_name='__main__')"
)
"""The peer, but that it takes a second to end."""


class Load:
    """Calls to all servers in turn, at an even rate, and what became of those to servers that are left alone."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.took: list[float] = []
        self.failed = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            for number in range(round(RATE * SECONDS)):
                await trio.sleep_until(began + number / RATE)
                nursery.start_soon(self._call, f"s{number % SERVERS}", began + number / RATE)

    async def _call(self, server: str, due: float) -> None:
        try:
            await self.supervisor.call_tool("echo", {"text": "x"}, server=server, resend="never")
        except NurseryError:
            self.failed += server != CHANGED
        if server != CHANGED:
            self.took.append(trio.current_time() - due)


async def measured() -> tuple[Load, Load, float]:
    """Without a reload, with one, and how long that took."""
    specs = [
        ServerSpec(f"s{n}", StdioTransport(ECHO[0], ["-I", "-c", SLOW, ECHO[-1]] if n == 0 else ECHO[1:]))
        for n in range(SERVERS)
    ]
    async with open_supervisor(specs, gate=60) as supervisor:
        quiet, busy = Load(supervisor), Load(supervisor)
        await quiet.run()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.run)
            await trio.sleep(SECONDS / 4)
            began = time.perf_counter()
            event = await supervisor.reload([evolve(specs[0], description="other"), *specs[1:]])
            took = time.perf_counter() - began
        assert event.changed == (CHANGED,)
        assert {one.incarnation for one in supervisor.status()[1:]} == {1}
    return quiet, busy, took


def reload_under_load(options: argparse.Namespace) -> Iterator[Table]:
    """The table."""
    loads: dict[str, list[Load]] = {"without a reload": [], "one of ten changed": []}
    reloads: list[float] = []
    for _ in range(options.rounds):
        quiet, busy, took = trio.run(measured)
        loads["without a reload"].append(quiet)
        loads["one of ten changed"].append(busy)
        reloads.append(took)
    rows: list[list[str]] = []
    for name, each in loads.items():
        times = sorted(took for load in each for took in load.took)
        cuts = (statistics.median(times), times[int(len(times) * 0.99)], times[-1])
        failed = sum(load.failed for load in each)
        rows.append([name, str(len(times)), str(failed), *(f"{cut * 1e3:.1f}" for cut in cuts)])
    header = ["calls to the nine others", "calls", "failed", "p50 (ms)", "p99", "longest"]
    note = f"The reload took {statistics.median(reloads):.2f} s, which is the changed server's end."
    yield Table(f"A reload under {RATE} calls a second", header, rows, {"reloads": reloads, "rows": rows}, [note])


if __name__ == "__main__":
    sys.exit(command(reload_under_load, rounds=8))
