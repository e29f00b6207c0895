"""Requests of the peer: each served in a task of its own, answered once, unless the peer takes it back."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio
from attrs import frozen
from mcp.shared.dispatcher import OnRequest, coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params, handler_exception_to_error_data
from mcp_types import INTERNAL_ERROR, RequestId

from ..nesting import more_values_than
from ..steps import SMALL
from ..transports.secrets import HIDE_SECRETS
from . import frames
from .inbound import BackChannel, Inbound

logger: Final = logging.getLogger(__name__)

MOST_SERVED = 1024
"""Requests that are served at once: more than any peer can mean to have answered by one user."""

MOST_ASKED = 5_000
"""JSON values of a large request, or of a notification: the session finds out of each what it is, in one go."""


@frozen(eq=False)
class PeerRequest:
    """One request of the peer's."""

    id: RequestId
    method: str
    params: dict[str, Any] | None
    respond: Callable[[bytes], None]
    """Takes the frame that answers it."""
    size: int = 0
    """Bytes of the message that brought it, at most."""


class PeerRequests:
    """The requests that are being served, by id."""

    def __init__(self, back: BackChannel, most: float = math.inf) -> None:
        self._back = back
        self._most = most
        """Bytes of those that are served at once."""
        self._bytes = 0
        self._serving: dict[RequestId, Inbound] = {}
        self._tasks = 0
        """Not the length of the table: a peer may use an id twice."""

    def __len__(self) -> int:
        return self._tasks

    def begin(self, nursery: trio.Nursery, on_request: OnRequest, asked: PeerRequest) -> None:
        """Serve a request in the nursery."""
        problem = self._problem(asked)
        if problem is not None:
            asked.respond(frames.error(asked.id, INTERNAL_ERROR, problem))
            return
        self._tasks += 1
        self._bytes += asked.size
        inbound = Inbound(self._back, asked.id, asked.params)
        self._serving[coerce_request_id(asked.id)] = inbound  # before its task runs: its cancel may be in this batch
        nursery.start_soon(self._serve, inbound, asked, on_request)

    def _problem(self, asked: PeerRequest) -> str | None:
        """Why it is not served; None if it is."""
        if asked.size > SMALL and isinstance(asked.params, dict) and more_values_than(asked.params, MOST_ASKED):
            return f"a request with more than {MOST_ASKED} JSON values, the most it may have"
        if self._tasks == MOST_SERVED:
            return "too many requests at once"
        if self._bytes + asked.size > self._most:
            return f"more than {self._most} bytes of requests at once"
        return None

    def cancel(self, params: Mapping[str, Any] | None) -> None:
        """The peer takes back the request that its notification names."""
        request_id = cancelled_request_id_from_params(params)
        inbound = None if request_id is None else self._serving.get(coerce_request_id(request_id))
        if inbound is not None:
            inbound.cancel()

    async def _serve(self, inbound: Inbound, asked: PeerRequest, on_request: OnRequest) -> None:
        async def answer() -> None:
            try:
                reply = frames.result(asked.id, await on_request(inbound, asked.method, asked.params))
            except Exception as raised:
                reply = _error_frame(asked.id, asked.method, raised)
            if not inbound.cancel_requested.is_set():
                asked.respond(reply)

        try:
            await inbound.serve(answer)
        finally:
            self._tasks -= 1
            self._bytes -= asked.size
            if self._serving.get(key := coerce_request_id(asked.id)) is inbound:
                del self._serving[key]


def _error_frame(request_id: RequestId, method: str, raised: Exception) -> bytes:
    described = handler_exception_to_error_data(raised)
    if described is not None:
        try:
            return frames.error(request_id, described.code, described.message, described.data)
        except TypeError:
            logger.warning("the error of the handler for %r has no JSON form", HIDE_SECRETS.get()(method))
    else:
        logger.error("the handler for %r raised", HIDE_SECRETS.get()(method), exc_info=raised)
    return frames.error(request_id, INTERNAL_ERROR, "Internal error")
