"""A connection driven by the SDK's client: one task a call, inside the incarnation."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

import trio
from attrs import evolve
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    Tool,
)
from pydantic import TypeAdapter, ValidationError

from ..errors import StartFailed, leaves, one_line
from ..failures import Evidence, Phase, Reason, loss_of, sort
from ..host import NO_HOST, Host
from ..mailbox import ReplySlot
from ..messages import (
    Answered,
    CallTool,
    Dropped,
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
from .callbacks import SessionCallbacks, open_callbacks
from .changes import ToolChanges
from .exchange import Exchange, Witness
from .input_rounds import answer, round_params
from .listing import list_tools
from .negotiation import facts, negotiate, probe
from .tool_calls import PreparedTool, unknown_tool

T = TypeVar("T")

_RAW: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
"""Takes a result as it is: it is judged in the caller's task, as on a wire."""
_CLOSED = Loss("the connection was closed")


class Driver(Protocol):
    """A server that the SDK reaches for us."""

    @property
    def transport(self) -> str:
        """How it is reached: `http`, `sse` or `in-process`."""
        ...

    @property
    def undoes_its_start(self) -> bool:
        """Whether an opening that nobody waits for any more is to be given time to end by itself."""
        ...

    @property
    def era(self) -> Era | None:
        """The only era this transport knows; None if it knows all."""
        ...

    def session(
        self, witness: Witness, changes: ToolChanges, callbacks: SessionCallbacks
    ) -> AbstractAsyncContextManager[ClientSession]:
        """Open a session, entered and left in one task.

        Raises:
            StartFailed: On entering: it cannot be opened, and no answer of the server's says why.
        """
        ...


@asynccontextmanager
async def open_driven(driver: Driver, *, close_grace: float, host: Host = NO_HOST) -> AsyncGenerator[Connection, None]:
    """Be a client of a server until the block is left.

    Args:
        driver: Opens the SDK's session.
        close_grace: Seconds the session's end may take before it is cancelled.
        host: What the server may ask of the host.
    """
    async with trio.open_nursery() as nursery:
        connection = DrivenConnection(driver, nursery, host)
        try:
            yield connection
        finally:
            connection.close(close_grace)


class DrivenConnection:
    """A `Connection` whose session is entered and left in one task, and used from others."""

    def __init__(self, driver: Driver, nursery: trio.Nursery, host: Host) -> None:
        self._driver = driver
        self._nursery = nursery
        self._host = host
        self._session: ClientSession | None = None
        self._changes = ToolChanges()
        self._tools: dict[str, PreparedTool] = {}
        self._calls: dict[ReplySlot, Exchange] = {}
        self._requests: set[Exchange] = set()
        self._settled = trio.lowlevel.ParkingLot()
        self._owner = trio.CancelScope(shield=True)  # bounded by `close`
        self._ready = trio.Event()
        self._release = trio.Event()
        self._lost = trio.Event()
        self._loss = _CLOSED
        self._evidence: Evidence | None = None
        self._phase = Phase.OPENING
        self._in_session = False
        self._heard_at = trio.current_time()

    @property
    def pid(self) -> None:
        """None: the server is no process of ours."""
        return

    @property
    def in_flight(self) -> int:
        """Tool calls that wait for an answer."""
        return len(self._calls)

    @property
    def heard_at(self) -> float:
        """When the server was last heard of, on Trio's clock."""
        return self._heard_at

    # -- the conversation -----------------------------------------------------------------------------------------

    async def handshake(self, era: Era | None) -> Handshake:
        """Open the conversation. See `Connection`."""
        self._nursery.start_soon(self._own)
        await self._ready.wait()
        session = self._session
        if session is None:
            raise HandshakeFailed(self._loss)
        if session.protocol_version is None:  # the SDK asks an object of this process itself
            await self._ask(lambda: negotiate(session, self._driver.era or era), "the handshake failed")
        return facts(session)

    async def list_tools(self) -> tuple[Tool, ...]:
        """Every page of `tools/list`. See `Connection`."""
        session = self._session
        assert session is not None  # the handshake came first
        self._changes.listed()
        tools = await self._ask(lambda: list_tools(session), "tools/list failed")
        self._phase = Phase.CALL
        version = facts(session).protocol_version
        self._tools = {tool.name: PreparedTool(tool, protocol_version=version, stamp={}) for tool in tools}
        return tools

    async def watch_tools(self, tell: Callable[[], None]) -> None:
        """Have `tell` called whenever the tools changed. See `Connection`."""
        assert self._session is not None  # the handshake came first
        self._phase = Phase.CALL
        await self._changes.watch(self._session, tell)

    async def probe(self) -> None:
        """Ask what every server answers at once.

        Raises:
            HandshakeFailed: There was no answer, or one that is none of the protocol.
        """
        session = self._session
        assert session is not None  # the handshake came first
        try:
            await self._ask(lambda: probe(session), "the probe failed")
        except HandshakeFailed as failure:
            if failure.lost or not _is_refusal(failure.__cause__):
                raise
        self.hear()  # a refusal is a sign of life too

    async def _ask(self, request: Callable[[], Awaitable[T]], failed: str) -> T:
        """Make a request that is no tool call.

        Raises:
            HandshakeFailed: It got no good answer, or the connection was lost.
        """
        if self._lost.is_set():
            raise HandshakeFailed(self._loss, lost=True)
        exchange = Exchange()
        self._requests.add(exchange)
        error: Exception | None = None
        try:
            with exchange.under_way():
                return await request()
        except (MCPError, ValidationError, RuntimeError) as problem:
            error = problem
        finally:
            self._requests.discard(exchange)
        raise HandshakeFailed(self._why(exchange, error, failed), lost=self._lost.is_set()) from error

    def _why(self, exchange: Exchange, error: Exception | None, failed: str) -> Loss:
        if self._lost.is_set():
            return self._loss
        evidence = exchange.evidence or _evidence_in(error, in_session=self._in_session)
        return loss_of(sort(self._driver.transport, self._phase, evidence), f"{failed}: {evidence.told}")

    # -- calls ----------------------------------------------------------------------------------------------------

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
        self._calls[call.slot] = Exchange(call.slot, limited=again.call.limited)
        self._nursery.start_soon(self._call, again, self._calls[call.slot])

    def cancel(self, slot: ReplySlot) -> None:
        """Cancel the call's task; the SDK tells the server. See `Connection`."""
        if slot in self._calls:
            self._calls[slot].scope.cancel()

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

    async def lost(self) -> Loss:
        """Wait until the connection is lost. See `Connection`."""
        await self._lost.wait()
        return self._loss

    def lose(self, loss: Loss) -> None:
        """Count the connection as lost from now on: calls in flight end with this loss. Never waits."""
        if self._lost.is_set():
            return
        self._loss = evolve(loss, pending=len(self._calls))
        self._lost.set()
        for slot in self._calls:
            slot.resolve(self._loss)
        for exchange in (*self._calls.values(), *self._requests):
            exchange.scope.cancel()

    def close(self, grace: float) -> None:
        """End calls at once and the session within `grace` seconds."""
        self._release.set()
        nothing_to_end = not (self._ready.is_set() or self._driver.undoes_its_start)
        self._owner.deadline = trio.current_time() + (0 if nothing_to_end else grace)
        for exchange in self._calls.values():
            exchange.scope.cancel()

    async def _own(self) -> None:
        """Enter and leave the session in this one task."""
        try:
            with self._owner:
                async with (
                    open_callbacks(self._host) as callbacks,
                    self._driver.session(self, self._changes, callbacks) as session,
                ):
                    self._session = session
                    self._ready.set()
                    await self._release.wait()
        except BaseException as error:
            if not _is_of_the_server(error):
                raise
            self.lose(self._end_of(error))
        finally:
            self.lose(_CLOSED)
            self._ready.set()

    async def _call(self, call: Round, exchange: Exchange) -> None:
        slot = call.slot
        try:
            with exchange.under_way():
                slot.sent = True
                slot.resolve(await self._exchange(call, exchange))
                self.hear()
        except SystemExit as error:  # a tool that ends "its" process ends the server, not the host
            self.lose(self._end_of(error))
        finally:
            del self._calls[slot]
            self._settled.unpark_all()
            if not slot.decided:
                slot.resolve(self._loss if exchange.evidence is None else self._judged(exchange.evidence, None))

    async def _exchange(self, call: Round, exchange: Exchange) -> Outcome:
        assert self._session is not None

        async def report(progress: float, total: float | None, message: str | None) -> None:
            self.hear()
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
            return self._judged(exchange.evidence or _evidence_in(error, in_session=self._in_session), error)
        except ValidationError as error:
            return Malformed(f"not a tools/call result: {error.errors()[0]['msg']}")
        return Answered(raw)

    def _judged(self, evidence: Evidence, error: MCPError | None) -> Outcome:
        """What a failed call's caller gets. What ends the connection ends it now."""
        verdict = sort(self._driver.transport, Phase.CALL, evidence)
        if verdict.ends:
            self.lose(loss_of(verdict, evidence.told))
            return self._loss
        if verdict.reason is Reason.UNKNOWN_OUTCOME:
            return Dropped(evidence.told, status=evidence.status, again=verdict.again)
        if error is None or (evidence.status is not None and evidence.code is None):
            return Rejected(evidence.code or evidence.status or INTERNAL_ERROR, evidence.told)
        return Rejected(error.code, _words_of(error), error.data)

    # -- what the HTTP client tells -------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """See `Witness`."""
        return self._lost.is_set()

    @property
    def is_open(self) -> bool:
        """See `Witness`."""
        return self._session is not None

    def hear(self) -> None:
        """See `Witness`."""
        self._heard_at = trio.current_time()

    def in_session(self) -> None:
        """See `Witness`."""
        self._in_session = True

    def see(self, evidence: Evidence, *, stream: bool = False) -> None:
        """See `Witness`."""
        self._evidence = evidence
        verdict = sort(self._driver.transport, Phase.STREAM if stream else self._phase, evidence)
        if verdict.ends:
            self.lose(loss_of(verdict, evidence.told))

    def _end_of(self, error: BaseException) -> Loss:
        """How the session ended that raised this."""
        first = next(leaves(error))
        if isinstance(first, StartFailed):
            return Loss(str(first), unusable=not first.retriable)
        if self._evidence is not None:
            return loss_of(sort(self._driver.transport, self._phase, self._evidence), self._evidence.told)
        told = f"{type(first).__name__}: {first}" if str(first) else type(first).__name__
        what = "server object" if self._driver.transport == "in-process" else "connection"
        return Loss(f"the {what} ended: {one_line(told)}")


def _is_of_the_server(error: BaseException) -> bool:
    """Whatever a server object of the host's raises is that server's end; cancellation and Ctrl-C are not."""
    return all(isinstance(leaf, (Exception, SystemExit)) for leaf in leaves(error))


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the server itself has answered, although not with what was asked for."""
    if isinstance(error, MCPError):
        return error.code < 0 and error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
    return isinstance(error, ValidationError)


def _words_of(error: MCPError) -> str:
    """The server's; the SDK's own about what it could not parse are replaced, since they quote pieces of it."""
    quotes = error.code == PARSE_ERROR and "validation error" in error.message
    return "an answer that is none of the protocol" if quotes else error.message


def _evidence_in(error: Exception | None, *, in_session: bool) -> Evidence:
    """What an answer shows that came without a fault of HTTP."""
    if isinstance(error, MCPError):
        return Evidence(one_line(_words_of(error)), code=error.code, in_session=in_session)
    if isinstance(error, ValidationError):
        return Evidence(f"an answer that is none of the protocol: {error.errors()[0]['msg']}")
    return Evidence(one_line(error) if error is not None else "no answer")
