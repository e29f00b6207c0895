"""Answers over HTTP: read whole, refused, or made up in place of one that failed."""

import math
from http import HTTPStatus
from typing import Any

import httpx2
import orjson
import trio
from attrs import frozen
from mcp_types import CONNECTION_CLOSED

from ..errors import folded
from ..failures import Evidence

POST_LIMIT = 60.0
"""Seconds until a POST is answered, and between parts of an answer that is no event stream."""
_OF_THE_TRANSFER = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that describe a body as it came, not as it was read."""


@frozen
class Frame:
    """What a request carries."""

    id: int | str | None = None
    """Of a JSON-RPC request."""
    method: str | None = None

    @property
    def is_request(self) -> bool:
        """Whether it wants an answer."""
        return self.id is not None and self.method is not None


def read_frame(body: bytes) -> Frame:
    """What the SDK has put into a POST."""
    message: dict[str, Any] = orjson.loads(body)
    return Frame(message.get("id"), message.get("method"))


def media_type(response: httpx2.Response) -> str:
    """Of the body, without parameters."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(response: httpx2.Response, limit: trio.CancelScope, at_most: int) -> bytes | None:
    """The body, however long it takes as long as it goes on; None if it is longer than `at_most` bytes."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in response.aiter_bytes():
            if limit.deadline < math.inf:
                limit.deadline = trio.current_time() + POST_LIMIT
            size += len(part)
            if size > at_most:
                return None
            parts.append(part)
    finally:
        await response.aclose()
    return b"".join(parts)


def in_full(response: httpx2.Response, body: bytes) -> httpx2.Response:
    """The same answer with its body read: what the SDK reads later cannot fail."""
    kept = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_TRANSFER]
    whole = httpx2.Response(response.status_code, headers=kept, content=body, request=response.request)
    whole.next_request = response.next_request
    return whole


def error_in(body: bytes) -> dict[str, Any] | None:
    """The JSON-RPC error in a body, whatever else of a message is missing there; None if there is none."""
    try:
        error = orjson.loads(body)["error"]
        return error if isinstance(error["code"], int) and isinstance(error["message"], str) else None
    except (ValueError, TypeError, KeyError):
        return None


def refused(status: int, error: dict[str, Any] | None = None, *, in_session: bool = False) -> Evidence:
    """What an answer of 400 or more shows."""
    told = f"HTTP {status} {_phrase(status)}".rstrip()
    if error is None:
        return Evidence(told, status=status, in_session=in_session)
    told = f"{told}: {folded(error['message'])}"
    return Evidence(told, status=status, code=error["code"], in_session=in_session)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def accepted(request: httpx2.Request) -> httpx2.Response:
    """What the SDK gets for a POST whose fate is nothing to it."""
    return httpx2.Response(HTTPStatus.ACCEPTED, request=request)


def stand_in(evidence: Evidence) -> dict[str, Any]:
    """The JSON-RPC error for an answer that brought none."""
    return {"code": evidence.status or CONNECTION_CLOSED, "message": evidence.told}


def rejection(request: httpx2.Request, frame: Frame, error: dict[str, Any]) -> httpx2.Response:
    """An answer with a JSON-RPC error, as the SDK reads it under any circumstances."""
    message = {"jsonrpc": "2.0", "id": frame.id, "error": error}
    return httpx2.Response(HTTPStatus.OK, json=message, request=request)
