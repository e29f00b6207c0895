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
    run_notify_intercept,
)
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, RequestId
from opentelemetry.propagate import inject

from ..mailbox import ReplySlot
from ..messages import Answered, Busy, Loss, Outcome, Rejected, Unsendable
from . import frames
from .calls import CallTable, outcome_of
from .duplex import FRAME_LIMIT, Duplex
from .inbound import Inbound
from .notices import Notices
from .outbox import Outbox
from .peer_requests import PeerRequests

logger = logging.getLogger(__name__)

_TURN = 16
"""Messages taken in a row before other tasks get a turn: one server's flood must not hold up the others' calls."""
_CLOSED = Loss("the connection was closed")
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
        self._notices: Notices | None = None
        """Made for the first one: many servers never send any."""
        self._requests = PeerRequests(self, self._respond)
        self._session: _Session | None = None
        """Who runs it; None until then."""
        self._writing = False
        """Whether the outbox runs: not before a peer has not taken all at once."""

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
        self._flush()

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
        if self._session is None:
            raise RuntimeError("the endpoint is not running")
        slot = ReplySlot(wants_progress=opts.get("on_progress") is not None)
        request_id = self._table.open(slot, opts.get("request_id"))
        self._outbox.push(frames.request(request_id, method, self._prepared(method, params, request_id, slot)), slot)
        self._flush()
        return await self._reply(slot, method, opts)

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

    async def _reply(self, slot: ReplySlot, method: str, opts: CallOptions) -> dict[str, Any]:
        timeout = opts.get("timeout", math.inf)
        outcome: Outcome | None = None
        try:
            with trio.move_on_after(timeout):
                outcome = await slot.wait(opts.get("on_progress"))
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

    def _respond(self, frame: bytes) -> None:
        if self._outbox.size > FRAME_LIMIT:
            self.lose(Loss(f"asked for more than {FRAME_LIMIT >> 20} MiB and did not read it"))
        self._send(frame)

    def _send(self, frame: bytes) -> None:
        if not self.lost.is_set():
            self._outbox.push(frame)
            self._flush()

    def _flush(self) -> None:
        self._outbox.flush()
        if self._outbox.is_blocked and not self._writing and self._session is not None:
            self._writing = True
            self._session.nursery.start_soon(self._outbox.run)

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
        async with trio.open_nursery() as nursery:
            self._session = session = _Session(nursery, on_request, on_notify, on_notify_intercept)
            self._flush()  # what was told before
            task_status.started()
            try:
                while await self._take_in(session):
                    pass  # nothing of a message, which may be large, is kept here until the next one comes
                self.lose(await self._duplex.loss())  # now: a callback that serves the peer may take its time to end
            finally:
                self.lose(_CLOSED)  # unless it was lost before; nothing is written any more
            nursery.cancel_scope.cancel()

    async def _take_in(self, session: "_Session") -> bool:
        """See to what comes next; False at the end."""
        batch = await self._duplex.read()
        self.heard_at = trio.current_time()
        for count, frame in enumerate(batch, 1):
            self._accept(frame, session)
            if count % _TURN == 0:
                await trio.lowlevel.checkpoint()
        return bool(batch)

    def _accept(self, frame: bytes, session: "_Session") -> None:
        try:
            for message in frames.messages(frame):
                method = message.get("method")
                if method is None:
                    self._answer(message)
                elif not isinstance(method, str):
                    raise ValueError("a method that is no string")  # like any other broken frame
                elif (request_id := as_request_id(message.get("id"))) is not None:
                    params = _object(message.get("params"))
                    self._requests.begin(session.nursery, session.on_request, request_id, method, params)
                elif "id" not in message:
                    self._notice(method, _object(message.get("params")), session)
        except ValueError:
            self._count_noise(frame)

    def _answer(self, message: dict[str, Any]) -> None:
        slot = self._table.take(message)
        if slot is None:
            logger.debug("dropped an answer nobody waits for: id %r", message.get("id"))
            return
        self._settle(slot)
        slot.resolve(outcome_of(message))

    def _notice(self, method: str, params: dict[str, Any] | None, session: "_Session") -> None:
        if method == "notifications/progress" and params is not None:
            self._table.report(params)
        elif method == "notifications/cancelled":
            self._requests.cancel(params)
        if run_notify_intercept(session.intercept, method, params):
            return
        if self._notices is None:
            self._notices = Notices()
            session.nursery.start_soon(self._deliver, self._notices, session.on_notify)
        self._notices.put(method, params)

    async def _deliver(self, notices: Notices, on_notify: OnNotify) -> None:
        """Hand notifications to the session one at a time, in the order of the wire."""
        for count in itertools.count(1):
            method, params = await notices.get()
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


@frozen
class _Session:
    """The session that runs this as its dispatcher: its handlers, and where tasks for them run."""

    nursery: trio.Nursery
    on_request: OnRequest
    on_notify: OnNotify
    intercept: OnNotifyIntercept | None


def _object(params: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", params) if type(params) is dict else None
