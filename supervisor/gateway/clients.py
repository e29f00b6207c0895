"""The clients of the gateway: their sessions, the lists that they know, and the notifications that wait for them."""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Hashable, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any, Final

import trio

from mcp_nursery.actors.account import NEWS, Account
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.incoming import change_of
from mcp_nursery.actors.protocol import LEVELS
from mcp_nursery.actors.queues import BoundedQueue, WhenFull
from mcp_nursery.actors.records import define, field

from .auth.principal import EVERYTHING, Access
from .bridge import Json, as_object


@define(eq=False)
class KnownList:
    """One list of one session. Times are those of Trio's clock."""

    since: float
    """The time up to which its client knows the changes, by a list or by a notification."""
    _under_way: int = field(default=0, init=False)
    """Requests for the list that are not answered yet."""
    _passed_over: float = field(default=-math.inf, init=False)
    """The time of the last change during such a request."""

    def record_change(self, at: float) -> bool:
        """Record a change of the list. True if the client is to be notified now."""
        if self._under_way:
            self._passed_over = max(self._passed_over, at)
        elif at > self.since:
            self.since = at
            return True
        return False

    @contextmanager
    def track_listing(self) -> Generator["Listing", None, None]:
        """A block in which a request for the list is answered."""
        listing = Listing()
        self._under_way += 1
        try:
            yield listing
            self.since = max(self.since, listing.read_at)
        finally:
            self._under_way -= 1

    def take_missed_change(self) -> bool:
        """Record the last change during a request, if the answer lacks it. True if the client is to be notified now."""
        return not self._under_way and self.record_change(self._passed_over)


@define(eq=False)
class Listing:
    """One answer to a request for a list, under way."""

    read_at: float = -math.inf
    """The time up to which it contains changes."""

    def read(self) -> None:
        """Record that the list is read from now on."""
        self.read_at = math.nextafter(trio.current_time(), -math.inf)  # in this moment something may still change


LOG: Final = "notifications/message"
MOST_WAITING_NOTIFICATIONS: Final = 256
"""Notifications that wait for a client that does not read, besides changes, each of which waits once."""
BACKLOG_BYTES: Final = 256 << 10
"""Bytes of those notifications: there can be a thousand sessions, whose clients need not listen at all."""


def is_severe(level: object, least: str | None) -> bool:
    """True if a log message of this level is at least as severe as `least`."""
    return least in LEVELS and level in LEVELS and LEVELS.index(str(level)) >= LEVELS.index(str(least))


@define(eq=False)
class Notification:
    """A notification about no request, encoded once for all its recipients."""

    method: str
    params: Mapping[str, Any] | None = None
    _holders: int = field(default=0, init=False)

    @cached_property
    def frame(self) -> bytes:
        """The frame that is sent."""
        return codec.notification(self.method, self.params)

    def hold(self, account: Account, *, in_any_case: bool = False) -> bool:
        """Keep it for one more recipient; the account is charged once for all of them. False if there is no room."""
        if not self._holders:
            if in_any_case:
                account.charge(NEWS, len(self.frame))
            elif not account.take(NEWS, len(self.frame)):
                return False
        self._holders += 1
        return True

    def release(self, account: Account) -> None:
        """Release the notification for one recipient, which has been sent it or has gone."""
        self._holders -= 1
        if not self._holders:
            account.give_back(NEWS, len(self.frame))


class Backlog(BoundedQueue[Notification]):
    """Notifications that are still to be sent to a client. Changes are never lost, and each waits once, however often
    it occurs. When there is no room, a new log message is lost, and any other notification displaces the oldest. The
    account, if any, is charged once for all clients that are to be sent the same notification."""

    def __init__(self, account: Account | None = None) -> None:
        super().__init__(MOST_WAITING_NOTIFICATIONS, BACKLOG_BYTES, account=account)

    def _charge(self, item: Notification, size: int) -> bool:
        return item.hold(self._account, in_any_case=not size)

    def _give_back(self, item: Notification, size: int) -> None:
        del size
        item.release(self._account)

    def add(self, notification: Notification) -> None:
        """Keep a notification for the client, unless the client has gone. Never waits."""
        change = change_of(notification.method, notification.params)
        if change is not None:
            self.put(notification, key=change, when_full=WhenFull.EXCEED)
        else:
            when_full = WhenFull.LOSE_NEWEST if notification.method == LOG else WhenFull.LOSE_OLDEST
            self.put(notification, len(notification.frame), when_full=when_full)

    async def send(self, by: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the notifications that wait and those that follow, until the backlog is closed."""
        while True:
            try:
                notification = await self.receive()
            except trio.ClosedResourceError:
                return
            notification.hold(self._account, in_any_case=True)
            try:
                await by(notification.frame)
            except BaseException:
                if change_of(notification.method, notification.params) is not None:
                    self.add(notification)  # for the next listener
                raise
            finally:
                notification.release(self._account)


@define(eq=False)
class ClientSession:
    """A client of the handshake era, from `initialize` to the end of its connection or session."""

    notify: Callable[[Notification], None]
    """The function that sends the client a notification about none of its requests. Never waits: see `Backlog`."""
    nursery: trio.Nursery
    """The nursery of its subscriptions; they end with the session."""
    server: str | None = None
    """The server that it talks to; None for all of them."""
    access: Access = EVERYTHING
    """The grant of its client."""
    receives_all: bool = True
    """True if it is sent notifications that are about no request: these may concern the request of another user."""
    client: Hashable = None
    """The identity of its client, whose sessions share bounds. None: it is not authenticated."""
    capabilities: Mapping[str, Any] = field(factory=dict[str, Any])
    info: Mapping[str, Any] | None = None
    level: str | None = None
    """The level of the least severe log messages that it wants; None: all."""
    lists: dict[str, KnownList] = field(factory=dict[str, KnownList])
    """The lists that it knows, by the notifications of their changes."""
    subscribed: dict[str, trio.CancelScope] = field(factory=dict[str, trio.CancelScope])
    """The scopes of its subscriptions to resources, by URI."""
    since: float = math.inf
    """The time at which it began, on Trio's clock: the client is not notified of earlier changes."""
    ended: bool = False
    """True if its client has gone."""
    _turns: dict[str, trio.StrictFIFOLock] = field(factory=dict[str, trio.StrictFIFOLock])

    @asynccontextmanager
    async def turn(self, uri: str) -> AsyncGenerator[None, None]:
        """Wait until earlier requests about this resource are done: a client may write several at once."""
        lock = self._turns.setdefault(uri, trio.StrictFIFOLock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and self._turns.get(uri) is lock:
                del self._turns[uri]

    def known_list(self, change: str) -> KnownList:
        """The list whose changes this notification announces, as the client knows it."""
        return self.lists.setdefault(change, KnownList(self.since))

    def introduce(self, params: Json) -> None:
        """Record the capabilities and the description of the client, from the parameters of `initialize`."""
        self.capabilities = as_object(params.get("capabilities"))
        self.info = as_object(params.get("clientInfo")) or None


@define(eq=False)
class ClientListener:
    """A client without a session that listens for changes. Each change waits for it once, however slowly it reads."""

    server: str | None
    wanted: Collection[str]
    """The kinds of changes that it wants to be notified of."""
    since: float = field(factory=trio.current_time)
    """The time at which it began to listen, on Trio's clock: it is not notified of earlier changes."""
    access: Access = EVERYTHING
    """The grant of its client."""
    owner: Hashable = None
    """The owner of the instances that it follows, where each session has its own."""
    news: BoundedQueue[tuple[str, Json]] = field(factory=BoundedQueue[tuple[str, Json]])
    """Notifications, `(method, params)`, that are still to be sent to it: each change once."""

    def notify(self, method: str, params: Json) -> None:
        """Keep the notification of a change for the client. Never waits."""
        self.news.put((method, params), key=(method, params.get("uri")))


def last_change(client: ClientSession | ClientListener, changes: Mapping[str | None, float]) -> float:
    """The time of the last change that a client sees. The changes are given by server; None stands for all of them."""
    if client.server is None and client.access.allow is not None:
        own = (at for server, at in changes.items() if server is not None and client.access.has_server(server))
        return max(own, default=-math.inf)
    return changes.get(client.server, -math.inf)
