"""The SDK's session, over our session's endpoint: for all that needs the SDK's models and callbacks.

This module has three parts: the session itself; the dispatcher by which it uses our endpoint, and which converts
errors; and the streams of changes that a server of 2026-07-28 holds open, each opened again after a loss.
"""

import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol, cast

import anyio
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
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.transport_context import TransportContext
from mcp_types import METHOD_NOT_FOUND, DiscoverResult, Implementation, InitializeResult, ResourceUpdatedNotification
from pydantic import ValidationError

from mcp_nursery.actors.records import frozen

from ..callbacks import Host
from ..enums import ListKind
from ..jsonrpc.endpoint import Endpoint, rest_in
from ..jsonrpc.incoming import Inbound, Intercept, NotificationParams
from ..jsonrpc.incoming import OnNotify as OnTold
from ..jsonrpc.incoming import OnRequest as OnInbound
from ..pauses import Pauses
from ..protocol import JsonRpcError, RequestId
from .base import ACKNOWLEDGED_WITHIN, CHANGED, Kinds, ListChanges
from .host_requests import open_callbacks

__all__ = ["Stream", "listen_to_lists", "listen_to_resources", "taking"]

_LISTEN_PAUSES = (0.0, 1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds before listening again; the last repeats."""

_LISTS_OF_EVENT: Final[Mapping[type, Kinds]] = {
    ToolsListChanged: CHANGED["notifications/tools/list_changed"],
    ResourcesListChanged: CHANGED["notifications/resources/list_changed"],
    PromptsListChanged: CHANGED["notifications/prompts/list_changed"],
}
"""The lists that an event is about."""


class Begun(Protocol):
    """Called with each acknowledged stream, and whether there was one before."""

    def __call__(self, stream: Stream, *, again: bool) -> None: ...


def taking(news: ListChanges) -> MessageHandlerFnT:
    """The SDK's hook for notifications, which go to `news`."""

    async def take(message: IncomingMessage) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            if SUBSCRIPTION_ID_META_KEY not in (message.params.meta or {}):  # else its stream brings it, too
                news.resource_updated(message.params.uri)
        elif not isinstance(message, Exception):
            news.lists_changed(CHANGED.get(message.method, ()))

    return take


async def listen_to_lists(session: ClientSession, news: ListChanges, kinds: Kinds, begun: Begun) -> None:
    """Listen to the changes of these lists until cancelled; return if the server does not offer it."""
    opening = partial(
        listen,
        session,
        tools_list_changed=ListKind.TOOLS in kinds,
        resources_list_changed=ListKind.RESOURCES in kinds,
        prompts_list_changed=ListKind.PROMPTS in kinds,
    )
    await _listen(opening, news, begun)


async def listen_to_resources(session: ClientSession, news: ListChanges, uris: Collection[str], begun: Begun) -> None:
    """Listen to the changes of these resources until cancelled; return if the server does not offer it."""
    await _listen(partial(listen, session, resource_subscriptions=sorted(uris)), news, begun)


async def _listen(open_stream: Callable[[], Any], news: ListChanges, begun: Begun) -> None:
    pauses, acknowledged = Pauses(_LISTEN_PAUSES), False
    while True:
        begun_at, heard, rest = math.inf, False, 0.0
        try:
            async with AsyncExitStack() as stack:
                stream = await _acknowledged(stack, open_stream)
                begun(stream, again=acknowledged)
                begun_at, acknowledged = trio.current_time(), True
                async for event in stream:
                    heard = True
                    if isinstance(event, ResourceUpdated):
                        news.resource_updated(event.uri)
                    else:
                        news.lists_changed(_LISTS_OF_EVENT.get(type(event), ()))
        except MCPError as refusal:
            if refusal.code == METHOD_NOT_FOUND:
                return
            rest = rest_in(refusal.__cause__)
        except (SubscriptionLost, TimeoutError, ValidationError):
            pass  # as after the server's own end of it
        except RuntimeError:
            return  # the session has ended, which others notice
        await trio.sleep(pauses.after(trio.current_time() - begun_at, heard=heard, least=rest))


async def _acknowledged(stack: AsyncExitStack, open_stream: Callable[[], Any]) -> Stream:
    with trio.move_on_after(ACKNOWLEDGED_WITHIN):
        stream: Stream = await stack.enter_async_context(open_stream())
        return stream
    raise TimeoutError


_WIRE = TransportContext(kind="wire", can_send_request=True)


class _Sender:
    """The SDK's way to send, over a peer of ours with errors of another kind."""

    def __init__(self, peer: Endpoint | Inbound) -> None:
        self._peer = peer

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            MCPError: The peer's error, or there is no answer.
        """
        try:
            return await self._peer.send_raw_request(method, params, opts)
        except JsonRpcError as error:
            raise MCPError(error.code, error.message, error.data) from error

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification."""
        await self._peer.notify(method, params, opts)


class SessionContext(_Sender):
    """The SDK's `DispatchContext` of one message."""

    transport = _WIRE
    message_metadata = None

    def __init__(self, inbound: Inbound) -> None:
        super().__init__(inbound)
        self._inbound = inbound

    @property
    def request_id(self) -> RequestId | None:
        """The id of the request; None for a notification."""
        return self._inbound.request_id

    @property
    def can_send_request(self) -> bool:
        """True until the request is answered."""
        return self._inbound.can_send_request

    @property
    def cancel_requested(self) -> anyio.Event:
        """Set when the peer cancels its request: an event of Trio's, which is one of anyio's in all but its type."""
        return cast("anyio.Event", self._inbound.cancel_requested)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress of the request, if its maker wants any."""
        await self._inbound.progress(progress, total, message)


class SessionDispatcher(_Sender):
    """The SDK's `Dispatcher`, beside our session, which runs the endpoint and hands messages on."""

    asked: OnInbound
    told: OnTold
    intercept: Intercept

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Take messages until cancelled."""
        self.asked, self.told = _answering(on_request), _telling(on_notify)
        self.intercept = on_notify_intercept or _take_none
        task_status.started()
        await trio.sleep_forever()


def _take_none(method: str, params: NotificationParams) -> bool:
    del method, params
    return False


def _answering(on_request: OnRequest) -> OnInbound:
    async def asked(context: Inbound, method: str, params: NotificationParams) -> dict[str, Any]:
        try:
            return await on_request(SessionContext(context), method, params)
        except Exception as raised:
            said = handler_exception_to_error_data(raised)
            if said is None:
                raise
            raise JsonRpcError(said.code, said.message, said.data) from raised

    return asked


def _telling(on_notify: OnNotify) -> OnTold:
    async def told(context: Inbound, method: str, params: NotificationParams) -> None:
        await on_notify(SessionContext(context), method, params)

    return told


@frozen(eq=False)
class SdkSession:
    """A session of the SDK, and its dispatcher."""

    session: ClientSession
    dispatcher: SessionDispatcher

    def adopt(self, hello: dict[str, Any]) -> None:
        """Adopt this answer to `initialize` or to `server/discover`."""
        model = InitializeResult if "protocolVersion" in hello else DiscoverResult
        self.session.adopt(model.model_validate(hello, by_name=False))


@asynccontextmanager
async def open_sdk_session(
    endpoint: Endpoint, host: Host, news: ListChanges, client_info: Mapping[str, str]
) -> AsyncGenerator[SdkSession, None]:
    """Open the session until the block is left. The server may use what `host` offers."""
    dispatcher = SessionDispatcher(endpoint)
    info = Implementation.model_validate(client_info)
    async with (
        open_callbacks(host) as callbacks,
        ClientSession(dispatcher=dispatcher, client_info=info, message_handler=taking(news), **callbacks) as session,
    ):
        yield SdkSession(session, dispatcher)
