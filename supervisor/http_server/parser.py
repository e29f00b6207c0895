"""HTTP/1.1 requests from the bytes of a connection. Pure: httptools, which has Node's parser, reads the protocol. A
call through the gateway takes 404 us of CPU; with h11, which writes answers as well, it took 520."""

from collections import deque
from http import HTTPStatus
from typing import Final, cast

import httptools

from mcp_nursery.actors.records import define, field

HEAD: Final = 16 << 10
"""Bytes that may arrive before they make up a whole part of a request: above all of its line and headers."""

_FRAMING: Final = (b"content-length", b"transfer-encoding")


class BadRequest(Exception):
    """The error of a client that does not speak HTTP/1.1, with the status of the answer."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status: Final = status
        """The status that it is answered with."""
        super().__init__(status.phrase)


@define(eq=False)
class ParsedRequest:
    """A request whose headers have arrived."""

    method: bytes
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    """The headers, with lower-case names."""
    keeps_alive: bool
    """True if another request may follow it."""
    body: deque[bytes] = field(factory=deque[bytes])
    """The pieces of the body that were read and not taken yet."""
    complete: bool = False
    """True if the whole body was read."""

    @property
    def expects_continue(self) -> bool:
        """True if its client waits for `100 Continue` before it sends the body."""
        return not (self.complete or self.body) and (b"expect", b"100-continue") in (
            (name, value.lower()) for name, value in self.headers
        )

    def take(self) -> bytes:
        """Take the bytes of the body that were read and not taken yet."""
        taken = b"".join(self.body)
        self.body.clear()
        return taken

    def check(self) -> None:
        """Check the request as a whole, beyond its bytes.

        Raises:
            BadRequest: It cannot be answered as it stands.
        """
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and (hosts or self.version == "1.1"):
            raise BadRequest(HTTPStatus.BAD_REQUEST)
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):  # no others are needed, and parsers differ in how they read them
            raise BadRequest(HTTPStatus.BAD_REQUEST)
        if self.version not in ("1.0", "1.1"):
            raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if self.method == b"CONNECT":  # an answer of 2xx would make it a tunnel
            raise BadRequest(HTTPStatus.NOT_IMPLEMENTED)


class RequestParser:
    """A parser of the bytes of a connection, which returns requests in order. After an error nothing more is read."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._requests: list[ParsedRequest] = []
        self._open: ParsedRequest | None = None
        self._declined: ParsedRequest | None = None
        """The request that offers another protocol, and whose body is still to be read."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._unclear = 0
        self._head = 0
        """Bytes of the line and the headers that are being read."""
        self.error: HTTPStatus | None = None
        """The fault in the bytes that follow the requests."""

    @property
    def has_begun(self) -> bool:
        """True if any part of a next request has arrived."""
        return bool(self._requests or self._unclear or self.error)

    def feed(self, data: bytes) -> None:
        """Parse bytes of the connection; none: it has ended."""
        if self.error is not None:
            return
        if not data:
            if self._unclear or self._open is not None:
                self.error = HTTPStatus.BAD_REQUEST
            return
        self._unclear += len(data)
        try:
            while data:
                data = self._read(data)
        except httptools.HttpParserError:
            self.error = self.error or HTTPStatus.BAD_REQUEST
        if self.error is None and self._unclear > HEAD:
            in_head = self._open is None
            self.error = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if in_head else HTTPStatus.BAD_REQUEST

    def next(self) -> ParsedRequest | None:
        """The next request; None if its headers are not there yet.

        Raises:
            BadRequest: The next bytes are no valid request.
        """
        if self._requests:
            request = self._requests.pop(0)
            request.check()
            return request
        if self.error is not None:
            raise BadRequest(self.error)
        return None

    def _read(self, data: bytes) -> bytes:
        """Read as much as httptools does at once, and return the rest. It stops after the head of a request that offers
        another protocol, as Java's clients offer HTTP/2 with the first request of each connection. No offer is taken
        up."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            rest = data[cast("int", offer.args[0]) :]
        else:
            return b""
        self._parser = httptools.HttpRequestParser(self)
        request = self._requests[-1]
        framing = [b"%b: %b" % line for line in request.headers if line[0] in _FRAMING]
        if framing:
            self._declined = request
            rest = b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", rest])
        return rest

    # -- what httptools calls -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request: its first byte is there."""
        self._unclear = max(self._unclear, 1)
        self._head = 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._target += url
        self._head += len(url)
        if self._head > HEAD:
            raise self._too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer, after the body, is ignored."""
        if self._open is None:
            self._headers.append((name.lower(), value))
            self._head += len(name) + len(value) + 4
            if self._head > HEAD:  # `feed` does not notice a head that arrives whole, with what follows it
                raise self._too_large()

    def _too_large(self) -> BadRequest:
        self.error = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        return BadRequest(self.error)

    def on_headers_complete(self) -> None:
        """Complete the head of a request."""
        if self._declined is not None:
            self._open, self._declined = self._declined, None
            self._open.complete = False
        else:
            parser, version = self._parser, self._parser.get_http_version()
            keeps_alive = version == "1.1" and parser.should_keep_alive()
            self._open = ParsedRequest(parser.get_method(), self._target, version, self._headers, keeps_alive)
            self._requests.append(self._open)
        self._target, self._headers, self._unclear = b"", [], 0

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        assert self._open is not None  # its head was there
        self._open.body.append(body)
        self._unclear = 0

    def on_message_complete(self) -> None:
        """Complete the body of a request."""
        assert self._open is not None  # its head was there
        self._open.complete, self._open = True, None
        self._unclear = 0
