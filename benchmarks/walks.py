"""(j) How far one thing travels through the code: functions entered, files touched, jumps from file to file.

walks.py [--json] [--trace call|exit|config|start|reload|gateway]

One stdio server, everything loaded and done once before, no state file. Between the two marks of a walk each entry
into a function of the package counts (`sys.setprofile`), in whichever task of the loop's thread. A coroutine that goes
on after a wait is entered again. Functions and files count once each, and a jump is an entry into another file than
the entry before. Not counted: what attrs generates, comprehensions and lambdas, other packages, worker threads. The
round with the fewest jumps counts, since work of other tasks comes between in the others; `--trace` prints it. An
object is counted where an `__init__` of one of our classes begins, those that attrs generates included.
`tests/test_house.py` fails when one of these figures grows.
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

from mcp_nursery.actors.threads import open_process
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
from mcp_nursery.supervisor.gateway import open_gateway
from mcp_nursery.supervisor.gateway.http.application import open_http
from mcp_nursery.supervisor.http_server.http_connection import HttpConnection

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


class Steps(list[Entry]):
    """What is entered, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: list[str] = []
        """The classes of the objects that are made meanwhile."""


End = Callable[[FrameType, str, Any], bool]


class Walk(NamedTuple):
    """What is walked."""

    title: str
    rounds: Callable[[], AsyncGenerator[Steps, None]]


class Figures(NamedTuple):
    """How long a walk is."""

    functions: int
    files: int
    jumps: int
    objects: int


def figures(steps: Steps) -> Figures:
    files = [entry.file for entry in steps]
    jumps = sum(one != other for one, other in itertools.pairwise(files))
    return Figures(len({(entry.file, entry.function) for entry in steps}), len(set(files)), jumps, len(steps.objects))


@cache
def _body(code: CodeType) -> int:
    """Where a function's own code begins; a frame that is entered further on goes on."""
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


def _own(code: CodeType, frame: FrameType) -> bool:
    module: str = frame.f_globals.get("__name__", "")
    return module.startswith("mcp_nursery.") and not code.co_filename.startswith("<") and code.co_name[0] != "<"


def _made(frame: FrameType) -> str | None:
    """The class of our own whose object is made; None where a base class goes on with that, or if it is not ours."""
    made = frame.f_locals.get("self")
    before = frame.f_back
    goes_on = before is not None and before.f_code.co_name == "__init__" and before.f_locals.get("self") is made
    return None if goes_on or not type(made).__module__.startswith("mcp_nursery.") else type(made).__qualname__


def at_the_write(_: FrameType, event: str, arg: Any) -> bool:
    return event == "c_call" and arg is os.write


def at_the_decision(frame: FrameType, event: str, _: Any) -> bool:
    return event == "call" and frame.f_code.co_qualname == DECISION


def at_the_spawn(frame: FrameType, event: str, _: Any) -> bool:
    return event == "call" and frame.f_code is open_process.__code__


@contextlib.contextmanager
def walking(until: End | None = None) -> Iterator[Steps]:
    """What is entered within the block, or until the end that is looked for.

    Raises:
        RuntimeError: That end was not seen.
    """
    steps = Steps()

    def enter(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "__init__" and (made := _made(frame)):
            steps.objects.append(made)
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


ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "walks", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALL = {"name": "echo", "arguments": {"text": "hello"}, "_meta": ENVELOPE}


def post() -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}).encode()
    head = (
        "POST /mcp/lab HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
        f"mcp-method: tools/call\r\nmcp-name: echo\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def gateway() -> AsyncGenerator[Steps, None]:
    """The client is the other end of a stream in memory."""
    async with host() as supervisor, open_gateway(supervisor) as served, open_http(served) as application:
        ours, client = trio.testing.memory_stream_pair()
        connection = HttpConnection(application, ours, "http", ("127.0.0.1", 1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.serve)
            for _ in range(ROUNDS):
                await quiet(supervisor)
                answer = b""
                with walking() as steps:
                    await client.send_all(post())
                    while b"hello" not in answer:
                        answer += await client.receive_some()
                yield steps
            nursery.cancel_scope.cancel()


WALKS = {
    "call": Walk("`call_tool` to the write on the pipe", call),
    "exit": Walk("SIGKILL of a server to the restart decision", exit_),
    "config": Walk("a config file's entry to its spec", config),
    "start": Walk("a spec to the running process", start),
    "reload": Walk("`reload` with one changed spec", reload),
    "gateway": Walk("one gateway call, HTTP, there and back", gateway),
}


async def shortest(walk: Walk) -> Steps:
    async with contextlib.aclosing(walk.rounds()) as rounds:
        found = [steps async for steps in rounds]
    return min(found[1:], key=lambda steps: figures(steps)[::-1])  # the first round loads what is loaded late


def main() -> None:
    logging.getLogger("mcp_nursery").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures by walk")
    parser.add_argument("--trace", choices=WALKS, help="print one walk, entry by entry")
    options = parser.parse_args()
    if options.trace:
        steps = trio.run(shortest, WALKS[options.trace])
        print(*steps, *(f"makes {made}" for made in steps.objects), sep="\n")
        return
    found = {name: figures(trio.run(shortest, walk)) for name, walk in WALKS.items()}
    if options.json:
        print(json.dumps({name: each._asdict() for name, each in found.items()}))
        return
    rows = [[WALKS[name].title, *map(str, each)] for name, each in found.items()]
    print(Table("Walks", ["walk", *Figures._fields], rows, {}))


if __name__ == "__main__":
    main()
