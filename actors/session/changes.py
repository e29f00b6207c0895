"""The changes of a server's lists and resources: as notifications, or since 2026-07-28 on streams held open for
them."""

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

import trio

from mcp_nursery.actors.records import define, field

from ..enums import ListKind
from ..errors import one_line
from ..secrets import SECRETS, words_of
from .base import ACKNOWLEDGED_WITHIN, BAD_ANSWER, CHANGED, Kinds

if TYPE_CHECKING:
    from .sdk import Stream
    from .session import ServerSession

logger: Final = logging.getLogger(__name__)

Updated = Callable[[str, bool], None]
"""Called with the URI of a subscribed resource, and True if the server reported a change; False if it was just
subscribed to, or again: earlier changes are unknown."""


def _nobody(uri: str, certain: bool) -> None:  # noqa: FBT001
    del uri, certain


@define(eq=False)
class Changes:
    """The changes of one session: its notifications, streams and subscriptions."""

    _server: str
    """The server's name, for the log."""
    _missed: frozenset[ListKind] = field(default=frozenset(), init=False)
    _notify: Callable[[Kinds], None] | None = field(default=None, init=False)
    _updated: Updated = field(default=_nobody, init=False)
    _wanted: frozenset[str] = field(default=frozenset(), init=False)
    """URIs that are to be subscribed to."""
    _lengths: frozenset[int] = field(default=frozenset(), init=False)
    """The lengths of the URIs, in characters."""
    _others_wanted: trio.Event | None = field(default=None, init=False)
    """Set when other resources are wanted; None until somebody waits for that."""

    # -- lists ----------------------------------------------------------------------------------------------------

    def listed(self, kinds: Kinds) -> None:
        """Drop earlier notifications about these lists, which are fetched now."""
        self._missed -= frozenset(kinds)

    def lists_changed(self, kinds: Kinds) -> None:
        """Handle a change of these lists."""
        if self._notify is None:
            self._missed |= frozenset(kinds)
        elif kinds:
            self._notify(kinds)

    async def watch(
        self, session: "ServerSession", changed: Callable[[Kinds], None], look: Callable[[Kinds], None]
    ) -> None:
        """Have `changed` called with lists that changed, and `look` with those that may have silently. Never raises
        for what a server does.

        Returns at once where the server notifies unasked; otherwise listens until cancelled, or until there is nothing
        more to listen to.
        """
        self._notify = changed
        self.lists_changed(self._missed)
        heard = _heard(session)
        if not heard:
            return
        sdk = await session.sdk()
        from .sdk import listen_to_lists

        def begun(stream: "Stream", *, again: bool) -> None:
            del stream, again
            look(heard)  # no change between the fetch and the acknowledgement was notified

        await listen_to_lists(sdk, self, heard, begun)

    # -- resources ------------------------------------------------------------------------------------------------

    def set_watched(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and to no others."""
        if uris != self._wanted:
            self._wanted, self._lengths = uris, frozenset(map(len, uris))
            if self._others_wanted is not None:
                self._others_wanted.set()

    async def keep_subscribed(self, session: "ServerSession", tell: Updated) -> None:
        """Keep the wanted subscriptions until cancelled, and have `tell` called whenever a resource changed or may
        have. Never raises for what a server does."""
        self._updated = tell
        await (self._hold_streams(session) if session.is_modern else self._subscribe_each(session))

    def resource_updated(self, uri: str) -> None:
        """Report a change of this subscribed resource, or else of the nearest one that contains it. A URI is not
        examined beyond the longest subscribed one: a server may send any."""
        if uri in self._wanted:
            self._updated(uri, True)  # noqa: FBT003
            return
        at = uri.rfind("/", 0, max(self._lengths, default=0) + 1)
        while at >= 0:
            for length in (at + 1, at):
                if length in self._lengths and (above := uri[:length]) in self._wanted:
                    self._updated(above, True)  # noqa: FBT003
                    return
            at = uri.rfind("/", 0, at)

    async def _subscribe_each(self, session: "ServerSession") -> None:
        """Subscribe by a request for each, as before 2026-07-28."""
        have: set[str] = set()
        offered = session.server_capabilities or {}
        if not offered.get("resources", {}).get("subscribe"):
            logger.warning("%s: cannot be subscribed: it does not offer it", self._server)
            return
        while True:
            others_wanted = self._others_wanted = trio.Event()
            wanted = self._wanted
            for uri in sorted(have - wanted):
                await self._ask(session, "resources/unsubscribe", uri)
            for uri in sorted(wanted - have):
                if await self._ask(session, "resources/subscribe", uri):
                    self._updated(uri, False)  # noqa: FBT003
            have = set(wanted)
            await others_wanted.wait()

    async def _ask(self, session: "ServerSession", method: str, uri: str) -> bool:
        try:
            with trio.move_on_after(ACKNOWLEDGED_WITHIN):
                await session.do(method, {"uri": uri})
                return True
        except BAD_ANSWER as error:
            shown = SECRETS.get().hide_line(uri)
            logger.warning("%s: %s of %.200r failed: %s", self._server, method, shown, one_line(words_of(error)))
        return False

    async def _hold_streams(self, session: "ServerSession") -> None:
        """Subscribe by one stream for all, as since 2026-07-28. When the wanted ones change, the next stream is opened
        before this one is closed, so that no change is missed."""
        held, known, wanted = trio.CancelScope(), frozenset[str](), frozenset[str]()
        async with trio.open_nursery() as nursery:
            while True:
                others_wanted = self._others_wanted = trio.Event()
                before, held, begun = held, trio.CancelScope(), trio.Event()
                known, wanted = wanted, self._wanted
                if wanted:
                    nursery.start_soon(self._hold_stream, session, wanted, known, held, begun)
                    with trio.move_on_after(ACKNOWLEDGED_WITHIN):
                        await begun.wait()
                before.cancel()
                await others_wanted.wait()

    async def _hold_stream(
        self,
        session: "ServerSession",
        wanted: Collection[str],
        known: Collection[str],
        scope: trio.CancelScope,
        begun: trio.Event,
    ) -> None:
        def tell(stream: "Stream", *, again: bool) -> None:
            for uri in stream.honored.resource_subscriptions or ():
                if uri in wanted and (again or uri not in known):
                    self._updated(uri, False)  # noqa: FBT003
            begun.set()

        with scope:
            sdk = await session.sdk()
            from .sdk import listen_to_resources  # loaded by now

            await listen_to_resources(sdk, self, wanted, tell)


def _heard(session: "ServerSession") -> Kinds:
    """The lists whose changes the server offers on a stream; the older era notifies unasked."""
    if not session.is_modern:
        return ()
    heard: set[ListKind] = set()
    for name in ("tools", "resources", "prompts"):
        if (session.server_capabilities or {}).get(name, {}).get("listChanged"):
            heard |= {*CHANGED[f"notifications/{name}/list_changed"]}
    return heard
