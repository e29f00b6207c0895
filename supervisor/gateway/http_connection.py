"""One HTTP/1.1 connection, served by an ASGI application on Trio. h11 reads and writes the protocol.

A server of its own, since one request through Hypercorn costs three times the CPU (430 to 660 us against 145 to 175),
and its writes can be neither cancelled nor timed. One task a connection, one request after another. While the
application works on one, its `receive` alone reads, and so learns that the client has gone; what a client sends ahead
of its answer is not read on until then.
"""

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import h11
import trio

logger: Final = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

HEAD: Final = 16 << 10
"""Bytes of a request's line and headers."""
HEAD_SECONDS: Final = 5.0
"""Seconds from the first byte of a request to the last of its headers, and from the beginning of a connection to the
first byte, a TLS handshake included."""
IDLE: Final = 75.0
"""Seconds that a connection may be without a request after one: nginx's default, longer than clients keep one, so that
hardly any writes to one that is just being closed."""
LINGER: Final = 2.0
"""Seconds in which a client whose request was answered early may still send the rest: closed on unread bytes, a
connection takes the answer with it."""

_PIECE: Final = 64 << 10
_GONE: Final[Message] = {"type": "http.disconnect"}
_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class HttpConnection:
    """A connection of a client.

    Args:
        application: Whom its requests are for.
        stream: The connection. It is closed in the end. What cannot be written in time is for the stream to break.
        scheme: `http` or `https`.
        client: Address and port of the other end, if it has any.
    """

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
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD)
        self._between: trio.CancelScope | None = None
        self._closing = False
        self._head: h11.Response | None = None
        self._bodiless = False
        self._answered = trio.Event()

    async def serve(self) -> None:
        """Serve one request after another, until either side is done."""
        try:
            within = HEAD_SECONDS
            while (request := await self._request(within)) is not None and await self._exchange(request):
                within = IDLE
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
        except _LOST:
            pass  # nobody is left who could be told
        finally:
            await trio.aclose_forcefully(self._stream)

    def end(self) -> None:
        """Close it: at once, or when the request has ended that is under way."""
        self._closing = True
        if self._between is not None:
            self._between.cancel()

    # -- a request ------------------------------------------------------------------------------------------------

    async def _request(self, within: float) -> h11.Request | None:
        """The next request, that has to begin within so many seconds; None if the connection ends instead."""
        if self._closing:
            return None
        event: object = self._protocol.next_event()
        if event is h11.NEED_DATA:
            with trio.move_on_after(within) as self._between:
                await self._read()
            late, self._between = self._between.cancelled_caught, None
            if late:
                return None
            with trio.move_on_after(HEAD_SECONDS):
                event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def _read(self) -> bool:
        """Read something; whether there was anything before the end."""
        data = await self._stream.receive_some(_PIECE)
        self._protocol.receive_data(bytes(data))
        return bool(data)

    async def _event(self) -> object:
        """The next event of the client's side.

        Raises:
            h11.RemoteProtocolError: It does not speak HTTP/1.1.
        """
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            await self._read()
        return event

    async def _exchange(self, request: h11.Request) -> bool:
        """Have a request answered; whether there may be another one."""
        if request.method == b"CONNECT":  # an answer of 2xx would make it a tunnel
            await self._refuse(HTTPStatus.NOT_IMPLEMENTED)
            return False
        self._head, self._bodiless, self._answered = None, request.method == b"HEAD", trio.Event()
        try:
            await self._application(self._scope(request), self._receive, self._send)
        except Exception:
            logger.exception("a request has failed")
        match self._protocol.states[h11.CLIENT], self._protocol.states[h11.SERVER]:
            case h11.DONE, h11.DONE:
                self._protocol.start_next_cycle()
                return True
            case h11.ERROR, h11.SEND_RESPONSE:
                await self._refuse(HTTPStatus.BAD_REQUEST)  # its body is none
            case _, h11.SEND_RESPONSE:
                await self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
            case _, h11.MUST_CLOSE:
                await self._linger()
            case _:
                pass  # its client has gone, or its answer broke off: the end says so
        return False

    def _scope(self, request: h11.Request) -> Message:
        target, _, query = request.target.partition(b"?")
        if not target.startswith(b"/"):  # as a proxy is asked
            target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
        return {
            **self._about,
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii"),
            "path": unquote_to_bytes(target).decode("utf-8", "replace"),
            "raw_path": target,
            "query_string": query,
            "headers": list(request.headers),
        }

    async def _receive(self) -> Message:
        """ASGI: the next piece of the body; after the last one, that the client has gone or has its answer."""
        try:
            if self._protocol.their_state is h11.SEND_BODY:
                return await self._body()
            while not self._protocol.trailing_data[0] and not self._answered.is_set():
                if not await self._read():
                    return _GONE
        except (h11.RemoteProtocolError, *_LOST):
            return _GONE
        await self._answered.wait()
        return _GONE

    async def _body(self) -> Message:
        if self._protocol.they_are_waiting_for_100_continue:
            await self._write(h11.InformationalResponse(status_code=100, headers=[]))
        event = await self._event()
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        return {"type": "http.request", "body": b"", "more_body": False}

    # -- its answer -----------------------------------------------------------------------------------------------

    async def _send(self, message: Message) -> None:
        """ASGI: the head of the answer, or a piece of its body. Waits while the client does not read; what is said to
        one that has gone is lost. Cancelled within a piece, it is the last of the connection."""
        if message["type"] == "http.response.start":
            self._head = self._response(message["status"], message["headers"])
            return
        await trio.lowlevel.checkpoint_if_cancelled()  # before any of it is written
        events: list[h11.Event] = [] if self._head is None else [self._head]
        self._head = None
        if message.get("body") and not self._bodiless:
            events.append(h11.Data(data=message["body"]))
        if not message.get("more_body"):
            events.append(h11.EndOfMessage())
            self._answered.set()
        try:
            await self._write(*events)
        except BaseException as error:
            self._protocol.send_failed()  # what would follow would be taken for the rest of this
            self._answered.set()
            if not isinstance(error, _LOST):
                raise

    def _response(self, status: int, headers: list[tuple[bytes, bytes]]) -> h11.Response:
        own = [(b"date", _date(int(time.time())))]
        if self._closing or self._protocol.their_state is h11.SEND_BODY:
            own.append((b"connection", b"close"))
        return h11.Response(status_code=status, headers=[*headers, *own])

    async def _write(self, *events: h11.Event) -> None:
        if self._protocol.our_state is not h11.ERROR:
            await self._stream.send_all(b"".join([self._protocol.send(event) or b"" for event in events]))

    async def _refuse(self, status: int) -> None:
        """Answer what has no answer, and close."""
        if self._protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        self._closing = True
        body = HTTPStatus(status).phrase.encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
        try:
            await self._write(self._response(status, headers), h11.Data(data=body), h11.EndOfMessage())
            await self._linger()
        except _LOST:
            pass  # it has gone

    async def _linger(self) -> None:
        if self._protocol.their_state in (h11.DONE, h11.CLOSED):
            return
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        with trio.move_on_after(LINGER):
            while await self._stream.receive_some(_PIECE):
                pass


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """The time, as HTTP has it."""
    return formatdate(second, usegmt=True).encode()
