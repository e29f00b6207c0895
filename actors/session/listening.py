"""The streams of changes that a server of 2026-07-28 holds open, each listened to again after a loss."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Protocol

import trio
from mcp.client import ClientSession, IncomingMessage
from mcp.client.session import MessageHandlerFnT
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    SubscriptionLost,
    ToolsListChanged,
    listen,
)
from mcp.client.subscriptions import Subscription as Stream
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ResourceUpdatedNotification
from pydantic import ValidationError

from ..enums import ListKind
from .base import ACKNOWLEDGED_WITHIN, CHANGED, Kinds, News

__all__ = ["Stream", "listen_to_lists", "listen_to_resources", "taking"]

_PAUSES = (0.0, 1.0, 2.0, 5.0, 15.0, 30.0)
"""Delays in seconds before listening again; the last repeats. A stream that lasted as long as that resets them."""

_CHANGED: Final[Mapping[type, Kinds]] = {
    ToolsListChanged: CHANGED["notifications/tools/list_changed"],
    ResourcesListChanged: CHANGED["notifications/resources/list_changed"],
    PromptsListChanged: CHANGED["notifications/prompts/list_changed"],
}
"""Which lists an event is about."""


class Begun(Protocol):
    """Called with each stream that is acknowledged, and whether there was one before."""

    def __call__(self, stream: Stream, *, again: bool) -> None: ...


def taking(news: News) -> MessageHandlerFnT:
    """The SDK's hook for notifications."""

    async def take(message: IncomingMessage) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            news.resource_updated(message.params.uri)
        elif not isinstance(message, Exception):
            news.lists_changed(CHANGED.get(message.method, ()))

    return take


async def listen_to_lists(session: ClientSession, news: News, kinds: Kinds, begun: Begun) -> None:
    """Listen to the changes of these lists until cancelled; return if the server does not offer it."""
    opening = partial(
        listen,
        session,
        tools_list_changed=ListKind.TOOLS in kinds,
        resources_list_changed=ListKind.RESOURCES in kinds,
        prompts_list_changed=ListKind.PROMPTS in kinds,
    )
    await _listen(opening, news, begun)


async def listen_to_resources(session: ClientSession, news: News, uris: Collection[str], begun: Begun) -> None:
    """Listen to the changes of these resources until cancelled; return if the server does not offer it."""
    await _listen(partial(listen, session, resource_subscriptions=sorted(uris)), news, begun)


async def _listen(open_stream: Callable[[], Any], news: News, begun: Begun) -> None:
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
                        news.resource_updated(event.uri)
                    else:
                        news.lists_changed(_CHANGED.get(type(event), ()))
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


async def _acknowledged(stack: AsyncExitStack, open_stream: Callable[[], Any]) -> Stream:
    with trio.move_on_after(ACKNOWLEDGED_WITHIN):
        stream: Stream = await stack.enter_async_context(open_stream())
        return stream
    raise TimeoutError
