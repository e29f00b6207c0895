"""One HTTP/1.1 connection, served by an ASGI application on Trio.

The server is our own, since a request through Hypercorn costs several times the CPU, and its writes can be neither
cancelled nor timed. A connection has one task, which serves one request after another. While the application works on a
request, its `receive` alone reads, and so notices that the client has gone; further requests that a client sends before
its answer are not read until then.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import trio

from ..log_limits import log_of_client
from .parser import BadRequest, ParsedRequest, RequestParser

logger: Final = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
"""An application of ASGI, such as that of the gateway in `gateway/http/application.py`."""

HEAD_SECONDS: Final = 5.0
"""Seconds from the first byte of a request to the last of its headers, and from the beginning of a connection to the
first byte, a TLS handshake included."""
IDLE: Final = 75.0
"""Seconds that a connection may be idle after a request: nginx's default, and longer than clients keep a connection, so
that a client hardly ever writes to one that is just being closed."""
IDLE_CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks for connections, or sessions, that have been idle for too long: they are closed at most
this much later."""
LINGER: Final = 2.0
"""Seconds in which a client whose request was answered early may still send the rest: a connection that is closed while
bytes are unread loses the answer, too."""
PIECE: Final = 64 << 10
"""Bytes that are read at once."""

_DISCONNECT: Final[Message] = {"type": "http.disconnect"}
_LOSS_ERRORS: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
_CLOSE: Final = (b"connection", b"close")
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class _Answer:
    """The answer to a request: its bytes and its progress."""

    def __init__(self, request: ParsedRequest) -> None:
        self.request: Final = request
        self._head = b""
        self._chunked = False
        self.body_taken = False
        """True if the application has all of the request's body."""
        self.allowed = not request.expects_continue
        """True if the client does not wait for `100 Continue` before it sends the body."""
        self.has_begun = False
        self.is_last = False
        """True if it is the last of its connection."""
        self.over: Final = trio.Event()
        """Set when its last byte is on its way, or it has broken off."""
        self.is_cut = False

    def start(self, status: int, headers: Collection[tuple[bytes, bytes]], *, is_last: bool) -> None:
        """Begin with the head, to be written with the first piece of the body."""
        request = self.request
        own: list[tuple[bytes, bytes]] = []
        sized = any(name == b"content-length" for name, _ in headers)
        self._chunked = not sized and request.version == "1.1"
        self.is_last = is_last or not request.keeps_alive or not request.complete
        if self._chunked:
            own.append((b"transfer-encoding", b"chunked"))
        if self.is_last:
            own.append(_CLOSE)
        self._head = _head(status, [*headers, *own])

    def piece(self, body: bytes, *, more: bool) -> tuple[bytes, ...]:
        """The bytes to write for this piece of its body: a large piece is not copied."""
        head, self._head = self._head, b""
        self.has_begun = True
        if not more:
            self.over.set()
        if self.request.method == b"HEAD":
            return (head,)
        end = b""
        if self._chunked:
            head += b"%x\r\n" % len(body) if body else b""
            end = (b"\r\n" if body else b"") + (b"" if more else b"0\r\n\r\n")
        return (head, body, end) if len(body) > PIECE else (head + body + end,)

    def cut(self) -> None:
        """Break it off: further bytes would be taken for the rest of a piece."""
        self.is_cut = True
        self.over.set()


class HttpConnection:
    """A connection of a client. The stream is closed in the end, and breaks off what cannot be written in time. The
    scheme is `http` or `https`; `client` is the address and the port of the other end, if it has any."""

    def __init__(
        self, application: Application, stream: trio.abc.Stream, scheme: str, client: tuple[str, int] | None = None
    ) -> None:
        self._application = application
        self._stream = stream
        self._about: Final[Message] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "scheme": scheme,
            "client": client,
            "root_path": "",
        }
        self._parser = RequestParser()
        self._life = trio.CancelScope()
        self._closing = False
        self._answer: _Answer | None = None
        """The answer that is under way; None while the connection is idle."""
        self._has_answered = False
        self.idle_until: float = math.inf
        """The time at which it is closed if no request has begun, on Trio's clock; infinite while there is one."""
        self.waits_since: float = math.inf
        """The time at which it began to wait for the head of a request, on Trio's clock; infinite while a request is
        under way."""

    async def serve(self) -> None:
        """Serve one request after another, until either side is done."""
        try:
            with self._life:
                request = await self._request(HEAD_SECONDS)
                while request is not None and await self._answer_request(request) and not self._closing:
                    # Otherwise its headers, perhaps with a token, would stay in memory while the connection is idle.
                    request = self._answer = None
                    self._has_answered = True
                    request = await self._request(IDLE)
        except BadRequest as error:
            await self._refuse(error.status)
        except _LOSS_ERRORS:
            pass  # the client is gone
        finally:
            await trio.aclose_forcefully(self._stream)

    def leave(self) -> None:
        """Close it after the answer that is under way, or the next one."""
        self._closing = True

    def end(self) -> None:
        """Close it: at once if it waits for a request, otherwise after the request under way; if it is not served yet,
        after its first request."""
        self.leave()
        if self.idle_until < math.inf:
            self._life.cancel()

    @property
    def gives_way(self) -> tuple[bool, float] | None:
        """The rank among the connections that give way to others, the lowest first: those that were silent so far or
        are in the middle of a head, and then idle ones; of each, those that wait longest. None while a request is under
        way."""
        if self.waits_since == math.inf:
            return None
        return self._has_answered and not self._parser.has_begun, self.waits_since

    def give_way(self) -> None:
        """Close it, even if a request has begun to arrive: nothing was done for it."""
        self._life.cancel()

    # -- a request ------------------------------------------------------------------------------------------------

    async def _request(self, within: float) -> ParsedRequest | None:
        """The next request, which has so many seconds to begin; None if the connection ends instead.

        Raises:
            BadRequest: It does not speak HTTP/1.1.
        """
        self.waits_since = trio.current_time()
        if not self._parser.has_begun:
            self.idle_until = trio.current_time() + within
            await self._read()
            self.idle_until = math.inf
        request = self._parser.next()
        if request is None and self._parser.has_begun:
            with trio.move_on_after(HEAD_SECONDS):
                while request is None:
                    await self._read()
                    request = self._parser.next()
        self.waits_since = math.inf
        return (
            None if self._life.cancel_called else request
        )  # perhaps at the moment at which the request arrived: nothing was done for it

    async def _read(self) -> bool:
        """Read something. False at the end."""
        data = await self._stream.receive_some(PIECE)
        self._parser.feed(bytes(data))
        return bool(data)

    async def _answer_request(self, request: ParsedRequest) -> bool:
        """Have a request answered. True if there may be another one."""
        answer = self._answer = _Answer(request)
        try:
            await self._application(self._scope(request), self._receive, self._send)
        except Exception as error:
            log_of_client(logger, logging.ERROR, "a request has failed", exc_info=error)
        if not answer.has_begun:  # the body was invalid, or the application has failed
            await self._refuse(self._parser.error or HTTPStatus.INTERNAL_SERVER_ERROR)
        elif answer.over.is_set() and not answer.is_cut:
            if not answer.is_last:
                return True
            await self._linger(request)
        return False  # also if it broke off, or its client has gone: closing the connection shows that

    def _scope(self, request: ParsedRequest) -> Message:
        target, _, query = request.target.partition(b"?")
        if not target.startswith(b"/"):  # the form for a proxy
            target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
        return {
            **self._about,
            "http_version": request.version,
            "method": request.method.decode("ascii"),
            "path": unquote_to_bytes(target).decode("utf-8", "replace"),
            "raw_path": target,
            "query_string": query,
            "headers": request.headers,
        }

    async def _receive(self) -> Message:
        """The next piece of the body, for ASGI; after the last one, the message that the client has gone or has its
        answer."""
        answer = self._answer
        assert answer is not None  # otherwise nothing would receive
        try:
            if not answer.body_taken:
                return await self._body(answer)
            while not (self._parser.has_begun or answer.over.is_set()):
                if not await self._read():
                    return _DISCONNECT
        except _LOSS_ERRORS:
            return _DISCONNECT
        await answer.over.wait()
        return _DISCONNECT

    async def _body(self, answer: _Answer) -> Message:
        request = answer.request
        if not answer.allowed:
            answer.allowed = True
            await self._stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (request.complete or request.body):
            if self._parser.error is not None:
                return _DISCONNECT
            await self._read()
        body, answer.body_taken = request.take(), request.complete
        return {"type": "http.request", "body": body, "more_body": not request.complete}

    # -- its answer -----------------------------------------------------------------------------------------------

    async def _send(self, message: Message) -> None:
        """Send the head of the answer, or a piece of its body, for ASGI. Waits while the client does not read; what is
        sent to a client that has gone is lost. An answer that is cancelled within a piece is the last of the
        connection."""
        answer = self._answer
        assert answer is not None  # otherwise there would be nothing to send
        if message["type"] == "http.response.start":
            answer.start(message["status"], message["headers"], is_last=self._closing)
            return
        await trio.lowlevel.checkpoint_if_cancelled()  # before any of it is written
        pieces = answer.piece(message.get("body", b""), more=message.get("more_body", False))
        if answer.is_cut:
            return
        try:
            for data in filter(None, pieces):
                await self._stream.send_all(data)
        except BaseException as error:
            answer.cut()
            if not isinstance(error, _LOSS_ERRORS):
                raise

    async def _refuse(self, status: HTTPStatus) -> None:
        """Answer a request that the application did not answer, and close."""
        body = _PHRASES[status]
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body)), _CLOSE]
        try:
            await self._stream.send_all(_head(status, headers) + body)
            await self._linger(None)
        except _LOSS_ERRORS:
            pass  # it has gone

    async def _linger(self, request: ParsedRequest | None) -> None:
        """Let a client send the rest of a request that was answered early."""
        if request is not None and request.complete:
            return
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        with trio.move_on_after(LINGER):
            while await self._stream.receive_some(PIECE):
                pass


class _Idle(Protocol):
    idle_until: float


IdleT = TypeVar("IdleT", bound=_Idle)


async def end_idle(kept: Collection[IdleT], end: Callable[[IdleT], object]) -> None:
    """End those of these connections, or sessions, that are idle for too long, until cancelled. A deadline for each
    wait would cost more time, and a task for each would take more memory than all else of a session."""
    while True:
        await trio.sleep(IDLE_CHECK_INTERVAL)
        now = trio.current_time()
        for each in [one for one in kept if one.idle_until <= now]:
            if each.idle_until <= now:  # or it has been used since the turn before
                end(each)
            await trio.lowlevel.checkpoint()


def _head(status: int, headers: Collection[tuple[bytes, bytes]]) -> bytes:
    """The head of a response."""
    lines = [b"HTTP/1.1 %d %b" % (status, _PHRASES.get(status, b""))]
    lines += [b"%b: %b" % line for line in headers]
    lines.append(b"date: " + _date(int(time.time())))
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    if not head.count(b"\r") == head.count(b"\n") == len(lines) + 1:
        raise ValueError("a header of an answer has more than one line")
    return head


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """The time in the format of HTTP."""
    return formatdate(second, usegmt=True).encode()
