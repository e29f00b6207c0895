"""The sessions of clients of the handshake era over HTTP: what outlasts one request of theirs."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import trio
from attrs import define, field

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.pending import outcome_of
from mcp_nursery.actors.outcomes import Rejected
from mcp_nursery.actors.protocol import JsonRpcError

from .access import RETRY_AFTER, Principal, Refused
from .catalogues import View
from .downstream import Backlog, Said, Session
from .eras import Json
from .figures import Figures
from .gateway import Gateway
from .http_limits import HttpLimits
from .responses import Response


@define(eq=False)
class _Asked:
    answered: trio.Event = field(factory=trio.Event)
    answer: Json | None = None


@define(eq=False)
class HttpSession:
    """One session: its client, what waits for it, and what it was asked."""

    id: str
    owner: Principal | None
    """Who opened it: nobody else may use it."""
    server: str | None
    """The server that it is with; None: all."""
    scope: trio.CancelScope
    """Its life; the deadline is that of an idle one."""
    idle_after: float
    client: Session | None = None
    version: str = ""
    streaming: bool = False
    """Whether its client listens to what is said unasked."""
    ended: trio.Event = field(factory=trio.Event)
    _requests: dict[trio.CancelScope, str | int] = field(factory=dict[trio.CancelScope, str | int])
    _in_use: int = 0
    backlog: Backlog = field(factory=Backlog)
    """What its client is still to be told."""
    _asked: dict[str, _Asked] = field(factory=dict[str, _Asked])

    def enter(self) -> None:
        """A request of its client begins: it is not idle."""
        self._in_use += 1
        self.scope.deadline = float("inf")

    def leave(self) -> None:
        """A request has ended."""
        self._in_use -= 1
        if not self._in_use:
            self.scope.deadline = trio.current_time() + self.idle_after

    def begin(self, request_id: str | int, scope: trio.CancelScope) -> None:
        """A request of its client begins, in this scope: its client may take it back."""
        self._requests[scope] = request_id
        self.enter()

    def finish(self, scope: trio.CancelScope) -> None:
        """What has begun in this scope has ended."""
        del self._requests[scope]
        self.leave()

    def take_back(self, request_id: object, reason: object) -> None:
        """Its client takes a request back."""
        for scope, own in self._requests.items():
            if own == request_id:
                scope.cancel(reason if isinstance(reason, str) else None)

    # -- what is said to its client -------------------------------------------------------------------------------

    def tell(self, said: Said) -> None:
        """Leave a notification for whoever listens. Never waits."""
        self.backlog.put(said)

    async def stream(self, response: Response) -> None:
        """Send what is said unasked, for as long as there is a session."""
        await self.backlog.send(response.event)

    def end(self) -> None:
        """It has ended, and so have its client's requests."""
        self.ended.set()
        self.backlog.end()
        for scope in self._requests:
            scope.cancel()

    async def ask(
        self, send: Callable[[bytes], Awaitable[None]], method: str, params: Mapping[str, Any] | None
    ) -> Json:
        """Ask its client, by what sends on the stream of one of its requests.

        Raises:
            JsonRpcError: What the client answers instead.
        """
        request_id = f"ask-{secrets.token_hex(8)}"
        asked = self._asked[request_id] = _Asked()
        try:
            await send(codec.request(request_id, method, params))
            await asked.answered.wait()
        except trio.Cancelled:
            self.tell(Said("notifications/cancelled", {"requestId": request_id, "reason": "the call is over"}))
            raise
        finally:
            del self._asked[request_id]
        assert asked.answer is not None  # it was answered
        outcome = outcome_of(asked.answer)
        if isinstance(outcome, Rejected):
            raise JsonRpcError(outcome.code, outcome.message, outcome.data)
        return outcome.result

    def answered(self, message: Json) -> None:
        """Its client has answered something."""
        asked = self._asked.get(str(message.get("id")))
        if asked is not None and not asked.answered.is_set():
            asked.answer = message
            asked.answered.set()


class HttpSessions:
    """The sessions that are open.

    Args:
        gateway: Told of clients that come and go.
        nursery: Where sessions live.
        limits: How many there may be, and for how long.
        figures: Told of how many there are.
        account: Where what waits for them is charged.
    """

    def __init__(
        self, gateway: Gateway, nursery: trio.Nursery, limits: HttpLimits, figures: Figures, account: Account
    ) -> None:
        self._gateway = gateway
        self._figures = figures
        self._nursery = nursery
        self._limits = limits
        self._account = account
        self._open: dict[str, HttpSession] = {}

    def get(self, session_id: str, owner: Principal | None, server: str | None) -> HttpSession | None:
        """The session of this id, if it is this owner's, with this server."""
        session = self._open.get(session_id)
        return session if session is not None and (session.owner, session.server) == (owner, server) else None

    async def open(self, owner: Principal | None, view: View) -> HttpSession:
        """A new session, in use. It counts when its client has been welcomed.

        Raises:
            Refused: There are too many.
        """
        limits, own = self._limits, sum(session.owner == owner for session in self._open.values())
        if len(self._open) >= limits.sessions:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"too many sessions: {limits.sessions} are open", RETRY_AFTER)
        if owner is not None and own >= limits.sessions_of_client:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, f"too many sessions of yours: {own} are open", RETRY_AFTER)
        session = HttpSession(secrets.token_urlsafe(24), owner, view.server, trio.CancelScope(), limits.idle)
        session.backlog = Backlog(self._account)
        session.enter()
        self._open[session.id] = session
        await self._nursery.start(self._live, session, view)
        return session

    async def _live(
        self,
        session: HttpSession,
        view: View,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self._figures.sessions(1)
        try:
            with session.scope:
                async with trio.open_nursery() as nursery:
                    session.client = Session(
                        session.tell, nursery, view.server, view.access, session.owner is None, session.owner
                    )
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._figures.sessions(-1)
            session.end()
            self._open.pop(session.id, None)
            if session.client is not None:
                self._gateway.news.leave(session.client)

    def welcome(self, session: HttpSession) -> None:
        """Its client is told of changes from now on."""
        assert session.client is not None  # it lives
        self._gateway.news.enter(session.client)

    def end(self, session: HttpSession) -> None:
        """End a session, with all that runs for it."""
        self._open.pop(session.id, None)
        session.scope.cancel()

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End the sessions of these clients."""
        for session in list(self._open.values()):
            if of(session.owner):
                self.end(session)
