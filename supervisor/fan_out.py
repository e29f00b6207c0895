"""Many calls at once: one message to the router, no task a call, outcomes in the order in which they come."""

import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, Self

import trio
from attrs import define, field, frozen

from mcp_nursery.actors.errors import NurseryError, SupervisorClosed
from mcp_nursery.actors.mailbox import ProgressCallback, ReplySlot
from mcp_nursery.actors.messages import Bulk, CallTool

from .delivery import CallDelivery, Request, Resend, WhenDown, encode_arguments
from .fleet import Fleet
from .tools.results import ToolResult

Until = Literal["all", "first"] | int
"""When a fan-out is over: with every outcome, with the first success, or with this many successes."""

_BURST = 32
"""Outcomes handed out in a row before other tasks get a turn."""


@frozen
class Call:
    """One call of a fan-out. The fields mean what they mean for `Supervisor.call_tool`."""

    name: str
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    server: str | None = field(default=None, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    idle_timeout: float | None = field(default=None, kw_only=True)
    when_down: WhenDown | None = field(default=None, kw_only=True)
    resend: Resend = field(default="safe", kw_only=True)
    on_progress: ProgressCallback | None = field(default=None, kw_only=True, repr=False)
    meta: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)

    def request(self) -> Request:
        """What delivery makes of it.

        Raises:
            InvalidArguments: `arguments` is no JSON object.
        """
        return Request(
            key=self.name if self.server is None else (self.server, self.name),
            arguments=encode_arguments(self.arguments),
            timeout=self.timeout,
            idle_timeout=self.idle_timeout,
            when_down=self.when_down,
            resend=self.resend,
            on_progress=self.on_progress,
            meta=self.meta,
        )


@frozen
class CallOutcome:
    """How one call of a fan-out ended."""

    index: int
    """Its place among the calls, from 0."""
    call: Call
    result: ToolResult | None
    """None if there was an error. A result with `is_error` is a result."""
    error: NurseryError | None
    duration: float
    """Seconds from the start of the call to its outcome."""

    @property
    def ok(self) -> bool:
        """Whether the tool answered, and not with `is_error`."""
        return self.result is not None and not self.result.is_error


@define(eq=False)
class _Entry:
    """One call on its way."""

    index: int
    call: Call
    delivery: CallDelivery
    duration: float = 0.0
    """Set when its slot is decided."""


class FanOut:
    """The outcomes of many calls, as they finish: an asynchronous iterator. Made by `Supervisor.fan_out`.

    A call that can be sent at once costs a slot, not a task; one that has to wait for its server, to be told of
    progress, to be asked about or to be sent again gets a task of its own.
    """

    def __init__(self, fleet: Fleet, nursery: trio.Nursery, *, wanted: float) -> None:
        self._fleet = fleet
        self._nursery = nursery
        self._wanted = wanted
        """Successes still to come."""
        self._started = trio.current_time()
        self._on_wire: dict[int, _Entry] = {}
        self._in_tasks: dict[int, trio.CancelScope] = {}
        self._timer = trio.CancelScope()
        self._arrived: deque[_Entry | CallOutcome] = deque()
        self._readers = trio.lowlevel.ParkingLot()
        self._handed_out = 0

    async def start(self, calls: Sequence[Call]) -> None:
        """Send what can be sent at once, in one message, and see to the rest in tasks."""
        bulk = [message for index, call in enumerate(calls) if (message := self._begin(index, call)) is not None]
        if bulk:
            try:
                await self._fleet.router.submit(Bulk(bulk))
            except trio.BrokenResourceError:
                raise SupervisorClosed from None
        if any(entry.delivery.deadline < math.inf for entry in self._on_wire.values()):
            self._nursery.start_soon(self._keep_time)

    def stop(self) -> None:
        """Take back every call that has no outcome, and end the iteration; servers of calls that were sent are told."""
        self._wanted = 0
        unread = [arrived for arrived in self._arrived if isinstance(arrived, _Entry)]
        for entry in (*self._on_wire.values(), *unread):
            entry.delivery.give_up()
        self._on_wire.clear()
        self._arrived.clear()
        for scope in (self._timer, *self._in_tasks.values()):
            scope.cancel()
        self._readers.unpark_all()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CallOutcome:
        """The next outcome. The iteration ends when `until` holds, and what has no outcome then is taken back."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._wanted > 0:
            while self._arrived:
                outcome = self._concluded(self._arrived.popleft())
                if outcome is not None:
                    return await self._hand_out(outcome)
            if not self._on_wire and not self._in_tasks:
                break
            await self._readers.park()
        self.stop()
        raise StopAsyncIteration

    async def _hand_out(self, outcome: CallOutcome) -> CallOutcome:
        self._wanted -= outcome.ok
        if self._wanted <= 0:
            self.stop()
        self._handed_out += 1
        if self._handed_out % _BURST == 0:
            await trio.lowlevel.cancel_shielded_checkpoint()  # a long run of outcomes must not hold up everybody else
        return outcome

    def _begin(self, index: int, call: Call) -> CallTool | None:
        try:
            delivery = CallDelivery(call.request(), self._fleet)
            slot = ReplySlot(listener=partial(self._decided, index))
            message = delivery.start(slot)
        except NurseryError as error:
            self._arrived.append(CallOutcome(index, call, None, error, 0.0))
            return None
        entry = _Entry(index, call, delivery)
        if message is None:
            self._spawn(entry, delivery.run)
        else:
            self._on_wire[index] = entry
        return message

    def _decided(self, index: int) -> None:
        """A slot has its outcome: judged by whoever reads, in the reader's task."""
        entry = self._on_wire.pop(index)
        entry.duration = trio.current_time() - self._started
        self._arrived.append(entry)
        self._readers.unpark_all()

    def _concluded(self, arrived: _Entry | CallOutcome) -> CallOutcome | None:
        """The outcome; None if the call needs another attempt, which has begun."""
        if isinstance(arrived, CallOutcome):
            return arrived
        try:
            result = arrived.delivery.conclude()
        except NurseryError as error:
            return CallOutcome(arrived.index, arrived.call, None, error, arrived.duration)
        if result is None:
            self._spawn(arrived, arrived.delivery.resume)
            return None
        return CallOutcome(arrived.index, arrived.call, result, None, arrived.duration)

    def _spawn(self, entry: _Entry, deliver: Callable[[], Awaitable[ToolResult]]) -> None:
        self._in_tasks[entry.index] = trio.CancelScope()
        self._nursery.start_soon(self._deliver, entry, deliver)

    async def _deliver(self, entry: _Entry, deliver: Callable[[], Awaitable[ToolResult]]) -> None:
        result, error = None, None
        with self._in_tasks[entry.index] as scope:
            try:
                result = await deliver()
            except NurseryError as raised:
                error = raised
        del self._in_tasks[entry.index]
        if scope.cancelled_caught:
            return  # taken back
        duration = trio.current_time() - self._started
        self._arrived.append(CallOutcome(entry.index, entry.call, result, error, duration))
        self._readers.unpark_all()

    async def _keep_time(self) -> None:
        """One timer for all: end each call whose own time is over."""
        due = sorted((entry.delivery.deadline, index) for index, entry in self._on_wire.items())
        with self._timer:
            for deadline, index in due:
                await trio.sleep_until(deadline)
                if index in self._on_wire:
                    self._expire(self._on_wire.pop(index))

    def _expire(self, entry: _Entry) -> None:
        error = entry.delivery.give_up()
        duration = trio.current_time() - self._started
        self._arrived.append(CallOutcome(entry.index, entry.call, None, error, duration))
        self._readers.unpark_all()


@asynccontextmanager
async def open_fan_out(calls: Iterable[Call], fleet: Fleet, *, until: Until) -> AsyncGenerator[FanOut, None]:
    """See `Supervisor.fan_out`."""
    failure: BaseException | None = None
    wanted = _successes(until)
    try:
        async with trio.open_nursery() as nursery:
            fan_out = FanOut(fleet, nursery, wanted=wanted)
            try:
                await fan_out.start(list(calls))
                yield fan_out
            except BaseException as error:
                failure = error  # comes out below: through the nursery it would come out in a group
            fan_out.stop()
    except BaseExceptionGroup as group:
        if failure is None or group.split(trio.Cancelled)[1] is not None:
            raise  # otherwise the tasks were only cancelled together with the body
    if failure is not None:
        try:
            raise failure
        finally:
            del failure


def _successes(until: Until) -> float:
    """How many end a fan-out.

    Raises:
        ValueError: `until` is none of what it may be.
    """
    wanted = {"all": math.inf, "first": 1}.get(until, 0) if isinstance(until, str) else until
    if wanted < 1:
        raise ValueError(f"until is 'all', 'first' or a number of successes >= 1, not {until!r}")
    return wanted
