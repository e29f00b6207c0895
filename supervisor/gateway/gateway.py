"""The supervisor as one MCP server: what becomes of a client's request.

`Supervisor` alone brings its requests to servers, by way of `upstream`; an import contract names all else of the inside
that the gateway uses.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from typing import Final

import trio

from mcp_nursery.actors.argument_checks import check_argument, one_of, seconds, true_or_false
from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConnectionLost, NurseryError, ServerError, UnknownServer
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.nurseries import open_bare_nursery
from mcp_nursery.actors.protocol import HANDSHAKE_PROTOCOL_VERSIONS

from ..calls.host_tools import EVERY_SERVER
from ..security.untrusted_marks import MAX_RESULT_CHARS, MOST_INSTRUCTIONS, clean_name
from ..supervisor import Supervisor
from ..tools.outcome import error_content
from .auth.principal import EVERYTHING, Access, Principal
from .bridge import Json, discover_result, initialize_result
from .client_request import ClientRequest, GatewayEnding, check_request, to_client_error
from .client_status import HeldCallStatus
from .notifications import ClientNotifications
from .sealing import SessionKeys
from .upstream.ask_client import Unattended
from .upstream.held_calls import HOLD
from .upstream.requests import Upstream
from .views.all import INSTRUCTIONS, All, Pages
from .views.marks import add_preamble, mark_result
from .views.view import One, View, status_of

logger: Final = logging.getLogger(__name__)

LIST_GATE: Final = 10.0
"""Seconds that lists wait at most for servers of which nothing is known yet: hosts give up after thirty and more."""


class Gate:
    """Holds lists back while first attempts are under way that may add to them.

    The time is that of a server, not of a list: it counts from when the gateway was opened, and for a server that comes
    later from the first list after that. A list after that time does not wait for that server any more.

    Args:
        supervisor: The supervisor of the servers that are listed.
        seconds: How long lists wait for one of them at most.
    """

    def __init__(self, supervisor: Supervisor, seconds: float) -> None:
        self._supervisor = supervisor
        self._seconds = seconds
        self._until = dict.fromkeys(supervisor.unlisted, trio.current_time() + seconds)
        """Until when each server is waited for, on Trio's clock."""
        self._missed: set[str] = set()
        """Servers that were missing from a list."""
        self._waits: set[trio.CancelScope] = set()

    async def wait(self, matters: Callable[[str], bool]) -> None:
        """Wait until it is known what servers offer, or their time is over.

        Args:
            matters: Whether a server of this name has to do with the list.
        """
        if self._seconds:
            for server in filter(matters, self._supervisor.unlisted):
                await self._wait_for(server)

    async def _wait_for(self, server: str) -> None:
        until = self._until.setdefault(server, trio.current_time() + self._seconds)
        with trio.CancelScope(deadline=until) as scope:
            self._waits.add(scope)
            try:
                with suppress(UnknownServer):  # it has gone meanwhile
                    await self._supervisor.wait_listed(server)
            finally:
                self._waits.discard(scope)
        is_over = scope.cancelled_caught and trio.current_time() >= until
        if is_over and server in self._supervisor.unlisted and server not in self._missed:
            self._missed.add(server)
            logger.warning(
                "%s: not connected after %g s: lists go without it, and clients are told when it comes",
                clean_name(server),
                self._seconds,
            )

    def end(self) -> None:
        """Let all lists go on that wait now."""
        for scope in self._waits:
            scope.cancel()


LISTEN: Final = "subscriptions/listen"
MOST_VIEWS: Final = 256
"""Views of single servers that are kept."""
_OPENINGS: Final = frozenset(["initialize", "server/discover"])


class Gateway:
    """A supervisor as an MCP server for any number of clients: all its servers or one of them. See `open_gateway`."""

    def __init__(
        self,
        supervisor: Supervisor,
        nursery: trio.Nursery,
        hold: float,
        gate: float,
        *,
        search: bool,
        mark: bool,
        unattended: Unattended,
        session_keys: SessionKeys | None,
    ) -> None:
        self.supervisor: Final = supervisor
        """The supervisor whose servers it offers."""
        self.session_keys: Final = session_keys
        """The keys by which sessions and held calls outlive it."""
        self.session_notes: Final = supervisor.session_notes
        """The notes about sessions that outlive it."""
        self._mark = mark
        self.news: Final = ClientNotifications(supervisor, nursery, search=search)
        """The notifications of changes to its clients."""
        self._upstream = Upstream(
            supervisor, self.news.instances, nursery, hold=hold, unattended=unattended, session_keys=session_keys
        )
        self._searches = _make_search() if search else None
        self._pages: dict[str, Pages] | None = None if mark else {}
        self._one_of = lru_cache(MOST_VIEWS)(self._make_view)
        """The views of single servers: clients ask for the same again and again."""
        self._all = self._make_view(None, EVERYTHING)
        self._gate = Gate(supervisor, gate)
        self._under_way = 0
        self._settled = trio.Event()
        self.has_listed: Final = trio.Event()
        """Set when a first list is sent to a client."""
        self.draining: bool = False
        """True while it ends: new requests are refused."""

    def view(self, server: str | None, access: Access = EVERYTHING) -> View:
        """The view of a client on one server, or on all of them.

        Args:
            server: None: all of them.
            access: What the client may use.

        Raises:
            UnknownServer: No server of that name, or the client may use nothing of it and is not to know of it.
        """
        if server is None:
            return self._all if access.allow is None else self._make_view(None, access)
        try:
            self.supervisor.spec(server)
        except UnknownServer:
            if access.allow is None:
                raise
            raise UnknownServer(server) from None  # without the names of others
        if not access.has_server(server):
            raise UnknownServer(server)
        return self._one_of(server, access)

    def _make_view(self, server: str | None, access: Access) -> View:
        plain = All(self.supervisor, access, self._pages) if server is None else One(self.supervisor, server, access)
        return plain if self._searches is None else self._searches(self.supervisor, plain)

    @property
    def is_settled(self) -> bool:
        """True if every first attempt has come to an end."""
        return not any(one.state is ServerState.CONNECTING and one.incarnation <= 1 for one in self.supervisor.status())

    # -- its requests ---------------------------------------------------------------------------------------------

    async def answer(self, request: ClientRequest, view: View, protocol_version: str) -> Json:
        """The result of a request.

        Args:
            request: The request.
            view: What its client sees.
            protocol_version: Of the client.

        Raises:
            GatewayEnding: The gateway ends. Nothing was done.
            JsonRpcError: The error that the client is sent instead.
        """
        if self.draining:
            raise GatewayEnding
        self._under_way += request.method != LISTEN
        try:
            await check_request(request, protocol_version)
            return await self._answer(request, view)
        except NurseryError as error:
            raise to_client_error(error, begun=request.method not in _OPENINGS) from None
        finally:
            self._under_way -= request.method != LISTEN
            self._settled.set()

    @property
    def held(self) -> tuple[HeldCallStatus, ...]:
        """The calls that wait for their clients."""
        return self._upstream.held

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End what outlasts the requests of clients without a session: calls that wait for them, and their instances.

        Args:
            of: Whether this client is one of them; None stands for all that are not authenticated.
        """
        self._upstream.end_clients(of)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait for those under way, at most so many seconds."""
        self.draining = True
        self._gate.end()
        with trio.move_on_after(seconds):
            while self._under_way:
                self._settled = trio.Event()
                await self._settled.wait()

    async def _answer(self, request: ClientRequest, view: View) -> Json:
        hello: Json
        match request.method:
            case "ping":
                return {}
            case "initialize":
                hello = self._introduce(view, await view.hello())
                return initialize_result(
                    hello, request.params.get("protocolVersion"), tuple(HANDSHAKE_PROTOCOL_VERSIONS)
                )
            case "server/discover":
                return discover_result(self._introduce(view, await view.hello()))
            case "subscriptions/listen":
                return await self.news.listen(request, view)
            case "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
                return await self._for_session(request, view)
            case method:
                answer = self._list if method in LISTED else self._forward
                return await answer(request, view)

    async def _list(self, request: ClientRequest, view: View) -> Json:
        with self.news.track_listing(request) as listing:
            request.asked_at = trio.current_time()
            await self._gate.wait(partial(view.lists, request.method))
            if self.draining:
                raise GatewayEnding
            listing.read()
            self.has_listed.set()
            return await self._forward(request, view)

    async def _for_session(self, request: ClientRequest, view: View) -> Json:
        """Answer a request about what a session keeps."""
        session = request.session
        assert session is not None  # these methods are of eras with sessions
        if request.method == "logging/setLevel":
            await self.news.set_level(session, request.params["level"])
            return {}
        async with session.turn(request.params["uri"]):
            if request.method == "resources/subscribe":
                await self.news.subscribe(request, session, view)
            else:
                session.subscribed.pop(request.params["uri"], trio.CancelScope()).cancel()
        return {}

    async def _forward(self, request: ClientRequest, view: View) -> Json:
        try:
            route = await view.route(request)
            if route is None:
                return await self._answer_here(request, view)
            result = view.filter_result(request, await self._upstream.request(request, route), route.server)
            return await self._mark_result(request, result, route.server, route.params.get("name"))
        except NurseryError as error:
            if request.method in LISTED and await view.route(request) is None:  # its server was lost meanwhile
                return await self._answer_here(request, view)
            raw = isinstance(error, UnknownServer) or (isinstance(error, ServerError) and not self._mark)
            if raw or request.method != "tools/call":
                raise
            return self._error_result(error, request)

    async def _answer_here(self, request: ClientRequest, view: View) -> Json:
        return await self._mark_result(request, await view.answer(request), view.server or EVERY_SERVER)

    async def _mark_result(self, request: ClientRequest, result: Json, server: str, tool: str | None = None) -> Json:
        """The result, with marks where they are wanted; `tool`: the server's own name of it."""
        if not self._mark:
            return result
        tool, room = tool or str(request.params.get("name")), MAX_RESULT_CHARS
        with suppress(UnknownServer):  # all of them, or one that has gone
            room = self.supervisor.spec(server).max_result_chars
        return await by_turns(mark_result(request.method, result, server=server, tool=tool, room=room))

    def _introduce(self, view: View, hello: Json) -> Json:
        """The introduction to a client."""
        if not self._mark:
            return hello
        said = [*view.instructions().items()]
        return add_preamble(hello, dict(said[: INSTRUCTIONS // MOST_INSTRUCTIONS]))

    def _error_result(self, error: NurseryError, request: ClientRequest) -> Json:
        """The result of a tool with the reason of a failure for a model, and the time to try again."""
        text = error_content(error)
        if isinstance(error, ConnectionLost):
            status = status_of(self.supervisor, error.server)
            if status is not None and status.retry_in is not None:
                text += f"\nThe server restarts in {status.retry_in:.0f} s."
        result: Json = {"content": [{"type": "text", "text": text}], "isError": True}
        return result | {"resultType": "complete"} if request.modern else result


def _make_search() -> "Callable[[Supervisor, View], View]":
    """The function that makes a view of two tools of one of many, with one set of schemas for all of them."""
    from .views.search import Schemas, Search  # few gateways have it

    return partial(Search, schemas=Schemas())


@asynccontextmanager
async def open_gateway(
    supervisor: Supervisor,
    *,
    hold: float = HOLD,
    gate: float = LIST_GATE,
    search: bool = False,
    mark: bool = False,
    unattended: Unattended = "allow",
    session_keys: SessionKeys | None = None,
) -> AsyncGenerator[Gateway, None]:
    """A gateway in front of a supervisor, for as long as the block lasts.

    The supervisor is opened with `callbacks=gateway_callbacks()`, or its servers are offered nothing that a client can
    be asked.

    Args:
        supervisor: The supervisor that is served.
        hold: Seconds that a call waits for its client to come back with answers. A client that never does keeps its
            call under way for so long, and over stdio an older server can ask no other client meanwhile.
        gate: Seconds that lists wait at most for servers whose first attempt is under way and of which nothing is
            cached. They count from here, or for a server that comes later from the first list after that. Lists then
            have what there is, and clients are notified of what comes. 0: no list waits.
        search: List two tools in place of all: `find_tools`, which finds tools by words, and `call_tool`, which calls
            what was found.
        mark: Put what servers answer between marks, as a `Toolset` does, for clients whose hosts have none of their
            own. By default it is passed on as it came.
        unattended: What becomes of a call that the supervisor's `approval_rules` want asked about, where there is no
            `approve`, and its client takes no forms: by default it is allowed, since a client's host has approval of
            its own.
        session_keys: The keys by which sessions of the handshake era over HTTP outlive this block, and go on at other
            gateways with one of these keys; a call that waits for an approval alone, too. None: they end with it.

    Raises:
        ValueError: An option has a value that is not allowed.
        ConfigError: `search`, and the SQLite of this Python has no FTS5.
    """
    check_argument("hold", hold, seconds)
    check_argument("gate", gate, seconds)
    check_argument("mark", mark, true_or_false)
    check_argument("unattended", unattended, one_of(Unattended))
    supervisor.as_toolset(search=search)  # refuses what cannot work
    async with open_bare_nursery() as nursery:
        gateway = Gateway(
            supervisor,
            nursery,
            hold,
            gate,
            search=search,
            mark=mark,
            unattended=unattended,
            session_keys=session_keys,
        )
        try:
            await nursery.start(gateway.news.run)
            yield gateway
        finally:
            nursery.cancel_scope.cancel()
