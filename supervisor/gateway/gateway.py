"""The supervisor as one MCP server: what becomes of a client's request.

A client of the supervisor's public surface. What goes to servers, and how, is the affair of `upstream`.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import trio

from mcp_nursery.actors.argument_checks import check_argument, one_of, seconds, true_or_false
from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConnectionLost, NurseryError, ServerError, UnknownServer
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.nurseries import open_bare_nursery
from mcp_nursery.actors.protocol import (
    HANDSHAKE_PROTOCOL_VERSIONS,
)

from ..calls.host_tools import EVERY_SERVER
from ..security.untrusted_marks import MAX_RESULT_CHARS
from ..supervisor import Supervisor
from ..tools.error_content import error_content
from ..tools.preamble import MOST_INSTRUCTIONS
from .access import EVERYTHING, Access, Principal
from .all_as_one import INSTRUCTIONS, All
from .approval import Unattended
from .catalogues import One, View, status_of
from .checks import check_request
from .downstream import Incoming
from .eras import Json, discovered, initialized
from .gate import GATE, Gate
from .held import HOLD
from .marks import introduced, marked
from .news import News
from .pages import Pages
from .requests import Ending, told
from .search import Schemas, Search
from .upstream import Upstream

LISTEN: Final = "subscriptions/listen"
_OPENINGS: Final = frozenset(["initialize", "server/discover"])


class Gateway:
    """Serves a supervisor, all its servers or one of them, to any number of clients. Made by `open_gateway`."""

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
    ) -> None:
        self.supervisor: Final = supervisor
        """Whose servers it offers."""
        self._mark = mark
        self.news: Final = News(supervisor, nursery, search=search)
        """What its clients are told of changes."""
        self._upstream = Upstream(supervisor, self.news.instances, nursery, hold, unattended)
        self._schemas = Schemas() if search else None
        self._pages: dict[str, Pages] | None = None if mark else {}
        self._all = self._searched(All(supervisor, pages=self._pages))
        self._gate = Gate(supervisor, gate)
        self._under_way = 0
        self._settled = trio.Event()
        self.has_listed: Final = trio.Event()
        """Set when a first list is given to a client."""
        self.draining: bool = False
        """Whether it ends: new requests are refused."""

    def view(self, server: str | None, access: Access = EVERYTHING) -> View:
        """What a client of one server sees, or of all of them.

        Args:
            server: None: all of them.
            access: What the client may use.

        Raises:
            UnknownServer: No server of that name, or the client may use nothing of it, who is not to know.
        """
        if server is None:
            return self._all if access.allow is None else self._searched(All(self.supervisor, access, self._pages))
        try:
            self.supervisor.spec(server)
        except UnknownServer:
            if access.allow is None:
                raise
            raise UnknownServer(server) from None  # without the names of others
        if not access.has_server(server):
            raise UnknownServer(server)
        return self._searched(One(self.supervisor, server, access))

    def _searched(self, view: View) -> View:
        return view if self._schemas is None else Search(self.supervisor, view, self._schemas)

    @property
    def is_settled(self) -> bool:
        """Whether every first attempt has come to an end."""
        return not any(one.state is ServerState.CONNECTING and one.incarnation <= 1 for one in self.supervisor.status())

    # -- its requests ---------------------------------------------------------------------------------------------

    async def answer(self, incoming: Incoming, view: View, protocol_version: str) -> Json:
        """The result of a request.

        Args:
            incoming: The request.
            view: What its client sees.
            protocol_version: Of the client.

        Raises:
            Ending: The gateway ends. Nothing was done.
            JsonRpcError: What the client is told instead.
        """
        self._check_goes_on()
        self._under_way += incoming.method != LISTEN
        try:
            await check_request(incoming, protocol_version)
            return await self._answer(incoming, view)
        except NurseryError as error:
            raise told(error, begun=incoming.method not in _OPENINGS) from None
        finally:
            self._under_way -= incoming.method != LISTEN
            self._settled.set()

    def _check_goes_on(self) -> None:
        if self.draining:
            raise Ending

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End what outlasts the requests of clients without a session: calls that wait for them, and their instances.

        Args:
            of: Whether this client is one of them; None is all whom nobody has authenticated.
        """
        self._upstream.end_clients(of)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait for those under way, so many seconds at most."""
        self.draining = True
        self._gate.end()
        with trio.move_on_after(seconds):
            while self._under_way:
                self._settled = trio.Event()
                await self._settled.wait()

    async def _answer(self, incoming: Incoming, view: View) -> Json:
        hello: Json
        match incoming.method:
            case "ping":
                return {}
            case "initialize":
                hello = self._hello(view, await view.hello())
                return initialized(hello, incoming.params.get("protocolVersion"), tuple(HANDSHAKE_PROTOCOL_VERSIONS))
            case "server/discover":
                return discovered(self._hello(view, await view.hello()))
            case "subscriptions/listen":
                return await self.news.listen(incoming, view)
            case "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
                return await self._for_session(incoming, view)
            case method:
                answer = self._listed if method in LISTED else self._hand_on
                return await answer(incoming, view)

    async def _listed(self, incoming: Incoming, view: View) -> Json:
        with self.news.listed(incoming) as listing:
            await self._gate.wait(partial(view.lists, incoming.method))
            self._check_goes_on()
            listing.read()
            self.has_listed.set()
            return await self._hand_on(incoming, view)

    async def _for_session(self, incoming: Incoming, view: View) -> Json:
        """What a session keeps."""
        session = incoming.session
        assert session is not None  # these methods are of eras with sessions
        if incoming.method == "logging/setLevel":
            await self.news.set_level(session, incoming.params["level"])
            return {}
        async with session.turn(incoming.params["uri"]):
            if incoming.method == "resources/subscribe":
                await self.news.subscribe(incoming, session, view)
            else:
                session.subscribed.pop(incoming.params["uri"], trio.CancelScope()).cancel()
        return {}

    async def _hand_on(self, incoming: Incoming, view: View) -> Json:
        try:
            place = await view.place(incoming)
            if place is None:
                return await self._own_answer(incoming, view)
            result = view.shown(incoming, await self._upstream.request(incoming, place), place.server)
            return await self._marked(incoming, result, place.server, place.params.get("name"))
        except NurseryError as error:
            if incoming.method in LISTED and await view.place(incoming) is None:  # its server was lost meanwhile
                return await self._own_answer(incoming, view)
            raw = isinstance(error, UnknownServer) or (isinstance(error, ServerError) and not self._mark)
            if raw or incoming.method != "tools/call":
                raise
            return self._failed(error, incoming)

    async def _own_answer(self, incoming: Incoming, view: View) -> Json:
        return await self._marked(incoming, await view.own_answer(incoming), view.server or EVERY_SERVER)

    async def _marked(self, incoming: Incoming, result: Json, server: str, tool: str | None = None) -> Json:
        """What becomes of a result where marks are wanted; `tool`: the server's own name of it."""
        if not self._mark:
            return result
        tool, room = tool or str(incoming.params.get("name")), MAX_RESULT_CHARS
        with suppress(UnknownServer):  # all of them, or one that has gone
            room = self.supervisor.spec(server).max_result_chars
        return await by_turns(marked(incoming.method, result, server=server, tool=tool, room=room))

    def _hello(self, view: View, hello: Json) -> Json:
        """What a client is told at the beginning."""
        if not self._mark:
            return hello
        said = [*view.instructions().items()]
        return introduced(hello, dict(said[: INSTRUCTIONS // MOST_INSTRUCTIONS]))

    def _failed(self, error: NurseryError, incoming: Incoming) -> Json:
        """A tool's result that tells a model what happened, and when to try again."""
        text = error_content(error)
        if isinstance(error, ConnectionLost):
            status = status_of(self.supervisor, error.server)
            if status is not None and status.retry_in is not None:
                text += f"\nThe server restarts in {status.retry_in:.0f} s."
        result: Json = {"content": [{"type": "text", "text": text}], "isError": True}
        return result | {"resultType": "complete"} if incoming.modern else result


@asynccontextmanager
async def open_gateway(
    supervisor: Supervisor,
    *,
    hold: float = HOLD,
    gate: float = GATE,
    search: bool = False,
    mark: bool = False,
    unattended: Unattended = "allow",
) -> AsyncGenerator[Gateway, None]:
    """A gateway in front of a supervisor, for as long as the block lasts.

    The supervisor is opened with `callbacks=gateway_callbacks()`, or its servers are offered nothing that a client can
    be asked.

    Args:
        supervisor: What is served.
        hold: Seconds that a call waits for its client to come back with answers. A client that never does keeps its
            call under way for so long, and over stdio an older server can ask no other client meanwhile.
        gate: Seconds that lists wait at most for servers whose first attempt is under way and of which nothing is
            cached. They count from here, or for a server that comes later from the first list after that. Lists then
            have what there is, and clients are told of what comes. 0: no list waits.
        search: List two tools in place of all: `find_tools`, which finds tools by words, and `call_tool`, which calls
            what was found.
        mark: Put what servers answer between marks, as a `Toolset` does, for clients whose hosts have none of their
            own. By default it is passed on as it came.
        unattended: What becomes of a call that the supervisor's `approval_rules` want asked about, where there is no
            `approve`, and its client takes no forms: by default it is allowed, since a client's host has approval of
            its own.

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
        gateway = Gateway(supervisor, nursery, hold, gate, search=search, mark=mark, unattended=unattended)
        try:
            await nursery.start(gateway.news.run)
            yield gateway
        finally:
            nursery.cancel_scope.cancel()
