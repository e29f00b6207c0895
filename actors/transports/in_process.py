"""A server object of this process.

Its carrier has no stream and no frames: each request is a task that calls the server's handler.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import trio
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.runner import modern_on_request
from mcp.shared.dispatcher import CallOptions, OnRequest, ProgressFnT
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, RequestId
from pydantic import ValidationError

from mcp_nursery.actors.records import Factory, define, field, frozen

from ..callbacks import NO_HOST, Host
from ..enums import Era
from ..errors import StartFailed, leaves
from ..json_depth import TOO_DEEP, nested_too_deep
from ..jsonrpc import codec
from ..jsonrpc.carrier import Carrier, Frame, Hub, Origin, Outgoing
from ..outcomes import Answered, Loss, Outcome, Rejected
from ..overrides import override
from ..reply import ReplySlot
from ..secrets import words_of

if TYPE_CHECKING:
    from ..session.connection import Connection


@frozen
class InProcessConnector:
    """A connector to an `MCPServer` or low-level `Server` of the SDK. Each incarnation enters its lifespan anew."""

    server: Any = field(repr=False)
    close_grace: float
    """Seconds its lifespan may take to end before it is cancelled."""

    @asynccontextmanager
    async def connect(self, host: Host = NO_HOST) -> "AsyncGenerator[Connection, None]":
        """Open one connection. The server may use what `host` offers.

        Raises:
            StartFailed: On entering: `server` is not a server object.
        """
        server: object = self.server
        if not isinstance(server, (Server, MCPServer)):
            problem = f"server must be an MCPServer or a low-level Server of the MCP SDK, not {type(server).__name__}"
            raise StartFailed(problem, retriable=False)
        from ..session.connection import open_connection

        async with (
            open_object(low_level_server(self.server), close_grace=self.close_grace) as carrier,
            open_connection(carrier, host) as connection,
        ):
            yield connection


logger: Final = logging.getLogger(__name__)

SERVER_CLOSED = Loss("the connection was closed")

_DIRECT = TransportContext(kind="direct", can_send_request=False)


@define
class _Request:
    """The context of a request for its handler: the SDK's `DispatchContext`."""

    request_id: RequestId
    _notify: Callable[[str, Mapping[str, Any] | None], Awaitable[None]]
    _report: ProgressFnT | None
    transport: TransportContext = _DIRECT
    message_metadata: None = None
    can_send_request: bool = False
    cancel_requested: anyio.Event = Factory(anyio.Event)
    """Never set: a call that is given up has its task cancelled."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Refuse: servers of this era send requests in results alone."""
        del params, opts
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Notify the client."""
        del opts
        await self._notify(method, params)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Hand progress to the caller that waits for the result, if it wants any."""
        if self._report is not None:
            await self._report(progress, total, message)


class ObjectCarrier(Carrier):
    """The carrier to the handlers of one server object, whose lifespan is open as long as `live` runs."""

    only_era: Era | None = Era.MODERN
    dies_of_a_probe = False

    def __init__(self, server: Server[Any]) -> None:
        self._server = server
        self._serve: OnRequest | None = None
        """Calls its handlers; None unless its lifespan is open."""
        self._began = trio.Event()
        """Set once its handlers can be called, or never will be."""
        self._ended = trio.Event()
        self._loss = SERVER_CLOSED
        self._released = trio.Event()
        self._hub: Hub | None = None
        self._nursery: trio.Nursery | None = None
        self._scopes: dict[ReplySlot, trio.CancelScope] = {}

    # -- its life -------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Enter the server's lifespan, and leave it on `release`. An exception ends this server alone."""
        try:
            async with self._server.lifespan(self._server) as state:
                self._serve = modern_on_request(self._server, state)
                self._began.set()
                try:
                    await self._released.wait()
                finally:
                    self._serve = None
        except BaseException as error:
            if not _is_of_the_server(error):
                raise
            self._end(error)
        finally:
            self._began.set()
            self._ended.set()

    def release(self) -> None:
        """Have `live` leave the lifespan."""
        self._released.set()

    def _end(self, error: BaseException) -> None:
        first = next(leaves(error))
        problem = f"{type(first).__name__}: {first}" if str(first) else type(first).__name__
        self._loss = Loss(f"the server object ended: {words_of(problem)}")

    # -- out ------------------------------------------------------------------------------------------------------

    @override
    def send(self, batch: Sequence[Frame]) -> Sequence[Frame]:
        # Each request has a task of its own, as many as there may be calls.
        for outgoing in batch:
            if outgoing.slot is not None:  # a server of this era gets nothing but requests
                assert self._nursery is not None  # nothing is asked before it runs
                self._scopes[outgoing.slot] = trio.CancelScope()
                self._nursery.start_soon(self._ask, outgoing, outgoing.slot)
        return ()

    @override
    async def notify(self, outgoing: Outgoing) -> None:
        self.send([outgoing])
        await trio.lowlevel.checkpoint()

    @override
    async def taken(self) -> None:
        await self._began.wait()

    @override
    def withdraw(self, slots: Sequence[ReplySlot]) -> Sequence[ReplySlot]:
        for slot in slots:
            if slot in self._scopes:
                self._scopes[slot].cancel()  # and with it the handler, which so notices
        return ()

    @override
    def opened(self) -> None: ...

    @override
    def explain(self, error: Exception, problem: str) -> Loss:
        del error
        return Loss(problem)

    # -- one request ----------------------------------------------------------------------------------------------

    async def _ask(self, outgoing: Frame, slot: ReplySlot) -> None:
        hub = self._hub
        assert hub is not None  # it runs the carrier
        try:
            with self._scopes[slot]:
                await self._began.wait()
                if self._serve is None:
                    hub.lose(self._loss)
                hub.conclude(slot, await self._outcome(codec.decode(outgoing.frame), slot, hub))
        except SystemExit as error:  # a tool that ends "its" process ends the server, not the host
            self._end(error)
            hub.lose(self._loss)
            self._ended.set()
        finally:
            del self._scopes[slot]

    async def _outcome(self, request: dict[str, Any], slot: ReplySlot, hub: Hub) -> Outcome:
        serve = self._serve
        if slot.decided or serve is None:  # its caller was told that it was not sent
            return self._loss
        slot.mark_sent()

        async def report(progress: float, total: float | None, message: str | None) -> None:
            await trio.lowlevel.checkpoint()
            hub.hear()
            slot.report(progress, total, message)

        asked = _Request(request["id"], self._hear, report if slot.wants_progress else None)
        try:
            return Answered(await serve(asked, request["method"], request.get("params")))
        except MCPError as error:
            data = TOO_DEEP if nested_too_deep(error.data) else error.data
            return Rejected(error.code, error.message, data)
        except ValidationError:
            return Rejected(INVALID_PARAMS, "Invalid request parameters", "")
        except Exception:  # its text may be anything, as on a wire
            logger.exception("a handler of a server object raised")
            return Rejected(INTERNAL_ERROR, "Internal server error")
        finally:
            hub.hear()

    # -- in -------------------------------------------------------------------------------------------------------

    @override
    async def run(self, hub: Hub, nursery: trio.Nursery) -> Loss:
        self._hub, self._nursery = hub, nursery
        await self._ended.wait()
        return self._loss

    async def _hear(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Take a notification, in the task of the handler that sends it."""
        if self._serve is None:
            return  # of a request that is over
        assert self._hub is not None  # it runs the carrier
        self._hub.hear()
        await self._hub.take_in([codec.notification(method, params)], Origin())


def _is_of_the_server(error: BaseException) -> bool:
    """True if an exception ends the server: every one does but cancellation and Ctrl-C."""
    return all(isinstance(leaf, (Exception, SystemExit)) for leaf in leaves(error))


def low_level_server(server: "Server[Any] | MCPServer[Any]") -> Server[Any]:
    """The low-level server, whose handlers can be called.

    An `MCPServer` shows its own only in a session manager, made together with its HTTP app. One made here serves
    nobody: serving the object over HTTP makes another app, and another manager.
    """
    if isinstance(server, Server):
        return server
    try:
        return server.session_manager.app
    except RuntimeError:
        server.streamable_http_app()
        return server.session_manager.app


@asynccontextmanager
async def open_object(server: Server[Any], *, close_grace: float) -> AsyncGenerator[ObjectCarrier, None]:
    """Run a server object, which may live any number of times, also at once, while the block lasts. The block's
    exception is not wrapped. The end of the object's lifespan may take `close_grace` seconds before it is cancelled."""
    carrier = ObjectCarrier(server)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        life = trio.CancelScope(shield=True)  # bounded from the end of the block on

        async def live() -> None:
            with life:
                await carrier.live()

        nursery.start_soon(live)
        try:
            yield carrier
        except BaseException as error:
            failure = error
        carrier.release()
        life.deadline = trio.current_time() + close_grace
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
