"""How a server says that its tools changed: by a notification, or since 2026-07-28 on a stream held open for it."""

from collections.abc import Callable
from contextlib import AsyncExitStack

import trio
from mcp.client import ClientSession, IncomingMessage
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

ACKNOWLEDGED_WITHIN = 10.0
"""Seconds a server may take to acknowledge that we listen."""
_PAUSES = (0.0, 1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds until we listen again, the last for ever. A stream that held for the last of them begins anew."""


class ToolChanges:
    """The message handler of one session, and the one who listens on it."""

    def __init__(self) -> None:
        self._missed = False
        self._notify: Callable[[], None] | None = None

    async def __call__(self, message: IncomingMessage) -> None:
        """Take a message of the server: the SDK's hook for the eras with notifications."""
        if isinstance(message, ToolListChangedNotification):
            self._notice()

    def listed(self) -> None:
        """The tools are being listed: what was said of them before is settled by that."""
        self._missed = False

    async def watch(self, session: ClientSession, tell: Callable[[], None]) -> None:
        """Have `tell` called whenever the tools changed or may have. Never raises for what a server does.

        Returns at once where the server tells unasked; else it listens until cancelled, or until there is nothing more
        to listen to.
        """
        self._notify = tell
        if self._missed:
            self._notice()
        if _can_be_heard(session):
            await self._listen(session)

    def _notice(self) -> None:
        if self._notify is None:
            self._missed = True
        else:
            self._notify()

    async def _listen(self, session: ClientSession) -> None:
        """Listen, and again after each loss; return if the server has no such thing."""
        failures, acknowledged = 0, False
        while True:
            began = trio.current_time()
            try:
                async with AsyncExitStack() as stack:
                    stream = await _acknowledged(session, stack)
                    if acknowledged:
                        self._notice()  # nobody knows what happened in between
                    acknowledged = True
                    async for _ in stream:
                        self._notice()
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


async def _acknowledged(session: ClientSession, stack: AsyncExitStack) -> Subscription:
    with trio.move_on_after(ACKNOWLEDGED_WITHIN):
        return await stack.enter_async_context(listen(session, tools_list_changed=True))
    raise TimeoutError


def _can_be_heard(session: ClientSession) -> bool:
    """Whether the server offers a stream of changes; older eras notify unasked."""
    capabilities = session.server_capabilities
    offered = capabilities is not None and capabilities.tools is not None and bool(capabilities.tools.list_changed)
    return offered and session.protocol_version in MODERN_PROTOCOL_VERSIONS
