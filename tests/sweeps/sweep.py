"""Runs the table of faults against a supervisor and a peer, and says what was not as promised.

For every case: the ledger holds at most one execution of what must run once, and two of what may run again; what was
`not_sent` is not in it, now or later; there is one outcome, in time; nothing that belonged to the call is left; and the
next call gets its own answer, of a server that was restarted if need be.
"""

import os
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing
from attrs import define, evolve, frozen

from mcp_nursery.supervisor import (
    Call,
    CallError,
    CallTimeout,
    ConnectionLost,
    MemoryStore,
    NurseryError,
    RestartPolicy,
    ServerSpec,
    Supervisor,
    ToolResult,
    open_supervisor,
)
from mcp_nursery.supervisor.errors import Delivery
from mcp_nursery.supervisor.status import ServerState

from .faults import AT_EVERY_BYTE, OTHER_ANSWERS, WEBSOCKET, Fault, Place
from .http_faults import HTTP
from .http_peers import HttpPeer, HttpStreamPeer, SsePeer
from .peers import HANDSHAKE, MODERN, Exchange, Peer, Plan
from .stream_peers import StdioPeer, WebSocketPeer

KINDS: dict[str, tuple[type[Peer], str]] = {
    "stdio": (StdioPeer, MODERN),
    "stdio-handshake": (StdioPeer, HANDSHAKE),
    "ws": (WebSocketPeer, MODERN),
    "ws-handshake": (WebSocketPeer, HANDSHAKE),
    "http-json": (HttpPeer, MODERN),
    "http-json-handshake": (HttpPeer, HANDSHAKE),
    "http-stream": (HttpStreamPeer, MODERN),
    "http-stream-handshake": (HttpStreamPeer, HANDSHAKE),
    "sse": (SsePeer, HANDSHAKE),
}

TIMEOUT = 0.1
"""Seconds of a call that has a time."""
LATE = 0.2
"""Seconds after which an outcome is late."""
NEVER = 3.0
"""Seconds after which a call without a time, whose exchange has ended, is said to have no outcome."""
QUIET = 0.002
"""Seconds in which nobody does anything: then nothing is under way on loopback."""
SETTLED = 1.0
"""Seconds that what is left of a call may take to go, on a busy machine."""

POLICY = RestartPolicy(delays=[0.005] * 100_000)


@frozen
class Mode:
    """How a call is made."""

    name: str
    tool: str = "once"
    resend: str = "safe"
    most: int = 1
    """Executions that are right."""
    timed: bool = False
    cancelled: bool = False
    """Taken back as soon as the fault has come to its place."""
    in_bulk: bool = False


MODES = [
    Mode("once"),
    Mode("never", tool="read", resend="never"),
    Mode("again", tool="read", most=2),
    Mode("always", resend="always", most=2),
    Mode("in bulk", in_bulk=True),
    Mode("once, timed", timed=True),
    Mode("again, timed", tool="read", most=2, timed=True),
    Mode("in bulk, timed", in_bulk=True, timed=True),
    Mode("cancelled", cancelled=True),
]


def modes_of(fault: Fault) -> list[Mode]:
    """Without a time only what has to come is waited for; what never comes can be taken back."""
    return [mode for mode in MODES if mode.timed or mode.cancelled != fault.ends]


@frozen
class Case:
    kind: str
    fault: Fault
    mode: Mode
    at: int

    def __str__(self) -> str:
        place = "" if self.fault.place is Place.NOWHERE else f" @{self.at}"
        return f"{self.kind} / {self.fault.place.value}: {self.fault.name} / {self.mode.name}{place}"


Tell = Callable[[Case, Sequence[str]], None]


@frozen
class Lengths:
    """Bytes of one exchange."""

    request: int
    answer: int

    def of(self, place: Place) -> int:
        return {Place.REQUEST: self.request, Place.ANSWER: self.answer}.get(place, 0)


def cases(kind: str, fault: Fault, lengths: Lengths, stride: int) -> Iterator[Case]:
    """Every `stride`-th place for every mode, each mode beginning elsewhere; or one mode where there are no places."""
    modes = modes_of(fault)
    if fault.place is Place.NOWHERE:
        some = modes if stride == 1 else [modes[_draw(kind, fault.name) % len(modes)]]
        yield from (Case(kind, fault, mode, 0) for mode in some)
        return
    for mode in modes:
        for at in range(_draw(kind, fault.name, mode.name) % stride, lengths.of(fault.place) + 1, stride):
            yield Case(kind, fault, mode, at)


def _draw(*words: str) -> int:
    """A number that is always the same for these words."""
    return zlib.crc32("/".join(words).encode())


@frozen
class Remains:
    """What a quiet supervisor holds."""

    tasks: int = 0
    files: int = 0


_TASKS_OF_THE_SDK = 3
"""Its session is opened by the first notification that needs it, and stays: one task holds it, two are its own."""


@define(eq=False)
class Stage:
    """One server, its supervisor, and what went wrong."""

    kind: str
    peer: Peer
    supervisor: Supervisor
    lengths: Lengths = Lengths(0, 0)
    baseline: Remains = Remains()
    calls: int = 0

    # -- one case ---------------------------------------------------------------------------------------------------

    async def run(self, case: Case) -> list[str]:
        """What is not as promised; tried again if it may have been only the machine's business."""
        for _ in range(3):
            found, slow = await self._try(case)
            if not slow:
                break
        return found

    async def _try(self, case: Case) -> tuple[list[str], bool]:
        await trio.testing.wait_all_tasks_blocked(QUIET)
        key, plan, mode = self._key(), Plan(case.fault.script, case.at), case.mode
        self.peer.plan = plan
        bound = TIMEOUT + LATE if mode.timed else NEVER
        began = trio.current_time()
        with trio.move_on_after(NEVER) as patience:
            outcome = await self._call(mode, key, plan)
        took = trio.current_time() - began
        heard = self.peer.plan is None
        self.peer.plan = None
        plan.over.set()
        await trio.testing.wait_all_tasks_blocked(QUIET)
        executed = self.peer.ledger[key]
        late = took > bound and not mode.cancelled
        if patience.cancelled_caught:
            found = ["no outcome"]
        else:
            found = self._judge(case, outcome, key, executed, heard=heard)
            found += [f"an outcome after {took:.2f} s"] if late else []
        next_one, slow = await self._next()
        return found + next_one + self._executed_late(key, executed), late or slow

    def _judge(self, case: Case, outcome: Any, key: str, executed: int, *, heard: bool) -> list[str]:
        found = []
        if executed > case.mode.most:
            found.append(f"executed {executed} times: {outcome!r}")
        if isinstance(outcome, ToolResult):
            is_unread = "of this result cannot be read: " in outcome.full_text
            if outcome.full_text != key and case.fault.place is not Place.ANSWER and not is_unread:
                found.append(f"the result of another: {outcome.full_text!r}, not {key!r}")
            if executed == 0:
                found.append("a result of what was not executed")
        elif isinstance(outcome, CallError):
            if outcome.delivery is Delivery.NOT_SENT and executed:
                found.append(f"executed {executed} times, and not_sent: {outcome!r}")
            if outcome.delivery is Delivery.ANSWERED and not heard:
                found.append(f"answered, and nothing was heard: {outcome!r}")
        elif outcome is not None:
            found.append(f"an outcome that is none: {outcome!r}")
        wrong = case.fault.answered and not case.mode.cancelled and not isinstance(outcome, (ToolResult, CallTimeout))
        return [*found, f"no result: {outcome!r}"] if wrong else found

    async def _call(self, mode: Mode, key: str, plan: Plan) -> Any:
        """The result, the error, or None if it was taken back."""
        timeout = TIMEOUT if mode.timed else None
        if mode.in_bulk:
            (outcome,) = await self.supervisor.gather(
                [Call(mode.tool, {"key": key}, server="peer", timeout=timeout, resend=mode.resend)]
            )
            return outcome
        outcome: Any = None
        async with trio.open_nursery() as nursery:

            async def take_back() -> None:
                await plan.reached.wait()
                nursery.cancel_scope.cancel()

            if mode.cancelled:
                nursery.start_soon(take_back)
            try:
                outcome = await self.supervisor.call_tool(
                    mode.tool, {"key": key}, server="peer", timeout=timeout, resend=mode.resend
                )
            except NurseryError as error:
                outcome = error
            nursery.cancel_scope.cancel()
        return outcome

    # -- what comes after it ------------------------------------------------------------------------------------------

    async def _next(self) -> tuple[list[str], bool]:
        """The next call, and what is left after it; whether it took longer than it should."""
        outcome: Any = None
        with trio.move_on_after(NEVER) as patience:
            for _ in range(2):  # the first may be the one that meets what is left of the fault
                key = self._key()
                outcome = await self._healed(key)
                if not isinstance(outcome, ConnectionLost):
                    break
        if patience.cancelled_caught:
            await trio.testing.wait_all_tasks_blocked(QUIET)
            return [f"no next call, {self.status.state}: {self.status.error}"], True
        if not isinstance(outcome, ToolResult) or outcome.full_text != key:
            return [f"the next call came to {outcome!r}"], False
        if self.peer.ledger[key] != 1:
            return [f"the next call was executed {self.peer.ledger[key]} times"], False
        return await self._left(), False

    async def _healed(self, key: str) -> Any:
        if self.status.state in (ServerState.FAILED, ServerState.NEEDS_AUTH):
            await self.supervisor.reconnect("peer")
        try:
            return await self.supervisor.call_tool("once", {"key": key}, server="peer", when_down="wait")
        except NurseryError as error:
            return error

    async def _left(self) -> list[str]:
        """What was not there before."""
        with trio.move_on_after(SETTLED):
            while self._too_much():  # noqa: ASYNC110 - what goes is in tasks of others
                await trio.sleep(0.005)
        return self._too_much()

    def _too_much(self) -> list[str]:
        now, before = self.remains(), self.baseline
        left = [
            f"{more} more {name} than before"
            for name, more, most in [
                ("tasks", now.tasks - before.tasks, _TASKS_OF_THE_SDK),
                ("files", now.files - before.files, 2),
            ]
            if more > most
        ]
        in_flight = self.status.calls.in_flight
        return [*left, f"{in_flight} calls in flight"] if in_flight else left

    def _executed_late(self, key: str, executed: int) -> list[str]:
        late = self.peer.ledger[key] - executed
        return [f"executed {late} times more once it was over"] if late else []

    # -- as it stands -------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Any:
        return self.supervisor.status()[0]

    def remains(self) -> Remains:
        return Remains(self._tasks(), len(os.listdir("/proc/self/fd")))

    def _tasks(self) -> int:
        """Tasks of the run but for the peer's."""
        root = trio.lowlevel.current_root_task()
        assert root is not None
        count, rest = 0, [root]
        while rest:
            task = rest.pop()
            count += 1
            for nursery in task.child_nurseries:
                if nursery is not self.peer.nursery:
                    rest.extend(nursery.child_tasks)
        return count

    def _key(self) -> str:
        self.calls += 1
        return f"{self.calls:08}"

    async def warm_up(self) -> None:
        """Learn how long an exchange is and what a quiet supervisor holds."""
        await self.supervisor.wait_connected("peer")
        lengths: list[Lengths] = []

        async def measure(exchange: Exchange) -> None:
            before = exchange.link.taken
            await exchange.hear()
            legs = exchange.legs(exchange.execute())
            lengths.append(Lengths(exchange.link.taken - before, sum(len(data) for _, data in legs)))
            for link, data in legs:
                await link.send(data)

        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked(0.02)
            self.peer.plan = Plan(measure)
            await self.supervisor.call_tool("once", {"key": self._key()}, server="peer", when_down="wait")
        self.lengths = lengths[-1]
        await trio.testing.wait_all_tasks_blocked(QUIET)
        self.baseline = self.remains()


@asynccontextmanager
async def staged(kind: str, **settings: Any) -> AsyncGenerator[Stage, None]:
    """A peer of the kind under a supervisor, connected."""
    make, version = KINDS[kind]
    async with make(version).serving() as peer:
        spec = ServerSpec("peer", peer.transport(), policy=POLICY, liveness=None, **settings)
        async with open_supervisor([spec], state=MemoryStore(), shutdown_timeout=2) as supervisor:
            stage = Stage(kind, peer, supervisor)
            await stage.warm_up()
            yield stage


def rows(kind: str) -> list[Fault]:
    """The faults that it can have."""
    make, version = KINDS[kind]
    peer = make(version)
    rows = [fault for fault in (*AT_EVERY_BYTE, *OTHER_ANSWERS, *WEBSOCKET, *HTTP) if fault.applies(peer)]
    if not peer.bodies_end:
        return rows
    others = set(OTHER_ANSWERS)  # what a body of HTTP does not answer, it leaves for good
    return [evolve(fault, ends=True) if fault in others else fault for fault in rows]


async def sweep(kind: str, chosen: Sequence[Fault], stride: int, tell: Tell = lambda case, found: None) -> int:
    """Run the cases of these faults, and `tell` of each what is wrong with it. How many there were."""
    count, left = 0, deque[Case]()
    begun = False
    while left or not begun:  # a server that something is wrong with is left alone
        async with staged(kind) as stage:
            if not begun:
                left.extend(case for fault in chosen for case in cases(kind, fault, stage.lengths, stride))
            begun = True
            found: list[str] = []
            while left and not found:
                case = left.popleft()
                found = await stage.run(case)
                count += 1
                tell(case, found)
            executed = dict(stage.peer.ledger)
            await trio.testing.wait_all_tasks_blocked(0.02)
            if executed != dict(stage.peer.ledger):
                tell(case, ["something was executed when all was over"])
    return count
