"""The JSON-RPC endpoint of one connection: requests out and their answers in, and what the peer asks and reports.

Theory of operation
-------------------

Two kinds of requests share one table, because a connection has one space of ids:

- Calls. They come in batches through `post`, are framed by the codec of their tool, and leave in one write. Their
  answers go to their slots, in which callers wait. No task is spawned for a call.
- Requests of the session: the handshake, lists, pings. `send_raw_request` sends one and waits for the raw result.

The way out never waits. A carrier writes at once what the peer takes, and queues the rest; each slot learns when the
write of its frame begins. So an actor that cancels, or that ends, is never stuck behind a peer that does not read.

The way in is `take_in`: frames of the peer, in order, with their origin. A longer message is scanned before it is
parsed: parsing costs by the values, and only an answer that somebody waits for may hold many. A turn of the loop is
bounded by messages and bytes, whatever they are. Then each message is one of four things:

    an answer            decides the slot of its id, unless its origin may not answer that request
    a request            is served in a task of its own: by the session, or by the maker of the call that it is about
    a notification       about a request goes to its slot; any other waits for the session, within bounds
    none of these        is counted, and dropped

The effect of one broken message is bounded too: it hides no other message of its batch, and no later frame.

The end comes once. `lose` decides all slots with the same loss, whatever has caused it; `hear_no_more` decides them
while what was queued may still be written. An answer for a slot that is gone is reported to its origin as a stray one.
"""

import logging
import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from mcp_nursery.actors.records import evolve, frozen

from ..account import Account
from ..fairness import Pace, by_turns
from ..json_parsing import Uncollected
from ..limits import USUAL, CostLimits
from ..messages import ACKNOWLEDGED, CANCELLED, LISTED, Request
from ..outcomes import Answered, Busy, Dropped, Loss, Malformed, Outcome, Rejected, Unlisted, Unsendable
from ..pieces import SMALL
from ..protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LISTEN_STREAM_METHODS,
    LOG_LEVEL_META_KEY,
    REQUEST_TIMEOUT,
    SUBSCRIPTION_ID_META_KEY,
    JsonRpcError,
    RequestId,
    as_request_id,
)
from ..reply import PROGRESS, Codec, ReplySlot
from ..secrets import SECRETS
from . import codec, large_messages
from .carrier import Carrier, Origin, Outgoing, cancellation, no_headers
from .codec import inject_trace
from .incoming import (
    Inbound,
    Intercept,
    Notices,
    NotificationParams,
    OnNotify,
    OnRequest,
    PeerRequest,
    PeerRequests,
)
from .pending import CLOSED_BY_US, CallTable, outcome_of
from .relays import CONNECTION_METHODS, task_named_in

if TYPE_CHECKING:
    from mcp.shared.dispatcher import CallOptions

logger: Final = logging.getLogger(__name__)

_STAMP_PREFIX = "io.modelcontextprotocol/"

_FEW: Final = 1 << 10
"""Bytes of a message up to which its values are not counted: they are few."""
_GIVEN_UP: Final = "the caller gave up"
_OPENING_METHODS: Final = frozenset(["initialize", "server/discover"])


class ConnectionClosed(JsonRpcError):
    """The session's error: the connection ended before the reply."""


class PeerError(JsonRpcError):
    """The session's error: the peer answered with an error."""

    def __init__(self, refusal: Rejected) -> None:
        super().__init__(refusal.code, refusal.message, refusal.data)
        self.refusal = refusal


def rest_in(error: BaseException | None) -> float:
    """Seconds for which the peer wants to be asked nothing, as it said with this error; 0 if it did not."""
    return (error.refusal.retry_in or 0.0) if isinstance(error, PeerError) else 0.0


class RequestTimedOut(JsonRpcError):
    """The session's error: the request's own timeout elapsed, its write included."""


class Endpoint:
    """The endpoint: reads the peer's messages, and sends calls and the session's own requests.

    Calls come through `post` and are answered in their slots; the rest is the session's, which runs this. The log names
    the peer by `server`. `offer` is the protocol version for `initialize`, in place of the session's own; `overhear`
    receives notifications about no request; `capabilities` replace those of the SDK's session towards the peer; what
    waits is charged to `account`.
    """

    def __init__(
        self,
        carrier: Carrier,
        limits: CostLimits = USUAL,
        account: Account | None = None,
        *,
        server: str = "a server",
        offer: str | None = None,
        overhear: Callable[[str, Mapping[str, Any], Hashable], None] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        self._carrier = carrier
        self.account: Account = account or Account()
        """The account of what waits for the peer, or came from it."""
        self.lost: trio.Event = trio.Event()
        """Set once the connection is gone and every waiting slot is decided."""
        self.loss: Loss = CLOSED_BY_US
        """The loss, once lost or mute."""
        self.is_mute: bool = False
        """True if the peer sends nothing more."""
        self._table = CallTable(self.account)
        """The requests that wait for an answer."""
        self.calls: Final = self._table.calls
        """The slots of callers among these; the session's own requests do not count."""
        self._offer = offer
        self._capabilities = capabilities
        self._overhear = overhear
        self.stamp: dict[str, Any] = {}
        """The members that the session puts into every request's `_meta`, taken from its last request for a list."""
        self.logs: bool = True
        """True if requests ask the peer for its log, as the session has them do."""
        self._server = server
        self._waits_for: list[str] = []
        """The session's requests and notifications whose outcome is waited for."""
        self._missed: str = ""
        """The object of the last wait, if that was given up."""
        self.noise: int = 0
        """Frames that were not JSON-RPC."""
        self.refused: int = 0
        """Frames that were refused unread."""
        self.heard_at: float = -math.inf
        """The time of the peer's last message, on Trio's clock."""
        self.pages: dict[str, Page] = {}
        """By method of `LISTED`: the entries of its result, not validated. The session gets the rest: it would validate
        all entries in one go."""
        self.hello: dict[str, Any] | None = None
        """The last answer that opened the conversation, as it came."""
        self._limits = limits
        self._pace = Pace()
        self._notices: Notices | None = None
        """Notifications that wait; made for the first: many servers send none."""
        self._requests = PeerRequests(self, self.account, limits.kept)
        self._questions = 0
        """The peer's requests that may be about any call in flight, and wait for an answer."""
        self._session: _Session | None = None
        """The session that runs the endpoint; None before."""

    @property
    def serving(self) -> int:
        """Requests of the peer that are not answered yet."""
        return len(self._requests)

    # -- calls ----------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Calls that wait for an answer."""
        return len(self.calls)

    async def settled(self) -> None:
        """Wait until a call leaves `in_flight`."""
        await self._table.settled()

    def post(self, batch: Sequence[Request]) -> None:
        """Number, frame and send calls, in one write. A call whose frame finds no room is resolved as `Busy`; one
        without a codec as `Unlisted`."""
        if self.lost.is_set():
            for call in batch:
                call.slot.resolve(self.loss)
            return
        framed = [call for call in batch if self._frame(call)]
        for refused in self._carrier.send(framed):
            assert refused.slot is not None  # a call's
            self.conclude(refused.slot, Busy())

    def _frame(self, call: Request) -> bool:
        """Number a call and encode its frame; False, with its slot resolved, if that fails."""
        slot, codec = call.slot, call.codec
        if codec is None:
            slot.resolve(Unlisted())
            return False
        request_id = self._table.open(slot, codec=codec)
        if self._questions:
            slot.pause()
        try:
            call.frame = codec.frame(request_id, call.params, call.meta, wants_progress=slot.wants_progress)
        except TypeError as error:
            self.conclude(slot, Unsendable(str(error)))
            return False
        return True

    def cancel(self, slots: Sequence[ReplySlot], reason: str | None = _GIVEN_UP) -> None:
        """Give up requests that nobody waits for: the carrier withdraws those not sent, and the peer is notified of the
        others, with the reason if there is one, unless it notices."""
        for slot in slots:
            if slot in self.calls:
                self._table.relays.cancel(slot)
            self._table.forget(slot)
        begun = self._carrier.withdraw(slots)
        if begun and reason is not None and not self.lost.is_set():
            self._carrier.send([cancellation(slot, reason) for slot in begun])

    def withdraw_unsent(self) -> None:
        """Give up every call of which no byte has left."""
        unsent = [slot for slot in self.calls if not slot.sent]
        self.cancel(unsent, None)
        for slot in unsent:
            slot.resolve(CLOSED_BY_US)

    def conclude(self, slot: ReplySlot, outcome: Outcome) -> None:
        """Decide a request: later answers are ignored."""
        self._table.forget(slot)
        slot.resolve(outcome)

    def hear_no_more(self, loss: Loss) -> None:
        """Decide every waiting slot: the peer sends nothing more, though it may still read."""
        self.is_mute, self.loss = True, loss
        self._table.fail_all(loss)

    def lose(self, loss: Loss) -> None:
        """Decide every waiting slot, once: the connection is lost, even if the peer has not ended it."""
        if self.lost.is_set():
            return
        self.loss = evolve(loss, pending=len(self.calls))
        self.lost.set()
        self._table.clear(self.loss)

    @property
    def awaited(self) -> str:
        """The object of the session's waits, or of the last if that was given up, as words that follow `no`; empty if
        there is none."""
        answers = f"answer to {' or '.join(self._waits_for)}" if self._waits_for else ""
        return self._missed or self._carrier.awaited or answers

    # -- the session's requests and notifications -----------------------------------------------------------------

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: "CallOptions | None" = None
    ) -> dict[str, Any]:
        """Send a request of the session and return its raw result.

        Raises:
            JsonRpcError: The peer's error, `RequestTimedOut` or `ConnectionClosed`.
            ValueError: `opts["request_id"]` is in flight already.
            RuntimeError: Before `run()`.
        """
        opts = {} if opts is None else opts
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_mute or self.lost.is_set():
            raise self._closed()
        if self._session is None:
            raise RuntimeError("the endpoint is not running")
        slot = ReplySlot(wants_progress=opts.get("on_progress") is not None)
        request_id = self._table.open(slot, opts.get("request_id"))
        frame = codec.request(request_id, method, self._prepared(method, params, request_id, slot))
        self._carrier.send([Outgoing(frame, slot, method, _headers_of(opts), "timeout" in opts)])
        return await self._reply(slot, method, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: "CallOptions | None" = None) -> None:
        """Send a notification of the session; dropped once the connection is lost."""
        if not self.lost.is_set():
            outgoing = Outgoing(codec.notification(method, params), method=method, headers=_headers_of(opts or {}))
            with self._waiting_for(method):
                await self._carrier.notify(outgoing)

    async def tell(self, method: str, params: Mapping[str, Any] | None, opts: "CallOptions") -> None:
        """Send a notification of somebody else, once the peer has room for it; dropped once the connection is lost."""
        if not self.lost.is_set():
            frame = codec.notification(method, params)
            await self._carrier.notify(Outgoing(frame, method=method, headers=_headers_of(opts), patient=True))

    @contextmanager
    def _waiting_for(self, method: str) -> Generator[None, None, None]:
        self._waits_for.append(method)
        self._missed = ""
        try:
            yield
        except trio.Cancelled:
            self._missed = self.awaited
            raise
        finally:
            self._waits_for.remove(method)

    def _prepared(
        self, method: str, params: Mapping[str, Any] | None, request_id: RequestId, slot: ReplySlot
    ) -> dict[str, Any]:
        prepared = dict(params or {})
        meta: dict[str, Any] = dict(prepared.pop("_meta", None) or {})
        if not self.logs:
            meta.pop(LOG_LEVEL_META_KEY, None)
        if self._capabilities is not None and CLIENT_CAPABILITIES_META_KEY in meta:
            meta[CLIENT_CAPABILITIES_META_KEY] = self._capabilities
        if method in LISTED:
            self.stamp = {key: value for key, value in meta.items() if key.startswith(_STAMP_PREFIX)}
        if method == "initialize" and self._offer is not None:
            prepared["protocolVersion"] = self._offer
        if slot.wants_progress:
            meta["progressToken"] = request_id
        inject_trace(meta)
        return prepared | {"_meta": meta} if meta else prepared

    async def _reply(self, slot: ReplySlot, method: str, opts: "CallOptions") -> dict[str, Any]:
        timeout = opts.get("timeout", math.inf)
        outcome: Outcome | None = None
        try:
            with trio.move_on_after(timeout), self._waiting_for(method):
                outcome = await slot.wait(opts.get("on_progress"))
        finally:
            if outcome is None:
                tell = opts.get("cancel_on_abandon", True) and method != "initialize"  # the protocol forbids it
                self.cancel([slot], _GIVEN_UP if tell else None)
        if outcome is None:
            raise RequestTimedOut(REQUEST_TIMEOUT, f"{method} timed out after {timeout:g} s")
        raw = self._raw(outcome)
        if method in _OPENING_METHODS:
            self.hello = raw
        return self._without_entries(method, raw, outcome) if method in self.pages else raw

    def _without_entries(self, method: str, raw: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
        entries: object = raw.get(LISTED[method])
        if type(entries) is not list or not isinstance(outcome, Answered):
            return raw  # not valid MCP: the session raises
        self.pages[method] = Page(cast("list[object]", entries), outcome.size)
        return raw | {LISTED[method]: []}

    def _raw(self, outcome: Outcome) -> dict[str, Any]:
        """The raw result. Errors are made anew for each waiter: a traceback is per raise."""
        match outcome:
            case Answered(result=result):
                return result
            case Rejected():
                raise PeerError(outcome)
            case Malformed():
                raise PeerError(Rejected(INTERNAL_ERROR, outcome.problem))
            case Dropped():
                raise PeerError(Rejected(CONNECTION_CLOSED, outcome.problem, retry_in=outcome.retry_in))
            case _:
                raise self._closed()

    def _closed(self) -> ConnectionClosed:
        return ConnectionClosed(CONNECTION_CLOSED, self.loss.message)

    # -- the peer's messages ----------------------------------------------------------------------------

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: Intercept | None = None,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the endpoint until the peer is gone. Runs once; a lost connection ends it without an error."""
        async with trio.open_nursery() as nursery:
            self._session = _Session(nursery, on_request, on_notify, on_notify_intercept)
            task_status.started()
            del task_status  # 1 KB: it holds the nursery of `Nursery.start`
            try:
                # Now: a callback that serves the peer may take its time to end.
                self.lose(await self._carrier.run(self, nursery))
            finally:
                self.lose(CLOSED_BY_US)  # unless it was lost before; nothing is written any more
            nursery.cancel_scope.cancel()

    def hear(self) -> None:
        """Record that the peer sent something."""
        self.heard_at = trio.current_time()

    async def take_in(self, batch: list[bytes], origin: Origin) -> None:
        """Process frames of the peer, in order; `origin`: where they came from."""
        session = self._session
        assert session is not None  # it runs the endpoint
        for frame in batch:
            size = len(frame)
            try:
                if frame[:1] != b"{" and large_messages.is_batch(frame):
                    messages = await by_turns(large_messages.split(frame, most=self._limits.values))
                    await self.take_in(messages, origin)  # none of which is a batch
                else:
                    size = await self._accept(frame, origin, session)
            except large_messages.MessageTooCostly as refusal:
                self.refuse(frame, str(refusal), origin)
            except ValueError:
                self._count_noise(frame)
                origin.garbled(frame)
            if self._pace.spent(size):  # whatever the frame was
                await self._take_turns(origin)

    async def _accept(self, frame: bytes, origin: Origin, session: "_Session") -> int:
        """Process a frame; returns the bytes that it counts as: more with many values."""
        size = len(frame)
        if size <= _FEW or (size <= SMALL and not large_messages.is_crowded(frame)):
            self._dispatch(codec.message(frame), size, origin, session)
            return size
        problem: str | None = None  # not the error, whose traceback holds the message
        with Uncollected() as pause:
            message = await by_turns(large_messages.read(frame, most=self._most_values(frame, origin), pause=pause))
            try:
                self._dispatch(message, size, origin, session)
            except ValueError as error:
                problem = str(error)
            del message  # it would outlive the pause
        if problem is not None:
            raise ValueError(problem)
        return max(size, SMALL)

    def _most_values(self, frame: bytes, origin: Origin) -> int:
        """The most values that a message may have: only an answer that somebody waits for may have many."""
        members = large_messages.members(frame)
        is_answer = "method" not in members and (slot := self._table.find(members)) and origin.may_answer(slot)
        return self._limits.values if is_answer else min(self._limits.unasked, self._limits.values)

    async def _take_turns(self, origin: Origin) -> None:
        """Let other tasks run, and the peer read."""
        await trio.lowlevel.checkpoint()
        await self._requests.begun()
        await origin.heeded()

    def _dispatch(self, message: dict[str, Any], size: int, origin: Origin, session: "_Session") -> None:
        """Process one message, which came in `size` bytes."""
        method = message.get("method")
        if method is None:
            self._answer(message, size, origin)
        elif not isinstance(method, str):
            raise ValueError("a method that is not a string")  # like any other broken frame
        elif (request_id := as_request_id(message.get("id"))) is not None:
            asked = PeerRequest(request_id, method, _object(message.get("params")), origin, size)
            handler = self._handler(method, asked.params, origin, session)
            if method not in CONNECTION_METHODS:
                handler = partial(self._ask, handler, origin.slot)
            self._requests.begin(session.nursery, handler, asked)
        elif "id" not in message:
            self._notice(method, _object(message.get("params")), size, origin, session)
        else:  # nobody can answer it
            origin.garbled(codec.encode(message))

    def _handler(self, method: str, params: NotificationParams, origin: Origin, session: "_Session") -> OnRequest:
        if self._table.relays.may_answer(method) and (origin.slot is None or origin.slot.relay is not None):
            return self._table.relays.handler(origin.slot, task_named_in(params), others=self._has_others)
        return session.on_request

    async def _ask(
        self, handler: OnRequest, about: ReplySlot | None, context: Inbound, method: str, params: NotificationParams
    ) -> dict[str, Any]:
        """Answer a request of the peer. Meanwhile the time of the call that it is about stands still; if that is not
        said, the time of all calls in flight."""
        if about is not None:
            about.pause()
        else:
            self._questions += 1
            if self._questions == 1:
                for slot in self.calls:
                    slot.pause()
        try:
            return await handler(context, method, params)
        finally:
            if about is not None:
                about.resume()
            else:
                self._questions -= 1
                if not self._questions:
                    for slot in self.calls:
                        slot.resume()

    def _answer(self, message: dict[str, Any], size: int, origin: Origin) -> None:
        slot = self._table.find(message)
        if slot is None or not origin.may_answer(slot):
            given_up = self._table.relays.answered(message.get("id"))
            if given_up is not None:
                self._cancel_task(given_up, outcome_of(message, size))
            origin.stray(message)
            return
        self.conclude(slot, origin.judge(outcome_of(message, size), slot))

    def _cancel_task(self, given_up: Codec, late: Outcome) -> None:
        """Cancel the task that the peer has made of a call, if its caller gave up before the answer came: nobody else
        knows of the task. Nobody waits for the answer to that."""
        made = given_up.made_task(late.result) if isinstance(late, Answered) else None
        if made is None or not isinstance(task := made.get("taskId"), str):
            return
        slot = ReplySlot()
        request_id = self._table.open(slot)
        self._table.forget(slot)
        params = {"taskId": task} | ({"_meta": self.stamp} if self.stamp else {})
        self._carrier.send([Outgoing(codec.request(request_id, "tasks/cancel", params), None, "tasks/cancel")])

    def refuse(self, frame: bytes, problem: str, origin: Origin) -> None:
        """Refuse a frame unread. If its ends name a request, the peer that sent it, or the caller that waits, gets an
        error; a notification of a change loses only its parameters."""
        self.refused += 1
        if math.log10(self.refused).is_integer():  # see `_count_noise`
            logger.warning("refused %s", problem)
        members = large_messages.members(frame)
        method, request_id = members.get("method"), as_request_id(members.get("id"))
        if "method" in members:
            self._refuse_unasked(method, request_id, problem, origin)
        elif request_id is not None:
            slot = self._table.find(members)
            if slot is not None and origin.may_answer(slot):
                self.conclude(slot, Malformed(problem))
        elif len(self._table) and frame.lstrip()[:1] in (b"{", b"["):  # not if it is no message at all
            origin.unread(problem)
        else:
            origin.garbled(frame)

    def _refuse_unasked(self, method: object, request_id: RequestId | None, problem: str, origin: Origin) -> None:
        if not isinstance(method, str):
            return
        if request_id is not None:
            origin.respond(codec.refusal(request_id, INVALID_REQUEST, problem))
        elif method in LISTEN_STREAM_METHODS and self._session is not None:
            self._notice(method, None, 0, origin, self._session)

    def _notice(
        self, method: str, params: dict[str, Any] | None, size: int, origin: Origin, session: "_Session"
    ) -> None:
        if method == PROGRESS and params is not None:
            self._table.report(params, size)
        elif method == CANCELLED:
            self._requests.cancel(params)
        elif method not in LISTEN_STREAM_METHODS and self._hand_on(method, params, size, origin):
            return
        if session.intercepts(method, params):
            return
        if self._notices is None:
            self._notices = Notices(most=self._limits.kept, account=self.account)
            session.nursery.start_soon(self._deliver, self._notices, session.on_notify)
        self._notices.add(method, params, size)

    def _hand_on(self, method: str, params: dict[str, Any] | None, size: int, origin: Origin) -> bool:
        """Hand a notification on to the request that somebody else made and that it is about. False if none, or if it
        is about a subscription of the session's own, which would never learn that it has begun."""
        about = origin.slot
        if about is None:
            meta: dict[str, Any] = _object((params or {}).get("_meta")) or {}
            if method == ACKNOWLEDGED or SUBSCRIPTION_ID_META_KEY in meta:
                about = self._table.find({"id": meta.get(SUBSCRIPTION_ID_META_KEY)})
                if about is None or about.relay is None:
                    return False
        if self._table.relays.note(method, params, size, about, others=self._has_others):
            return True
        if about is None and size <= SMALL:
            self._let_hear(method, params or {})
        return False

    async def _deliver(self, notices: Notices, on_notify: OnNotify) -> None:
        """Hand notifications to the session one at a time, in the order of the wire, as many in a turn as are read in
        one."""
        pace = Pace()
        while True:
            takes_turn = pace.spent(0) or not len(notices)
            method, params = await notices.receive() if takes_turn else notices.receive_nowait()
            try:
                await on_notify(Inbound(self, None, params), method, params)
            except Exception:
                logger.exception("the handler of notification %r raised", SECRETS.get().hide_line(method))

    @property
    def _has_others(self) -> bool:
        """True if calls of the host's own are in flight."""
        return len(self.calls) > len(self._table.relays)

    def _let_hear(self, method: str, params: Mapping[str, Any]) -> None:
        """Hand on what can be about no call, or only about abandoned calls of one principal: servers need not answer
        cancelled calls."""
        if self._overhear is None:
            return
        relays = self._table.relays
        if not self.calls and relays.is_idle:
            self._overhear(method, params, None)
        elif not self._has_others and (principal := relays.only_principal) is not None:
            self._overhear(method, params, principal)

    def _count_noise(self, frame: bytes) -> None:
        self.noise += 1
        if math.log10(self.noise).is_integer():  # the 1st, 10th, 100th…: a babbling server must not fill the log
            # Not the bytes: they may hold secrets, which are not known here.
            logger.warning(
                "%s: dropped %d frames that are not JSON-RPC, the latest of %d bytes",
                self._server,
                self.noise,
                len(frame),
            )


@frozen(eq=False)
class Page:
    """The entries of one page of a list, not validated, and the bytes of the message that brought them."""

    entries: Sequence[object]
    size: int


NO_PAGE = Page([], 0)
"""A page that has not come."""


@frozen
class _Session:
    """The session that runs the endpoint: its handlers, and the nursery for their tasks."""

    nursery: trio.Nursery
    on_request: OnRequest
    on_notify: OnNotify
    intercept: Intercept | None

    def intercepts(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """True if the session takes a notification out of turn."""
        try:
            return self.intercept is not None and self.intercept(method, params)
        except Exception:
            logger.exception("the session failed to look at notification %r", SECRETS.get().hide_line(method))
            return False


def _headers_of(opts: "CallOptions") -> Callable[[], Mapping[str, str]]:
    headers = opts.get("headers")
    return (lambda: headers) if headers else no_headers


def _object(params: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", params) if type(params) is dict else None
