"""Requests that are made for somebody else, and whom a server speaks to while it works on them.

Most of what a server says of a request says so: progress by its token, and over HTTP whatever comes in the exchange of
that request. Over a single stream a server of the handshake era does not say for which call it asks, so it is known
only while all calls that it may be working on are one principal's: also those that were given up, until it answers
them. Rather than ask the wrong user, the server is refused.
"""

import sys
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from ..account import weight
from ..pieces import SMALL
from ..protocol import INTERNAL_ERROR, JsonRpcError, RequestId, as_request_id, coerce_request_id
from ..reply import Relay, ReplySlot

if TYPE_CHECKING:
    from .incoming import Inbound

ASKED: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The questions that a server may ask in the middle of a call, and the capability that its client needs for each."""

_CONNECTION_METHODS: Final = frozenset(["ping"])
"""The requests of a server to the connection, which are about no call."""
MOST_CANCELLED: Final = 10_000
"""Requests that are remembered though nobody waits for them; if there are more, nobody is asked any more."""
_HOST_ITSELF: Final = object()
"""The principal of the host's own requests."""
_OTHER_REQUESTS: Final = "others"
"""Stands for more of them. Ids of ours are numbers."""


class Relays:
    """The relayed requests of one connection that wait for an answer, in the order in which they were made."""

    def __init__(self) -> None:
        self._waiting: dict[ReplySlot, Relay] = {}
        self._given_up: dict[RequestId, Hashable] = {}
        """The principals of the requests that the server may still work on, though nobody waits for them."""
        self._asks: set[Handler] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """True if the server works on no request."""
        return not self._waiting and not self._given_up

    def add(self, slot: ReplySlot, relay: Relay) -> None:
        """A request is made for somebody else."""
        self._waiting[slot] = relay

    def discard(self, slot: ReplySlot) -> None:
        """Remove a request that is decided. A question ends with the requests that it may be about."""
        self._waiting.pop(slot, None)
        for ask in tuple(self._asks):
            ask.review()

    def cancel(self, slot: ReplySlot) -> None:
        """Nobody waits for it any more, be it somebody's or the host's own."""
        self._waiting.pop(slot, None)
        if not slot.sent or slot.request_id is None:
            return
        if len(self._given_up) < MOST_CANCELLED:
            principal = _HOST_ITSELF if slot.relay is None else slot.relay.principal
            self._given_up[coerce_request_id(slot.request_id)] = principal
        else:  # of any principal
            self._given_up[_OTHER_REQUESTS] = self

    def answered(self, request_id: object) -> None:
        """The server has answered a request that nobody waits for."""
        known = as_request_id(request_id)
        if known is not None:
            self._given_up.pop(coerce_request_id(known), None)

    def note(
        self, method: str, params: Mapping[str, Any] | None, size: int, about: ReplySlot | None, *, others: bool
    ) -> bool:
        """Hand on a notification of so many bytes to the request it is about; whether there is one.

        What does not say so over a single stream, such as a log message, is about the latest request, if all that the
        server may be working on are one principal's.
        """
        slot = about if about in self._waiting else None
        if slot is None and about is None and self._waiting and not others and self._is_one_principals:
            slot = next(reversed(self._waiting))
        if slot is None or size > SMALL:
            return False
        slot.note(method, params or {}, weight(params, size))
        return True

    @property
    def _principals(self) -> set[Hashable]:
        """For whom all requests were made that the server may be working on."""
        return {*(each.principal for each in self._waiting.values()), *self._given_up.values()}

    @property
    def _is_one_principals(self) -> bool:
        return len(self._principals) == 1

    @property
    def only_principal(self) -> Hashable:
        """For whom all of these were made; None for several, for none and for the host."""
        principals = self._principals
        only = principals.pop() if len(principals) == 1 else None
        return None if only in (_HOST_ITSELF, self) else only

    def may_answer(self, method: str) -> bool:
        """True if a question of this method is for the maker of a request: one of a call, or one that the protocol does
        not know."""
        return bool(self._waiting) and method not in _CONNECTION_METHODS

    def handler(self, about: ReplySlot | None, *, others: bool) -> "Handler":
        """The handler of a server's question that came in the exchange of that request, or of none.

        Args:
            about: The request, if the exchange says so.
            others: Whether requests of the host's own are in flight, which the question may be about.
        """
        if about is not None:
            return Handler(self._waiting.get(about), lambda: about in self._waiting, self._asks)
        for relay in self._waiting.values():
            if relay.on_unclear is not None:
                relay.on_unclear()
        if others or not self._is_one_principals:
            return Handler(None, problem="calls of several clients are under way, and it is not said for which this is")
        relay = next(reversed(self._waiting.values()))
        return Handler(relay, lambda: self._has_any_of(relay.principal), self._asks)

    def _has_any_of(self, principal: Hashable) -> bool:
        return any(each.principal == principal for each in self._waiting.values())


@define(eq=False)
class Handler:
    """Answers one question: an `OnRequest`."""

    _relay: Relay | None
    _is_open: Callable[[], bool] = lambda: False
    """A test of whether a request is under way that the question may be about."""
    _asks: "set[Handler]" = field(factory=set["Handler"])
    """The handlers of the connection's questions that wait for an answer."""
    problem: str = "the client of this call cannot be asked"
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    def review(self) -> None:
        """A request has ended: with the last that the question may be about, it has."""
        if not self._is_open():
            self._scope.cancel()

    async def __call__(self, context: "Inbound", method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Ask the maker of the request.

        Raises:
            JsonRpcError: What the server is told instead.
        """
        if self._relay is None or self._relay.ask is None:
            raise JsonRpcError(INTERNAL_ERROR, self.problem)
        self._asks.add(self)
        try:
            with self._scope:
                return dict(await self._relay.ask(str(context.request_id), method, params))
        except JsonRpcError:
            raise
        except Exception as raised:
            if "mcp.shared.exceptions" in sys.modules:  # or nothing of it was raised
                from mcp.shared.exceptions import MCPError

                if isinstance(raised, MCPError):
                    raise JsonRpcError(raised.code, raised.message, raised.data) from raised
            raise
        finally:
            self._asks.discard(self)
        raise JsonRpcError(INTERNAL_ERROR, "the call is over")
