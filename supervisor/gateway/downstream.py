"""What the gateway knows of its clients: who they are, and one request of theirs."""

import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Final

import trio
from attrs import define, field

from mcp_nursery.actors.account import NEWS, Account
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.incoming import change_of
from mcp_nursery.actors.jsonrpc.relays import ASKED
from mcp_nursery.actors.protocol import (
    LEVELS,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    JsonRpcError,
)
from mcp_nursery.actors.reply import PROGRESS

from .access import EVERYTHING, Access
from .eras import Json
from .known_lists import KnownList

Tell = Callable[[str, Mapping[str, Any] | None], Awaitable[None]]
"""Sends a notification: `(method, params)`."""
AskClient = Callable[[str, Mapping[str, Any] | None], Awaitable[Json]]
"""Sends a request to a client of the handshake era and returns its result; raises its error as `JsonRpcError`."""


LOG: Final = "notifications/message"
BACKLOG: Final = 256
"""Notifications that wait for a client that does not read, but for changes, which wait once each."""
BACKLOG_BYTES: Final = 256 << 10
"""Bytes of them: there can be a thousand sessions, whose clients need not listen at all."""


def is_severe(level: object, least: str | None) -> bool:
    """Whether a log message of this level is at least as severe as that."""
    return least in LEVELS and level in LEVELS and LEVELS.index(str(level)) >= LEVELS.index(str(least))


def as_object(value: object) -> Json:
    """A JSON object; empty if it is none."""
    return dict(value) if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


@define(eq=False)
class Said:
    """A notification about no request, written once for all who hear it."""

    method: str
    params: Mapping[str, Any] | None = None
    _holders: int = field(default=0, init=False)

    @cached_property
    def frame(self) -> bytes:
        """As it is sent."""
        return codec.notification(self.method, self.params)

    def hold(self, account: Account, *, in_any_case: bool = False) -> bool:
        """Keep it for one more who is to hear it: it is there once for all of them. False if there is no room."""
        if not self._holders:
            if in_any_case:
                account.charge(NEWS, len(self.frame))
            elif not account.take(NEWS, len(self.frame)):
                return False
        self._holders += 1
        return True

    def release(self, account: Account) -> None:
        """One of them has heard it, or hears it no more."""
        self._holders -= 1
        if not self._holders:
            account.give_back(NEWS, len(self.frame))


class Backlog:
    """What a client is still to be told. Changes are never lost, and each waits once, however often it comes. Of the
    rest, log messages are lost when there is no room, and others take the place of the oldest.

    Args:
        account: Where it is charged, once for all clients that are to be told the same.
    """

    def __init__(self, account: Account | None = None) -> None:
        self._account = account or Account()
        self._waiting: dict[object, Said] = {}
        """By what has changed; others by keys of their own."""
        self._others = deque[object]()
        """The keys of these others."""
        self._size = 0
        """Bytes of them."""
        self._ready = trio.Event()
        self._ended = False

    def put(self, said: Said) -> None:
        """Keep it for the client, unless that has gone. Never waits."""
        if self._ended:
            return
        change = change_of(said.method, said.params)
        if change is None:
            if not (self._has_room(said) and said.hold(self._account)):
                return
            self._others.append(key := object())
            self._waiting[key] = said
            self._size += len(said.frame)
        else:
            self._keep_change(change, said)
        self._ready.set()

    def _keep_change(self, change: object, said: Said) -> None:
        if change not in self._waiting:
            said.hold(self._account, in_any_case=True)
            self._waiting[change] = said

    def _has_room(self, said: Said) -> bool:
        """Whether there is room for one that can be lost, which is made for all but log messages."""
        if len(said.frame) > BACKLOG_BYTES:
            return False
        while self._others and (len(self._others) == BACKLOG or self._size + len(said.frame) > BACKLOG_BYTES):
            if said.method == LOG:
                return False
            oldest = self._waiting.pop(self._others.popleft())
            self._size -= len(oldest.frame)
            oldest.release(self._account)
        return True

    async def send(self, by: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what waits and what comes, until the end."""
        while not self._ended:
            self._ready = trio.Event()
            while self._waiting:
                await self._send_next(by)
            await self._ready.wait()

    async def _send_next(self, by: Callable[[bytes], Awaitable[None]]) -> None:
        key, said = next(iter(self._waiting.items()))
        del self._waiting[key]
        is_change = not (self._others and self._others[0] is key)
        if not is_change:
            self._others.popleft()
            self._size -= len(said.frame)
        try:
            await by(said.frame)
        except BaseException:
            if is_change and not self._ended:
                self._keep_change(key, said)  # for who listens next
            raise
        finally:
            said.release(self._account)

    def end(self) -> None:
        """The client has gone: nothing is kept for it, as its session may be remembered for long."""
        self._ended = True
        for said in self._waiting.values():
            said.release(self._account)
        self._waiting.clear()
        self._others.clear()
        self._ready.set()


@define(eq=False)
class Session:
    """A client of the handshake era, from `initialize` to the end of its connection or session."""

    tell: Callable[[Said], None]
    """Sends it a notification that is about no request of its own. Never waits: see `Backlog`."""
    nursery: trio.Nursery
    """Where its subscriptions run; they end with the session."""
    server: str | None = None
    """The server that it talks to; None for all of them."""
    access: Access = EVERYTHING
    """What it may use."""
    hears_all: bool = True
    """Whether it is told what servers say that is about no request: it may be about another user's."""
    client: Hashable = None
    """Who its client is: sessions of one share bounds. None: nobody has authenticated it."""
    capabilities: Mapping[str, Any] = field(factory=dict[str, Any])
    info: Mapping[str, Any] | None = None
    level: str | None = None
    """The least severe log messages that it wants; None for all."""
    lists: dict[str, KnownList] = field(factory=dict[str, KnownList])
    """What it knows of lists, by the notifications that tell of their changes."""
    subscribed: dict[str, trio.CancelScope] = field(factory=dict[str, trio.CancelScope])
    """The resources that it wants news of, by URI."""
    since: float = math.inf
    """When it was there, on Trio's clock: what had changed by then is no news."""
    ended: bool = False
    """Whether its client has gone."""
    _turns: dict[str, trio.StrictFIFOLock] = field(factory=dict[str, trio.StrictFIFOLock])

    @asynccontextmanager
    async def turn(self, uri: str) -> AsyncGenerator[None, None]:
        """Wait until what was asked before of this resource is done: both can be written in one breath."""
        lock = self._turns.setdefault(uri, trio.StrictFIFOLock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and self._turns.get(uri) is lock:
                del self._turns[uri]

    def known_list(self, change: str) -> KnownList:
        """What it knows of the list of whose changes this notification tells."""
        return self.lists.setdefault(change, KnownList(self.since))

    def introduce(self, params: Json) -> None:
        """Note who the client is, by the parameters of `initialize`."""
        self.capabilities = as_object(params.get("capabilities"))
        self.info = as_object(params.get("clientInfo")) or None


@define(eq=False)
class Listener:
    """A client without a session that listens for news. What waits for it is told once, however slowly it reads."""

    server: str | None
    wanted: Collection[str]
    """The kinds of news that it wants."""
    since: float = field(factory=trio.current_time)
    """See `Session`."""
    access: Access = EVERYTHING
    """What it may use."""
    owner: Hashable = None
    """Whose instances it hears of, where each session has its own."""
    _waiting: dict[tuple[str, str], Json] = field(factory=dict[tuple[str, str], Json])
    _ready: trio.Event = field(factory=trio.Event)

    def note(self, method: str, params: Json) -> None:
        """Something has changed. Never waits."""
        self._waiting[method, str(params.get("uri"))] = params
        self._ready.set()

    async def next(self) -> list[tuple[str, Json]]:
        """What has changed since the last time: notifications, as `(method, params)`."""
        await self._ready.wait()
        waiting, self._waiting, self._ready = self._waiting, {}, trio.Event()
        return [(method, params) for (method, _), params in waiting.items()]


def last_news(client: Session | Listener, changes: Mapping[str | None, float]) -> float:
    """When something has changed that a client sees.

    Args:
        client: Who is to be told.
        changes: When it was, by servers, None for all of them.
    """
    if client.server is None and client.access.allow is not None:
        own = (at for server, at in changes.items() if server is not None and client.access.has_server(server))
        return max(own, default=-math.inf)
    return changes.get(client.server, -math.inf)


@define(eq=False)
class Incoming:
    """One request of a client."""

    id: str | int
    method: str
    params: Json
    """Without `_meta`."""
    meta: Json
    tell: Tell
    """Sends a notification about this request, ahead of its answer."""
    principal: Hashable
    """Whose it is: see `Supervisor.request`."""
    session: Session | None = None
    """None since 2026-07-28: each request stands for itself."""
    ask: AskClient | None = None
    """Asks the client in the middle of this request; None where there are no such requests."""
    capabilities: Mapping[str, Any] = field(factory=dict[str, Any])
    """What the client can be asked."""
    info: Mapping[str, Any] | None = None
    """What it says of itself."""
    level: str | None = None
    """The least severe log messages that it asks for, outside of a session."""

    @property
    def modern(self) -> bool:
        """Whether its client has no session."""
        return self.session is None

    def describe(self, capabilities: object, info: object) -> None:
        """Who asks, as a request without a session says it."""
        self.capabilities = as_object(capabilities)
        self.info = as_object(info) or None
        level = self.meta.get(LOG_LEVEL_META_KEY)
        self.level = level if isinstance(level, str) else None

    @property
    def wanted_level(self) -> str | None:
        """The least severe log messages that its client wants; None for none."""
        return self.level if self.session is None else self.session.level or LEVELS[0]

    def wants(self, level: object) -> bool:
        """Whether its client wants log messages of this level."""
        return is_severe(level, self.wanted_level)

    def check_can_answer(self, method: str) -> None:
        """Refuse to ask its client what it cannot be asked.

        Raises:
            JsonRpcError: It has not the capability, or the protocol knows no such question.
        """
        if method not in ASKED:
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found", method)
        need = ASKED[method]
        if need not in self.capabilities:
            data: Json = {"requiredCapabilities": {need: {}}}
            raise JsonRpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client of this call has no {need}", data)

    async def hand_on(self, method: str, params: Mapping[str, Any]) -> None:
        """Hand on what the server says of this request."""
        if method == PROGRESS:
            if "progressToken" not in self.meta:
                return
            params = {**params, "progressToken": self.meta["progressToken"]}
        elif method == LOG and not self.wants(params.get("level")):
            return
        await self.tell(method, params)
