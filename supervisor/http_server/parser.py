"""HTTP/1.1 requests out of the bytes of a connection. Pure: httptools reads the protocol, with Node's parser. With h11,
which writes answers as well, a call through the gateway took 520 us of CPU; it takes 404."""

from collections import deque
from http import HTTPStatus
from typing import Final, cast

import httptools
from attrs import define, field

HEAD: Final = 16 << 10
"""Bytes that may come of which nothing is known yet: of a request's line and headers above all."""

_FRAMING: Final = (b"content-length", b"transfer-encoding")


class BadRequest(Exception):
    """The error of a client that does not speak HTTP/1.1.

    Args:
        status: The status of the answer.
    """

    def __init__(self, status: HTTPStatus) -> None:
        self.status: Final = status
        """The status that it is answered with."""
        super().__init__(status.phrase)


@define(eq=False)
class ParsedRequest:
    """A request whose headers are there."""

    method: bytes
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    """Names in small letters."""
    keeps_alive: bool
    """True if there may be another one after it."""
    body: deque[bytes] = field(factory=deque[bytes])
    """The pieces of the body that were read and not taken."""
    complete: bool = False
    """True if all of it was read."""

    @property
    def expects_continue(self) -> bool:
        """True if its client waits for `100 Continue` before it sends the body."""
        return not (self.complete or self.body) and (b"expect", b"100-continue") in (
            (name, value.lower()) for name, value in self.headers
        )

    def take(self) -> bytes:
        """The rest of the body that was read."""
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
        if codings not in ([], [b"chunked"]):  # nothing else is needed, and readers differ in what they make of it
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
        """Offers another protocol; its body is still to be read."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._unclear = 0
        self._head = 0
        """Bytes of the line and the headers that are being read."""
        self.error: HTTPStatus | None = None
        """The fault of the bytes after all that was read."""

    @property
    def has_begun(self) -> bool:
        """True if there is anything of a next request."""
        return bool(self._requests or self._unclear or self.error)

    def feed(self, data: bytes) -> None:
        """Bytes of the connection; none: it has ended."""
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
            BadRequest: There is none.
        """
        if self._requests:
            request = self._requests.pop(0)
            request.check()
            return request
        if self.error is not None:
            raise BadRequest(self.error)
        return None

    def _read(self, data: bytes) -> bytes:
        """Read as much as httptools does at once; what is left. It stops after the head of a request that offers
        another protocol, as Java's clients offer HTTP/2 with the first one of each connection. None is taken up."""
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
        """A piece of the target."""
        self._target += url
        self._head += len(url)
        if self._head > HEAD:
            raise self._too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or after the body a trailer, which says nothing."""
        if self._open is None:
            self._headers.append((name.lower(), value))
            self._head += len(name) + len(value) + 4
            if self._head > HEAD:  # a head can come whole with what follows it
                raise self._too_large()

    def _too_large(self) -> BadRequest:
        self.error = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        return BadRequest(self.error)

    def on_headers_complete(self) -> None:
        """The head is there."""
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
        """A piece of the body."""
        assert self._open is not None  # its head was there
        self._open.body.append(body)
        self._unclear = 0

    def on_message_complete(self) -> None:
        """The body is there."""
        assert self._open is not None  # its head was there
        self._open.complete, self._open = True, None
        self._unclear = 0
