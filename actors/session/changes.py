"""How a server says that something changed, a list or a resource: by notifications, or since 2026-07-28 on streams held
open for it."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import trio
from attrs import define, field
from mcp.client import ClientSession, IncomingMessage
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    Subscription,
    SubscriptionLost,
    ToolsListChanged,
    listen,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    EmptyResult,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    ToolListChangedNotification,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ..enums import ListKind
from ..errors import folded, one_line
from ..secrets import HIDE_SECRETS
from .handshake import BAD_ANSWER

logger: Final = logging.getLogger(__name__)

ACKNOWLEDGED_WITHIN = 10.0
"""Seconds a server may take to acknowledge a subscription."""
_PAUSES = (0.0, 1.0, 2.0, 5.0, 15.0, 30.0)
"""Delays in seconds before listening again; the last repeats. A stream that lasted as long as that resets them."""

Kinds = Collection[ListKind]
Updated = Callable[[str, bool], None]
"""Called with the URI of a subscribed resource, and whether the server reported a change. If not, it was just
subscribed, or subscribed again: what changed before is unknown."""

_TOOLS: Final = frozenset([ListKind.TOOLS])
_RESOURCES: Final = frozenset([ListKind.RESOURCES, ListKind.TEMPLATES])
_PROMPTS: Final = frozenset([ListKind.PROMPTS])

_CHANGED: Final[Mapping[type, Kinds]] = {
    ToolListChangedNotification: _TOOLS,
    ToolsListChanged: _TOOLS,
    ResourceListChangedNotification: _RESOURCES,
    ResourcesListChanged: _RESOURCES,
    PromptListChangedNotification: _PROMPTS,
    PromptsListChanged: _PROMPTS,
}
"""Which lists a message is about."""


def _nobody(uri: str, certain: bool) -> None:  # noqa: FBT001
    del uri, certain


@define(eq=False)
class Changes:
    """The changes of one session: its message handler, its listening and its subscriptions."""

    _server: str
    """Its name, for the log."""
    _missed: frozenset[ListKind] = field(default=frozenset(), init=False)
    _notify: Callable[[Kinds], None] | None = field(default=None, init=False)
    _updated: Updated = field(default=_nobody, init=False)
    _wanted: frozenset[str] = field(default=frozenset(), init=False)
    """URIs that are to be subscribed."""
    _lengths: frozenset[int] = field(default=frozenset(), init=False)
    """How many characters they have."""
    _others_wanted: trio.Event = field(factory=trio.Event, init=False)

    async def __call__(self, message: IncomingMessage) -> None:
        """Take a message of the server: the SDK's hook for the eras with notifications."""
        if isinstance(message, ResourceUpdatedNotification):
            self._hear_update(message.params.uri)
        else:
            self._notice(_CHANGED.get(type(message), ()))

    # -- lists ----------------------------------------------------------------------------------------------------

    def listed(self, kinds: Kinds) -> None:
        """These are being listed: that settles earlier notifications about them."""
        self._missed -= frozenset(kinds)

    async def watch(self, session: ClientSession, tell: Callable[[Kinds], None]) -> None:
        """Have `tell` called with the lists that changed or may have. Never raises for what a server does.

        Returns at once where the server notifies unasked; otherwise listens until cancelled, or until there is nothing
        more to listen to.
        """
        self._notify = tell
        self._notice(self._missed)
        heard = _heard(session)
        if not heard:
            return

        def begun(_stream: Subscription, *, again: bool) -> None:
            if again:
                self._notice(heard)  # nobody knows what happened in between

        opening = partial(
            listen,
            session,
            tools_list_changed=ListKind.TOOLS in heard,
            resources_list_changed=ListKind.RESOURCES in heard,
            prompts_list_changed=ListKind.PROMPTS in heard,
        )
        await self._listen(opening, begun)

    def _notice(self, kinds: Kinds) -> None:
        if self._notify is None:
            self._missed |= frozenset(kinds)
        elif kinds:
            self._notify(kinds)

    # -- resources ------------------------------------------------------------------------------------------------

    def want(self, uris: frozenset[str]) -> None:
        """Subscribe to these, and to no others."""
        if uris != self._wanted:
            self._wanted, self._lengths = uris, frozenset(map(len, uris))
            self._others_wanted.set()

    async def keep_subscribed(self, session: ClientSession, tell: Updated) -> None:
        """Subscribe to what is wanted, and have `tell` called whenever one of them changed or may have, until
        cancelled. Never raises for what a server does."""
        self._updated = tell
        modern = session.protocol_version in MODERN_PROTOCOL_VERSIONS
        await (self._hold_streams(session) if modern else self._subscribe_each(session))

    def _hear_update(self, uri: str) -> None:
        """Report the subscribed resource that is this one, or else the nearest that contains it. What is longer than
        all that is subscribed is not looked at: a server may name what it likes."""
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

    async def _subscribe_each(self, session: ClientSession) -> None:
        """Before 2026-07-28: a request for each of them."""
        have: set[str] = set()
        offered = session.server_capabilities
        if offered is None or offered.resources is None or not offered.resources.subscribe:
            logger.warning("%s: cannot be subscribed: it does not offer it", self._server)
            return
        while True:
            self._others_wanted = trio.Event()
            wanted = self._wanted
            for uri in sorted(have - wanted):
                await self._ask(session, UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri)), uri)
            for uri in sorted(wanted - have):
                if await self._ask(session, SubscribeRequest(params=SubscribeRequestParams(uri=uri)), uri):
                    self._updated(uri, False)  # noqa: FBT003
            have = set(wanted)
            await self._others_wanted.wait()

    async def _ask(self, session: ClientSession, request: SubscribeRequest | UnsubscribeRequest, uri: str) -> bool:
        try:
            with trio.move_on_after(ACKNOWLEDGED_WITHIN):
                await session.send_request(request, EmptyResult)
                return True
        except BAD_ANSWER as error:
            hide = HIDE_SECRETS.get()
            why = one_line(hide(folded(error)))
            logger.warning("%s: %s of %.200r failed: %s", self._server, request.method, hide(uri), why)
        return False

    async def _hold_streams(self, session: ClientSession) -> None:
        """Since 2026-07-28: one stream for all of them. When the wanted ones change, the next stream is opened before
        this one is closed, so that no change is missed."""
        held, known, wanted = trio.CancelScope(), frozenset[str](), frozenset[str]()
        async with trio.open_nursery() as nursery:
            while True:
                self._others_wanted = trio.Event()
                before, held, begun = held, trio.CancelScope(), trio.Event()
                known, wanted = wanted, self._wanted
                if wanted:
                    nursery.start_soon(self._hold_stream, session, wanted, known, held, begun)
                    with trio.move_on_after(ACKNOWLEDGED_WITHIN):
                        await begun.wait()
                before.cancel()
                await self._others_wanted.wait()

    async def _hold_stream(
        self,
        session: ClientSession,
        wanted: Collection[str],
        known: Collection[str],
        scope: trio.CancelScope,
        begun: trio.Event,
    ) -> None:
        def tell(stream: Subscription, *, again: bool) -> None:
            for uri in stream.honored.resource_subscriptions or ():
                if uri in wanted and (again or uri not in known):
                    self._updated(uri, False)  # noqa: FBT003
            begun.set()

        with scope:
            await self._listen(partial(listen, session, resource_subscriptions=sorted(wanted)), tell)

    # -- streams --------------------------------------------------------------------------------------------------

    async def _listen(self, open_stream: Callable[[], Any], begun: Callable[..., None]) -> None:
        """Listen, and again after each loss; return if the server does not offer it.

        Args:
            open_stream: Opens the stream.
            begun: Called with each stream that is acknowledged, and whether there was one before (`again`).
        """
        failures, acknowledged = 0, False
        while True:
            began = trio.current_time()
            try:
                async with AsyncExitStack() as stack:
                    stream = await _acknowledged(stack, open_stream)
                    begun(stream, again=acknowledged)
                    acknowledged = True
                    async for event in stream:
                        if isinstance(event, ResourceUpdated):
                            self._hear_update(event.uri)
                        else:
                            self._notice(_CHANGED.get(type(event), ()))
            except MCPError as refusal:
                if refusal.code == METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError, ValidationError):
                pass  # as after the server's own end of it
            except RuntimeError:
                return  # the session has ended, which others notice
            if trio.current_time() - began >= _PAUSES[-1]:
                failures = 0
            await trio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures += 1


async def _acknowledged(stack: AsyncExitStack, open_stream: Callable[[], Any]) -> Subscription:
    with trio.move_on_after(ACKNOWLEDGED_WITHIN):
        stream: Subscription = await stack.enter_async_context(open_stream())
        return stream
    raise TimeoutError


def _heard(session: ClientSession) -> Kinds:
    """The lists of whose changes the server offers a stream; older eras notify unasked."""
    offered = session.server_capabilities
    if offered is None or session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return ()
    heard: set[ListKind] = set()
    if offered.tools is not None and offered.tools.list_changed:
        heard |= _TOOLS
    if offered.resources is not None and offered.resources.list_changed:
        heard |= _RESOURCES
    if offered.prompts is not None and offered.prompts.list_changed:
        heard |= _PROMPTS
    return heard
