"""A connection driven by the SDK's client: the session in a task of its own, and what is said in it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
from attrs import evolve
from mcp.client import ClientSession
from mcp_types import PaginatedRequestParams, Tool

from ..failures import Phase
from ..host import NO_HOST, Host
from ..mailbox import ReplySlot
from ..messages import CallTool, Era, Handshake, Loss, Outcome, Question, Round
from . import Connection, HandshakeFailed
from .callbacks import open_callbacks
from .changes import ToolChanges
from .driven_calls import DrivenCalls
from .driver import Driver
from .exchange import Exchange
from .fate import CLOSED, Fate, is_of_the_server, is_refusal
from .input_rounds import answer
from .listing import RawPage, list_tools
from .negotiation import BAD_ANSWER, facts, negotiate, probe
from .tool_calls import PreparedTool

T = TypeVar("T")


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
        self._fate = Fate(driver.transport, self.lose)
        self._calls = DrivenCalls(self._fate, nursery)
        self._requests: set[Exchange] = set()
        self._changes = ToolChanges()
        self._owner = trio.CancelScope(shield=True)  # bounded by `close`
        self._ready = trio.Event()
        self._release = trio.Event()

    @property
    def pid(self) -> None:
        """None: the server is no process of ours."""
        return

    @property
    def stderr_tail(self) -> str:
        """Nothing."""
        return ""

    @property
    def in_flight(self) -> int:
        """Tool calls that wait for an answer."""
        return len(self._calls)

    @property
    def heard_at(self) -> float:
        """When the server was last heard of, on Trio's clock."""
        return self._fate.heard_at

    # -- the conversation -----------------------------------------------------------------------------------------

    async def handshake(self, era: Era | None) -> Handshake:
        """Open the conversation. See `Connection`."""
        self._nursery.start_soon(self._own)
        await self._ready.wait()
        session = self._session
        if session is None:
            raise HandshakeFailed(self._fate.loss)
        if session.protocol_version is None:  # the SDK asks an object of this process itself
            await self._ask(lambda: negotiate(session, self._driver.era or era), "the handshake failed")
        return facts(session)

    async def list_tools(self) -> tuple[Tool, ...]:
        """Every page of `tools/list`. See `Connection`."""
        session = self._session
        assert session is not None  # the handshake came first
        self._changes.listed()

        async def page(params: PaginatedRequestParams | None) -> RawPage:
            answer = await session.list_tools(params=params)
            return RawPage(answer.tools, answer.next_cursor)

        tools = await self._ask(lambda: list_tools(page, most=self._host.limits.kept), "tools/list failed")
        self._fate.phase = Phase.CALL
        version = facts(session).protocol_version
        self._calls.offer(
            session, {tool.name: PreparedTool(tool, protocol_version=version, stamp={}) for tool in tools}
        )
        return tools

    async def watch_tools(self, tell: Callable[[], None]) -> None:
        """Have `tell` called whenever the tools changed. See `Connection`."""
        assert self._session is not None  # the handshake came first
        self._fate.phase = Phase.CALL
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
            if failure.lost or not is_refusal(failure.__cause__):
                raise
        self._fate.hear()  # a refusal is a sign of life too

    async def _ask(self, request: Callable[[], Awaitable[T]], failed: str) -> T:
        """Make a request that is no tool call.

        Raises:
            HandshakeFailed: It got no good answer, or the connection was lost.
        """
        fate = self._fate
        if fate.is_lost:
            raise HandshakeFailed(fate.loss, lost=True)
        exchange = Exchange()
        self._requests.add(exchange)
        error: Exception | None = None
        try:
            with exchange.under_way():
                return await request()
        except BAD_ANSWER as problem:
            error = problem
        finally:
            self._requests.discard(exchange)
        raise HandshakeFailed(fate.why(exchange, error, failed), lost=fate.is_lost) from error

    # -- calls ----------------------------------------------------------------------------------------------------

    def submit(self, calls: Sequence[CallTool]) -> None:
        """Start a task for each call. See `Connection`."""
        for call in calls:
            self._calls.begin(Round(call))  # the first round has nothing to bring

    async def answer(self, question: Question) -> Outcome:
        """Have the host answer a question. See `Connection`."""
        assert self._session is not None  # a call came first
        return await answer(self._session, question)

    def send_round(self, again: Round) -> None:
        """Start a task for one more round of a call. See `Connection`."""
        self._calls.begin(again)

    def cancel(self, slot: ReplySlot) -> None:
        """Cancel the call's task; the SDK tells the server. See `Connection`."""
        self._calls.cancel(slot)

    async def room(self, limit: int) -> int:
        """Wait until fewer than `limit` calls are in flight. See `Connection`."""
        while len(self._calls) >= limit:
            await self._calls.settled()
        return limit - len(self._calls)

    def withdraw(self) -> None:
        """Nothing waits here: a call is with the server as soon as its task runs."""

    async def idle(self) -> None:
        """Wait until no call is in flight. See `Connection`."""
        while self._calls:
            await self._calls.settled()

    async def lost(self) -> Loss:
        """Wait until the connection is lost. See `Connection`."""
        await self._fate.lost.wait()
        return self._fate.loss

    def lose(self, loss: Loss) -> None:
        """Count the connection as lost from now on: calls in flight end with this loss. Never waits."""
        if self._fate.is_lost:
            return
        self._fate.seal(evolve(loss, pending=len(self._calls)))
        self._calls.lose_all(self._fate.loss)
        for exchange in self._requests:
            exchange.scope.cancel()

    def close(self, grace: float) -> None:
        """End calls at once and the session within `grace` seconds."""
        self._release.set()
        nothing_to_end = not (self._ready.is_set() or self._driver.undoes_its_start)
        self._owner.deadline = trio.current_time() + (0 if nothing_to_end else grace)
        self._calls.cancel_all()

    async def _own(self) -> None:
        """Enter and leave the session in this one task."""
        try:
            with self._owner:
                async with (
                    open_callbacks(self._host) as callbacks,
                    self._driver.session(self._fate, self._changes, callbacks) as session,
                ):
                    self._session = session
                    self._fate.is_open = True
                    self._ready.set()
                    await self._release.wait()
        except BaseException as error:
            if not is_of_the_server(error):
                raise
            self._fate.end(error)
        finally:
            self.lose(CLOSED)
            self._ready.set()
