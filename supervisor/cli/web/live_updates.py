"""The changes of pages, made once for all who look at them.

Each page that somebody looks at has a feed: the markup of its parts, and the generation in which each of them changed.
Feeds are updated at events and once a second, without waiting for each other; browsers are sent what has changed since
the generation that they have. So the cost of a page depends on its changes, and not on the number of its visitors.
"""

import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from secrets import token_urlsafe
from typing import Any, Final

import trio

from mcp_nursery.actors.errors import NurseryError, UnknownServer
from mcp_nursery.actors.records import define, field, frozen

from ..output import safe_text
from .history import PULSE, History
from .layout import LivePage, Part, ShownParts
from .markup import Html, h
from .server_page import STDERR

logger: Final = logging.getLogger(__name__)

THROTTLE: Final = 0.1
"""Seconds between two reads of the servers: an event is shown within 0.2 s."""
_REST: Final = 4
"""The rest of a feed after an update, as a multiple of the time of the update: so it takes at most a fifth of the time
of the loop."""
MOST_REST: Final = 2.0
"""Seconds of such a rest at most."""
KEPT_FOR: Final = 10.0
"""Seconds for which a feed is kept for a browser that has the document and does not follow it yet."""
TURN: Final = 0.005
"""Seconds of one turn of the loop in which parts are made."""
MOST_LOGGED: Final = 500
"""Lines of standard error that are kept for new browsers."""
LARGEST_LOG: Final = 200_000
"""Characters of these lines."""
KEPT_MESSAGES: Final = 20
"""Generations back for which a browser is sent the difference; for an older one it is sent the whole page."""
_AT_ONCE: Final = 25
"""Lines that are read between two pauses."""


@frozen
class PageKey:
    """The name of a feed."""

    path: str
    server: str
    """The server that the page is about; empty: none."""
    may_act: bool
    """True if its buttons can be pressed."""
    page: int = 1
    """The page of its lists."""


@frozen
class _Made:
    """A part that was made."""

    part: Part
    html: Html
    generation: int


def _html(part: Part) -> Html:
    """The markup of a part. A part that cannot be made, whatever a server has sent, affects no other."""
    try:
        return part.render()
    except Exception:
        logger.exception("a part of the page cannot be shown: %s", part.id)
        return h("p", "This part cannot be shown: the log says why.", id=part.id, data_list=part.list or None)


@define(eq=False)
class Feed:
    """The changes of one page. The task that holds `updating` writes them, and all followers read them."""

    page: LivePage
    id: str = field(factory=lambda: token_urlsafe(9), init=False)
    """A random name: another feed, or another process, has other generations."""
    generation: int = field(default=0, init=False)
    """The number of the last change."""
    is_gone: bool = field(default=False, init=False)
    """True once the page no longer exists."""
    changed: trio.Event = field(factory=trio.Event, init=False)
    """Set, and replaced, at each change."""
    followers: int = field(default=0, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """The scope of the task that reads standard error for it."""
    updating: trio.Lock = field(factory=trio.Lock, init=False)
    """Held while it is updated."""
    rests_until: float = field(default=0.0, init=False)
    """The time until which it is not updated: see `_REST`."""
    wanted_until: float = field(default=0.0, init=False)
    lines: int = field(default=0, init=False)
    """Lines of standard error so far."""
    _made: OrderedDict[str, _Made] = field(factory=OrderedDict[str, _Made], init=False)
    """The parts, the one that changed last at the end."""
    _dropped_in: int = field(default=0, init=False)
    """The last generation in which parts were removed."""
    _messages: dict[int | None, bytes] = field(factory=dict[int | None, bytes], init=False)
    """The messages of this generation, by the generation that their readers have."""
    _log: deque[str] = field(factory=deque[str], init=False)

    @property
    def shown(self) -> ShownParts:
        """All parts, by id."""
        return {id_: (made.part, made.html) for id_, made in self._made.items()}

    async def update(self) -> None:
        """Make the parts that have changed."""
        await self.page.read()
        try:
            parts = self.page.parts()
        except UnknownServer:
            self.is_gone = True
            self.announce()
            return
        made: list[tuple[Part, Html]] = []
        began = time.perf_counter()
        for part in parts:
            if not self._has(part):
                made.append((part, _html(part)))
                if time.perf_counter() - began > TURN:
                    await trio.lowlevel.checkpoint()
                    began = time.perf_counter()
        gone = self._made.keys() - {part.id for part in parts}
        if not made and not gone:
            return
        self.generation += 1
        for part, html in made:
            self._made[part.id] = _Made(part, html, self.generation)
            self._made.move_to_end(part.id)
        for id_ in gone:
            del self._made[id_]
            self._dropped_in = self.generation
        self._messages.clear()
        self.announce()

    def forget_lines(self) -> None:
        """Drop the lines of standard error, so that new browsers are shown none."""
        self._log.clear()

    def _has(self, part: Part) -> bool:
        made = self._made.get(part.id)
        return made is not None and made.part.signature == part.signature and made.part.order == part.order

    def announce(self) -> None:
        """Wake all that follow it."""
        self.changed.set()
        self.changed = trio.Event()

    def message(self, since: int | None) -> bytes | None:
        """All that has changed since a generation that the reader has, as JSON: `put` has the markup of parts; `all`
        has all ids, if parts were removed. None if nothing has changed. `since` is None for a reader that has no
        generation of this feed."""
        if since == self.generation:
            return None
        if since is not None and not self.generation - KEPT_MESSAGES <= since < self.generation:
            since = None  # each message is kept until the next change, and visitors choose the generation
        if since not in self._messages:
            fresh = [made.html for made in self._made.values() if since is None or made.generation > since]
            message: dict[str, Any] = {"put": fresh}
            if since is None or since < self._dropped_in:
                message["all"] = list(self._made)
            self._messages[since] = json.dumps(message).encode()
        return self._messages[since]

    def add_lines(self, lines: Sequence[str]) -> None:
        """Add lines of standard error."""
        self._log += lines
        self.lines += len(lines)
        while len(self._log) > MOST_LOGGED or sum(map(len, self._log)) > LARGEST_LOG:
            self._log.popleft()
        self.announce()

    def lines_since(self, count: int) -> bytes | None:
        """The lines after the first `count`, as far as they are kept, as JSON; None if there are none."""
        fresh = list(self._log)[-(self.lines - count) :] if self.lines > count else []
        return json.dumps({"text": [["stderr", "\n".join(fresh) + "\n"]]}).encode() if fresh else None

    @contextmanager
    def followed(self) -> Generator[None, None, None]:
        """Keep the feed for as long as the block lasts."""
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1


class Feeds:
    """The feeds of all pages that somebody looks at. Tasks in the nursery update feeds and read standard error."""

    def __init__(self, history: History, nursery: trio.Nursery) -> None:
        self._history = history
        self._nursery = nursery
        self._feeds: dict[PageKey, Feed] = {}

    async def open(self, key: PageKey, make: Callable[[], LivePage]) -> Feed:
        """The feed of a page, as it is now. `make` makes the page, if there is no feed of this key yet.

        Raises:
            UnknownServer: The page no longer exists.
        """
        feed = self._feeds.get(key)
        if feed is None or feed.is_gone:
            feed = self._feeds[key] = Feed(make())
            if key.path == STDERR:
                self._nursery.start_soon(self._read_stderr, feed, key.server)
        feed.wanted_until = trio.current_time() + KEPT_FOR
        async with feed.updating:
            self._history.look()
            await feed.update()
        if feed.is_gone:
            self._drop(key, feed)
            raise UnknownServer(key.server)
        return feed

    async def run(self) -> None:
        """Keep all feeds up to date, until cancelled. A feed that takes long delays no other."""
        while True:
            changed = self._history.changed
            if self._feeds:
                self._history.look()
            now = trio.current_time()
            for key, feed in list(self._feeds.items()):
                if not feed.followers and feed.wanted_until < now:
                    self._drop(key, feed)
                elif feed.rests_until <= now and not feed.updating.locked():
                    self._nursery.start_soon(self._update, key, feed)
            await trio.sleep(THROTTLE)
            with trio.move_on_after(PULSE):
                await changed.wait()

    async def _update(self, key: PageKey, feed: Feed) -> None:
        async with feed.updating:
            began = time.perf_counter()
            await feed.update()
            spent = time.perf_counter() - began
            feed.rests_until = trio.current_time() + min(MOST_REST, _REST * spent)
        if feed.is_gone:
            self._drop(key, feed)

    def _drop(self, key: PageKey, feed: Feed) -> None:
        """Remove a feed; another one of its name stays."""
        if self._feeds.get(key) is feed:
            del self._feeds[key]
        feed.scope.cancel()

    async def _read_stderr(self, feed: Feed, server: str) -> None:
        """Read standard error as it comes, also that of a server that was removed and added again. Removing secrets
        from lines takes time, so this rests between two reads."""
        with feed.scope:
            while True:
                with suppress(NurseryError):  # it was removed, or its servers are borrowed: there are no lines
                    await self._read_lines(feed, server)
                feed.forget_lines()
                await trio.sleep(PULSE)

    async def _read_lines(self, feed: Feed, server: str) -> None:
        async with self._history.supervisor.stderr(server) as lines:
            async for first in lines:
                began, read = time.perf_counter(), [first]
                with suppress(trio.WouldBlock, trio.EndOfChannel):
                    while len(read) < _AT_ONCE and time.perf_counter() - began < TURN:
                        read.append(lines.receive_nowait())
                feed.add_lines([safe_text(line) for line in read])
                await trio.sleep(max(THROTTLE, _REST * (time.perf_counter() - began)))
