"""Requests in flight: numbered, sent, and decided once. Answers are matched by id."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from secrets import token_bytes
from typing import Any, Final, cast

import trio
from attrs import evolve, frozen

from ..account import Account, weight
from ..messages import CALL_TOOL
from ..outcomes import Answered, Busy, Loss, Outcome, Rejected, Unsendable
from ..pieces import SMALL
from ..protocol import INTERNAL_ERROR, RequestId, as_request_id, coerce_request_id
from ..reply import PROGRESS, Codec, ReplySlot
from .carrier import Carrier, Outgoing, no_headers
from .relays import Relays

CLOSED: Final = Loss("the connection was closed")

_MESSAGE = 10_000
"""Characters of a progress message: a thousand may wait for a slow callback."""
_STRIDE: Final = 1 << 20
"""The largest step from one id to the next: after 8,000 million requests of a connection ids are below 2**53 still,
and numbers of JSON exact for every peer."""


class CallTable:
    """The requests that still wait. The SDK's session may bring ids of its own.

    Ids go up by steps that nobody can guess. Where answers wait to be read until the next request has left, what a
    server sent ahead would be taken for that request's answer if it named its id.
    """

    def __init__(self, account: Account | None = None) -> None:
        self._account = account or Account()
        self._waiting: dict[RequestId, ReplySlot] = {}
        self._last_id = 0
        # Many at once: to draw each of them takes half a microsecond.
        self._random = chain.from_iterable(memoryview(token_bytes(256)).cast("I") for _ in repeat(None))

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, slot: ReplySlot, request_id: RequestId | None = None, codec: Codec | None = None) -> RequestId:
        """Register a slot and return its request's id.

        Raises:
            ValueError: `request_id` is in flight already.
        """
        if request_id is None:
            self._last_id += 1 + next(self._random) % _STRIDE
            while self._last_id in self._waiting:
                self._last_id += 1
            request_id = self._last_id
        key = coerce_request_id(request_id)
        if key in self._waiting:
            raise ValueError(f"request id {request_id!r} is already in flight")
        slot.begin(request_id, codec, self._account)
        self._waiting[key] = slot
        return request_id

    def forget(self, slot: ReplySlot) -> None:
        """Ignore any later answer."""
        if slot.request_id is not None:
            key = coerce_request_id(slot.request_id)
            if self._waiting.get(key) is slot:  # once answered, its id may be another's
                del self._waiting[key]

    def find(self, message: Mapping[str, Any]) -> ReplySlot | None:
        """The slot that a response belongs to; None if nobody waits for it."""
        request_id = as_request_id(message.get("id"))
        return None if request_id is None else self._waiting.get(coerce_request_id(request_id))

    def report(self, params: Mapping[str, Any], size: int = 0) -> None:
        """Hand a progress notification of so many bytes to the call it names."""
        token = as_request_id(params.get("progressToken"))
        slot = None if token is None else self._waiting.get(coerce_request_id(token))
        progress, message = _number(params.get("progress")), params.get("message")
        if slot is None or progress is None:
            return
        if slot.relay is not None:
            if size <= SMALL:  # a thousand may wait for a slow callback
                slot.note(PROGRESS, params, weight(params, size))
        else:
            text = message[:_MESSAGE] if isinstance(message, str) else None
            slot.report(progress, _number(params.get("total")), text)

    def fail_all(self, loss: Loss) -> None:
        """Decide every waiting slot: the connection is gone."""
        waiting, self._waiting = self._waiting, {}
        for slot in waiting.values():
            slot.resolve(loss)


@frozen(eq=False)
class Post:
    """A call to be sent: its slot, and its frame for a given id. Every request of a caller's is a call here."""

    slot: ReplySlot
    encode: Callable[[RequestId], bytes]
    codec: Codec | None = None
    headers: Callable[[], Mapping[str, str]] = no_headers
    """Its headers, where frames have headers."""
    limited: bool = False
    """Its caller has set a time limit."""
    method: str = CALL_TOOL


class Requests:
    """The requests of one connection that wait for an answer, and among them the calls, which alone are counted."""

    def __init__(self, carrier: Carrier, account: Account) -> None:
        self.account: Account = account
        """Of what waits for the peer, or of what it says."""
        self.lost: trio.Event = trio.Event()
        """Set once the connection is gone and every waiting slot is decided."""
        self.loss: Loss = CLOSED
        """How it was lost."""
        self.is_mute: bool = False
        """Whether the peer says nothing more."""
        self._carrier = carrier
        self._table = CallTable(account)
        self._calls: set[ReplySlot] = set()
        self._relays = Relays()
        """Those of the calls that are made for somebody else."""
        self._settled = trio.lowlevel.ParkingLot()

    @property
    def in_flight(self) -> int:
        """Calls that wait for an answer; the session's own requests do not count."""
        return len(self._calls)

    async def settled(self) -> None:
        """Wait until a call leaves `in_flight`."""
        await self._settled.park()

    def post(self, batch: Sequence[Post]) -> None:
        """Number, frame and write calls with one write. A slot whose frame finds no room is `Busy`."""
        if self.lost.is_set():
            for post in batch:
                post.slot.resolve(self.loss)
            return
        outgoing: list[Outgoing] = []
        for post in batch:
            slot = post.slot
            try:
                frame = post.encode(self._table.open(slot, codec=post.codec))
            except TypeError as error:
                self.conclude(slot, Unsendable(str(error)))
                continue
            self._calls.add(slot)
            self._relays.add(slot)
            outgoing.append(Outgoing(frame, slot, post.method, post.headers, post.limited, bounded=True))
        for refused in self._carrier.send(outgoing):
            assert refused.slot is not None  # a call's
            self.conclude(refused.slot, Busy())

    def cancel(self, *slots: ReplySlot) -> None:
        """The callers gave up: withdraw their calls, or tell the peer."""
        self.drop(slots, "the caller gave up")

    def drop(self, slots: Sequence[ReplySlot], reason: str | None) -> None:
        """Nobody waits for these requests any more. See `Carrier.drop`."""
        for slot in slots:
            self._table.forget(slot)
            if slot in self._calls:
                self._relays.give_up(slot)
            self._settle(slot)
        self._carrier.drop(slots, reason)

    def withdraw_unsent(self) -> None:
        """Give up every call of which no byte has left."""
        unsent = [slot for slot in self._calls if not slot.sent]
        self.drop(unsent, None)
        for slot in unsent:
            slot.resolve(CLOSED)

    def conclude(self, slot: ReplySlot, outcome: Outcome) -> None:
        """Decide a request: later answers are ignored."""
        self._table.forget(slot)
        self._settle(slot)
        slot.resolve(outcome)

    def hear_no_more(self, loss: Loss) -> None:
        """The peer says nothing more, though it may still read: every waiting slot is decided."""
        self.is_mute, self.loss = True, loss
        self._table.fail_all(loss)

    def lose(self, loss: Loss) -> None:
        """The connection is lost, even if the peer has not ended it: every waiting slot is decided, once."""
        if self.lost.is_set():
            return
        self.loss = evolve(loss, pending=len(self._calls))
        self.lost.set()
        self._table.fail_all(self.loss)
        self._calls.clear()
        self._relays = Relays()
        self._settled.unpark_all()

    def _settle(self, slot: ReplySlot) -> None:
        self._calls.discard(slot)
        self._relays.discard(slot)
        if self._settled:
            self._settled.unpark_all()


def outcome_of(message: Mapping[str, Any], size: int = 0) -> Answered | Rejected:
    """The outcome in a response of `size` bytes; an error takes precedence over a result. A malformed response counts
    as an internal error of the peer."""
    error: object = message.get("error")
    if type(error) is dict:
        described = cast("dict[str, Any]", error)
        code = described.get("code")
        if type(code) is int:
            return Rejected(code, str(described.get("message", "")), described.get("data"), size)
    result: object = message.get("result")
    if type(result) is dict:
        return Answered(cast("dict[str, Any]", result), size)
    return Rejected(INTERNAL_ERROR, "malformed response", {"keys": sorted(map(str, message))})


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON sets integers no limit
        return None
