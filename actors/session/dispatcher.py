"""The SDK's session over an endpoint of ours: each has errors of a kind of its own."""

from collections.abc import Mapping
from typing import Any, Final, cast

import anyio
import trio
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.transport_context import TransportContext

from ..jsonrpc.dispatcher import Endpoint
from ..jsonrpc.incoming import Inbound, Intercept, Params
from ..jsonrpc.incoming import OnNotify as OnTold
from ..jsonrpc.incoming import OnRequest as OnInbound
from ..protocol import JsonRpcError, RequestId

_TRANSPORT = TransportContext(kind="wire", can_send_request=True)


class RequestFailed(MCPError):
    """A request of the session failed; `cause` is what the endpoint says of it."""

    def __init__(self, error: JsonRpcError) -> None:
        super().__init__(error.code, error.message, error.data)
        self.cause: Final = error


def cause_of(error: Exception) -> Exception:
    """What the endpoint says of an error of the session; the error itself if it is not the endpoint's."""
    return error.cause if isinstance(error, RequestFailed) else error


class SessionContext:
    """The SDK's `DispatchContext` of one message."""

    transport = _TRANSPORT
    message_metadata = None

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound

    @property
    def request_id(self) -> RequestId | None:
        """Of the request; None for a notification."""
        return self._inbound.request_id

    @property
    def can_send_request(self) -> bool:
        """True until the request is answered."""
        return self._inbound.can_send_request

    @property
    def cancel_requested(self) -> anyio.Event:
        """Set when the peer cancels its request: an event of Trio's, which is one of anyio's in all but its type."""
        return cast("anyio.Event", self._inbound.cancel_requested)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """See `Inbound`.

        Raises:
            RequestFailed: The peer's error, or there is no answer.
        """
        try:
            return await self._inbound.send_raw_request(method, params, opts)
        except JsonRpcError as error:
            raise RequestFailed(error) from error

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """See `Inbound`."""
        await self._inbound.notify(method, params, opts)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """See `Inbound`."""
        await self._inbound.progress(progress, total, message)


class SessionDispatcher:
    """The SDK's `Dispatcher`, over an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """See `Endpoint`.

        Raises:
            RequestFailed: The peer's error, or there is no answer.
        """
        try:
            return await self._endpoint.send_raw_request(method, params, opts)
        except JsonRpcError as error:
            raise RequestFailed(error) from error

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """See `Endpoint`."""
        await self._endpoint.notify(method, params, opts)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Endpoint`."""

        asked, told = _answering(on_request), _telling(on_notify)
        await self._endpoint.run(asked, told, on_notify_intercept, task_status=task_status)


class SideDispatcher(SessionDispatcher):
    """The same for a session beside the one that runs the endpoint, which hands on what it does not take itself."""

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
        """Take what is handed on, until cancelled."""
        self.asked, self.told = _answering(on_request), _telling(on_notify)
        self.intercept = on_notify_intercept or _take_none
        task_status.started()
        await trio.sleep_forever()


def _take_none(method: str, params: Params) -> bool:
    del method, params
    return False


def _answering(on_request: OnRequest) -> OnInbound:
    async def asked(context: Inbound, method: str, params: Params) -> dict[str, Any]:
        try:
            return await on_request(SessionContext(context), method, params)
        except Exception as raised:
            said = handler_exception_to_error_data(raised)
            if said is None:
                raise
            raise JsonRpcError(said.code, said.message, said.data) from raised

    return asked


def _telling(on_notify: OnNotify) -> OnTold:
    async def told(context: Inbound, method: str, params: Params) -> None:
        await on_notify(SessionContext(context), method, params)

    return told
