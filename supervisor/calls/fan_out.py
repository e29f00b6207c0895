"""Many calls at once: few messages to the router, no task for each call, outcomes in the order in which they come."""

import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Final, Literal, Self, final

import trio

from mcp_nursery.actors.argument_checks import check_argument, number
from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.messages import Request
from mcp_nursery.actors.nurseries import open_bare_nursery
from mcp_nursery.actors.outcomes import Unrouted
from mcp_nursery.actors.records import define, frozen
from mcp_nursery.actors.reply import ReplySlot

from ..servers.view import ServerView
from ..tools.tool_result import ToolResult
from .attempts import cancel, conclude, deliver, needs_more, start
from .call import Call
from .tool_call import ToolCall

__all__ = ["CallOutcome", "FanOut"]

Until = Literal["all", "first"] | int
"""The end of a fan-out: after every outcome, the first success, or this many successes."""

_BULK = 256
"""Calls that are begun before other tasks get a turn."""

_BURST = 32
"""Outcomes handed out in a row before other tasks get a turn."""


@frozen
class CallOutcome:
    """The outcome of one call of a fan-out."""

    index: int
    """The place among the calls, from 0."""
    call: Call
    """The call, as it was given."""
    result: ToolResult | None
    """The result; None if there was an error. A result with `is_error` is a result, too."""
    error: NurseryError | None
    """The error that the call raised; None if there is a result."""
    duration: float
    """Seconds from the start of the call to its outcome."""

    @property
    def ok(self) -> bool:
        """True if the tool answered, and not with `is_error`."""
        return self.result is not None and not self.result.is_error


@define(eq=False)
class _CallUnderWay:
    """One call on its way."""

    index: int
    call: Call
    active: ToolCall
    duration: float = 0.0
    """The duration, set when its slot is decided."""


class _Sending:
    """The calls of one fan-out on their way, and the outcomes that have arrived.

    A call that can be sent at once costs a slot, not a task; one that has to wait for its server, follows progress, is
    answered by a question or is sent again gets a task of its own. With a task for each, one of fifty calls over stdio
    takes 62 us of CPU instead of 41.
    """

    def __init__(self, servers: ServerView, nursery: trio.Nursery, *, limit: float) -> None:
        self.arrived: Final = deque[_CallUnderWay | CallOutcome]()
        """Outcomes that were not read yet."""
        self.readers: Final = trio.lowlevel.ParkingLot()
        """The readers that wait for more to arrive."""
        self._servers = servers
        self._nursery = nursery
        self._context = copy_context()
        self._limit = limit
        self._unbegun: deque[tuple[int, Call]] = deque()
        self._on_wire: dict[int, _CallUnderWay] = {}
        self._in_tasks: dict[int, trio.CancelScope] = {}
        self._room = trio.lowlevel.ParkingLot()
        self._feeding = trio.CancelScope()

    async def start(self, calls: Iterable[Call]) -> None:
        """Send the calls that can be sent at once, and the others in tasks; none if this is cancelled by then."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._unbegun.extend(enumerate(calls))
        await self._send()
        if self._unbegun:
            self._nursery.start_soon(self._feed)

    def stop(self) -> None:
        """Withdraw every call that has no outcome; servers of calls that were sent are notified."""
        unread = [arrived for arrived in self.arrived if isinstance(arrived, _CallUnderWay)]
        for entry in (*self._on_wire.values(), *unread):
            cancel(entry.active, entry.duration)
        self._unbegun.clear()
        self._on_wire.clear()
        self.arrived.clear()
        for scope in (self._feeding, *self._in_tasks.values()):
            scope.cancel()
        self.readers.unpark_all()

    @property
    def more_comes(self) -> bool:
        """True if there are calls whose outcomes have not arrived yet."""
        return bool(self._unbegun or self._in_flight)

    @property
    def _in_flight(self) -> int:
        return len(self._on_wire) + len(self._in_tasks)

    async def _feed(self) -> None:
        """Begin further calls as others finish."""
        with self._feeding:
            while self._unbegun:
                if self._in_flight < self._limit:  # some may have finished while the last ones were handed on
                    await self._send()
                else:
                    await self._room.park()

    async def _send(self) -> None:
        """Send what the limit has room for, in turns."""
        while self._unbegun and self._in_flight < self._limit:
            await self._send_some()
            if self._unbegun:
                await trio.lowlevel.checkpoint()

    async def _send_some(self) -> None:
        bulk: list[Request] = []
        for _ in range(_BULK):
            if not self._unbegun or self._in_flight >= self._limit:
                break
            message = self._begin(*self._unbegun.popleft())
            if message is not None:
                bulk.append(message)
        if bulk:
            try:
                await self._servers.router.submit(bulk)
            except trio.BrokenResourceError:  # it has ended: these count as calls that it had not handed on
                for message in bulk:
                    message.slot.resolve(Unrouted())

    def _begin(self, index: int, call: Call) -> Request | None:
        try:
            active = ToolCall(call, self._servers)
            message = start(active, ReplySlot(listener=partial(self._decided, index)))
        except NurseryError as error:
            self._arrive(CallOutcome(index, call, None, error, 0.0))
            return None
        entry = _CallUnderWay(index, call, active)
        if message is None:
            self._spawn(entry)
        else:
            self._on_wire[index] = entry
        return message

    def _decided(self, index: int) -> None:
        """Take in a slot that has its outcome: the reader judges that, in its own task."""
        entry = self._on_wire.pop(index)
        entry.active.settle()
        if needs_more(entry.active):  # called by the owner, whose context is not the caller's
            self._context.run(self._spawn, entry)
            return
        entry.duration = entry.active.elapsed
        if (operation := entry.active.operation) is not None:
            operation.decide(entry.duration)
        self._arrive(entry)

    def _arrive(self, arrived: _CallUnderWay | CallOutcome) -> None:
        self.arrived.append(arrived)
        if self.readers:
            self.readers.unpark_all()
        if self._room:
            self._room.unpark_all()

    def _spawn(self, entry: _CallUnderWay) -> None:
        self._in_tasks[entry.index] = trio.CancelScope()
        self._nursery.start_soon(self._deliver, entry)

    async def _deliver(self, entry: _CallUnderWay) -> None:
        result, error = None, None
        with self._in_tasks[entry.index] as scope:
            try:
                result = await deliver(entry.active)
            except NurseryError as raised:
                error = raised
        del self._in_tasks[entry.index]
        if not scope.cancelled_caught:  # otherwise it was withdrawn
            self._arrive(CallOutcome(entry.index, entry.call, result, error, entry.active.elapsed))


@final
class FanOut:
    """The outcomes of many calls, as they finish: an asynchronous iterator. Made by `Supervisor.fan_out`."""

    def __init__(self, sending: _Sending, *, wanted: float) -> None:
        self._sending = sending
        self._wanted = wanted
        """Successes still to come."""
        self._until_met = False
        self._handed_out = 0

    @property
    def until_met(self) -> bool:
        """True if there were as many successes as `until` asks for; for `"all"`, if each call has its outcome.

        False as long as the iteration goes on, and for good if it ended for want of further calls or was left early.
        """
        return self._until_met

    def stop(self) -> None:
        """Withdraw every call that has no outcome, and end the iteration; servers of calls that were sent are
        notified."""
        self._wanted = 0
        self._sending.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CallOutcome:
        """The next outcome. The iteration ends when `until` holds, and calls without an outcome are then withdrawn."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._wanted > 0:
            if self._sending.arrived:
                return await self._hand_out(await self._next())
            if not self._sending.more_comes:
                self._until_met = self._wanted == math.inf
                break
            await self._sending.readers.park()
        self.stop()
        raise StopAsyncIteration

    async def _next(self) -> CallOutcome:
        """The outcome that arrived first; it is still there if this is cancelled."""
        arrived = self._sending.arrived.popleft()
        try:
            return await _outcome(arrived)
        except trio.Cancelled:
            self._sending.arrived.appendleft(arrived)
            raise

    async def _hand_out(self, outcome: CallOutcome) -> CallOutcome:
        if outcome.error is not None:
            outcome.error.__traceback__ = None  # it would keep all that is known of the call
        self._wanted -= outcome.ok
        if self._wanted <= 0:
            self._until_met = True
            self.stop()
        self._handed_out += 1
        if self._handed_out % _BURST == 0:
            await trio.lowlevel.cancel_shielded_checkpoint()  # a long run of outcomes must not hold up everybody else
        return outcome


async def _outcome(arrived: _CallUnderWay | CallOutcome) -> CallOutcome:
    if isinstance(arrived, CallOutcome):
        return arrived
    result, error = None, None
    try:
        result = await conclude(arrived.active, arrived.duration)
    except NurseryError as raised:
        error = raised
    return CallOutcome(arrived.index, arrived.call, result, error, arrived.duration)


@asynccontextmanager
async def open_fan_out(
    calls: Iterable[Call], servers: ServerView, *, until: Until, limit: int | None
) -> AsyncGenerator[FanOut, None]:
    """Make many calls at once, which end with the block. The arguments are those of `Supervisor.fan_out`."""
    wanted = _successes(until)
    check_argument("limit", limit, lambda value: None if value is None or number(value) else "a number of calls >= 1")
    async with open_bare_nursery() as nursery:
        sending = _Sending(servers, nursery, limit=math.inf if limit is None else limit)
        fan_out = FanOut(sending, wanted=wanted)
        try:
            await sending.start(calls)
            yield fan_out
        finally:
            fan_out.stop()


def _successes(until: Until) -> float:
    """The number of successes that end a fan-out.

    Raises:
        ValueError: `until` is not one of its values.
    """
    words = {"all": math.inf, "first": 1}
    fits = until in words if isinstance(until, str) else number(until)
    check_argument("until", until, lambda _: None if fits else "'all', 'first' or a number of successes >= 1")
    return words[until] if isinstance(until, str) else until
