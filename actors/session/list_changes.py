"""How a server says that its lists changed: by notifications, or since 2026-07-28 on a stream held open for them."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import Final

import trio
from mcp.client import ClientSession, IncomingMessage
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    Subscription,
    SubscriptionLost,
    ToolsListChanged,
    listen,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ..enums import ListKind

ACKNOWLEDGED_WITHIN = 10.0
"""Seconds a server may take to acknowledge that we listen."""
_PAUSES = (0.0, 1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds until we listen again, the last for ever. A stream that held for the last of them begins anew."""


Kinds = Collection[ListKind]

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


class ListChanges:
    """The message handler of one session, and the one who listens on it."""

    def __init__(self) -> None:
        self._missed: frozenset[ListKind] = frozenset()
        self._notify: Callable[[Kinds], None] | None = None

    async def __call__(self, message: IncomingMessage) -> None:
        """Take a message of the server: the SDK's hook for the eras with notifications."""
        self._notice(_CHANGED.get(type(message), ()))

    def listed(self, kinds: Kinds) -> None:
        """These are being listed: what was said of them before is settled by that."""
        self._missed -= frozenset(kinds)

    async def watch(self, session: ClientSession, tell: Callable[[Kinds], None]) -> None:
        """Have `tell` called with the lists that changed or may have. Never raises for what a server does.

        Returns at once where the server tells unasked; else it listens until cancelled, or until there is nothing more
        to listen to.
        """
        self._notify = tell
        self._notice(self._missed)
        if heard := _heard(session):
            await self._listen(session, heard)

    def _notice(self, kinds: Kinds) -> None:
        if self._notify is None:
            self._missed |= frozenset(kinds)
        elif kinds:
            self._notify(kinds)

    async def _listen(self, session: ClientSession, heard: Kinds) -> None:
        """Listen, and again after each loss; return if the server has no such thing."""
        failures, acknowledged = 0, False
        while True:
            began = trio.current_time()
            try:
                async with AsyncExitStack() as stack:
                    stream = await _acknowledged(session, stack, heard)
                    if acknowledged:
                        self._notice(heard)  # nobody knows what happened in between
                    acknowledged = True
                    async for event in stream:
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


async def _acknowledged(session: ClientSession, stack: AsyncExitStack, heard: Kinds) -> Subscription:
    with trio.move_on_after(ACKNOWLEDGED_WITHIN):
        return await stack.enter_async_context(
            listen(
                session,
                tools_list_changed=ListKind.TOOLS in heard,
                resources_list_changed=ListKind.RESOURCES in heard,
                prompts_list_changed=ListKind.PROMPTS in heard,
            )
        )
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
