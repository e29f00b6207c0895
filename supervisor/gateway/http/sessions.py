"""The sessions of clients of the handshake era over HTTP: all that outlasts one request of such a client."""

import logging
import math
import os
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final

import trio

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.pending import outcome_of
from mcp_nursery.actors.messages import CANCELLED
from mcp_nursery.actors.outcomes import Rejected
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.records import define, evolve, field

from ...http_server.http_connection import end_idle
from ...log_limits import log_of_client
from ...session_notes import NoteChange, SessionNote
from ..auth.principal import RETRY_AFTER, Principal, Refused, principal_name
from ..bridge import Json, as_object
from ..client_request import ClientRequest, offered_version
from ..client_status import SessionStatus
from ..clients import Backlog, ClientSession, Notification
from ..gateway import Gateway
from ..notifications import UPDATED
from ..sealing import SessionKeys
from ..views.view import View
from .exchange import HttpExchange
from .request_limits import GatewayFigures, HttpLimits
from .session_ids import SessionStart, open_session, seal_session

logger: Final = logging.getLogger(__name__)

MOST_REVOKED: Final = 65_536
"""Ids of sessions that were ended early, and do not open again; beyond that the oldest ids are forgotten."""
NOTES_EVERY: Final = 2.0
"""Seconds between two reads of what other gateways have noted about sessions."""
NOTES_OVERLAP: Final = 10.0
"""Seconds by which a read overlaps the one before: a change becomes visible some time after it was made."""
MOST_NOTED: Final = 8 << 10
"""Characters of the URIs that are noted of one session; subscriptions beyond that do not outlive their gateway."""
NOTED: Final = frozenset(["logging/setLevel", "resources/subscribe", "resources/unsubscribe"])
"""The requests that change what is noted of a session."""
_LISTS: Final = ("tools", "prompts", "resources")
_LONGEST_NAME: Final = 100
"""Characters of the name of a client's program, and of its version, that a person sees."""


@define(eq=False)
class _Asked:
    answered: trio.Event = field(factory=trio.Event)
    answer: Json | None = None


@define(eq=False)
class HttpSession:
    """One session: its client, the notifications that wait for it, and the questions that it was asked."""

    id: str
    owner: Principal | None
    """The principal that opened it, and alone may use it."""
    server: str | None
    """The server of the session; None: all of them."""
    idle_after: float
    """Seconds without a request after which it ends."""
    view: View
    """The view of its client."""
    client: ClientSession
    backlog: Backlog
    """The notifications that wait for its client."""
    idle_until: float = math.inf
    """The time at which it ends unless its client comes back, on Trio's clock; infinite while it is in use."""
    version: str = ""
    opened_at: float = field(factory=trio.current_time)
    """The time at which it began here, on Trio's clock."""
    key: str = field(factory=partial(secrets.token_hex, 8))
    """The name of the session for a person who watches the gateway: its id is a credential."""
    digest: str = ""
    """The name of the session in the notes; empty: it does not outlive this gateway."""
    noted: SessionNote = field(factory=SessionNote)
    """The last note about it that holds here."""
    noting: trio.StrictFIFOLock = field(factory=trio.StrictFIFOLock)
    """Held while that note changes."""
    streaming: bool = False
    """True if its client listens to notifications about no request."""
    _requests: dict[HttpExchange, str | int] = field(factory=dict[HttpExchange, str | int])
    _tasks: set[trio.CancelScope] = field(factory=set[trio.CancelScope])
    """The scopes of what is done for it besides its client's requests."""
    _in_use: int = 0
    _asked: dict[str, _Asked] = field(factory=dict[str, _Asked])

    @property
    def has_ended(self) -> bool:
        """True if nothing is done for it any more."""
        return self.client.ended

    @property
    def status(self) -> SessionStatus:
        """The session as a person sees it."""
        info = as_object(self.client.info)
        said = [part[:_LONGEST_NAME] for part in (info.get("name"), info.get("version")) if isinstance(part, str)]
        return SessionStatus(
            key=self.key,
            client=principal_name(self.owner),
            program=" ".join(said) or None,
            protocol_version=self.version,
            server=self.server,
            age=trio.current_time() - self.opened_at,
            requests=self._in_use,
            subscriptions=len(self.client.subscribed),
            waiting=len(self.backlog),
        )

    def enter(self) -> None:
        """Count a request of its client: the session is not idle."""
        self._in_use += 1
        self.idle_until = math.inf

    def leave(self) -> None:
        """Count a request as ended. After the last one the session is idle."""
        self._in_use -= 1
        if not self._in_use:
            self.idle_until = trio.current_time() + self.idle_after

    def begin(self, request_id: str | int, exchange: HttpExchange) -> None:
        """Begin a request of its client, which goes on when the client has gone, except the one that opens the
        session."""
        self._requests[exchange] = request_id
        self.enter()
        if self.version:
            exchange.goes_on = self.leave

    def finish(self, exchange: HttpExchange) -> None:
        """Finish the request of this exchange."""
        del self._requests[exchange]
        if not (exchange.client_gone and exchange.goes_on):  # otherwise it was left when its client went
            self.leave()

    def cancel_request(self, request_id: object, reason: object) -> None:
        """Cancel a request, as its client asks: `trio.Cancelled` rises in the task that answers it. See the head of
        `exchange.py`."""
        for exchange, own in self._requests.items():
            if own == request_id:
                exchange.scope.cancel(reason if isinstance(reason, str) else None)

    async def run(self, do: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Run something for the session besides its client's requests. The end of the session cancels it."""
        if not self.has_ended:
            with trio.CancelScope() as scope:
                self._tasks.add(scope)
                try:
                    await do(*args)
                finally:
                    self._tasks.discard(scope)

    # -- messages to its client ------------------------------------------------------------------------------------

    def notify(self, notification: Notification) -> None:
        """Keep a notification until the client listens. Never waits."""
        self.backlog.add(notification)

    async def stream(self, exchange: HttpExchange) -> None:
        """Send the notifications about no request, for as long as the session lasts."""
        await self.backlog.send(exchange.event)

    def end(self) -> None:
        """End the session, and with it its client's requests and all that is done for it."""
        self.backlog.close()
        for exchange in self._requests:
            exchange.session_ended = True
            exchange.scope.cancel()
        for scope in (*self._tasks, *self.client.subscribed.values()):
            scope.cancel()

    async def ask(
        self, send: Callable[[bytes], Awaitable[None]], method: str, params: Mapping[str, Any] | None
    ) -> Json:
        """Ask its client something, with a function that sends on the stream of one of its requests.

        Raises:
            JsonRpcError: The client answers with an error.
        """
        request_id = f"ask-{secrets.token_hex(8)}"
        asked = self._asked[request_id] = _Asked()
        try:
            await send(codec.request(request_id, method, params))
            await asked.answered.wait()
        except trio.Cancelled:
            cancelled = {"requestId": request_id, "reason": "the call is over"}
            self.notify(Notification(CANCELLED, cancelled))
            raise
        finally:
            del self._asked[request_id]
        assert asked.answer is not None  # it was answered
        outcome = outcome_of(asked.answer)
        if isinstance(outcome, Rejected):
            raise JsonRpcError(outcome.code, outcome.message, outcome.data)
        return outcome.result

    def take_answer(self, message: Json) -> None:
        """Take the answer of its client to a question."""
        asked = self._asked.get(str(message.get("id")))
        if asked is not None and not asked.answered.is_set():
            asked.answer = message
            asked.answered.set()


class HttpSessions:
    """The sessions that are open. The account is charged for the notifications that wait for them; tasks in the nursery
    act for them."""

    def __init__(
        self,
        gateway: Gateway,
        nursery: trio.Nursery,
        limits: HttpLimits,
        figures: GatewayFigures,
        account: Account,
    ) -> None:
        self._gateway = gateway
        self._figures = figures
        self._nursery = nursery
        self._limits = limits
        self._account = account
        self._keys = gateway.session_keys
        self._notes = gateway.session_notes
        self._open: dict[str, HttpSession] = {}
        self._revoked: OrderedDict[str, float] = OrderedDict()
        """The Unix times at which ended sessions are too old in any case, by the digests of their ids."""
        nursery.start_soon(end_idle, self._open.values(), self._close)
        if self._keys is not None and self._notes.others_write:
            nursery.start_soon(self._follow_notes)

    async def find(self, session_id: str, owner: Principal | None, view: View) -> HttpSession | None:
        """The session of this id, if it has this owner and this server: one that is open, or one that goes on here.

        Raises:
            Refused: There are too many sessions for it to go on here, or it cannot.
        """
        session = self._open.get(session_id)
        if session is None or (session.owner, session.server) != (owner, view.server):
            session = None if self._keys is None else await self._take_up(self._keys, session_id, owner, view)
        return session

    def open(self, owner: Principal | None, view: View) -> HttpSession:
        """Open a session, in use.

        Raises:
            Refused: There are too many.
        """
        session = self._begin(secrets.token_urlsafe(24), owner, view)
        session.enter()
        return session

    def seals(self, session: HttpSession) -> bool:
        """True if a session whose client does not know its id yet gets one that outlives this gateway."""
        return self._keys is not None and not session.version

    def seal(self, session: HttpSession, hello: Json, view: View) -> None:
        """Give a session, whose client knows no id of it yet, an id by which it outlives this gateway. A session whose
        client has instances of its own cannot: its id names this gateway. `hello` has the parameters of its
        `initialize`, checked."""
        assert self._keys is not None  # see `seals`
        capabilities, info = as_object(hello.get("capabilities")), as_object(hello.get("clientInfo")) or None
        replica = _own_name() if _has_own_instances(view) else ""
        start = SessionStart(time.time(), offered_version(hello), capabilities, info, replica)
        session_id = seal_session(self._keys, start, session.owner, session.server)
        if session_id is not None:
            del self._open[session.id]
            session.id = session_id
            session.digest = "" if replica else _digest(session_id)
            self._open[session_id] = session

    def _begin(self, session_id: str, owner: Principal | None, view: View) -> HttpSession:
        """Begin a session of this client, idle.

        Raises:
            Refused: There are too many.
        """
        self._check_room(owner)
        limits, backlog = self._limits, Backlog(self._account)
        client = ClientSession(backlog.add, self._nursery, view.server, view.access, owner is None, owner)
        session = HttpSession(session_id, owner, view.server, limits.idle, view, client, backlog)
        session.idle_until = trio.current_time() + limits.idle
        self._open[session_id] = session
        self._figures.sessions(1)
        return session

    def _check_room(self, owner: Principal | None) -> None:
        """Check that this client may have one more session.

        Raises:
            Refused: There are too many.
        """
        limits = self._limits
        own = 0 if owner is None else sum(session.owner == owner for session in self._open.values())
        if len(self._open) >= limits.sessions:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"too many sessions: {limits.sessions} are open", RETRY_AFTER)
        if owner is not None and own >= limits.sessions_of_client:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, f"too many sessions of yours: {own} are open", RETRY_AFTER)

    def _go_on(
        self,
        session_id: str,
        owner: Principal | None,
        view: View,
        start: SessionStart,
        note: SessionNote,
    ) -> HttpSession:
        """Begin a session here that began elsewhere, from its beginning and the note about its changes there.

        Raises:
            Refused: There are too many.
        """
        session = self._begin(session_id, owner, view)
        client = session.client
        client.capabilities, client.info = start.capabilities, start.info
        client.level = note.level  # before it is sent any log message
        session.version, session.digest = start.version, _digest(session_id)
        self.welcome(session)
        self._nursery.start_soon(session.run, _announce_lists, session, view)
        self._nursery.start_soon(session.run, self._follow, session, note)
        return session

    def welcome(self, session: HttpSession) -> None:
        """Notify its client of changes from now on."""
        self._gateway.news.enter(session.client)

    def end(self, session: HttpSession) -> None:
        """End a session, with all that runs for it. It does not go on here any more."""
        self._close(session)
        if self._keys is not None:
            self._revoke(session.id, self._keys.max_age)

    def _close(self, session: HttpSession) -> None:
        """Close a session, which may go on here later."""
        if not session.has_ended:
            del self._open[session.id]
            self._figures.sessions(-1)
            session.end()
            self._gateway.news.leave(session.client)

    def close(self) -> None:
        """Close all sessions, since the gateway ends; they may go on elsewhere."""
        for session in list(self._open.values()):
            self._close(session)

    @property
    def status(self) -> tuple[SessionStatus, ...]:
        """The sessions that are open, the oldest first."""
        return tuple(session.status for session in self._open.values())

    async def end_of_key(self, key: str) -> bool:
        """End the session of this key everywhere. False if there is none."""
        for session in self._open.values():
            if session.key == key:
                await self.end_everywhere(session)
                return True
        return False

    async def end_everywhere(self, session: HttpSession) -> None:
        """End a session here, and at all gateways that have its note."""
        self.end(session)
        await self._note(session, _ended)

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End the sessions of these clients. If the gateway ends, they go on elsewhere."""
        for session in list(self._open.values()):
            if of(session.owner):
                self.end(session)
                if not self._gateway.draining:
                    self._nursery.start_soon(self._note, session, _ended)

    # -- sessions that began elsewhere -----------------------------------------------------------------------------

    async def _take_up(
        self, keys: SessionKeys, session_id: str, owner: Principal | None, view: View
    ) -> HttpSession | None:
        """Go on with a session that began elsewhere, or before this gateway was started, or that was idle for long.

        Raises:
            Refused: There are too many, or it cannot go on here.
        """
        start = open_session(keys, session_id, owner, view.server)
        if start is None:
            _log_refusal("it is not sealed by a key of this gateway, for this client and this path")
        elif start.began + keys.max_age < time.time():
            _log_refusal("its session began too long ago")
        elif _digest(session_id) in self._revoked:
            _log_refusal("its session was ended")
        elif start.replica:
            _log_refusal(f"its session had instances of its own, at {start.replica}")
            raise Refused(HTTPStatus.NOT_FOUND, "this session had servers of its own, which are gone: begin a new one")
        else:
            self._check_room(owner)  # before anything is read or logged: clients come again and again
            note = await self._notes.session_note(_digest(session_id))
            if session_id in self._open:  # another request of it was quicker
                return self._open[session_id]
            if not (note.ended or _digest(session_id) in self._revoked):  # it may have ended here meanwhile
                session = self._go_on(session_id, owner, view, start, note)
                log_of_client(logger, logging.INFO, "a session goes on here")
                return session
            _log_refusal("its session was ended")
        return None

    def _revoke(self, session_id: str, seconds: float) -> None:
        """Refuse the id of an ended session for so many seconds."""
        now, revoked = time.time(), self._revoked
        revoked[_digest(session_id)] = now + seconds
        while len(revoked) > MOST_REVOKED or next(iter(revoked.values())) < now:
            revoked.popitem(last=False)

    # -- notes: what gateways where a session goes on have to know ---------------------------------------------------

    async def note(self, session: HttpSession, request: ClientRequest) -> None:
        """Add to a session's note what a request has changed: one of `NOTED`, which was answered."""
        if request.method == "logging/setLevel":
            await self._note(session, lambda note: evolve(note, level=request.params["level"]))
            return
        uri = request.params["uri"]
        if request.method == "resources/subscribe":
            await self._note(session, lambda note: _with_subscription(note, uri))
        else:
            await self._note(session, lambda note: evolve(note, subscribed=note.subscribed - {uri}))

    async def _note(self, session: HttpSession, change: NoteChange) -> None:
        if self._keys is None or not session.digest:
            return
        async with session.noting:
            note = await self._notes.note_session(session.digest, time.time() + self._keys.max_age, change)
            if note is not None and not session.has_ended:
                await self._apply(session, note)

    async def _follow_notes(self) -> None:
        """Follow what other gateways note about sessions that are open here, until cancelled."""
        seen = trio.current_time()
        while True:
            await trio.sleep(NOTES_EVERY)
            now = trio.current_time()
            changed = await self._notes.changed_notes(now - seen + NOTES_OVERLAP)
            if changed is None:
                continue
            seen = now
            noted = {session.digest: session for session in self._open.values() if session.digest in changed}
            for digest, session in noted.items():
                await self._follow(session, changed[digest])

    async def _follow(self, session: HttpSession, note: SessionNote) -> None:
        async with session.noting:
            if not session.has_ended:
                await self._apply(session, note)

    async def _apply(self, session: HttpSession, note: SessionNote) -> None:
        """Apply to a session what is new in its note. What its client does here meanwhile is in no note yet."""
        if note.ended:
            self.end(session)
            return
        before, client = session.noted, session.client
        if note.version <= before.version:
            return
        session.noted = note
        if note.level is not None and note.level != before.level:
            with suppress(NurseryError):
                await self._gateway.news.set_level(client, note.level)
        for uri in before.subscribed - note.subscribed:
            client.subscribed.pop(uri, trio.CancelScope()).cancel()
        for uri in note.subscribed - before.subscribed - client.subscribed.keys():
            self._nursery.start_soon(session.run, self._subscribe, session, uri)

    async def _subscribe(self, session: HttpSession, uri: str) -> None:
        """Subscribe to a resource again, and notify the client: the resource may have changed meanwhile."""
        client = session.client
        request = ClientRequest(
            "subscribed", "resources/subscribe", {"uri": uri}, {}, _pass_on_nothing, principal=client, session=client
        )
        async with client.turn(uri):
            with suppress(NurseryError, JsonRpcError):  # it is gone, or not for this client any more
                await self._gateway.news.subscribe(request, client, session.view, patient=True)
                session.notify(Notification(UPDATED, {"uri": uri}))


async def _pass_on_nothing(method: str, params: Mapping[str, Any] | None) -> None:
    """Discard a notification: a resumed subscription has no request to attach it to."""


def _ended(note: SessionNote) -> SessionNote:
    del note  # nothing else is known of it any more
    return SessionNote(ended=True)


def _with_subscription(note: SessionNote, uri: Any) -> SessionNote:
    """The note with one more subscription, if there is room for it."""
    subscribed = note.subscribed | {uri}
    return evolve(note, subscribed=subscribed) if sum(map(len, subscribed)) <= MOST_NOTED else note


async def _announce_lists(session: HttpSession, view: View) -> None:
    """Notify a client that every list may have changed: the gateway does not know what it has read. If its only server
    is away, it is notified when that server comes back."""
    with suppress(NurseryError):
        declared = as_object((await view.hello()).get("capabilities"))
        for kind in _LISTS:
            if as_object(declared.get(kind)).get("listChanged"):
                session.notify(Notification(f"notifications/{kind}/list_changed"))


def _has_own_instances(view: View) -> bool:
    """True if a server gives each session an instance of its own."""
    return any(view.supervisor.spec(status.name).instances == "session" for status in view.statuses)


def _own_name() -> str:
    """The name of this gateway in the logs of others."""
    return f"{socket.gethostname()[:64]}/{os.getpid()}"


def _digest(session_id: str) -> str:
    return blake2b(session_id.encode(), digest_size=16).hexdigest()


def _log_refusal(why: str) -> None:
    log_of_client(logger, logging.WARNING, "the id of a session was refused: %s", why)
