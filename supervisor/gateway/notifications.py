"""The notifications to clients that belong to no request: changes of lists, updates of resources that they subscribe
to, and notices."""

from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.messages import ACKNOWLEDGED
from mcp_nursery.actors.protocol import (
    CLIENT_NOTIFICATIONS,
    INVALID_PARAMS,
    LEVELS,
    SUBSCRIPTION_ID_META_KEY,
    JsonRpcError,
)

from ..decisions.state_machine import SHUT
from ..events import Lagged, PromptsChanged, Reloaded, ResourcesChanged, ServerRemoved, StateChanged, ToolsChanged
from ..notices import Notice
from ..supervisor import Supervisor
from .bridge import Json, as_object
from .client_request import STANDARD_REQUESTS, ClientRequest
from .clients import LOG, ClientListener, ClientSession, Listing, Notification, is_severe, last_change
from .upstream.instance_leases import InstancePool, ListChanged, owner_of
from .upstream.task_streams import ShowResult, TaskStream, TaskStreams
from .views.task_ids import TaskIds
from .views.view import View

BURST: Final = 0.05
"""Seconds in which changes of lists are collected into one notification."""
LOOK_AGAIN: Final = 2.0
"""Seconds between two attempts to subscribe to a resource for a client, while its server is away."""
MOST_SUBSCRIBED: Final = 1_000
"""Resources and tasks that one client may subscribe to, in one session or with one stream of notifications."""

_TOOLS_CHANGED: Final = "notifications/tools/list_changed"
_CHANGES: Final = {
    ToolsChanged: (_TOOLS_CHANGED, "toolsListChanged"),
    PromptsChanged: ("notifications/prompts/list_changed", "promptsListChanged"),
    ResourcesChanged: ("notifications/resources/list_changed", "resourcesListChanged"),
}
_TOLD_OF: Final = {"tools/list": _TOOLS_CHANGED, "prompts/list": "notifications/prompts/list_changed"}
"""The notifications of changes, for the lists that have one of their own."""
UPDATED: Final = "notifications/resources/updated"
_THERE: Final = {ServerState.CONNECTED, ServerState.IDLE, ServerState.DISABLED, ServerState.BLOCKED}
"""States of servers whose resources are known, or that will have none."""


class ClientNotifications:
    """The notifications of changes to clients. The nursery has further instances, which end when their servers change,
    and the tasks that set log levels. With `search`, clients see the two tools that find and call all others."""

    def __init__(self, supervisor: Supervisor, nursery: trio.Nursery, *, search: bool) -> None:
        self._supervisor = supervisor
        self._nursery = nursery
        self.instances: Final = InstancePool(supervisor, nursery, self)
        """Further instances of its servers."""
        self._task_streams = TaskStreams()
        self._search = search
        self._sessions: set[ClientSession] = set()
        self._listeners: set[ClientListener] = set()
        self._changed: dict[tuple[str, str], dict[Hashable, dict[str | None, float]]] = {}
        """The times of changes that clients are still to be notified of: by list, by the owner to be notified (None:
        all), and by server."""
        self._news = trio.Event()
        self._stale_levels: set[str | None] = set()
        """The servers whose log levels are to be reviewed; None: all."""
        self._levels_stale = trio.Event()
        self._described = self._names()
        """The servers that clients were last notified of, if they see two tools: nothing else can change in those."""

    def enter(self, session: ClientSession) -> None:
        """Notify a client of the handshake era of changes from now on."""
        session.since = trio.current_time()
        self._sessions.add(session)

    def leave(self, session: ClientSession) -> None:
        """Remove a session that is gone."""
        session.ended = True
        self._sessions.discard(session)
        self.instances.end(lambda whose: whose is session)
        if session.level is not None:
            self._review_levels_soon(session.server)

    async def forward(self, view: View, owner: Hashable, method: str, params: Mapping[str, Any] | None) -> None:
        """Pass on a notification of a client to the one server that the client sees, once the server has room for it:
        one that the protocol does not know. It is lost if the server is away. The method of a known request is none: a
        server might act on a call that nobody has checked."""
        server, known = view.server, method in CLIENT_NOTIFICATIONS or method in STANDARD_REQUESTS
        if server is None or known or not view.access.has_all_of(server):
            return
        with suppress(NurseryError):
            await self.instances.notify(server, owner, method, params)

    # -- log levels -----------------------------------------------------------------------------------------------

    async def set_level(self, session: ClientSession, wanted: str) -> None:
        """Set the level of log messages that a session wants. If the session has one server alone, that server is sent
        the level before this returns.

        Raises:
            NurseryError: The server refuses the level.
        """
        session.level = wanted
        self._review_levels_soon(session.server)
        if session.server is not None:
            for level in self.instances.levels(session.server, session):
                await level.send()

    def wanted_level(self, server: str, owner: Hashable, has_log: bool) -> str | None:  # noqa: FBT001
        """The most verbose level that the clients of a server, or the owner of an instance of it, have asked for. The
        level of a client that sees all servers counts for those that have logs."""
        if owner is None and self._supervisor.spec(server).instances == "session":
            return None
        wanted = (
            session.level
            for session in self._sessions
            if session.level is not None
            and owner in (None, session)
            and (session.server == server or (session.server is None and has_log and session.access.has_server(server)))
        )
        return min(wanted, key=LEVELS.index, default=None)

    @property
    def _has_levels(self) -> bool:
        """True if any client has asked for a level: most gateways have none to review."""
        return any(session.level for session in self._sessions)

    def _review_level(self, server: str) -> None:
        """Set the level of this server, if any client has asked for one."""
        if self._has_levels:
            for level in self.instances.levels(server):
                level.review(self._nursery)

    def _review_levels_soon(self, server: str | None) -> None:
        """Review the levels of this server, or of all, in a moment: once, even if a thousand sessions end together."""
        self._stale_levels.add(server)
        self._levels_stale.set()

    async def _review_levels(self) -> None:
        while True:
            await self._levels_stale.wait()
            await trio.sleep(BURST)
            stale, self._stale_levels, self._levels_stale = self._stale_levels, set[str | None](), trio.Event()
            names = self._names() if self._has_levels else set[str]()
            for name in names if None in stale else names.intersection(stale):
                self._review_level(name)
                await trio.lowlevel.checkpoint()

    # -- resources ------------------------------------------------------------------------------------------------

    async def subscribe(
        self, request: ClientRequest, session: ClientSession, view: View, *, patient: bool = False
    ) -> None:
        """Notify a session of updates of a resource, until it unsubscribes or ends; `patient`: the server may be away.

        Raises:
            NurseryError: No server has the resource, or its server is away.
            JsonRpcError: The session has too many subscriptions.
        """
        if request.params["uri"] not in session.subscribed:
            await session.nursery.start(partial(self._notify_updates, request, session, view, patient=patient))

    async def _notify_updates(
        self,
        request: ClientRequest,
        session: ClientSession,
        view: View,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        *,
        patient: bool,
    ) -> None:
        uri = request.params["uri"]

        def notify(params: Json) -> None:
            session.notify(Notification(UPDATED, params))

        with trio.CancelScope() as scope:
            session.subscribed[uri] = scope
            try:
                _check_number(len(session.subscribed))
                await self._follow_resource(request, view, uri, notify, task_status, patient=patient)
            finally:
                if session.subscribed.get(uri) is scope:  # and not that of a later subscription
                    del session.subscribed[uri]

    async def _follow_resource(
        self,
        request: ClientRequest,
        view: View,
        uri: str,
        notify: Callable[[Json], None],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        *,
        patient: bool = False,
    ) -> None:
        """Notify a client of updates of a resource. While its server is away, stopped or removed for example, look for
        it again; once it is back, notify the client, since the resource may have changed. If `patient`, the server may
        be away at the beginning.

        Raises:
            NurseryError: No server has the resource, or its server is away and is not to be waited for.
        """
        place, begun = None, False
        while True:
            try:
                place = place or await (view.known_resource_of(uri) if begun else view.resource_of(uri))
                if place is not None:
                    server, own = place
                    async with (
                        self.instances.follow(server, request) as supervisor,
                        supervisor.subscribe(own, server=server) as updates,
                    ):
                        if begun:
                            notify({"uri": uri})
                        else:
                            task_status.started()
                        begun = True
                        async for _ in updates:
                            notify({"uri": uri})
            except NurseryError:
                if not begun:
                    if not (patient and _waits_for_servers(view)):
                        raise
                    begun = True
                    task_status.started()
            await trio.sleep(LOOK_AGAIN)

    @contextmanager
    def begin_stream(self, request: ClientRequest, view: View) -> Generator[ClientListener, None, None]:
        """A block in which the stream of notifications that a client asks for is served. The client is told of changes
        from its beginning on, once the stream is acknowledged. The request need not be checked yet."""
        if request.listener is not None:
            yield request.listener
            return
        wanted = frozenset(_wanted_by(request))
        request.listener = ClientListener(view.server, wanted, access=view.access, owner=owner_of(request))
        self._listeners.add(request.listener)
        try:
            yield request.listener
        finally:
            self._listeners.discard(request.listener)

    async def listen(self, request: ClientRequest, view: View, task_ids: TaskIds, show: ShowResult) -> Json:
        """Serve one stream of notifications for a client without a session, until the client ends it. Resources that
        cannot be subscribed to are left out of the acknowledgement, and so are tasks of which the client is not
        notified. `show` returns the result of a task as the client sees results."""
        wanted = _wanted_by(request)
        uris: list[str] = wanted.pop("resourceSubscriptions", [])
        tasks: object = wanted.pop("taskIds", [])
        if not isinstance(tasks, list):
            raise JsonRpcError(INVALID_PARAMS, "taskIds must be a list")
        _check_number(len(uris) + len(cast("list[object]", tasks)))
        streams = [
            TaskStream(self.instances, view, asked, server, shown, show)
            for server, asked, shown in task_ids.by_place(request, view, cast("list[object]", tasks))
        ]
        tagged = {"_meta": {SUBSCRIPTION_ID_META_KEY: request.id}}
        with self.begin_stream(request, view) as listener:
            notify = partial(listener.notify, UPDATED)
            async with trio.open_nursery() as nursery:
                followed: list[str] = []
                for uri in uris:
                    with suppress(NurseryError):
                        await nursery.start(partial(self._follow_resource, request, view, uri, notify, patient=True))
                        followed.append(uri)
                if followed:
                    wanted["resourceSubscriptions"] = followed
                streams = await self._task_streams.begin(streams, nursery)
                if streams:
                    wanted["taskIds"] = [task for each in streams for task in each.agreed]
                await request.notify(ACKNOWLEDGED, {"notifications": wanted} | tagged)
                for each in streams:
                    nursery.start_soon(each.send)
                while True:
                    method, params = await listener.news.receive()
                    await request.notify(method, params | tagged)
        raise AssertionError  # it ends by being cancelled

    # -- lists and notices ----------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Notify clients of changes of lists, once for each burst, and pass on notices."""
        async with trio.open_nursery() as nursery, self._supervisor.events() as events:
            nursery.start_soon(self._notify_changes)
            nursery.start_soon(self._review_levels)
            await nursery.start(self._forward_notices)
            task_status.started()
            async for event in events:
                match event:
                    case ToolsChanged() | PromptsChanged() | ResourcesChanged():
                        self.publish_change(event)
                    case StateChanged():
                        if event.new in SHUT:
                            self.instances.review()
                        self._review_level(event.server)
                    case ServerRemoved():
                        self.instances.review(removed=[event.server])
                    case Reloaded():
                        self.instances.review(event.changed)
                    case Lagged():  # any list may have changed
                        self.instances.review()
                        self._review_levels_soon(None)
                        for change in _CHANGES.values():
                            for status in self._supervisor.status():
                                self._record(change, status.name, trio.current_time())
                    case _:
                        pass
            nursery.cancel_scope.cancel()

    async def _forward_notices(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._supervisor.notices() as notices:
            task_status.started()
            async for notice in notices:
                self.publish_notice(notice)

    def publish_notice(self, notice: Notice, owner: Hashable = None) -> None:
        """Pass on a notification of a server that is about no request. Log messages go to all clients that see the
        server. Notifications that the protocol does not know go to clients that see this server alone: for others they
        would not show their origin. Those of a session's own instance go to that session, and so do those that may be
        about calls that it has cancelled."""
        is_log = notice.method == LOG
        notification = Notification(notice.method, notice.params)
        for session in self._sessions:
            sees = session.server == notice.server or (is_log and session.server is None)
            wants = not is_log or is_severe(notice.params.get("level"), session.level or LEVELS[0])
            may_see = (
                session.receives_all and notice.principal in (None, session) if owner is None else session is owner
            )
            if sees and wants and may_see:
                session.notify(notification)

    def publish_change(self, event: ListChanged, owner: Hashable = None) -> None:
        """Record that a list has changed, for all clients or for the owner of the instance."""
        self._record(_CHANGES[type(event)], event.server, event.at, owner)

    def _record(self, change: tuple[str, str], server: str, at: float, owner: Hashable = None) -> None:
        self._changed.setdefault(change, {}).setdefault(owner, {})[server] = at
        self._news.set()

    @contextmanager
    def track_listing(self, request: ClientRequest) -> Generator[Listing, None, None]:
        """A block in which a client is sent a list: meanwhile its session is not notified of changes that the list will
        contain."""
        session, change = request.session, _TOLD_OF.get(request.method)
        if session is None or change is None or "cursor" in request.params:
            yield Listing()
            return
        known = session.known_list(change)
        try:
            with known.track_listing() as listing:
                yield listing
        finally:
            if known.take_missed_change():
                session.notify(Notification(change))

    async def _notify_changes(self) -> None:
        while True:
            await self._news.wait()
            await trio.sleep(BURST)
            changed, self._changed, self._news = self._changed, {}, trio.Event()
            for (method, wanted), by_owner in changed.items():
                changes = self._changes_to_notify(method, by_owner)
                notification = Notification(method)
                for session in self._sessions:
                    at = max(last_change(session, changes.get(each, {})) for each in (None, session))
                    if session.known_list(method).record_change(at):
                        session.notify(notification)
                for listener in self._listeners:
                    owners = (None, listener.owner) if wanted in listener.wanted else ()
                    if any(last_change(listener, changes.get(each, {})) > listener.since for each in owners):
                        listener.notify(method, {})

    def _changes_to_notify(
        self, method: str, by_owner: Mapping[Hashable, Mapping[str | None, float]]
    ) -> Mapping[Hashable, Mapping[str | None, float]]:
        """The times at which the lists that clients see have changed, by owner and by the server that they see; None:
        all of them. The two tools that find and call all others change only with the names of the servers."""
        if not self._search or method != _TOOLS_CHANGED:
            return {owner: {**servers, None: max(servers.values())} for owner, servers in by_owner.items()}
        before, self._described = self._described, self._names()
        latest = max(at for servers in by_owner.values() for at in servers.values())
        renamed = before ^ self._described
        return {None: dict.fromkeys((None, *renamed), latest)} if renamed else {}

    def _names(self) -> set[str]:
        return {status.name for status in self._supervisor.status()}


def _waits_for_servers(view: View) -> bool:
    """True if a server that the client may use is away, and may come back."""
    return any(status.state not in _THERE for status in view.statuses)


def _wanted_by(request: ClientRequest) -> Json:
    """The notifications that a request for a stream of them names, by their kinds."""
    return {key: value for key, value in as_object(request.params.get("notifications")).items() if value}


def _check_number(subscriptions: int) -> None:
    """Refuse more subscriptions than one client may have.

    Raises:
        JsonRpcError: There are too many.
    """
    if subscriptions > MOST_SUBSCRIBED:
        raise JsonRpcError(INVALID_PARAMS, f"too many subscriptions: at most {MOST_SUBSCRIBED}")
