"""One HTTP exchange with a client, from the headers of its request to the last byte of its response.

*In order.* `HttpApplication` makes an exchange from a request's headers, checks the names that it was sent to, and
identifies its client. `Admission` counts it, and from there on it runs in a scope of its own. `HttpMessages` reads the
body, within limits of time and size, and makes a `ClientRequest` of the message. The gateway answers that request. One
task does all of this.

*The response* is a document, or, once there is something to send before the answer, a stream of events: progress, log
messages, questions. Either ends with the answer. `ended` is set before the last byte is written, and nothing is written
after it; the write of the answer itself is shielded, since half an answer would be no response. Several tasks may write
events, one at a time. A client that does not read holds nothing up for good: `http_server` resets its connection after
a time, and what waits for it until then is charged to its account (`BytesUnderWay`).

*The end.* An exchange that is not answered is ended by its scope alone: by cancellation or by its deadline.
`HttpMessages.explain_end` then finds the reason in its fields, and ends the response:

| what happened | how the scope ended | fields | response |
|---------------|---------------------|--------|----------|
| the client has gone, in an era in which that cancels | cancelled, by `lose_client` | | nobody reads it |
| the client has cancelled the request | cancelled, by its session | | 202, or the end of the stream |
| the session has ended | cancelled, by its session | `session_ended` | 404, or the end of the stream |
| the client's credential was withdrawn | cancelled, by `refuse` | `refusal` | 401, or the end of the stream |
| the gateway ends | cancelled, by `refuse` | `refusal` | 503, or the end of the stream |
| either, and a server may have acted | cancelled, by `refuse` | `refusal`, `request` | an error of JSON-RPC |
| the body was not there in time | deadline | no `request` | 408 |
| the request was not answered in time | deadline | `request` | an error of JSON-RPC |
| a stream has outlasted its credential | deadline | `is_stream` | the end of the stream |

*Clients that go away.* The meaning depends on the client's era, and `goes_on` says which it is:

- From 2025-03-26 to 2025-11-25: "Disconnection SHOULD NOT be interpreted as the client cancelling its request." The
  request goes on within its limits, counts as one of its client's, and no longer keeps its session from being idle,
  whose end ends it. Its answer is lost, and what its server asks is refused. `initialize` is cancelled: nobody learns
  the id of that session.
- Since 2026-07-28: "The server MUST treat a client disconnect as cancellation of that request."

Cancelling the scope cancels the call behind it, down to the server: see `upstream.server_requests`. An exchange that is
refused before it is admitted (for a name, a credential, too many requests) has no scope: `Refused` alone ends it.

*The client that waits.* While a request is answered, nothing reads from its connection, so nobody would notice that the
client has gone. Most answers are ready within a tenth of a second; for a slower one, `Attendance` starts a task that
reads, records when the client has gone, and sends a comment every 15 seconds, since proxies close what is silent. That
task ends before the exchange does.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import trio

from mcp_nursery.actors.records import define, field

from ...log_limits import log_of_client
from ..auth.principal import Principal, Refused
from ..client_request import ClientRequest
from ..views.view import View

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_EVENTS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_LINE_ENDS: Final = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))
"""The characters that many clients wrongly take for the end of a line, and their escapes in JSON."""
LARGE: Final = 64 << 10
"""Bytes of a message beyond which it is written in pieces."""
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_EXPIRED_CHALLENGE: Final = {"www-authenticate": 'Bearer error="invalid_token"'}


def expiry_refusal() -> Refused:
    """The refusal of a client whose credential has expired or was withdrawn."""
    return Refused(HTTPStatus.UNAUTHORIZED, "what you were let in by does not hold any more", _EXPIRED_CHALLENGE)


@define(eq=False)
class HttpExchange:
    """A request over HTTP and its response. Once it is admitted, only its scope can end it, and the fields give the
    reason."""

    method: str
    path: str
    """The path, relative to the one at which the application is mounted."""
    headers: Mapping[str, str] = field(repr=False)
    """The headers, by lower-case names; of several with one name, the last."""
    lines: Collection[tuple[str, str]] = field(repr=False)
    """All headers."""
    receive: Receive = field(repr=False)
    """The `receive` of ASGI."""
    _send: Send = field(repr=False)
    """The `send` of ASGI. It waits while the client does not read."""
    client: Principal | None = field(default=None, init=False)
    """The principal, if it is known."""
    view: View = field(init=False)
    """The view of its client, once it is admitted."""
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """The scope that it runs in once it is admitted, entered by `Admission.admit` (request_limits.py)."""
    refusal: Refused | None = field(default=None, init=False)
    """The refusal that has ended it after it was admitted."""
    session_ended: bool = field(default=False, init=False)
    """True if the end of its session has ended it."""
    request: ClientRequest | None = field(default=None, init=False)
    """The request of MCP in it, once that is read."""
    kept: int = field(default=0, init=False)
    """Bytes of its body that count as kept."""
    is_stream: bool = field(default=False, init=False)
    """True if it goes on for as long as its client wants: see `begin_stream`."""
    goes_on: Callable[[], object] | None = field(default=None, init=False)
    """Called when its client has gone, if it goes on then; None: it is cancelled."""
    client_gone: bool = field(default=False, init=False)
    """True if its client has gone before the response has ended."""
    answer_headers: dict[str, str] = field(factory=dict[str, str], init=False)
    """Headers of its response, besides those of the kind of response."""
    ended: bool = field(default=False, init=False)
    """True if the last byte is on its way: what the client does from now on changes nothing."""
    _has_events: bool = field(default=False, init=False)
    """True if its response is a stream of events."""
    _writing: trio.Lock = field(factory=trio.Lock, init=False)
    """Held while something is written to that stream."""

    def accepts(self, *kinds: str) -> bool:
        """True if its client takes all these media types."""
        taken = _parse_accept(self.headers.get("accept", ""))
        return all(kind in taken or "*/*" in taken or f"{kind.partition('/')[0]}/*" in taken for kind in kinds)

    def begin_stream(self) -> None:
        """Make it a stream, which lasts as long as its client's credential: the time limit of requests does not
        apply."""
        expires = None if self.client is None else self.client.expires
        self.scope.deadline = math.inf if expires is None else trio.current_time() + max(0.0, expires - time.time())
        self.is_stream = True

    def refuse(self, refusal: Refused) -> None:
        """End it with this refusal."""
        self.refusal = refusal
        self.scope.cancel()

    def lose_client(self) -> None:
        """Record that its client has gone, unless the response has ended: see "Clients that go away" above."""
        if self.ended or self.client_gone:
            return
        self.client_gone = True
        if self.goes_on is None:
            self.scope.cancel()
        else:
            self.goes_on()

    def has_vanished(self) -> bool:
        """True if the end of its client, or of its session, has ended it."""
        return self.session_ended or (self.client_gone and self.goes_on is None)

    # -- its response ---------------------------------------------------------------------------------------------

    async def event(self, frame: bytes) -> None:
        """Send one message as an event, unless the response has ended."""
        await self._write(*_encode_event(frame))

    async def keep_alive(self) -> None:
        """Send a comment, so that nobody takes the connection for dead. Begins the stream if nothing was sent
        before."""
        await self._write(b": ping\r\n\r\n")

    async def open_stream(self) -> None:
        """Begin a stream of events with a comment: web servers, proxies and CDNs hold the head back until a byte of the
        body comes."""
        await self._write(b": open\r\n\r\n")

    async def _write(self, *pieces: bytes) -> None:
        async with self._writing:
            if self.ended or self.client_gone:
                return
            if not self._has_events:
                self._has_events = True
                await self._start(HTTPStatus.OK, *_EVENTS)
            for piece in pieces:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, status: int = HTTPStatus.ACCEPTED, text: str = "") -> None:
        """End the response without a message."""
        await self.answer(text.encode(), status, _TEXT)

    async def answer(self, body: bytes, status: int = HTTPStatus.OK, kind: bytes = _JSON) -> None:
        """End the response: as a document with this status, or, if it is a stream, with this message as the last event;
        text is left out there."""
        # The write is shielded: half a response is none, and makes the connection useless. It may take as
        # long as a web server lets a client take.
        if not self._has_events:  # nothing was written, and a task that writes from now on finds that it has ended
            self.ended = True
            with trio.CancelScope(shield=True):
                await self._start(status, (b"content-type", kind), (b"content-length", b"%d" % len(body)))
                await self._send({"type": "http.response.body", "body": body, "more_body": False})
            return
        pieces = _encode_event(body) if kind == _JSON else (b"",)
        async with self._writing:
            self.ended = True
            with trio.CancelScope(shield=True):
                for number, piece in enumerate(pieces, 1):
                    await self._send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})

    async def _start(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        own = [(name.encode(), value.encode()) for name, value in self.answer_headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})


@lru_cache(maxsize=64)
def _parse_accept(accept: str) -> frozenset[str]:
    """The media types that a header names; cached, since clients send the same again and again."""
    return frozenset(part.partition(";")[0].strip().lower() for part in accept.split(","))


def _encode_event(frame: bytes) -> tuple[bytes, ...]:
    """An event with this message. A large one, which may wait for long, is not copied."""
    if not frame.isascii():  # a search for each of these takes ten times as long
        for character, escape in _LINE_ENDS:
            frame = frame.replace(character, escape)
    event = b"event: message\r\ndata: ", frame, b"\r\n\r\n"
    return event if len(frame) > LARGE else (b"".join(event),)


# -- clients that wait -------------------------------------------------------------------------------------------------

logger: Final = logging.getLogger(__name__)

SOON: Final = 0.1
"""Seconds of an interval: a client is attended to after a wait of one to two intervals. Most have their answer by
then, and a nursery and a task for each client from the beginning would cost 38 us, a tenth of a call."""
KEEPALIVE: Final = 15.0
"""Seconds between two comments to a client that waits: proxies close what is silent for longer."""


class Attendance:
    """The attendance to clients that wait for long, by tasks in the nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._new: set[HttpExchange] = set()
        self._seen: set[HttpExchange] = set()
        """The exchanges that waited at the end of the last interval."""
        self._attended: dict[HttpExchange, tuple[trio.CancelScope, trio.Event]] = {}
        """By exchange: the scope in which its client is attended to, and the end of that."""
        self._some = trio.Event()
        nursery.start_soon(self._attend_slow_clients)

    async def _attend_slow_clients(self) -> None:
        while True:
            await self._some.wait()
            await trio.sleep(SOON)
            for exchange in self._seen:
                self._attended[exchange] = attended = trio.CancelScope(), trio.Event()
                self._nursery.start_soon(self._attend, exchange, *attended)
            self._seen, self._new = self._new, set()
            if not self._seen:
                self._some = trio.Event()

    def begin(self, exchange: HttpExchange) -> None:
        """Begin to attend to a client that waits: from now on nothing else may use `receive` of its exchange."""
        self._new.add(exchange)
        self._some.set()

    async def end(self, exchange: HttpExchange) -> None:
        """End the attendance of a client that waits no more."""
        self._new.discard(exchange)
        self._seen.discard(exchange)
        if exchange in self._attended:
            scope, ended = self._attended.pop(exchange)
            scope.cancel()
            with trio.CancelScope(shield=True):  # what is cancelled ends at once
                await ended.wait()

    async def _attend(self, exchange: HttpExchange, scope: trio.CancelScope, ended: trio.Event) -> None:
        """Keep a client's connection alive, and record when the client has gone."""
        try:
            with scope:
                await _wait_until_gone(exchange)
        except Exception as error:
            log_of_client(logger, logging.ERROR, "a client cannot be attended to", exc_info=error)
            exchange.lose_client()
        finally:
            ended.set()


async def _wait_until_gone(exchange: HttpExchange) -> None:
    gone = False
    while not gone:
        with trio.move_on_after(KEEPALIVE) as silence:
            gone = (await exchange.receive())["type"] == "http.disconnect"
        if silence.cancelled_caught:
            await exchange.keep_alive()
    exchange.lose_client()
