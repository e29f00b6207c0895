"""The answer to the request for a WebSocket, judged before trio-websocket reads it. No I/O and no state."""

import re
from http import HTTPStatus
from urllib.parse import urlsplit

from mcp_nursery.actors.records import frozen

from ...errors import StartFailed
from ...http.retry_after import in_words, rest_of
from ...secrets import shown_url

SUBPROTOCOL = "mcp"
"""The subprotocol offered. A server that chooses none is accepted: older ones know of none."""

HEAD_LIMIT = 64 << 10
"""Bytes of an answer's head; a longer one is refused."""

_START = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")

_HANDSHAKE_PASSING_STATUSES = frozenset({404, 408, 425, 429})
"""Statuses that may pass by themselves. Many proxies answer 404 while the server behind them restarts."""


@frozen
class HandshakeRefusal:
    """The reason why there is no WebSocket."""

    problem: str
    """The problem, shown after the URL."""
    retriable: bool = True
    """True if another try may succeed."""
    status: int | None = None
    """The HTTP status, where there was one."""
    retry_in: float | None = None
    """Seconds for which the server wants to be asked nothing; None if it did not say."""

    def failure(self, url: str) -> StartFailed:
        """The error for the host; `url` is as `shown_url` gives it."""
        needs_auth = self.status == HTTPStatus.UNAUTHORIZED
        problem = f"url {url!r} {self.problem}"
        return StartFailed(problem, retriable=self.retriable, needs_auth=needs_auth, retry_in=self.retry_in)


def is_decidable(head: bytes) -> bool:
    """True if `head`, all that was read so far, is enough for `refusal_of`."""
    return _BLANK_LINE.search(head) is not None or len(head) > HEAD_LIMIT or not _begins_http(head)


def status_in(head: bytes) -> int | None:
    """The status of an answer; None if it is not HTTP."""
    line = _STATUS_LINE.match(head)
    return None if line is None else int(line[1])


def refusal_of(head: bytes) -> HandshakeRefusal | None:
    """The reason why the head of an answer opens no WebSocket; None if it does."""
    status = status_in(head)
    if status is None:
        return HandshakeRefusal("does not speak HTTP", retriable=False)
    if _BLANK_LINE.search(head) is None:
        return HandshakeRefusal(f"sent more than {HEAD_LIMIT >> 10} KiB without an end of its headers", retriable=False)
    if status != HTTPStatus.SWITCHING_PROTOCOLS:
        return _refusal_of_status(status, head)
    chosen = _header(head, "Sec-WebSocket-Protocol")
    if chosen not in (None, SUBPROTOCOL):
        return HandshakeRefusal(
            f"chose the subprotocol {chosen!r}, and only {SUBPROTOCOL!r} was offered", retriable=False
        )
    return None


def _refusal_of_status(status: int, head: bytes) -> HandshakeRefusal:
    place = _header(head, "Location")
    if status in range(300, 400) and place is not None:
        problem = f"redirects ({status}) to {_show_place(place)!r}, which is not followed: configure that url"
        return HandshakeRefusal(problem, retriable=False, status=status)
    rest = rest_of(status, _header(head, "Retry-After"), _header(head, "Date"))
    passes = status in _HANDSHAKE_PASSING_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    problem = f"answered {_name_status(status)} and opened no WebSocket{in_words(rest)}"
    return HandshakeRefusal(problem, retriable=passes or rest is not None, status=status, retry_in=rest)


def _name_status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _show_place(place: str) -> str:
    return shown_url(place) if "//" in place else urlsplit(place).path


def _header(head: bytes, name: str) -> str | None:
    end = _BLANK_LINE.search(head)
    found = re.search(rf"(?im)^{name}:[ \t]*(.*?)[ \t]*\r?$", head[: end and end.start()].decode("latin-1"))
    return found and found[1]


def _begins_http(head: bytes) -> bool:
    return head[: len(_START)] == _START[: len(head)]
