"""A connection driven by the SDK's client: one task a call, inside the incarnation."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import evolve
from mcp.client import Client, ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolRequest, CallToolRequestParams, Tool
from pydantic import TypeAdapter, ValidationError

from ..errors import leaves, one_line
from ..host import NO_HOST, Host
from ..mailbox import ReplySlot
from ..messages import (
    Answered,
    CallTool,
    Era,
    Handshake,
    Loss,
    Malformed,
    Outcome,
    Question,
    Rejected,
    Round,
    Unsendable,
)
from . import Connection, HandshakeFailed
from .callbacks import open_callbacks
from .input_rounds import answer, round_params
from .listing import list_tools
from .negotiation import CLIENT_INFO, facts, probe
from .tool_calls import PreparedTool, unknown_tool

_RAW: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
"""Takes a result as it is: it is judged in the caller's task, as on a wire."""
_CLOSED = Loss("the connection was closed")


@asynccontextmanager
async def open_driven(server: Any, *, close_grace: float, host: Host = NO_HOST) -> AsyncGenerator[Connection, None]:
    """Be a client of `server`, whatever the SDK's `Client` accepts, until the block is left.

    Args:
        server: A server object of this process.
        close_grace: Seconds its lifespan may take to end before it is cancelled.
        host: What it may ask of the host.
    """
    async with trio.open_nursery() as nursery:
        connection = DrivenConnection(server, nursery, host)
        try:
            yield connection
        finally:
            connection.close(close_grace)


class DrivenConnection:
    """A `Connection` whose client is entered and left in one task, and used from others."""

    def __init__(self, server: Any, nursery: trio.Nursery, host: Host) -> None:
        self._server = server
        self._nursery = nursery
        self._host = host
        self._session: ClientSession | None = None
        self._tools: dict[str, PreparedTool] = {}
        self._calls: dict[ReplySlot, trio.CancelScope] = {}
        self._settled = trio.lowlevel.ParkingLot()
        self._owner = trio.CancelScope(shield=True)  # bounded by `close`
        self._ready = trio.Event()
        self._release = trio.Event()
        self._lost = trio.Event()
        self._loss = _CLOSED
        self.heard_at = trio.current_time()
        """When the last answer or report of progress came. See `Connection`."""

    @property
    def pid(self) -> None:
        """None: the server lives in this process."""
        return

    @property
    def in_flight(self) -> int:
        """Tool calls that wait for an answer."""
        return len(self._calls)

    async def handshake(self, era: Era | None) -> Handshake:
        """Open the conversation. See `Connection`."""
        del era  # the SDK asks the object itself: there is nothing to save
        self._nursery.start_soon(self._own)
        await self._ready.wait()
        if self._session is None:
            raise HandshakeFailed(self._loss)
        return facts(self._session)

    async def list_tools(self) -> tuple[Tool, ...]:
        """Every page of `tools/list`. See `Connection`."""
        session = self._session
        assert session is not None  # the handshake came first
        try:
            tools = await list_tools(session)
        except (MCPError, ValidationError) as error:
            raise HandshakeFailed(Loss(f"tools/list failed: {one_line(error)}"), lost=self._lost.is_set()) from error
        version = facts(session).protocol_version
        self._tools = {tool.name: PreparedTool(tool, protocol_version=version, stamp={}) for tool in tools}
        return tools

    def submit(self, calls: Sequence[CallTool]) -> None:
        """Start a task for each call. See `Connection`."""
        for call in calls:
            self.send_round(Round(call))  # the first round has nothing to bring

    async def answer(self, question: Question) -> Outcome:
        """Have the host answer a question. See `Connection`."""
        assert self._session is not None  # a call came first
        return await answer(self._session, question)

    def send_round(self, again: Round) -> None:
        """Start a task for one more round of a call. See `Connection`."""
        call = again.call
        if self._lost.is_set():
            call.slot.resolve(self._loss)
            return
        tool = self._tools.get(call.tool)
        if tool is None:
            call.slot.resolve(unknown_tool(call))
            return
        call.slot.tool = tool
        self._calls[call.slot] = trio.CancelScope()
        self._nursery.start_soon(self._call, again, self._calls[call.slot])

    def cancel(self, slot: ReplySlot) -> None:
        """Cancel the call's task; the SDK tells the server. See `Connection`."""
        if slot in self._calls:
            self._calls[slot].cancel()

    async def room(self, limit: int) -> int:
        """Wait until fewer than `limit` calls are in flight. See `Connection`."""
        while len(self._calls) >= limit:
            await self._settled.park()
        return limit - len(self._calls)

    def withdraw(self) -> None:
        """Nothing waits here: a call is with the server as soon as its task runs."""

    async def idle(self) -> None:
        """Wait until no call is in flight. See `Connection`."""
        while self._calls:
            await self._settled.park()

    async def probe(self) -> None:
        """Ping, or discover where there is no ping. See `Connection`."""
        session = self._session
        assert session is not None  # the handshake came first
        try:
            await probe(session)
        except (MCPError, ValidationError) as error:
            if isinstance(error, MCPError) and error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise HandshakeFailed(Loss(f"the probe failed: {one_line(error)}")) from error
        self.heard_at = trio.current_time()  # a refusal is a sign of life too

    def lose(self, loss: Loss) -> None:
        """Count as lost. See `Connection`."""
        self._loss = evolve(loss, pending=len(self._calls))
        self._lost.set()
        for scope in self._calls.values():
            scope.cancel()

    async def lost(self) -> Loss:
        """Wait until the server object has ended. See `Connection`."""
        await self._lost.wait()
        return self._loss

    def close(self, grace: float) -> None:
        """End calls at once and the client within `grace` seconds."""
        self._release.set()
        self._owner.deadline = trio.current_time() + grace
        for scope in self._calls.values():
            scope.cancel()

    async def _own(self) -> None:
        """Enter and leave the client in this one task."""
        try:
            with self._owner:
                async with (
                    open_callbacks(self._host) as callbacks,
                    Client(self._server, client_info=CLIENT_INFO, **callbacks) as client,
                ):
                    self._session = client.session
                    self._ready.set()
                    await self._release.wait()
        except BaseException as error:
            if not _is_of_the_server(error):
                raise
            self._loss = _end_of(error)
        finally:
            self._lost.set()
            self._ready.set()
            for slot in self._calls:
                slot.resolve(self._loss)

    async def _call(self, call: Round, scope: trio.CancelScope) -> None:
        slot = call.slot
        try:
            with scope:
                slot.sent = True
                slot.resolve(await self._exchange(call))
                self.heard_at = trio.current_time()
        except SystemExit as error:  # a tool that ends "its" process ends the server, not the host
            self._loss = _end_of(error)
            self._lost.set()
        finally:
            del self._calls[slot]
            self._settled.unpark_all()
            slot.resolve(self._loss)

    async def _exchange(self, call: Round) -> Answered | Rejected | Malformed | Unsendable:
        assert self._session is not None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            self.heard_at = trio.current_time()
            call.slot.report(progress, total, message)

        try:
            params = round_params(call, call.call.meta)
            request = CallToolRequest(params=CallToolRequestParams.model_validate(params))
        except ValueError as error:
            return Unsendable(one_line(error))
        try:
            raw = await self._session.send_request(
                request, _RAW, progress_callback=report if call.slot.wants_progress else None
            )
        except MCPError as error:
            return Rejected(error.code, error.message, error.data)
        except ValidationError as error:
            return Malformed(f"not a tools/call result: {error.errors()[0]['msg']}")
        return Answered(raw)


def _is_of_the_server(error: BaseException) -> bool:
    """Whatever a server object of the host's raises is that server's end; cancellation and Ctrl-C are not."""
    return all(isinstance(leaf, (Exception, SystemExit)) for leaf in leaves(error))


def _end_of(error: BaseException) -> Loss:
    first = next(leaves(error))
    told = f"{type(first).__name__}: {first}" if str(first) else type(first).__name__
    return Loss(f"the server object ended: {one_line(told)}")
