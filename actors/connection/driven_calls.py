"""Tool calls through the SDK's session: one task each, ended together with the connection."""

from collections.abc import Mapping
from typing import Any

import trio
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequest, CallToolRequestParams
from pydantic import TypeAdapter, ValidationError

from ..errors import one_line
from ..mailbox import ReplySlot
from ..messages import Answered, Loss, Malformed, Outcome, Round, Unlisted, Unsendable
from ..wire import frames
from .exchange import Exchange
from .fate import Fate
from .input_rounds import round_params
from .tool_calls import PreparedTool

_RAW: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
"""Takes a result as it is: it is judged in the caller's task, as on a wire."""


class DrivenCalls:
    """The calls in flight of one driven connection."""

    def __init__(self, fate: Fate, nursery: trio.Nursery) -> None:
        self._fate = fate
        self._nursery = nursery
        self._session: ClientSession | None = None
        self._tools: Mapping[str, PreparedTool] = {}
        self._in_flight: dict[ReplySlot, Exchange] = {}
        self._settled = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._in_flight)

    async def settled(self) -> None:
        """Wait until one of them has ended."""
        await self._settled.park()

    def offer(self, session: ClientSession, tools: Mapping[str, PreparedTool]) -> None:
        """From now on these tools can be called."""
        self._session = session
        self._tools = tools

    def begin(self, again: Round) -> None:
        """Start a task for one round of a call."""
        call = again.call
        if self._fate.is_lost:
            call.slot.resolve(self._fate.loss)
            return
        call.slot.tool = call.slot.tool or self._tools.get(call.tool)  # that of the round before
        if call.slot.tool is None:
            call.slot.resolve(Unlisted())
            return
        self._in_flight[call.slot] = exchange = Exchange(call.slot, limited=call.limited)
        self._nursery.start_soon(self._call, again, exchange)

    def cancel(self, slot: ReplySlot) -> None:
        """Cancel the call's task; the SDK tells the server."""
        if slot in self._in_flight:
            self._in_flight[slot].scope.cancel()

    def cancel_all(self) -> None:
        """Cancel every task."""
        for exchange in self._in_flight.values():
            exchange.scope.cancel()

    def lose_all(self, loss: Loss) -> None:
        """All of them end with this loss."""
        for slot in self._in_flight:
            slot.resolve(loss)
        self.cancel_all()

    async def _call(self, call: Round, exchange: Exchange) -> None:
        slot = call.slot
        try:
            if slot.decided:  # since it was begun: its caller was told that it was not sent
                return
            with exchange.under_way():
                slot.sent = True
                slot.resolve(await self._exchange(call, exchange))
                self._fate.hear()
        except SystemExit as error:  # a tool that ends "its" process ends the server, not the host
            self._fate.end(error)
        finally:
            del self._in_flight[slot]
            self._settled.unpark_all()
            if not slot.decided:
                slot.resolve(self._fate.loss if exchange.evidence is None else self._fate.judge(exchange, None))

    async def _exchange(self, call: Round, exchange: Exchange) -> Outcome:
        assert self._session is not None  # who has tools has a session

        async def report(progress: float, total: float | None, message: str | None) -> None:
            self._fate.hear()
            call.slot.report(progress, total, message)

        try:
            request = _request(call)
        except (TypeError, ValueError) as error:
            return Unsendable(one_line(error))
        try:
            raw = await self._session.send_request(
                request, _RAW, progress_callback=report if call.slot.wants_progress else None
            )
        except MCPError as error:
            return self._fate.judge(exchange, error)
        except ValidationError as error:
            return Malformed(f"not a tools/call result: {error.errors()[0]['msg']}")
        return Answered(raw)


def _request(call: Round) -> CallToolRequest:
    """What the SDK is given to send.

    Raises:
        TypeError, ValueError: It cannot be written.
    """
    params = round_params(call, call.call.meta)
    # The SDK would find out in a task that must not fail. The arguments were written once, in the caller's task.
    frames.encode({"params": params | {"arguments": None}})
    return CallToolRequest(params=CallToolRequestParams.model_validate(params))
