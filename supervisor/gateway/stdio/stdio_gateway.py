"""The gateway for one client on standard streams: frames are lines, and an endpoint of ours reads and writes them.

Nothing here uses a thread, so serving ends at once when it is cancelled, and nothing else in this process reads or
writes the client's streams meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final

import trio

from mcp_nursery.actors.extensions import TASK_CHANGED
from mcp_nursery.actors.jsonrpc.carrier import Outgoing
from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.jsonrpc.incoming import Inbound
from mcp_nursery.actors.limits import MOST_VALUES, CostLimits
from mcp_nursery.actors.messages import ACKNOWLEDGED, LISTEN
from mcp_nursery.actors.preload import SDK_MODULES
from mcp_nursery.actors.protocol import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LISTEN_STREAM_METHODS,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    JsonRpcError,
)

from ..bridge import Json
from ..client_request import ClientRequest, check_request, failure_of, is_plain, offered_version, split_meta
from ..clients import Backlog, ClientSession
from ..gateway import Gateway
from ..views.view import View
from .streams import BATCHING, ClientCarrier, ClientStreams, open_client_streams

_INITIALIZED: Final = "notifications/initialized"
_NEVER_LOST: Final = frozenset([*LISTEN_STREAM_METHODS, ACKNOWLEDGED, TASK_CHANGED])
"""Notifications that are never lost; others about a request, progress and log messages, are if there is no room."""


async def serve_stdio(
    gateway: Gateway,
    server: str | None = None,
    *,
    streams: ClientStreams | None = None,
    stop: Callable[[], Awaitable[object]] = trio.sleep_forever,
    drain: float = 5.0,
) -> None:
    """Serve the client on standard input and output, until it closes its end, or `stop` returns.

    When the client closes its end, requests under way are answered first, for 60 seconds at most, unless nobody reads
    the answers or `stop` returns.

    Args:
        gateway: The gateway.
        server: The one server that the client sees, with its own names; None: all of them.
        streams: The streams of `open_client_streams`; default: they are opened here, for this client alone.
        stop: `async () -> None`: returns when serving is to end, whatever the client does.
        drain: Seconds for requests under way after `stop` has returned, and for the client to read their answers, if it
            has not closed its end.

    Raises:
        UnknownServer: No server has that name.
    """
    view = gateway.view(server)
    with open_client_streams() if streams is None else nullcontext(streams) as taken:
        async with trio.open_nursery() as nursery:
            client = _StdioClient(gateway, view, ClientCarrier(taken), nursery)
            taken.waits = client.waits

            async def end() -> None:
                await stop()
                if not taken.closed:
                    with trio.move_on_after(drain):
                        await gateway.drain(drain)
                        await taken.answered()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            await client.endpoint.run(client.answer, client.on_notification)
            client.leave()
            nursery.cancel_scope.cancel()


class _StdioClient:
    """The client, whichever era it opens with."""

    def __init__(self, gateway: Gateway, view: View, carrier: ClientCarrier, nursery: trio.Nursery) -> None:
        self.endpoint: Final = Endpoint(carrier, CostLimits(unasked=MOST_VALUES), server="the client")
        self._gateway = gateway
        self._view = view
        self._carrier = carrier
        self._nursery = nursery
        self._session: ClientSession | None = None
        self._version: str | None = None
        """The version of its session."""
        self._modern = False
        """True if it has begun in the era without sessions."""
        self._initialized = False
        """True if it has announced that it is initialized."""
        self._backlog = Backlog(self.endpoint.account)
        """The notifications that wait for its session."""
        self._opening = trio.StrictFIFOLock()
        """Held by `initialize`: requests that were written after it wait for it, in order."""
        self._streams: set[Inbound] = set()
        """The requests that are acknowledged streams of notifications."""

    def waits(self) -> bool:
        """True if the client still waits for an answer. A stream of notifications has none."""
        unread = self._carrier.outbox.size or self._carrier.outbox.is_blocked
        return bool(unread or self.endpoint.serving > len(self._streams))

    def leave(self) -> None:
        """End the session: its client is gone."""
        if self._session is not None:
            self._gateway.news.leave(self._session)

    async def answer(self, context: Inbound, method: str, params: Mapping[str, Any] | None) -> Json:
        """Answer a request: an `OnRequest`.

        Raises:
            JsonRpcError: The error that the client is sent instead.
        """
        request = self._request(context, method, *split_meta(params))
        try:
            if method == "initialize":
                async with self._opening:
                    return await self._answer_in_session(context, request)
            if method != "ping":
                await self._turn()
            if PROTOCOL_VERSION_META_KEY not in request.meta:
                return await self._answer_in_session(context, request)
            return await self._answer_modern(request)
        except Exception as error:
            raise failure_of(request, error) from None
        finally:
            self._streams.discard(context)

    async def _turn(self) -> None:
        """Wait for an `initialize` that is under way."""
        if self._opening.locked():
            async with self._opening:
                pass

    async def _answer_modern(self, request: ClientRequest) -> Json:
        self._check_no_session()
        if request.method != LISTEN:
            return await self._answer_request(request)
        with self._gateway.news.begin_stream(request, self._view):  # which counts before it is checked
            return await self._answer_request(request)

    async def _answer_request(self, request: ClientRequest) -> Json:
        """Answer a request without a session, if it is valid."""
        method, meta = request.method, request.meta
        version = meta[PROTOCOL_VERSION_META_KEY]
        if not is_plain(request):
            await SDK_MODULES.ensure_loaded()
            from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request

            route = classify_inbound_request({"method": method, "params": request.params | {"_meta": meta}})
            if isinstance(route, InboundLadderRejection):
                raise JsonRpcError(route.code, route.message, route.data)
        if not self._modern:
            await check_request(request, version)  # a request that is refused begins nothing
            await self._turn()  # an `initialize` may have come meanwhile
            self._check_no_session()
            self._modern = method != "server/discover"  # if its answer is late, the client may initialize
        request.describe()
        return await self._gateway.answer(request, self._view, version)

    def _check_no_session(self) -> None:
        if self._session is not None:
            raise JsonRpcError(
                INVALID_REQUEST, "this connection began with a handshake: it takes no request with a version"
            )

    async def _answer_in_session(self, context: Inbound, request: ClientRequest) -> Json:
        method = request.method
        if self._modern:
            data = {"supported": list(MODERN_PROTOCOL_VERSIONS)}
            raise JsonRpcError(UNSUPPORTED_PROTOCOL_VERSION, "this connection began without a handshake", data)
        if self._session is not None and method == "initialize":
            raise JsonRpcError(INVALID_REQUEST, "this connection is initialized already")
        if self._session is None and method not in ("initialize", "ping"):
            raise JsonRpcError(INVALID_PARAMS, "Invalid request parameters: initialize comes first")
        session = self._session or ClientSession(self._backlog.add, self._nursery, self._view.server)
        request.principal = request.session = session
        request.ask = context.send_raw_request
        request.capabilities, request.info = session.capabilities, session.info
        result = await self._gateway.answer(request, self._view, self._version or offered_version(request.params))
        if method == "initialize":
            session.introduce(request.params)
            self._session, self._version = session, result["protocolVersion"]
            self._carrier.takes_batches = self._version == BATCHING
            self._gateway.news.enter(session)
            self._nursery.start_soon(self._backlog.send, self._send)
            if self._initialized:  # written before the answer
                self._learn_roots_soon()
        return result

    def _request(self, context: Inbound, method: str, params: Json, meta: Json) -> ClientRequest:
        assert context.request_id is not None  # it is a request

        async def notify(notification: str, about: Mapping[str, Any] | None) -> None:
            await trio.lowlevel.checkpoint()
            if notification in _NEVER_LOST:
                await self._carrier.room()
            elif not self._carrier.has_room:
                return
            await context.notify(notification, about)
            if notification == ACKNOWLEDGED:
                self._streams.add(context)

        gone = self._carrier.has_gone
        return ClientRequest(context.request_id, method, params, meta, notify, principal=self, alone=True, gone=gone)

    async def _send(self, frame: bytes) -> None:
        await self._carrier.room()
        self._carrier.send([Outgoing(frame)])

    async def on_notification(self, context: Inbound, method: str, params: Mapping[str, Any] | None) -> None:
        """Take a notification: an `OnNotify`."""
        del context
        self._initialized = self._initialized or method == _INITIALIZED
        if method in (_INITIALIZED, "notifications/roots/list_changed"):
            self._learn_roots_soon()
        elif self._session is not None or self._modern:
            await self._gateway.news.forward(self._view, self._session or self, method, params)

    def _learn_roots_soon(self) -> None:
        if self._session is not None and "roots" in self._session.capabilities:
            self._nursery.start_soon(self._learn_roots)

    async def _learn_roots(self) -> None:
        """Give servers the roots of the client, outside of its calls, too: it is the only one."""
        try:
            said = await self.endpoint.send_raw_request("roots/list", None)
            roots = [root["uri"] for root in said["roots"]]
            await self._gateway.supervisor.set_roots(roots)
        except (JsonRpcError, KeyError, TypeError, ValueError):
            return  # it has none then
