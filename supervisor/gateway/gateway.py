"""The supervisor as one MCP server: the way of a client's request through it.

Requests reach servers through `Supervisor` alone, by way of `upstream`; an import contract lists the other internals
that the gateway uses.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from typing import Final

import trio

from mcp_nursery.actors.argument_checks import check_argument, one_of, seconds, seconds_or_none, true_or_false
from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConnectionLost, NurseryError, ServerError, UnknownServer
from mcp_nursery.actors.extensions import APPS, TASK_REQUESTS, TASKS, declared_by, declares
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.messages import CALL_TOOL, LISTED, LISTEN
from mcp_nursery.actors.nurseries import open_bare_nursery
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.protocol import HANDSHAKE_PROTOCOL_VERSIONS

from ..calls.host_tools import EVERY_SERVER
from ..decisions.restart_policy import HOLD
from ..security.untrusted_marks import MAX_RESULT_CHARS, MOST_INSTRUCTIONS, clean_name
from ..supervisor import Supervisor
from ..tools.outcome import error_content
from .auth.principal import EVERYTHING, Access, Principal
from .bridge import Json, discover_result, initialize_result, with_tasks
from .client_request import ClientRequest, GatewayEnding, check_request, failure_of
from .client_status import HeldCallStatus
from .notifications import ClientNotifications
from .sealing import SessionKeys
from .upstream.ask_client import Unattended
from .upstream.own_tasks import OwnTasks
from .upstream.server_requests import Upstream
from .views.all import INSTRUCTIONS, All, Pages
from .views.marks import add_preamble, mark_result
from .views.task_ids import TaskIds
from .views.view import One, RequestRoute, View, status_of

logger: Final = logging.getLogger(__name__)

LIST_GATE: Final = 10.0
"""Seconds that a list waits at most for servers of which nothing is known yet: hosts give up after thirty or more."""


class Gate:
    """The gate that holds lists back while first attempts that may add to them are under way.

    Each server has `seconds` of its own: they count from the opening of the gateway, or for a server added later from
    the first list after that. Once they are over, lists no longer wait for the server.
    """

    def __init__(self, supervisor: Supervisor, seconds: float) -> None:
        self._supervisor = supervisor
        self._seconds = seconds
        self._until = dict.fromkeys(supervisor.unlisted, trio.current_time() + seconds)
        """The time until which lists wait for each server, on Trio's clock."""
        self._missed: set[str] = set()
        """Servers that were missing from a list."""
        self._waits: set[trio.CancelScope] = set()

    async def wait(self, matters: Callable[[str], bool]) -> None:
        """Wait until the offers of the servers that matter for a list, by their names, are known, or their time is
        over."""
        if self._seconds:
            for server in filter(matters, self._supervisor.unlisted):
                await self._wait_for(server)

    async def _wait_for(self, server: str) -> None:
        until = self._until.setdefault(server, trio.current_time() + self._seconds)
        with trio.CancelScope(deadline=until) as scope:
            self._waits.add(scope)
            try:
                with suppress(UnknownServer):  # it was removed meanwhile
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
        """Release all lists that wait now."""
        for scope in self._waits:
            scope.cancel()


MOST_VIEWS: Final = 256
"""Views of single servers that are kept."""


class Gateway:
    """A supervisor as an MCP server for any number of clients: all its servers or one of them. See `open_gateway`."""

    def __init__(
        self,
        supervisor: Supervisor,
        nursery: trio.Nursery,
        *,
        hold: float,
        answer_within: float | None,
        gate: float,
        search: bool,
        mark: bool,
        unattended: Unattended,
        session_keys: SessionKeys | None,
        tasks_after: float | None,
    ) -> None:
        self.supervisor: Final = supervisor
        """The supervisor whose servers it offers."""
        self.session_keys: Final = session_keys
        """The keys by which sessions, ids of tasks and held calls outlive the gateway."""
        self.session_notes: Final = supervisor.session_notes
        """The notes about sessions that outlive the gateway."""
        self._mark = mark
        self._hold = hold
        self.news: Final = ClientNotifications(supervisor, nursery, search=search)
        """The notifications of changes to its clients."""
        self._task_ids = TaskIds(session_keys, self.news.instances.has, self.news.instances.reached)
        self._upstream = Upstream(
            supervisor,
            self.news.instances,
            nursery,
            hold=hold,
            answer_within=answer_within,
            unattended=unattended,
            session_keys=session_keys,
        )
        self._own_tasks = OwnTasks(supervisor, nursery, self._task_ids, tasks_after, self._settle)
        self._searches = _make_search() if search else None
        self._pages: dict[tuple[str, bool], Pages] | None = None if mark else {}
        self._one_of = lru_cache(MOST_VIEWS)(self._make_view)
        """The views of single servers, cached: clients ask for the same ones again and again."""
        self._all = self._make_view(None, EVERYTHING)
        self._gate = Gate(supervisor, gate)
        self._under_way = 0
        self._settled = trio.Event()
        self.has_listed: Final = trio.Event()
        """Set when a first list is sent to a client."""
        self.draining: bool = False
        """True while the gateway ends: new requests are refused."""

    def view(self, server: str | None, access: Access = EVERYTHING) -> View:
        """The view of a client on one server, or on all of them.

        Args:
            server: The name of the server; None: all of them.
            access: The grant of the client.

        Raises:
            UnknownServer: No server has that name, or the client may use nothing of it, and must not learn of it.
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
        plain.hold = self._hold
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
            view: The view of its client.
            protocol_version: The version that the client speaks.

        Raises:
            GatewayEnding: The gateway is ending. Nothing was done.
            JsonRpcError: The error that the client is sent instead.
        """
        if self.draining:
            raise failure_of(request, GatewayEnding())
        self._under_way += request.method != LISTEN
        try:
            await check_request(request, protocol_version)
            request.apps = declares(request.capabilities, APPS)
            return await self._answer(request, view.with_apps() if request.apps else view)
        except Exception as error:
            raise failure_of(request, error, restarts_in=self._restarts_in(error)) from None
        finally:
            self._under_way -= request.method != LISTEN
            self._settled.set()

    def _settle(self) -> None:
        self._settled.set()

    @property
    def held(self) -> tuple[HeldCallStatus, ...]:
        """The calls that wait for their clients."""
        return self._upstream.held

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End what outlasts the requests of clients without a session: calls that wait for them or have become tasks,
        and their instances.

        Args:
            of: A test of whether a client is one of them; None stands for all that are not authenticated.
        """
        self._upstream.end_clients(of)
        self._own_tasks.end_clients(of)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait at most so many seconds for those under way, and for calls that have become
        tasks."""
        self.draining = True
        self._gate.end()
        with trio.move_on_after(seconds):
            while self._under_way or self._own_tasks.under_way:
                self._settled = trio.Event()
                await self._settled.wait()

    async def _answer(self, request: ClientRequest, view: View) -> Json:
        match request.method:
            case "ping":
                return {}
            case "initialize":
                hello = await self._introduce(request, view)
                return initialize_result(
                    hello, request.params.get("protocolVersion"), tuple(HANDSHAKE_PROTOCOL_VERSIONS)
                )
            case "server/discover":
                return discover_result(await self._introduce(request, view))
            case "subscriptions/listen":
                return await self.news.listen(request, view, self._task_ids, partial(self._shown, view))
            case "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
                return await self._for_session(request, view)
            case method:
                answer = self._list if method in LISTED else self._forward
                return await answer(request, view)

    async def _list(self, request: ClientRequest, view: View) -> Json:
        with self.news.track_listing(request) as listing:
            asked_at = trio.current_time()
            await self._gate.wait(partial(view.lists, request.method))
            await view.refresh(request, asked_at)
            if self.draining:
                raise GatewayEnding
            listing.read()
            self.has_listed.set()
            return await self._forward(request, view)

    async def _for_session(self, request: ClientRequest, view: View) -> Json:
        """Answer a request about the state of a session."""
        session = request.session
        assert session is not None  # only eras with sessions have these methods
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
            of_task = request.method in TASK_REQUESTS
            if of_task and (own := await self._own_tasks.answer(request, view)) is not None:
                return own
            route = (self._task_ids.route(request, view) if of_task else None) or await view.route(request)
            if route is None:
                return await self._answer_here(request, view)
            request.own_capabilities = request.capabilities
            request.capabilities = view.told(request.capabilities, route.server)
            if request.own_capabilities.get("extensions"):  # else nothing is entered: most calls have none
                after = self._own_tasks.after(request, route.server)
                if after is not None:
                    make = partial(self._make, request, view, route)
                    return await self._own_tasks.run(request, route.server, route.params["name"], after, make)
            result = await self._upstream.request(request, route)
            if "taskId" in result:
                result = self._task_ids.show(request, view, route, result)
            return await self._shown(view, request, result, route.server, route.params.get("name"))
        except NurseryError as error:
            if request.method in LISTED and await view.route(request) is None:  # its server was lost meanwhile
                return await self._answer_here(request, view)
            return self._failed(request, error)

    async def _make(self, request: ClientRequest, view: View, route: RequestRoute) -> Json:
        """Make a call whose outcome is for its client as it is.

        Raises:
            JsonRpcError: It has failed.
        """
        try:
            result = await self._upstream.request(request, route)
            if "taskId" in result:  # what its server can do was not known before
                result = self._task_ids.show(request, view, route, result)
            return await self._shown(view, request, result, route.server, route.params["name"])
        except NurseryError as error:
            try:
                return self._failed(request, error)
            except NurseryError:
                raise failure_of(request, error, restarts_in=self._restarts_in(error)) from None
        except Exception as error:
            raise failure_of(request, error) from None

    def _failed(self, request: ClientRequest, error: NurseryError) -> Json:
        """The result that says why a call has failed; any other error is raised."""
        raw = isinstance(error, UnknownServer) or (isinstance(error, ServerError) and not self._mark)
        if raw or request.method != CALL_TOOL:
            raise error
        return self._error_result(error, request)

    async def _shown(
        self, view: View, request: ClientRequest, result: Json, server: str, tool: str | None = None
    ) -> Json:
        """The result of a server as the client is shown it; `tool`: see `_mark_result`."""
        shown = await view.filter_result(request, result, server)
        return await self._mark_result(request, shown, server, tool) if self._mark else shown

    async def _answer_here(self, request: ClientRequest, view: View) -> Json:
        answer = await view.answer(request)
        return await self._mark_result(request, answer, view.server or EVERY_SERVER) if self._mark else answer

    async def _mark_result(self, request: ClientRequest, result: Json, server: str, tool: str | None = None) -> Json:
        """The result, with marks; `tool`: the server's own name of the tool."""
        tool, room = tool or str(request.params.get("name")), MAX_RESULT_CHARS
        with suppress(UnknownServer):  # it stands for all servers, or was removed
            room = self.supervisor.spec(server).max_result_chars
        if request.method in (CALL_TOOL, "tasks/get"):
            await RESULT_TYPES.ensure_loaded()
        return await by_turns(mark_result(request.method, result, server=server, tool=tool, room=room))

    async def _introduce(self, request: ClientRequest, view: View) -> Json:
        """The introduction for a client, with marks if they are wanted. To a client that declares extensions it says
        which of them the servers have: it waits as a list does. Tasks need no word of a server's: a client that knows
        them declares them with each call."""
        said = declared_by(request.params.get("capabilities") or request.capabilities)
        if view.server is None and said.keys() - {TASKS}:
            await self._gate.wait(partial(view.lists, request.method))
        hello = await view.hello()
        if request.modern and self._own_tasks.makes_some(view):
            hello = with_tasks(hello)
        if not self._mark:
            return hello
        instructions = [*view.instructions().items()]
        return add_preamble(hello, dict(instructions[: INSTRUCTIONS // MOST_INSTRUCTIONS]), view.missing())

    def _restarts_in(self, error: Exception) -> float | None:
        """Seconds until the server of a request that was lost with its connection is started again, if it is."""
        status = status_of(self.supervisor, error.server) if isinstance(error, ConnectionLost) else None
        return None if status is None else status.retry_in

    def _error_result(self, error: NurseryError, request: ClientRequest) -> Json:
        """The result of a tool that gives a model the reason for a failure, and the time until a restart."""
        text = error_content(error, restarts_in=self._restarts_in(error), held=self._hold > 0)
        result: Json = {"content": [{"type": "text", "text": text}], "isError": True}
        return result | {"resultType": "complete"} if request.modern else result


def _make_search() -> "Callable[[Supervisor, View], View]":
    """The function that turns a view of many tools into one of two; all of its views share one set of schemas."""
    from .views.search_view import Schemas, Search  # few gateways need it

    return partial(Search, schemas=Schemas())


@asynccontextmanager
async def open_gateway(
    supervisor: Supervisor,
    *,
    hold: float = HOLD,
    answer_within: float | None = None,
    gate: float = LIST_GATE,
    search: bool = False,
    mark: bool = False,
    unattended: Unattended = "allow",
    session_keys: SessionKeys | None = None,
    tasks_after: float | None = None,
) -> AsyncGenerator[Gateway, None]:
    """A gateway in front of a supervisor, for as long as the block lasts.

    Open the supervisor with `callbacks=gateway_callbacks()`: otherwise its servers are offered nothing that they could
    ask a client.

    Args:
        supervisor: The supervisor that is served.
        hold: Seconds that a request is held at most while its server restarts, within its own time limit; its client
            is told of the attempts if it asked for progress. The restart begins at once if the lost connection was
            stable, else when it is due. 0: such a request is refused.
        answer_within: Seconds that a call waits for answers of its client, where its server's spec has no
            `human_timeout`; None: 600. A client that never answers keeps its call under way for that long, and
            meanwhile an older server over stdio can ask no other client.
        gate: Seconds that lists, and introductions of all servers to clients that declare extensions, wait at most for
            servers whose first attempt is under way and of which nothing is cached. They count from the opening of the
            gateway, or for a server added later from the first list after that. Lists then contain what is known, and
            clients are notified of what follows. 0: nothing waits.
        search: List two tools in place of all: `find_tools`, which finds tools by words, and `call_tool`, which calls
            a tool that was found.
        mark: Put the answers of servers between marks, as a `Toolset` does, for clients whose hosts have none of their
            own. By default they are passed on as they came.
        unattended: The decision about a call that the supervisor's `approval_rules` want asked about, if there is no
            `approve` and the client takes no forms. By default the call is allowed, since a client's host has approval
            of its own.
        session_keys: The keys by which sessions of the handshake era over HTTP, ids of tasks, and calls that wait for
            an approval alone, outlive this block and go on at other gateways with one of these keys. None: they end
            with the block.
        tasks_after: Seconds after which a call becomes a task of the gateway, for clients of 2026-07-28 that declare
            Tasks, at servers that do not, where the `tasks` of the server's spec do not say; None: never. See
            `MadeTasks`.

    Raises:
        ValueError: An option has a value that is not allowed.
        ConfigError: `search` is true, and the SQLite of this Python has no FTS5.
    """
    check_argument("hold", hold, seconds)
    check_argument("answer_within", answer_within, seconds_or_none)
    check_argument("gate", gate, seconds)
    check_argument("tasks_after", tasks_after, seconds_or_none)
    check_argument("mark", mark, true_or_false)
    check_argument("unattended", unattended, one_of(Unattended))
    supervisor.as_toolset(search=search)  # refuses what cannot work
    async with open_bare_nursery() as nursery:
        gateway = Gateway(
            supervisor,
            nursery,
            hold=hold,
            answer_within=answer_within,
            gate=gate,
            search=search,
            mark=mark,
            unattended=unattended,
            session_keys=session_keys,
            tasks_after=tasks_after,
        )
        try:
            await nursery.start(gateway.news.run)
            yield gateway
        finally:
            nursery.cancel_scope.cancel()
