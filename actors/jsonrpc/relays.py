"""Requests made for somebody else, and the party that a server addresses while it works on them.

Most messages about a request show which it is: progress by its token, over HTTP all that comes in its exchange. Over a
single stream a server of the handshake era does not say for which call it asks. That is known only while all calls it
may be working on, abandoned ones included until it answers, are one principal's. Else the question is refused, so that
no wrong user is asked.
"""

import sys
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from mcp_nursery.actors.records import define, field

from ..account import weight
from ..extensions import TASK_CHANGED
from ..messages import ACKNOWLEDGED
from ..pieces import SMALL
from ..protocol import INTERNAL_ERROR, JsonRpcError, RequestId, as_request_id, coerce_request_id
from ..reply import Codec, Relay, ReplySlot

if TYPE_CHECKING:
    from .incoming import Inbound

ASKED: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The questions that a server may ask in the middle of a call, and the capability that the client needs for each."""

CONNECTION_METHODS: Final = frozenset(["ping"])
"""The requests of a server that are about the connection and about no call."""
_LARGEST_ACKNOWLEDGEMENT: Final = 1 << 20
"""Bytes of the acknowledgement of a stream, which names all that it is about: a thousand tasks with long ids."""
MOST_CANCELLED: Final = 10_000
"""Abandoned requests that are remembered; beyond that, questions are refused."""
NOBODY_ASKED: Final = "the client of this call cannot be asked"
"""The answer to a server whose question has no addressee."""
_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
"""The key in `_meta` that names the task which a message of 2025-11-25 is about."""
_HOST_ITSELF: Final = object()
"""The principal of the host's own requests."""
_OTHER_REQUESTS: Final = "others"
"""The key for all further ones. Our ids are numbers."""


class Relays:
    """The relayed requests of one connection that wait for an answer, in the order in which they were made."""

    def __init__(self) -> None:
        self._waiting: dict[ReplySlot, Relay] = {}
        self._given_up: dict[RequestId, tuple[Hashable, Codec | None]] = {}
        """The abandoned requests that the server may still work on, by id: the principal of each, and the codec of a
        call, whose late answer may be a task."""
        self._asks: set[Handler] = set()
        self.streams: Final[set[ReplySlot]] = set()
        """The requests that are streams of notifications: no calls, about which a server may ask or say something."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """True if the server works on no request."""
        return not self._waiting and not self._given_up

    def add(self, slot: ReplySlot, relay: Relay) -> None:
        """Add a request that is made for somebody else."""
        self._waiting[slot] = relay

    def discard(self, slot: ReplySlot) -> None:
        """Remove a request that is decided. A question ends with the requests that it may be about."""
        self._waiting.pop(slot, None)
        self.streams.discard(slot)
        for ask in tuple(self._asks):
            ask.review()

    def cancel(self, slot: ReplySlot) -> None:
        """Give up a request, relayed or the host's own, and remember it if it was sent."""
        self._waiting.pop(slot, None)
        if not slot.sent or slot.request_id is None:
            return
        if len(self._given_up) < MOST_CANCELLED:
            principal = _HOST_ITSELF if slot.relay is None else slot.relay.principal
            self._given_up[coerce_request_id(slot.request_id)] = principal, slot.codec
        else:  # of any principal
            self._given_up[_OTHER_REQUESTS] = self, None

    def answered(self, request_id: object) -> Codec | None:
        """Forget an abandoned request: the server has answered it. Returns the codec of a call."""
        known = as_request_id(request_id)
        if known is None:
            return None
        _, codec = self._given_up.pop(coerce_request_id(known), (None, None))
        return codec

    def note(
        self, method: str, params: Mapping[str, Any] | None, size: int, about: ReplySlot | None, *, others: bool
    ) -> bool:
        """Hand on a notification of `size` bytes to the request it is about; False if none.

        Over a single stream one that names no request, such as a log message, is taken as about the latest, if all that
        the server may be working on are one principal's. Of a large one about a task only the id of that is handed on.
        """
        slot = about if about in self._waiting or about in self.streams else None
        task = task_named_in(params) if about is None and self._waiting else None
        if task is not None:
            slot = self._waits_for(task)
        elif slot is None and about is None and self._waiting and not others and self._is_one_principals:
            slot = next(reversed(self._waiting))
        if size > SMALL and method == TASK_CHANGED and isinstance(named := (params or {}).get("taskId"), str):
            params, size = {"taskId": named}, len(named)
        if slot is None or size > (_LARGEST_ACKNOWLEDGEMENT if method == ACKNOWLEDGED else SMALL):
            return False
        slot.note(method, params or {}, weight(params, size))
        return True

    @property
    def _principals(self) -> set[Hashable]:
        """The principals of all requests that the server may be working on."""
        given_up = (principal for principal, _ in self._given_up.values())
        return {*(each.principal for each in self._waiting.values()), *given_up}

    @property
    def _is_one_principals(self) -> bool:
        return len(self._principals) == 1

    @property
    def only_principal(self) -> Hashable:
        """The principal of all of these; None for several, for none and for the host."""
        principals = self._principals
        only = principals.pop() if len(principals) == 1 else None
        return None if only in (_HOST_ITSELF, self) else only

    def may_answer(self, method: str) -> bool:
        """True if a question of this method is for the maker of a request: one about a call, or one that the protocol
        does not know."""
        return bool(self._waiting) and method not in CONNECTION_METHODS

    def handler(self, about: ReplySlot | None, task: str | None, *, others: bool) -> "Handler":
        """The handler of a question that the server asks in the exchange of the request `about`, or in none, about this
        task if it names one. With `others`, requests of the host's own are in flight."""
        if about is None and task is not None:
            about = self._waits_for(task)
            if about is None:
                return Handler(None, problem="nobody waits for the task that this is about")
        if about is not None:
            return Handler(self._waiting.get(about), lambda: about in self._waiting, self._asks)
        for relay in self._waiting.values():
            if relay.on_unclear is not None:
                relay.on_unclear()
        if others or not self._is_one_principals:
            return Handler(None, problem="calls of several clients are under way, and it is not said for which this is")
        relay = next(reversed(self._waiting.values()))
        return Handler(relay, lambda: self._has_any_of(relay.principal), self._asks)

    def _waits_for(self, task: str) -> ReplySlot | None:
        """The request that waits for the result of a task."""
        return next((slot for slot, relay in self._waiting.items() if relay.task == task), None)

    def _has_any_of(self, principal: Hashable) -> bool:
        return any(each.principal == principal for each in self._waiting.values())


def task_named_in(params: Mapping[str, Any] | None) -> str | None:
    """The id of the task that a message says it is about; None: it says nothing."""
    meta: object = (params or {}).get("_meta")
    named: object = cast("dict[str, object]", meta).get(_RELATED_TASK) if isinstance(meta, dict) else None
    return str(cast("dict[str, object]", named).get("taskId")) if isinstance(named, dict) else None


async def asked_peer(relay: Relay, key: str, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The answer of the maker of a request to a question of its server.

    Raises:
        JsonRpcError: The server's answer instead.
    """
    if relay.ask is None:
        raise JsonRpcError(INTERNAL_ERROR, NOBODY_ASKED)
    try:
        return dict(await relay.ask(key, method, params))
    except JsonRpcError:
        raise
    except Exception as raised:
        if "mcp.shared.exceptions" in sys.modules:  # or no error of it was raised
            from mcp.shared.exceptions import MCPError

            if isinstance(raised, MCPError):
                raise JsonRpcError(raised.code, raised.message, raised.data) from raised
        raise


@define(eq=False)
class Handler:
    """The handler of one question: an `OnRequest`."""

    _relay: Relay | None
    _is_open: Callable[[], bool] = lambda: False
    """True while a request that the question may be about is under way."""
    _asks: "set[Handler]" = field(factory=set["Handler"])
    """The handlers of the connection's questions that wait for an answer."""
    problem: str = NOBODY_ASKED
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    def review(self) -> None:
        """Cancel the question if no request that it may be about is left."""
        if not self._is_open():
            self._scope.cancel()

    async def __call__(self, context: "Inbound", method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Ask the maker of the request.

        Raises:
            JsonRpcError: The server's answer instead.
        """
        if self._relay is None or self._relay.ask is None:
            raise JsonRpcError(INTERNAL_ERROR, self.problem)
        self._asks.add(self)
        try:
            with self._scope:
                return await asked_peer(self._relay, str(context.request_id), method, params)
        finally:
            self._asks.discard(self)
        raise JsonRpcError(INTERNAL_ERROR, "the call is over")
