"""What clients are told that they have not asked for: lists that change, resources they subscribe to, and notices."""

from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.protocol import INVALID_PARAMS, LEVELS, JsonRpcError

from ..events import Lagged, PromptsChanged, Reloaded, ResourcesChanged, ServerRemoved, StateChanged, ToolsChanged
from ..notices import Notice
from ..state_machine import SHUT
from ..supervisor import Supervisor
from .catalogues import View
from .downstream import LOG, Incoming, Listener, Said, Session, is_severe, last_news
from .eras import Json
from .instances import Instances, ListChanged, owner_of
from .known_lists import Listing

SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
BURST: Final = 0.05
"""Seconds in which changes of lists are told of together."""
LOOK_AGAIN: Final = 2.0
"""Seconds after which a resource is subscribed to again for a client, when its server is not there."""
MOST_SUBSCRIBED: Final = 1_000
"""Resources that one client may subscribe to, in one session or with one stream of news."""

_TOOLS_CHANGED: Final = "notifications/tools/list_changed"
_CHANGES: Final = {
    ToolsChanged: (_TOOLS_CHANGED, "toolsListChanged"),
    PromptsChanged: ("notifications/prompts/list_changed", "promptsListChanged"),
    ResourcesChanged: ("notifications/resources/list_changed", "resourcesListChanged"),
}
_TOLD_OF: Final = {"tools/list": _TOOLS_CHANGED, "prompts/list": "notifications/prompts/list_changed"}
"""What tells of a change of these lists, and of no other."""
_UPDATED: Final = "notifications/resources/updated"
_THERE: Final = {ServerState.CONNECTED, ServerState.IDLE, ServerState.DISABLED, ServerState.BLOCKED}
"""States of servers whose resources are known, or that have none to come."""


class News:
    """Who is told of what.

    Args:
        supervisor: Whose servers change.
        nursery: Where further instances of them live, which end when their servers change, and where servers are told
            what their clients want.
        search: Whether clients see the two tools that find and call all others.
    """

    def __init__(self, supervisor: Supervisor, nursery: trio.Nursery, *, search: bool) -> None:
        self._supervisor = supervisor
        self._nursery = nursery
        self.instances: Final = Instances(supervisor, nursery, self)
        """Further instances of its servers."""
        self._search = search
        self._sessions: set[Session] = set()
        self._listeners: set[Listener] = set()
        self._changed: dict[tuple[str, str], dict[Hashable, dict[str | None, float]]] = {}
        """When a list of which servers has changed, which is still to be told; by who is told of it, None: all."""
        self._news = trio.Event()
        self._described = self._names()
        """The servers that clients were told of last, where these are all that can change of what tools they see."""

    def enter(self, session: Session) -> None:
        """A client of the handshake era is there: it is told of changes."""
        session.since = trio.current_time()
        self._sessions.add(session)

    def leave(self, session: Session) -> None:
        """It is gone."""
        session.ended = True
        self._sessions.discard(session)
        self.instances.end(lambda whose: whose is session)
        if session.level is not None:
            self._review_levels(session.server)

    # -- log levels -----------------------------------------------------------------------------------------------

    async def set_level(self, session: Session, wanted: str) -> None:
        """A session wants log messages of this level. A server that is talked to alone is told before this returns.

        Raises:
            NurseryError: It does not agree.
        """
        session.level = wanted
        self._review_levels(session.server)
        if session.server is not None:
            for level in self.instances.levels(session.server, session):
                await level.tell()

    def wanted_level(self, server: str, owner: Hashable, has_log: bool) -> str | None:  # noqa: FBT001
        """The most verbose level that a client of a server has asked for, or the owner of an instance of it. One that
        sees all servers asks those of them that have logs."""
        if owner is None and self._supervisor.spec(server).instances == "session":
            return None
        wanted = (
            session.level
            for session in self._sessions
            if owner in (None, session)
            and (session.server == server or (session.server is None and has_log and session.access.has_server(server)))
        )
        return min(filter(None, wanted), key=LEVELS.index, default=None)

    def _review_levels(self, server: str | None) -> None:
        """Have servers told what is wanted of them, this one or all, if any client has said so."""
        if any(session.level for session in self._sessions):
            for name in self._names() if server is None else [server]:
                for level in self.instances.levels(name):
                    level.review(self._nursery)

    # -- resources ------------------------------------------------------------------------------------------------

    async def subscribe(self, incoming: Incoming, session: Session, view: View) -> None:
        """Tell a session of a resource, until it unsubscribes or ends."""
        if incoming.params["uri"] not in session.subscribed:
            await session.nursery.start(self._tell_updates, incoming, session, view)

    async def _tell_updates(
        self,
        incoming: Incoming,
        session: Session,
        view: View,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        uri = incoming.params["uri"]

        def tell(params: Json) -> None:
            session.tell(Said(_UPDATED, params))

        with trio.CancelScope() as scope:
            session.subscribed[uri] = scope
            try:
                _check_number(len(session.subscribed))
                await self._hear_updates(incoming, view, uri, tell, task_status)
            finally:
                if session.subscribed.get(uri) is scope:  # and not that of another subscription since
                    del session.subscribed[uri]

    async def _hear_updates(
        self,
        incoming: Incoming,
        view: View,
        uri: str,
        tell: Callable[[Json], None],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        *,
        patient: bool = False,
    ) -> None:
        """News of a resource. While its server is not there, stopped or removed for example, it is looked for again;
        when it is, the resource has perhaps changed.

        Args:
            patient: Whether its server may be away from the beginning on.

        Raises:
            NurseryError: Nobody has the resource, or its server is not there and this is not to be waited for.
        """
        server, begun = None, False
        while True:
            try:
                server = server or (view.known_server_of(uri) if begun else await view.server_of(uri))
                if server is not None:
                    async with (
                        self.instances.news(server, incoming) as supervisor,
                        supervisor.subscribe(uri, server=server) as updates,
                    ):
                        if begun:
                            tell({"uri": uri})
                        else:
                            task_status.started()
                        begun = True
                        async for update in updates:
                            tell({"uri": update.uri})
            except NurseryError:
                if not begun:
                    if not (patient and _waits_for_servers(view)):
                        raise
                    begun = True
                    task_status.started()
            await trio.sleep(LOOK_AGAIN)

    async def listen(self, incoming: Incoming, view: View) -> Json:
        """One stream of news for a client without a session, until it ends it. What cannot be subscribed to is left out
        of what its client is told that it hears."""
        wanted: Json = {key: value for key, value in incoming.params["notifications"].items() if value}
        uris: list[str] = wanted.pop("resourceSubscriptions", [])
        _check_number(len(uris))
        listener = Listener(view.server, frozenset(wanted), access=view.access, owner=owner_of(incoming))
        tell = partial(listener.note, _UPDATED)
        tagged = {"_meta": {SUBSCRIPTION: incoming.id}}
        async with trio.open_nursery() as nursery:
            heard: list[str] = []
            for uri in uris:
                with suppress(NurseryError):
                    await nursery.start(partial(self._hear_updates, incoming, view, uri, tell, patient=True))
                    heard.append(uri)
            if heard:
                wanted["resourceSubscriptions"] = heard
            await incoming.tell("notifications/subscriptions/acknowledged", {"notifications": wanted} | tagged)
            self._listeners.add(listener)
            try:
                while True:
                    for method, params in await listener.next():
                        await incoming.tell(method, params | tagged)
            finally:
                self._listeners.discard(listener)
        raise AssertionError  # it ends by being cancelled

    # -- lists and notices ----------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell clients of lists that change, once for a burst."""
        async with trio.open_nursery() as nursery, self._supervisor.events() as events:
            nursery.start_soon(self._tell_changes)
            await nursery.start(self._tell_notices)
            task_status.started()
            async for event in events:
                match event:
                    case ToolsChanged() | PromptsChanged() | ResourcesChanged():
                        self.note_change(event)
                    case StateChanged():
                        if event.new in SHUT:
                            self.instances.review()
                        self._review_levels(event.server)
                    case ServerRemoved():
                        self.instances.review(removed=[event.server])
                    case Reloaded():
                        self.instances.review(event.changed)
                    case Lagged():  # nobody knows which
                        self.instances.review()
                        self._review_levels(None)
                        for change in _CHANGES.values():
                            for status in self._supervisor.status():
                                self._note(change, status.name, trio.current_time())
                    case _:
                        pass
            nursery.cancel_scope.cancel()

    async def _tell_notices(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._supervisor.notices() as notices:
            task_status.started()
            async for notice in notices:
                self.note_notice(notice)

    def note_notice(self, notice: Notice, owner: Hashable = None) -> None:
        """Hand on what a server says that is about no request: log messages to all who see the server, and what the
        protocol does not know to who sees it alone: others could not tell whose word it is. What a session's own
        instance says is for that session. What may be about calls that a session has taken back is for no other."""
        is_log = notice.method == LOG
        said = Said(notice.method, notice.params)
        for session in self._sessions:
            sees = session.server == notice.server or (is_log and session.server is None)
            wants = not is_log or is_severe(notice.params.get("level"), session.level or LEVELS[0])
            hears = session.hears_all and notice.principal in (None, session) if owner is None else session is owner
            if sees and wants and hears:
                session.tell(said)

    def note_change(self, event: ListChanged, owner: Hashable = None) -> None:
        """A list has changed: tell all, or the one who has the instance."""
        self._note(_CHANGES[type(event)], event.server, event.at, owner)

    def _note(self, change: tuple[str, str], server: str, at: float, owner: Hashable = None) -> None:
        self._changed.setdefault(change, {}).setdefault(owner, {})[server] = at
        self._news.set()

    @contextmanager
    def listed(self, incoming: Incoming) -> Generator[Listing, None, None]:
        """A client asks for a list: a session is not told meanwhile of what will be in it."""
        session, change = incoming.session, _TOLD_OF.get(incoming.method)
        if session is None or change is None or "cursor" in incoming.params:
            yield Listing()
            return
        known = session.known_list(change)
        try:
            with known.listed() as listing:
                yield listing
        finally:
            if known.is_owed():
                session.tell(Said(change))

    async def _tell_changes(self) -> None:
        while True:
            await self._news.wait()
            await trio.sleep(BURST)
            changed, self._changed, self._news = self._changed, {}, trio.Event()
            for (method, wanted), by_owner in changed.items():
                changes = self._to_tell(method, by_owner)
                said = Said(method)
                for session in self._sessions:
                    at = max(last_news(session, changes.get(each, {})) for each in (None, session))
                    if session.known_list(method).is_news(at):
                        session.tell(said)
                for listener in self._listeners:
                    owners = (None, listener.owner) if wanted in listener.wanted else ()
                    if any(last_news(listener, changes.get(each, {})) > listener.since for each in owners):
                        listener.note(method, {})

    def _to_tell(
        self, method: str, by_owner: Mapping[Hashable, Mapping[str | None, float]]
    ) -> Mapping[Hashable, Mapping[str | None, float]]:
        """When what clients see has changed, by their server, None for those of all. The tools that find and call
        others change with the names of the servers alone."""
        if not self._search or method != _TOOLS_CHANGED:
            return {owner: {**servers, None: max(servers.values())} for owner, servers in by_owner.items()}
        before, self._described = self._described, self._names()
        latest = max(at for servers in by_owner.values() for at in servers.values())
        renamed = before ^ self._described
        return {None: dict.fromkeys((None, *renamed), latest)} if renamed else {}

    def _names(self) -> set[str]:
        return {status.name for status in self._supervisor.status()}


def _waits_for_servers(view: View) -> bool:
    """Whether a server that the client may use is not there, and may be again."""
    return any(status.state not in _THERE for status in view.statuses)


def _check_number(subscriptions: int) -> None:
    """Refuse a client more subscriptions than one may have.

    Raises:
        JsonRpcError: There are too many.
    """
    if subscriptions > MOST_SUBSCRIBED:
        raise JsonRpcError(INVALID_PARAMS, f"too many subscriptions: at most {MOST_SUBSCRIBED}")
