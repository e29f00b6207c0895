"""Requests in flight, by id: whose answer is this?"""

from collections.abc import Mapping
from typing import Any, cast

from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp_types import INTERNAL_ERROR, RequestId

from ..outcomes import Answered, Loss, Rejected
from ..reply import ReplySlot

_MESSAGE = 10_000
"""Characters of a progress message: a thousand may wait for a slow callback."""


class CallTable:
    """The requests that still wait. Ids count up; the SDK's session may bring its own."""

    def __init__(self) -> None:
        self._waiting: dict[RequestId, ReplySlot] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, slot: ReplySlot, request_id: RequestId | None = None) -> RequestId:
        """Register a slot and return its request's id.

        Raises:
            ValueError: `request_id` is in flight already.
        """
        if request_id is None:
            request_id = self._next_id()
        key = coerce_request_id(request_id)
        if key in self._waiting:
            raise ValueError(f"request id {request_id!r} is already in flight")
        slot.number(request_id)
        self._waiting[key] = slot
        return request_id

    def forget(self, slot: ReplySlot) -> None:
        """Whatever answer comes now is nobody's."""
        if slot.request_id is not None:
            key = coerce_request_id(slot.request_id)
            if self._waiting.get(key) is slot:  # once answered, its id may be another's
                del self._waiting[key]

    def find(self, message: Mapping[str, Any]) -> ReplySlot | None:
        """The slot that a response belongs to; None if nobody waits for it."""
        request_id = as_request_id(message.get("id"))
        return None if request_id is None else self._waiting.get(coerce_request_id(request_id))

    def report(self, params: Mapping[str, Any]) -> None:
        """Hand a progress notification to the call it names."""
        token = as_request_id(params.get("progressToken"))
        slot = None if token is None else self._waiting.get(coerce_request_id(token))
        progress, message = _number(params.get("progress")), params.get("message")
        if slot is not None and progress is not None:
            told = message[:_MESSAGE] if isinstance(message, str) else None
            slot.report(progress, _number(params.get("total")), told)

    def fail_all(self, loss: Loss) -> None:
        """Decide every waiting slot: the connection is gone."""
        waiting, self._waiting = self._waiting, {}
        for slot in waiting.values():
            slot.resolve(loss)

    def _next_id(self) -> int:
        self._last_id += 1
        while self._last_id in self._waiting:
            self._last_id += 1
        return self._last_id


def outcome_of(message: Mapping[str, Any], size: int = 0) -> Answered | Rejected:
    """What a response says that came with so many bytes; an error goes before a result. A malformed one is an internal
    error of the peer."""
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
