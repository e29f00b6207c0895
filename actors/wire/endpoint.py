"""The JSON-RPC endpoint of one connection: calls beside the session, the SDK's `Dispatcher` for the session.

One correlation table for both. Every write is queued, so nothing here ever waits for the peer to read.
"""

import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import trio
from attrs import evolve, frozen
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    as_request_id,
    coerce_request_id,
    run_notify_intercept,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params, handler_exception_to_error_data
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT, RequestId
from opentelemetry.propagate import inject

from ..mailbox import ProgressCallback, ReplySlot
from ..messages import Answered, Busy, Loss, Outcome, Rejected, Unsendable
from . import frames
from .calls import CallTable, outcome_of
from .duplex import Duplex
from .inbound import Inbound
from .notices import Notices
from .outbox import Outbox

logger = logging.getLogger(__name__)

_TURN = 16
"""Messages taken in a row before other tasks get a turn: one server's flood must not hold up the others' calls."""
_CLOSED = Loss("the connection was closed")
INBOUND_LIMIT = 256
"""Requests of the peer that may be under way at once; the protocol has a handful. More are refused."""
_STAMP_PREFIX = "io.modelcontextprotocol/"


class ConnectionClosed(MCPError):
    """For the session: the connection ended before the reply."""


class RequestTimedOut(MCPError):
    """For the session: the request's own timeout elapsed, its write included."""


class Endpoint:
    """Numbers, frames and correlates.

    Calls come by `post` and are answered in their slots; everything else is the session's, which runs this as its
    dispatcher.
    """

    def __init__(self, duplex: Duplex) -> None:
        self.stamp: dict[str, Any] = {}
        """What the session puts into every request's `_meta`, learnt from its last `tools/list`."""
        self.noise = 0
        """Frames that were no JSON-RPC message."""
        self.lost = trio.Event()
        """Set once the connection is gone and every waiting slot is decided."""
        self.loss = _CLOSED
        """How it was lost."""
        self.heard_at = -math.inf
        """When the peer was last heard of, on Trio's clock."""
        self._duplex = duplex
        self._outbox = Outbox(duplex)
        self._table = CallTable()
        self._calls: set[ReplySlot] = set()
        self._settled = trio.lowlevel.ParkingLot()
        self._notices = Notices()
        self._inbound: dict[RequestId, Inbound] = {}
        self._running = False

    # -- calls ----------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Calls that wait for an answer; the session's own requests do not count."""
        return len(self._calls)

    async def settled(self) -> None:
        """Wait until a call leaves `in_flight`."""
        await self._settled.park()

    def post(self, batch: "Sequence[Post]") -> None:
        """Number, frame and write calls with one write. A slot whose frame finds no room is `Busy`."""
        if self.lost.is_set():
            for post in batch:
                post.slot.resolve(self.loss)
            return
        for post in batch:
            refusal = self._queue(post)
            if refusal is not None:
                self._table.forget(post.slot)
                post.slot.resolve(refusal)
        self._outbox.flush()

    def _queue(self, post: "Post") -> Unsendable | Busy | None:
        try:
            frame = post.encode(self._table.open(post.slot))
        except TypeError as error:
            return Unsendable(str(error))
        if not self._outbox.has_room(frame):
            return Busy()
        self._outbox.push(frame, post.slot)
        self._calls.add(post.slot)
        return None

    def cancel(self, slot: ReplySlot, reason: str = "the caller gave up") -> None:
        """Nobody waits for this request any more: withdraw its frame, or tell the peer."""
        self._table.forget(slot)
        self._settle(slot)
        if not self._outbox.withdraw(slot) and slot.sent:
            self._send(frames.notification("notifications/cancelled", {"requestId": slot.request_id, "reason": reason}))

    def withdraw_unsent(self) -> None:
        """Give up every call of which no byte has left."""
        for slot in [slot for slot in self._calls if not slot.sent]:
            self._outbox.withdraw(slot)
            self._table.forget(slot)
            self._settle(slot)
            slot.resolve(_CLOSED)

    def lose(self, loss: Loss) -> None:
        """The connection is lost, even if the peer has not ended it: every waiting slot is decided, once."""
        if self.lost.is_set():
            return
        self.loss = evolve(loss, pending=len(self._calls))
        self.lost.set()
        self._table.fail_all(self.loss)
        self._calls.clear()
        self._settled.unpark_all()

    def _settle(self, slot: ReplySlot) -> None:
        self._calls.discard(slot)
        if self._settled:
            self._settled.unpark_all()

    # -- the SDK's Dispatcher: outbound ---------------------------------------------------------------------------

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request of the session and return its raw result.

        Raises:
            MCPError: The peer's error, `RequestTimedOut` or `ConnectionClosed`.
            ValueError: `opts["request_id"]` is in flight already.
            RuntimeError: Before `run()`.
        """
        opts = opts or {}
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.lost.is_set():
            raise self._closed()
        if not self._running:
            raise RuntimeError("the endpoint is not running")
        on_progress = opts.get("on_progress")
        slot = ReplySlot(wants_progress=on_progress is not None)
        request_id = self._table.open(slot, opts.get("request_id"))
        self._outbox.push(frames.request(request_id, method, self._prepared(method, params, request_id, slot)), slot)
        self._outbox.flush()
        return await self._reply(slot, method, opts, on_progress or _ignore)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification of the session; dropped once the connection is lost."""
        del opts
        self._send(frames.notification(method, params))

    def _prepared(
        self, method: str, params: Mapping[str, Any] | None, request_id: RequestId, slot: ReplySlot
    ) -> dict[str, Any]:
        prepared = dict(params or {})
        meta: dict[str, Any] = dict(prepared.pop("_meta", None) or {})
        if method == "tools/list":
            self.stamp = {key: value for key, value in meta.items() if key.startswith(_STAMP_PREFIX)}
        if slot.wants_progress:
            meta["progressToken"] = request_id
        inject(meta)
        return prepared | {"_meta": meta} if meta else prepared

    async def _reply(
        self, slot: ReplySlot, method: str, opts: CallOptions, on_progress: ProgressCallback
    ) -> dict[str, Any]:
        timeout = opts.get("timeout", math.inf)
        outcome: Outcome | None = None
        try:
            with trio.move_on_after(timeout):
                outcome = await slot.wait(on_progress)
        finally:
            if outcome is None:
                self._give_up(slot, tell=opts.get("cancel_on_abandon", True))
        if outcome is None:
            raise RequestTimedOut(REQUEST_TIMEOUT, f"{method} timed out after {timeout:g} s")
        return self._raw(outcome)

    def _give_up(self, slot: ReplySlot, *, tell: bool) -> None:
        if tell:
            self.cancel(slot)
        else:
            self._table.forget(slot)
            self._outbox.withdraw(slot)

    def _raw(self, outcome: Outcome) -> dict[str, Any]:
        """The raw result, or a fresh error for each waiter: tracebacks are per raise."""
        match outcome:
            case Answered(result=result):
                return result
            case Rejected(code=code, message=message, data=data):
                raise MCPError(code, message, data)
            case _:
                raise self._closed()

    def _closed(self) -> ConnectionClosed:
        return ConnectionClosed(CONNECTION_CLOSED, self.loss.message)

    def _send(self, frame: bytes) -> None:
        if not self.lost.is_set():
            self._outbox.push(frame)
            self._outbox.flush()

    def _reply_to_peer(self, frame: bytes) -> None:
        """Answer a request of the peer, unless it goes on asking and reads no answers."""
        if self._outbox.has_room(frame):
            self._send(frame)

    # -- the SDK's Dispatcher: inbound ----------------------------------------------------------------------------

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Be the endpoint until the peer is gone. Single-shot; a loss is a return, never an error."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._outbox.run)
                nursery.start_soon(self._deliver, on_notify)
                self._running = True
                task_status.started()
                while await self._take_in(nursery, on_request, on_notify_intercept):
                    pass  # nothing of a message, which may be large, is kept here until the next one comes
                self.lose(await self._duplex.loss())  # now: a callback that serves the peer may take its time to end
                nursery.cancel_scope.cancel()
        finally:
            self._running = False
            self.lose(_CLOSED)

    async def _take_in(self, nursery: trio.Nursery, on_request: OnRequest, intercept: OnNotifyIntercept | None) -> bool:
        """See to what comes next; False at the end."""
        batch = await self._duplex.read()
        self.heard_at = trio.current_time()
        for count, frame in enumerate(batch, 1):
            self._accept(frame, nursery, on_request, intercept)
            if count % _TURN == 0:
                await trio.lowlevel.checkpoint()
        return bool(batch)

    def _accept(
        self, frame: bytes, nursery: trio.Nursery, on_request: OnRequest, intercept: OnNotifyIntercept | None
    ) -> None:
        try:
            for message in frames.messages(frame):
                method = message.get("method")
                if method is None:
                    self._answer(message)
                elif not isinstance(method, str):
                    raise ValueError("a method that is no string")  # like any other broken frame
                elif (request_id := as_request_id(message.get("id"))) is not None:
                    self._ask(request_id, method, _object(message.get("params")), nursery, on_request)
                elif "id" not in message:
                    self._notice(method, _object(message.get("params")), intercept)
        except ValueError:
            self._count_noise(frame)

    def _answer(self, message: dict[str, Any]) -> None:
        slot = self._table.take(message)
        if slot is None:
            logger.debug("dropped an answer nobody waits for: id %r", message.get("id"))
            return
        self._settle(slot)
        slot.resolve(outcome_of(message))

    def _ask(
        self,
        request_id: RequestId,
        method: str,
        params: dict[str, Any] | None,
        nursery: trio.Nursery,
        on_request: OnRequest,
    ) -> None:
        if len(self._inbound) >= INBOUND_LIMIT:
            self._reply_to_peer(frames.error(request_id, INTERNAL_ERROR, "too many requests at once"))
            return
        inbound = Inbound(self, request_id, params)
        self._inbound[coerce_request_id(request_id)] = inbound  # before its task runs: its cancel may be in this batch
        nursery.start_soon(self._serve, inbound, request_id, method, params, on_request)

    async def _serve(
        self,
        inbound: Inbound,
        request_id: RequestId,
        method: str,
        params: Mapping[str, Any] | None,
        on_request: OnRequest,
    ) -> None:
        """Answer one request of the peer, unless the peer cancels it first."""

        async def answer() -> None:
            try:
                reply = frames.result(request_id, await on_request(inbound, method, params))
            except Exception as raised:
                reply = _error_frame(request_id, method, raised)
            if not inbound.cancel_requested.is_set():
                self._reply_to_peer(reply)

        try:
            await inbound.serve(answer)
        finally:
            if self._inbound.get(key := coerce_request_id(request_id)) is inbound:
                del self._inbound[key]

    def _notice(self, method: str, params: dict[str, Any] | None, intercept: OnNotifyIntercept | None) -> None:
        if method == "notifications/progress" and params is not None:
            self._table.report(params)
        elif method == "notifications/cancelled":
            request_id = cancelled_request_id_from_params(params)
            inbound = None if request_id is None else self._inbound.get(coerce_request_id(request_id))
            if inbound is not None:
                inbound.cancel()
        if not run_notify_intercept(intercept, method, params):
            self._notices.put(method, params)

    async def _deliver(self, on_notify: OnNotify) -> None:
        """Hand notifications to the session one at a time, in the order of the wire."""
        for count in itertools.count(1):
            method, params = await self._notices.get()
            if count % _TURN == 0:
                await trio.lowlevel.checkpoint()
            try:
                await on_notify(Inbound(self, None, params), method, params)
            except Exception:
                logger.exception("the handler of notification %r raised", method)

    def _count_noise(self, frame: bytes) -> None:
        self.noise += 1
        if math.log10(self.noise).is_integer():  # the 1st, 10th, 100th…: a babbling server must not fill the log
            # Not the bytes: they may hold a secret, and this floor knows none.
            logger.warning("dropped %d frames that are no JSON-RPC, the latest of %d bytes", self.noise, len(frame))


@frozen(eq=False)
class Post:
    """A call for the endpoint: its slot, and its frame for a given id."""

    slot: ReplySlot
    encode: Callable[[RequestId], bytes]


def _error_frame(request_id: RequestId, method: str, raised: Exception) -> bytes:
    described = handler_exception_to_error_data(raised)
    if described is not None:
        try:
            return frames.error(request_id, described.code, described.message, described.data)
        except TypeError:
            logger.warning("the error of the handler for %r has no JSON form", method)
    else:
        logger.error("the handler for %r raised", method, exc_info=raised)
    return frames.error(request_id, INTERNAL_ERROR, "Internal error")


def _object(params: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", params) if type(params) is dict else None


async def _ignore(progress: float, total: float | None, message: str | None) -> None:
    """For requests that report no progress."""
