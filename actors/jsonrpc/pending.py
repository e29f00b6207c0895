"""The requests in flight, by the ids that their answers carry."""

from array import array
from collections.abc import Mapping
from secrets import token_bytes
from typing import Any, Final, cast

import trio

from ..account import Account, weight
from ..outcomes import Answered, Loss, Rejected
from ..pieces import SMALL
from ..protocol import INTERNAL_ERROR, RequestId, as_request_id, coerce_request_id
from ..reply import PROGRESS, Codec, ReplySlot
from .relays import Relays

CLOSED_BY_US: Final = Loss("the connection was closed")

_MOST_PROGRESS_CHARACTERS = 10_000
"""Characters of a progress message: a thousand may wait for a slow callback."""
_STRIDE: Final = 1 << 20
"""The largest step from one id to the next: after 8,000 million requests, ids are still below 2**53, and exact JSON
numbers for every peer."""


class CallTable:
    """The requests that still wait, and which of them are calls. The SDK's session may bring ids of its own.

    Ids advance by random steps, because a server that guessed the next id could answer a request before it is sent.
    """

    def __init__(self, account: Account | None = None) -> None:
        self._account = account or Account()
        self._waiting: dict[RequestId, ReplySlot] = {}
        self.calls: Final[set[ReplySlot]] = set()
        """The slots of callers; the session's own requests do not count."""
        self.relays: Relays = Relays()
        """The calls that are made for somebody else."""
        self._settled: trio.lowlevel.ParkingLot | None = None
        """The tasks to wake when one of `calls` leaves; made for the first."""
        self._last_id = 0
        self._random = array("I")

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, slot: ReplySlot, request_id: RequestId | None = None, codec: Codec | None = None) -> RequestId:
        """Register a slot and return its request's id; a slot with a codec is a call's.

        Raises:
            ValueError: `request_id` is in flight already.
        """
        key: RequestId
        if request_id is None:
            # Several at once: drawing them singly takes half a microsecond each. Not many: each connection keeps them.
            self._random = self._random or array("I", token_bytes(64))
            self._last_id += 1 + self._random.pop() % _STRIDE
            while self._last_id in self._waiting:
                self._last_id += 1
            request_id = key = self._last_id
        elif (key := coerce_request_id(request_id)) in self._waiting:
            raise ValueError(f"request id {request_id!r} is already in flight")
        slot.begin(request_id, codec, self._account)
        self._waiting[key] = slot
        if codec is not None and slot.relay is not None and slot.relay.listens:
            self.relays.streams.add(slot)
        elif codec is not None:
            self.calls.add(slot)
            if slot.relay is not None:
                self.relays.add(slot, slot.relay)
        return request_id

    def forget(self, slot: ReplySlot) -> None:
        """Ignore any later answer."""
        request_id = slot.request_id
        key = request_id if type(request_id) is int or request_id is None else coerce_request_id(request_id)
        if key is not None and self._waiting.get(key) is slot:  # once answered, its id may be another's
            del self._waiting[key]
        self.calls.discard(slot)
        if slot.relay is not None:
            self.relays.discard(slot)
        if self._settled:
            self._settled.unpark_all()

    async def settled(self) -> None:
        """Wait until one of `calls` leaves."""
        if self._settled is None:
            self._settled = trio.lowlevel.ParkingLot()
        await self._settled.park()

    def find(self, message: Mapping[str, Any]) -> ReplySlot | None:
        """The slot that a response belongs to; None if nobody waits for it."""
        named: object = message.get("id")
        if type(named) is int:  # as ours are
            return self._waiting.get(named)
        request_id = as_request_id(named)
        return None if request_id is None else self._waiting.get(coerce_request_id(request_id))

    def report(self, params: Mapping[str, Any], size: int = 0) -> None:
        """Hand a progress notification of `size` bytes to the call it names."""
        token = as_request_id(params.get("progressToken"))
        slot = None if token is None else self._waiting.get(coerce_request_id(token))
        progress, message = _number(params.get("progress")), params.get("message")
        if slot is None or progress is None:
            return
        if slot.relay is not None:
            if size <= SMALL:  # a thousand may wait for a slow callback
                slot.note(PROGRESS, params, weight(params, size))
        else:
            text = message[:_MOST_PROGRESS_CHARACTERS] if isinstance(message, str) else None
            slot.report(progress, _number(params.get("total")), text)

    def fail_all(self, loss: Loss) -> None:
        """Decide every waiting slot: the peer sends nothing more. Calls stay in `calls` until they are forgotten."""
        waiting, self._waiting = self._waiting, {}
        for slot in waiting.values():
            slot.resolve(loss)

    def clear(self, loss: Loss) -> None:
        """Decide every waiting slot: the connection is gone, and with it all calls."""
        self.fail_all(loss)
        self.calls.clear()
        self.relays = Relays()
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
    result: dict[str, Any] | None = message.get("result")
    if type(result) is dict:  # as it should be
        return Answered(result, size)
    return Rejected(INTERNAL_ERROR, "malformed response", {"keys": sorted(map(str, message))})


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON sets integers no limit
        return None
