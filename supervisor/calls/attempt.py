"""Handing one call on and waiting in its slot: the time it has, and whether a server may have acted on it."""

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from opentelemetry.context import get_current
from opentelemetry.propagate import inject

from mcp_nursery.actors.errors import CallTimeout, SupervisorClosed
from mcp_nursery.actors.messages import CallTool
from mcp_nursery.actors.outcomes import Outcome
from mcp_nursery.actors.reply import IdleLimit, ReplySlot
from mcp_nursery.actors.states import Delivery

from ..servers.servers import Fleet
from ..tools.tool import Tool
from .request import Request

T = TypeVar("T")

HandOn = Callable[[CallTool], None]

_NO_SLOT = ReplySlot()
"""Of a call that was not handed on yet."""


class Handover:
    """One call between its caller and its servers. Every time it is handed on, it waits in a new slot."""

    def __init__(self, request: Request, fleet: Fleet) -> None:
        self.tool: Tool | None = None
        """What is called; None until it is found."""
        self.slot: ReplySlot = _NO_SLOT
        """Where the call waits, or waited last."""
        self.timeout: float = math.inf
        """Seconds for all of it."""
        self._request = request
        self._fleet = fleet
        self._started = trio.current_time()
        self._sent_before = False
        """Whether a server may have acted before the call came to its present slot."""

    # -- its time -------------------------------------------------------------------------------------------------

    def limit(self, servers_own: float | None) -> None:
        """Find out what time it has.

        Raises:
            ConfigError: `MCP_TOOL_TIMEOUT` is no number.
            ValueError: The call's own is negative.
        """
        self.timeout = self._fleet.call_timeout(self._request.timeout, servers_own)

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return trio.current_time() - self._started

    async def in_time(self, waiting: Awaitable[T]) -> T:
        """What it brings, if that comes before the call's time is over.

        Raises:
            CallTimeout: It did not.
        """
        with trio.move_on_at(self._deadline):
            return await waiting
        raise self.timed_out()

    def timed_out(self, idle: float | None = None) -> CallTimeout:
        """The error of a call whose time is over, or that heard nothing for `idle` seconds."""
        tool = self.tool
        return CallTimeout(
            server=self._request.server or "" if tool is None else tool.server,
            tool=self._request.name if tool is None else tool.tool,
            incarnation=self.slot.incarnation,
            delivery=self.delivery,
            timeout=self.timeout if idle is None else idle,
            idle=idle is not None,
        )

    @property
    def _deadline(self) -> float:
        return self._started + self.timeout

    # -- its slots ------------------------------------------------------------------------------------------------

    @property
    def delivery(self) -> Delivery:
        """Whether a server may have acted on it, in this slot or an earlier one."""
        delivery = self.slot.delivery
        return Delivery.UNKNOWN if self._sent_before and delivery is Delivery.NOT_SENT else delivery

    def start(self, tool: Tool, slot: ReplySlot) -> CallTool:
        """The message that hands it on, for somebody who submits many and waits in no slot."""
        self.tool, self.slot = tool, slot
        message = self._message(tool)
        self._fleet.timer.watch(slot, self._deadline)
        return message

    async def submit(self, tool: Tool, hand_on: HandOn | None = None) -> Outcome:
        """Give it to `hand_on`, or else to the router, and wait in its slot, as long as it has time.

        Raises:
            CallTimeout: It has none, or there was no progress in time.
            SupervisorClosed: The router has ended.
        """
        request = self._request
        self._sent_before = self._sent_before or self.slot.may_have_acted
        if self.timeout == 0:
            raise self.timed_out()
        if request.on_progress is not None or request.idle_timeout is not None:
            return await self.in_time(self._submit_attentively(tool, hand_on))
        self.slot = ReplySlot()
        self._fleet.timer.watch(self.slot, self._deadline)
        await self._hand_on(tool, hand_on)
        return await self.slot.wait()

    def renew_slot(self) -> None:
        """After an answer that is a question: whether its server has acted is unknown until it gives another."""
        before, self.slot = self.slot, ReplySlot()
        self._sent_before = self._sent_before or before.sent
        self.slot.follow(before)

    async def _submit_attentively(self, tool: Tool, hand_on: HandOn | None) -> Outcome:
        """For a caller who hears of progress: its callback runs on the call's time, and no timer could end that."""
        request = self._request
        if request.idle_timeout is None:
            self.slot = ReplySlot(wants_progress=True)
            await self._hand_on(tool, hand_on)
            return await self.slot.wait(request.on_progress)
        idle = IdleLimit(request.idle_timeout)
        self.slot = ReplySlot(wants_progress=True, idle=idle)
        with idle.scope:
            await self._hand_on(tool, hand_on)
            return await self.slot.wait(request.on_progress)
        raise self.timed_out(idle.seconds)

    async def _hand_on(self, tool: Tool, hand_on: HandOn | None) -> None:
        if hand_on is not None:
            hand_on(self._message(tool))
            return
        try:
            await self._fleet.router.submit(self._message(tool))
        except trio.BrokenResourceError:
            raise SupervisorClosed from None

    def _message(self, tool: Tool) -> CallTool:
        request = self._request
        meta = {key: value for key, value in request.meta.items() if value is not None} if request.meta else {}
        if get_current():  # an empty context has nothing to inject, and finding that out takes the propagators longer
            inject(meta)
        limited = request.idle_timeout is not None or self.timeout < math.inf
        return CallTool(request.key, tool.tool, request.arguments, meta, self.slot, limited)
