"""Notifications and requests of the peer, as the SDK's session sees them.

Notifications wait in the order of the wire, within bounds; a changed list is never lost. Each request is served in a
task of its own and answered once, unless the peer cancels it.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from mcp_nursery.actors.records import evolve, frozen

from ..account import NOTICES, QUESTIONS, Account, weight
from ..json_depth import more_values_than
from ..overrides import override
from ..pieces import SMALL
from ..protocol import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LISTEN_STREAM_METHODS,
    JsonRpcError,
    RequestId,
    as_request_id,
    coerce_request_id,
    progress_token_from_params,
)
from ..queues import BoundedQueue, WhenFull
from ..secrets import SECRETS
from . import codec
from .carrier import Origin

if TYPE_CHECKING:
    from mcp.shared.dispatcher import CallOptions


class BackChannel(Protocol):
    """The messages that the handler of an inbound message may send."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: "CallOptions | None" = None
    ) -> dict[str, Any]:
        """Send a request and wait for its raw result."""
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: "CallOptions | None" = None) -> None:
        """Send a notification."""
        ...


class Inbound:
    """One message, as its handler sees it; `scope` is that of its task."""

    def __init__(self, back: BackChannel, request_id: RequestId | None, params: Mapping[str, Any] | None) -> None:
        self._back = back
        self._progress_token = progress_token_from_params(params)
        self._open = True
        self.request_id = request_id
        self.cancel_requested: Final = trio.Event()
        self.scope: Final = trio.CancelScope()

    @property
    def can_send_request(self) -> bool:
        """True until the request is answered."""
        return self._open

    def cancel(self, reason: object = None) -> None:
        """Cancel the request for the peer: it gets no answer."""
        self.cancel_requested.set()
        self.scope.cancel(reason if isinstance(reason, str) else None)

    async def serve(self, handler: Callable[[], Awaitable[None]]) -> None:
        """Run the handler until it ends or the peer cancels the request; then nothing more can be sent for it."""
        try:
            with self.scope:
                await handler()
        finally:
            self._open = False

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: "CallOptions | None" = None
    ) -> dict[str, Any]:
        """Send the peer a request while serving its own.

        Raises:
            JsonRpcError: It was answered already, or the peer's error.
        """
        if not self._open:
            raise JsonRpcError(INVALID_REQUEST, f"{method!r} cannot be sent for a request that is answered")
        return await self._back.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: "CallOptions | None" = None) -> None:
        """Send a notification while serving the request; dropped afterwards."""
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


NotificationParams = Mapping[str, Any] | None

OnRequest = Callable[[Inbound, str, NotificationParams], Awaitable[dict[str, Any]]]
"""Answers a request, `(context, method, params)`; a raised `JsonRpcError` is an answer too."""
OnNotify = Callable[[Inbound, str, NotificationParams], Awaitable[None]]
"""Called with a notification: `(context, method, params)`."""
Intercept = Callable[[str, NotificationParams], bool]
"""Called with a notification when it comes, before those that wait: `(method, params)`; True if it takes it."""

_LIMIT = 1024
"""Notifications that may wait before logs and progress are dropped: two thousand logs must not hide a list_changed."""

_LARGEST_NOTIFICATION = 1 << 20
"""Bytes of a notification, at most."""

_MOST_VALUES = 5_000
"""JSON values of a large notification: the session validates all of them in one go."""

_SLIGHT = 1 << 10
"""Bytes up to which parameters wait as they are. Larger ones of a list_changed, which needs none, are dropped."""

_UPDATED = "notifications/resources/updated"


class Notices(BoundedQueue[tuple[str, "NotificationParams | codec.Encoded"]]):
    """Notifications, `(method, params)`, that wait for the session. Beyond the bounds only logs and progress are lost,
    and, beyond that in bytes, updates of resources, which may name any number of URIs.

    Longer parameters wait as bytes: as values they take many times the memory, and many values that outlive a turn of
    the loop cause full garbage collections.

    `limit` is the number of notifications that may wait, besides changes, which wait once each. The account, if any, is
    charged for the bytes that wait, at most `most`.
    """

    def __init__(self, limit: int = _LIMIT, most: float = math.inf, account: Account | None = None) -> None:
        super().__init__(limit, most, account=account, kind=NOTICES)

    def add(self, method: str, params: NotificationParams, size: int = 0) -> None:
        """Queue a notification that came in `size` bytes. Never waits, never refuses a list_changed."""
        change = change_of(method, params)
        if change is not None and method != _UPDATED:
            params, size = params if size <= _SLIGHT else None, 0
        if _is_too_much(params, size):
            self.lose()
            return
        when_full = WhenFull.LOSE_NEWEST if change is None else WhenFull.EXCEED
        waiting: NotificationParams | codec.Encoded = params
        if size > _SLIGHT:
            waiting = codec.Encoded(codec.encode(params))
        self.put((method, waiting), size, key=change, when_full=when_full)

    @override
    def receive_nowait(self) -> tuple[str, NotificationParams]:
        return _unpacked(super().receive_nowait())

    @override
    async def receive(self) -> tuple[str, NotificationParams]:
        return _unpacked(await super().receive())


def _unpacked(notice: "tuple[str, NotificationParams | codec.Encoded]") -> tuple[str, NotificationParams]:
    method, params = notice
    return method, codec.decode(params.json) if isinstance(params, codec.Encoded) else params


def _is_too_much(params: NotificationParams, size: int) -> bool:
    """True if the session would take too long to validate a notification."""
    return size > SMALL and (size > _LARGEST_NOTIFICATION or more_values_than(params, _MOST_VALUES))


def change_of(method: str, params: NotificationParams) -> tuple[str, str] | None:
    """The change that a level-triggered notification is about; None for other notifications."""
    if method not in LISTEN_STREAM_METHODS:
        return None
    return method, str((params or {}).get("uri"))


logger: Final = logging.getLogger(__name__)

MOST_SERVED = 1024
"""Requests of the peer that are served at once: more than one user can answer."""

MOST_ASKED = 5_000
"""JSON values of a large request or notification, or of an introduction: the session validates all of them in one
go."""


@frozen(eq=False)
class PeerRequest:
    """One request of the peer."""

    id: RequestId
    method: str
    params: dict[str, Any] | None
    origin: Origin
    """The place that it came from and that its answer goes to."""
    size: int = 0
    """Bytes of the message that brought it, at most; once it is begun, the bytes that it keeps."""


class PeerRequests:
    """The requests that are being served, by id."""

    def __init__(self, back: BackChannel, account: Account, most: float = math.inf) -> None:
        self._back = back
        self._account = account
        self._most = most
        """Bytes that may be served at once."""
        self._serving: dict[RequestId, Inbound] = {}
        self._begun: trio.Event | None = None
        """Set when the latest request is begun; None before the first."""
        self._tasks = 0
        """Requests served, those with the same id included."""

    def __len__(self) -> int:
        return self._tasks

    def begin(self, nursery: trio.Nursery, on_request: OnRequest, asked: PeerRequest) -> None:
        """Serve a request in the nursery. Requests begin in the order in which they came."""
        problem = self._problem(asked)
        if problem is None:
            asked = evolve(asked, size=weight(asked.params, asked.size))
            if not self._account.take(QUESTIONS, asked.size, self._most):
                problem = f"more than {self._most} bytes of requests at once"
        if problem is not None:
            asked.origin.respond(codec.refusal(asked.id, INTERNAL_ERROR, problem))
            return
        self._tasks += 1
        inbound = Inbound(self._back, asked.id, asked.params)
        self._serving[asked.id] = inbound  # before its task runs: its cancel may be in this batch
        before, begun = self._begun, trio.Event()
        self._begun = begun
        nursery.start_soon(self._serve, inbound, asked, on_request, before, begun)

    async def begun(self) -> None:
        """Wait until all have begun: those answered at once then never add up to too many."""
        if self._begun is not None and not self._begun.is_set():
            await self._begun.wait()

    def _problem(self, asked: PeerRequest) -> str | None:
        """The reason why a request is not served; None if it is."""
        if asked.size > SMALL and isinstance(asked.params, dict) and more_values_than(asked.params, MOST_ASKED):
            return f"a request with more than {MOST_ASKED} JSON values, the most it may have"
        if self._tasks == MOST_SERVED:
            return "too many requests at once"
        return None

    def cancel(self, params: Mapping[str, Any] | None) -> None:
        """Cancel the request that the peer's notification names."""
        request_id = as_request_id((params or {}).get("requestId"))
        inbound = None if request_id is None else self._find(request_id)
        if inbound is not None:
            inbound.cancel((params or {}).get("reason"))

    def _find(self, request_id: RequestId) -> Inbound | None:
        """The request with this id. If there is none, a peer may mean a number that it once wrote as text."""
        if request_id in self._serving:
            return self._serving[request_id]
        other = str(request_id) if isinstance(request_id, int) else coerce_request_id(request_id)
        return self._serving.get(other) if str(other) == str(request_id) else None  # "007" is no number

    async def _serve(
        self, inbound: Inbound, asked: PeerRequest, on_request: OnRequest, before: trio.Event | None, begun: trio.Event
    ) -> None:
        async def answer() -> None:
            try:
                reply = codec.result(asked.id, await on_request(inbound, asked.method, asked.params))
            except Exception as raised:
                reply = _error_frame(asked.id, asked.method, raised)
            if not inbound.cancel_requested.is_set():
                await asked.origin.answer(reply)

        try:
            if before is not None and not before.is_set():  # tasks that were started together run in any order
                await before.wait()
            begun.set()
            await inbound.serve(answer)
        finally:
            self._tasks -= 1
            self._account.give_back(QUESTIONS, asked.size)
            if self._serving.get(asked.id) is inbound:
                del self._serving[asked.id]


def _error_frame(request_id: RequestId, method: str, raised: Exception) -> bytes:
    if isinstance(raised, JsonRpcError):
        try:
            return codec.error(request_id, raised.code, raised.message, raised.data)
        except TypeError:
            logger.warning(
                "the handler for %r raised an error that cannot be written as JSON", SECRETS.get().hide_line(method)
            )
    else:
        logger.error("the handler for %r raised", SECRETS.get().hide_line(method), exc_info=raised)
    return codec.error(request_id, INTERNAL_ERROR, "Internal error")
