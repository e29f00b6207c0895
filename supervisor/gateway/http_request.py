"""A request over HTTP, and what it becomes once it is let in."""

import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import trio
from attrs import define, field

from .access import Principal, Refused
from .catalogues import View
from .downstream import Incoming
from .responses import Response

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_CHALLENGE: Final = {"www-authenticate": 'Bearer error="invalid_token"'}


def expired() -> Refused:
    """What a client is told whose leave to come has ended."""
    return Refused(HTTPStatus.UNAUTHORIZED, "what you were let in by does not hold any more", _CHALLENGE)


@define(eq=False)
class HttpRequest:
    """One HTTP request."""

    method: str
    path: str
    """Under the one that the application is mounted at."""
    headers: Mapping[str, str] = field(repr=False)
    """By names in small letters; of several of one name the last."""
    lines: Collection[tuple[str, str]] = field(repr=False)
    """All of them."""
    receive: Receive
    response: Response

    def accepts(self, *kinds: str) -> bool:
        """Whether its client takes all these media types."""
        taken = _taken(self.headers.get("accept", ""))
        return all(kind in taken or "*/*" in taken or f"{kind.partition('/')[0]}/*" in taken for kind in kinds)


@lru_cache(maxsize=64)
def _taken(accept: str) -> frozenset[str]:
    """The media types that a header names: clients say the same again and again."""
    return frozenset(part.partition(";")[0].strip().lower() for part in accept.split(","))


@define(eq=False)
class UnderWay:
    """A request that is let in, from then until its response has ended. One scope is all that it can be ended by, and
    what is noted here says why."""

    http: HttpRequest
    view: View
    """What its client sees."""
    client: Principal | None
    """Whose it is, if that is known."""
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    """What it runs in."""
    refusal: Refused | None = None
    """Why it does not go on, though it was let in."""
    session_ended: trio.Event | None = None
    """Of its session, if it has one."""
    incoming: Incoming | None = None
    """Its message, once that is there."""
    kept: int = 0
    """Bytes of it that count as kept."""
    is_stream: bool = False
    """Whether it goes on for as long as its client wants: see `begin_stream`."""

    def begin_stream(self) -> None:
        """A stream lasts as long as what its client was let in by, and no request's time holds for it."""
        expires = None if self.client is None else self.client.expires
        self.scope.deadline = math.inf if expires is None else trio.current_time() + max(0.0, expires - time.time())
        self.is_stream = True

    def refuse(self, refusal: Refused) -> None:
        """It does not go on."""
        self.refusal = refusal
        self.scope.cancel()
