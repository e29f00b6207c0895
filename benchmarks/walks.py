"""(j) How far one thing travels through the code: functions entered, files touched, jumps from file to file.

walks.py [--trace call|exit|config|start|reload]

One stdio server, everything loaded and done once before, no state file. Between the two marks of a walk each entry
into a function of the package counts (`sys.setprofile`), in whichever task of the loop's thread. A coroutine that goes
on after a wait is entered again. Functions and files count once each, and a jump is an entry into another file than
the entry before. Not counted: what attrs generates, comprehensions and lambdas, other packages, worker threads. The
round with the fewest jumps counts, since work of other tasks comes between in the others; `--trace` prints it.
"""

import argparse
import contextlib
import dis
import itertools
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import trio
import trio.testing
from harness import Table

from mcp_nursery.supervisor import (
    MemoryStore,
    RestartPolicy,
    ServerSpec,
    StdioTransport,
    Supervisor,
    load_config,
    open_supervisor,
)
from mcp_nursery.supervisor.events import StateChanged

PEER = str(Path(__file__).parent / "peers" / "echo_server.py")
ROUNDS = 5
DECISION = "RestartTracker.on_exit"
"""The method that decides about a restart."""


class Entry(NamedTuple):
    """One function entered."""

    file: str
    function: str
    resumed: bool
    """Whether it is a coroutine or generator that goes on."""

    def __str__(self) -> str:
        return f"{self.file}:{self.function}{' (goes on)' if self.resumed else ''}"


Steps = list[Entry]
End = Callable[[FrameType, str, Any], bool]


class Walk(NamedTuple):
    """What is walked, and how short it should be."""

    title: str
    rounds: Callable[[], AsyncGenerator[Steps, None]]
    functions: int
    files: int
    jumps: int


def figures(steps: Steps) -> tuple[int, int, int]:
    files = [entry.file for entry in steps]
    jumps = sum(one != other for one, other in itertools.pairwise(files))
    return len({(entry.file, entry.function) for entry in steps}), len(set(files)), jumps


@cache
def _body(code: CodeType) -> int:
    """Where a function's own code begins; a frame that is entered further on goes on."""
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


def _own(code: CodeType, frame: FrameType) -> bool:
    module: str = frame.f_globals.get("__name__", "")
    return module.startswith("mcp_nursery.") and not code.co_filename.startswith("<") and code.co_name[0] != "<"


def at_the_write(_: FrameType, event: str, arg: Any) -> bool:
    return event == "c_call" and arg is os.write


def at_the_decision(frame: FrameType, event: str, _: Any) -> bool:
    return event == "call" and frame.f_code.co_qualname == DECISION


def at_the_spawn(frame: FrameType, event: str, _: Any) -> bool:
    return event == "call" and frame.f_code is trio.lowlevel.open_process.__code__


@contextlib.contextmanager
def walking(until: End | None = None) -> Iterator[Steps]:
    """What is entered within the block, or until the end that is looked for.

    Raises:
        RuntimeError: That end was not seen.
    """
    steps: Steps = []

    def enter(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and _own(code, frame):
            file = code.co_filename.rpartition("mcp_nursery/")[2]
            steps.append(Entry(file, code.co_qualname, frame.f_lasti > _body(code)))
        if until and until(frame, event, arg):
            sys.setprofile(None)

    sys.setprofile(enter)
    try:
        yield steps
        if until and sys.getprofile() is enter:
            raise RuntimeError(f"{until.__name__}: not seen")
    finally:
        sys.setprofile(None)


def spec(*arguments: str) -> ServerSpec:
    return ServerSpec("lab", StdioTransport(sys.executable, args=[PEER, *arguments]))


async def quiet(supervisor: Supervisor) -> None:
    await supervisor.wait_connected("lab")
    await trio.testing.wait_all_tasks_blocked(0.1)


@contextlib.asynccontextmanager
async def host() -> AsyncGenerator[Supervisor, None]:
    policy = RestartPolicy(delays=[0.01], stable_after=0)
    async with open_supervisor([spec()], policy=policy, state=MemoryStore()) as supervisor:
        await quiet(supervisor)
        for _ in range(3):
            await supervisor.call_tool("mcp_lab_echo", {"text": "warm"}, timeout=30)
        yield supervisor


async def call() -> AsyncGenerator[Steps, None]:
    async with host() as supervisor:
        for _ in range(ROUNDS):
            await quiet(supervisor)
            with walking(at_the_write) as steps:
                await supervisor.call_tool("mcp_lab_echo", {"text": "hello"}, timeout=30)
            yield steps


async def exit_() -> AsyncGenerator[Steps, None]:
    async with host() as supervisor:
        for _ in range(ROUNDS):
            await quiet(supervisor)
            pid = supervisor.status()[0].pid
            assert pid
            async with supervisor.events() as events:
                with walking(at_the_decision) as steps:
                    os.kill(pid, signal.SIGKILL)
                    while not isinstance(await anext(events), StateChanged):
                        pass
            yield steps


async def config() -> AsyncGenerator[Steps, None]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"mcpServers": {"lab": {"command": sys.executable, "args": [PEER]}}}, file)
        file.flush()
        for _ in range(ROUNDS):
            with walking() as steps:
                load_config(file.name)
            yield steps


async def start() -> AsyncGenerator[Steps, None]:
    specs = [spec()]
    for _ in range(ROUNDS):
        with walking(at_the_spawn) as steps:
            async with open_supervisor(specs, state=MemoryStore()) as supervisor:
                await supervisor.wait_connected("lab")
        yield steps


async def reload() -> AsyncGenerator[Steps, None]:
    async with host() as supervisor:
        for number in range(ROUNDS):
            await quiet(supervisor)
            specs = [spec(f"round {number}")]
            with walking() as steps:
                await supervisor.reload(specs)
            yield steps


WALKS = {
    "call": Walk("`call_tool` to the write on the pipe", call, 30, 12, 20),
    "exit": Walk("SIGKILL of a server to the restart decision", exit_, 35, 11, 25),
    "config": Walk("a config file's entry to its spec", config, 35, 9, 25),
    "start": Walk("a spec to the running process", start, 80, 20, 60),
    "reload": Walk("`reload` with one changed spec", reload, 100, 20, 80),
}


async def shortest(walk: Walk) -> Steps:
    async with contextlib.aclosing(walk.rounds()) as rounds:
        found = [steps async for steps in rounds]
    return min(found[1:], key=lambda steps: figures(steps)[::-1])  # the first round loads what is loaded late


def main() -> None:
    logging.getLogger("mcp_nursery").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", choices=WALKS, help="print one walk, entry by entry")
    options = parser.parse_args()
    if options.trace:
        print(*trio.run(shortest, WALKS[options.trace]), sep="\n")
        return
    table = Table("Walks: what there is / what to reach", ["walk", "functions", "files", "jumps"], [], {})
    for walk in WALKS.values():
        found = figures(trio.run(shortest, walk))
        wanted = walk.functions, walk.files, walk.jumps
        table.rows.append([walk.title, *(f"{one} / {most}" for one, most in zip(found, wanted, strict=True))])
    print(table)


if __name__ == "__main__":
    main()
