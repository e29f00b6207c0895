"""Messages from the peer, as the SDK's session sees them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import anyio
import trio
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.transport_context import TransportContext
from mcp_types import RequestId

_TRANSPORT = TransportContext(kind="wire", can_send_request=True)


class BackChannel(Protocol):
    """What an inbound message's handler may send."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its raw result."""
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification."""
        ...


class Inbound:
    """The SDK's `DispatchContext` of one message; `scope` is the task that serves it."""

    message_metadata = None
    transport = _TRANSPORT

    def __init__(self, back: BackChannel, request_id: RequestId | None, params: Mapping[str, Any] | None) -> None:
        self._back = back
        self._progress_token = progress_token_from_params(params)
        self._open = True
        self.request_id = request_id
        self.cancel_requested: Final = anyio.Event()
        self.scope: Final = trio.CancelScope()

    @property
    def can_send_request(self) -> bool:
        """Until it is answered."""
        return self._open

    def cancel(self) -> None:
        """The peer takes its request back: it gets no answer."""
        self.cancel_requested.set()
        self.scope.cancel()

    async def serve(self, handler: Callable[[], Awaitable[None]]) -> None:
        """Run the handler unless the peer cancels it, then close the way back."""
        try:
            with self.scope:
                await handler()
        finally:
            self._open = False

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Ask the peer while serving it.

        Raises:
            NoBackChannelError: It was answered already.
        """
        if not self._open:
            raise NoBackChannelError(method)
        return await self._back.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Tell the peer something while serving it; dropped afterwards."""
        if self._open:
            await self._back.notify(method, params, opts)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress, if the peer asked for it."""
        if self._progress_token is None:
            return
        params: dict[str, Any] = {"progressToken": self._progress_token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self.notify("notifications/progress", params)
