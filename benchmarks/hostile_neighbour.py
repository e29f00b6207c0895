"""What one hostile server costs everybody else: the longest turn of the loop, a neighbour's calls, deadlines, memory;
and what hostile clients cost a gateway, and its other clients.

Each attack has a process of its own, in which one supervisor keeps the attacker and a quiet neighbour. CPU of a turn is
the fairer figure on a machine that does other things as well.
"""

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import trio
from harness import ECHO, Table, command, verdict
from hostile_clients import clients
from mcp_types import CreateMessageResult

from mcp_nursery.supervisor import (
    NurseryError,
    ServerSpec,
    StdioTransport,
    Supervisor,
    WebSocketTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import Callbacks

PEERS = Path(__file__).parent / "peers"
sys.path[:0] = [str(PEERS), str(Path(__file__).parents[1])]

from fragments_server import FLOODS  # noqa: E402 - beside this file, and no package
from hostile_server import ATTACKS, DECLARED, LONG_LIST, MODELS, SCHEMAS, TASKS, UNREAD  # noqa: E402
from hostile_server import FLOODS as LASTING  # noqa: E402

from tests.attack.figures import Turns  # noqa: E402

BOUND = 0.05
"""Seconds that a turn of the loop may take for messages up to 8 MiB, and a deadline be late."""
MOST_MEMORY = 250 << 20
"""Bytes by which a host may grow."""
TIMEOUT = 2.0
QUIET, LEAST = 1.0, 0.5
"""Seconds of calls to the neighbour before the attack, and at least beside it."""
BEYOND = 32 << 10
FROZEN = ", after gc.freeze()"
"""Behind the name of an attack: on a host that has frozen what it has after its start, as the docs advise."""
LARGE = ("letters", "escapes", "half characters", "{} without end", "a notification, one text", "structure in a text")


class Neighbour:
    """Calls one quiet server again and again, and sets deadlines."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.calls: list[float] = []
        self.late = 0.0
        self.lost = 0

    async def call(self) -> None:
        while True:
            began = trio.current_time()
            try:
                await self._supervisor.call_tool("echo", {"text": "heard?"}, server="calm", timeout=1)
            except NurseryError:
                self.lost += 1
            self.calls.append(trio.current_time() - began)
            await trio.sleep(0.002)

    async def set_deadlines(self) -> None:
        while True:
            due = trio.current_time() + 0.01
            with trio.move_on_at(due):
                await trio.sleep_forever()
            self.late = max(self.late, trio.current_time() - due)

    def p99(self) -> float:
        calls, self.calls = self.calls, []
        return statistics.quantiles(calls, n=100)[-1] if len(calls) > 1 else calls[0]


@asynccontextmanager
async def attacker(attack: str, size: int) -> AsyncGenerator[ServerSpec, None]:
    if attack not in FLOODS:
        tools = "4998" if attack.startswith("list_changed") else "1"
        declared = attack.removesuffix(FROZEN)
        given = [str(size), tools, *([declared] if declared in {*SCHEMAS, *DECLARED, *TASKS} else [])]
        peer = StdioTransport(sys.executable, ["-I", "-S", str(PEERS / "hostile_server.py"), *given])
        yield ServerSpec("bad", peer)
        return
    async with trio.open_nursery() as nursery:
        peer = [sys.executable, str(PEERS / "fragments_server.py")]
        opening = partial(trio.run_process, peer, stdout=subprocess.PIPE, check=False)
        process = await nursery.start(opening)
        port = int(await process.stdout.receive_some())
        yield ServerSpec("bad", WebSocketTransport(f"ws://127.0.0.1:{port}/"))
        nursery.cancel_scope.cancel()


async def one(attack: str, size: int, state: str) -> dict[str, Any]:
    turns = Turns()
    calm = ServerSpec("calm", StdioTransport(ECHO[0], ECHO[1:]))
    callbacks = Callbacks(sample=think)
    async with (
        attacker(attack, size) as bad,
        open_supervisor([calm, bad], gate=20, state=state, callbacks=callbacks) as supervisor,
    ):
        await supervisor.list_tools()
        await supervisor.call_tool("attack", {"attack": "none"}, server="bad", timeout=10)
        if attack.endswith(FROZEN):
            attack = attack.removesuffix(FROZEN)
            gc.collect()
            gc.freeze()
        neighbour = Neighbour(supervisor)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour.call)
            nursery.start_soon(neighbour.set_deadlines)
            await trio.sleep(QUIET)
            quiet, neighbour.late = neighbour.p99(), 0.0
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            turns.before_task_step(trio.lowlevel.current_task())
            trio.lowlevel.add_instrument(turns)
            began = trio.current_time()
            said = await outcome(supervisor, attack)
            took = trio.current_time() - began
            await trio.sleep(max(LEAST, lasts(attack) - took))
            trio.lowlevel.remove_instrument(turns)
            beside = neighbour.p99()
            nursery.cancel_scope.cancel()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    return {
        "turn_wall": turns.wall,
        "turn_cpu": turns.cpu,
        "slowest": turns.slowest,
        "quiet_p99": quiet,
        "beside_p99": beside,
        "late": neighbour.late,
        "overtime": max(0.0, took - TIMEOUT),
        "lost": neighbour.lost,
        "outcome": said,
        "memory": memory << 10,
    }


async def think(_: object) -> CreateMessageResult:
    """A user who takes his time."""
    await trio.sleep_forever()
    raise AssertionError


def lasts(attack: str) -> float:
    """Seconds that are looked at, whenever its call is answered."""
    return 8 if attack.startswith("list_changed") else 6 if attack in (*UNREAD, *LASTING, LONG_LIST) else 0


async def outcome(supervisor: Supervisor, attack: str) -> str:
    tool = "pattern" if attack in SCHEMAS else "attack"
    try:
        if attack in DECLARED:
            return await use(supervisor, attack)
        result = await supervisor.call_tool(tool, {"attack": attack}, server="bad", timeout=TIMEOUT)
    except NurseryError as error:
        return f"{type(error).__name__}: {str(error)[:90]}"
    return f"{len(result.full_text)} characters"


async def use(supervisor: Supervisor, declared: str) -> str:
    """The work of a host that what the server declares is made for."""
    if declared == MODELS:
        found = await supervisor.as_toolset(search=True).run("find_tools", {"query": "sprawling", "limit": 20})
        return f"{len(found.text)} characters"
    result = await supervisor.read_resource(f"x:{'b-' * 80}", timeout=TIMEOUT)
    return f"{len(result.full_text)} characters"


def run(attack: str, size: int) -> dict[str, Any]:
    """The figures of one attack, in a process of its own."""
    ours = [sys.executable, __file__, "--one", attack, "--size", str(size)]
    ran = subprocess.run(ours, capture_output=True, text=True, timeout=300, check=False)
    if ran.returncode:
        return {"failed": (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1][:200]}
    return json.loads(ran.stdout.splitlines()[-1])


def text_alone(size: int) -> float:
    """Seconds orjson takes for one string of so many KiB."""
    frame = b'"' + b"a" * (size << 10) + b'"'
    began = time.thread_time()
    orjson.loads(frame)
    return time.thread_time() - began


def subject(options: argparse.Namespace) -> Iterator[Table]:
    attacks = [*ATTACKS, *DECLARED, f"{MODELS}{FROZEN}", f"list_changed without end{FROZEN}", *FLOODS]
    if options.only:
        attacks = [attack for attack in attacks if any(part.lower() in attack.lower() for part in options.only)]
    if attacks:
        yield table(8 << 10, attacks[::4] if options.quick else attacks, BOUND)
    yield from clients(options)
    if large := [attack for attack in LARGE if attack in attacks and not options.quick]:
        yield table(BEYOND, large, max(BOUND, 3 * statistics.median(text_alone(BEYOND) for _ in range(5))))


def table(size: int, attacks: list[str], bound: float) -> Table:
    found = {attack: run(attack, size) for attack in attacks}
    fine = [each for each in found.values() if "failed" not in each]
    rows = [[name, *_cells(each)] for name, each in found.items()]
    notes = [
        verdict(max(each["turn_cpu"] for each in fine) * 1e3, bound * 1e3, "CPU of the longest turn", unit=" ms"),
        verdict(max(each["late"] for each in fine) * 1e3, bound * 1e3, "the latest deadline", unit=" ms"),
        verdict(
            max(each["beside_p99"] - each["quiet_p99"] for each in fine) * 1e3,
            bound * 1e3,
            "p99 over quiet",
            unit=" ms",
        ),
        verdict(max(each["memory"] for each in fine) / (1 << 20), MOST_MEMORY >> 20, "memory", unit=" MiB"),
    ]
    header = [
        "",
        "turn, CPU",
        "wall",
        "whose",
        "p99 quiet",
        "beside",
        "deadline late",
        "over time",
        "memory",
        "outcome",
    ]
    return Table(f"One message of {size >> 10} MiB (ms)", header, rows, found, notes)


def _cells(each: dict[str, Any]) -> list[str]:
    if "failed" in each:
        return [each["failed"], *[""] * 8]
    times = [
        f"{each[key] * 1e3:.0f}" for key in ("turn_cpu", "turn_wall", "quiet_p99", "beside_p99", "late", "overtime")
    ]
    lost = f" ({each['lost']} calls of the neighbour lost)" if each["lost"] else ""
    said = each["outcome"].replace("|", "/") + lost
    return [*times[:2], each["slowest"], *times[2:], f"{each['memory'] >> 20} MiB", said]


if __name__ == "__main__":
    if "--one" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one")
        parser.add_argument("--size", type=int)
        single = parser.parse_args()
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(trio.run(one, single.one, single.size, f"{folder}/state.db")))
    else:
        command(subject, rounds=1)
