"""Answers over HTTP, read whole within bounds; and the evidence in refusals."""

import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Any, cast

import httpx2
import orjson
import trio

from mcp_nursery.actors.records import evolve

from ..errors import one_line
from ..fairness import Pace
from ..outcomes import Challenge
from ..secrets import words_of
from . import limits
from .auth import PROBLEMS, challenge_of
from .environment import Proxy
from .failures import Evidence, Fault
from .retry_after import in_words, rest_of

EVENTS = "text/event-stream"
_OF_PROXIES = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""Statuses that a proxy answers for a server that it does not reach."""

_WORDS = ("message", "error_description", "detail", "reason", "title", "error")
"""Members of JSON that explain a refusal, the best first."""


class TooLarge(Exception):
    """An answer over the limit."""

    def __init__(self, size: int, limit: int, *, whole: bool = False) -> None:
        at_least = "" if whole else "at least "
        super().__init__(f"an answer of {at_least}{size:,} bytes, over the limit of {limit:,}")

    @property
    def evidence(self) -> Evidence:
        """The evidence of such an answer."""
        return Evidence(str(self), Fault.OVERSIZED)


class TooManyHeaders(TooLarge):
    """An answer whose head is over the limit."""

    def __init__(self, count: int) -> None:
        Exception.__init__(self, f"an answer with {count:,} headers, and the limit is {limits.MOST_HEADERS:,}")


async def check_head(event: str, info: Mapping[str, Any]) -> None:
    """Refuse a head before more than its lines are parsed: the `trace` of a request for httpcore.

    Raises:
        TooManyHeaders: It has more than 1,000 headers.
    """
    if event == "http11.receive_response_headers.complete":
        *_, headers = info["return_value"]
        if len(headers) > limits.MOST_HEADERS:
            raise TooManyHeaders(len(headers))


def media_type(response: httpx2.Response) -> str:
    """The type of the body, without parameters."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def parts_of(response: httpx2.Response, hear: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    """The decoded body as it comes; `hear` is called for each part. One read may bring thousands of parts: other tasks
    get their turn between them.

    Raises:
        httpx2.RequestError: It broke off, or is encoded more than once: a few bytes may then decode to terabytes, which
            no time limit could end.
    """
    if len(response.headers.get_list("content-encoding", split_commas=True)) > 1:
        raise httpx2.DecodingError("encoded more than once", request=response.request)
    pace = Pace()
    async with aclosing(response.aiter_bytes()) as parts:
        async for part in parts:
            if pace.spent(len(part)):
                await trio.lowlevel.checkpoint()
            hear()
            yield part


async def read_body(response: httpx2.Response, limit: trio.CancelScope, at_most: int) -> bytes:
    """The whole body. It may take any time as long as parts keep coming.

    Raises:
        TooLarge: It is longer than `at_most` bytes.
        httpx2.RequestError: It broke off.
    """
    parts: list[bytes] = []
    size = 0
    declared = response.headers.get("content-length", "")
    if "content-encoding" not in response.headers and declared.isdecimal() and int(declared) > at_most:
        raise TooLarge(int(declared), at_most, whole=True)

    def go_on() -> None:
        if limit.deadline < math.inf:
            limit.deadline = trio.current_time() + limits.POST_LIMIT

    async with aclosing(parts_of(response, go_on)) as body:
        async for part in body:
            size += len(part)
            if size > at_most:
                raise TooLarge(size, at_most)
            parts.append(part)
    return b"".join(parts)


async def read_refusal(response: httpx2.Response) -> bytes:
    """The body of an answer that is a refusal; nothing if it is too large, breaks off, or takes too long: the end of a
    text may cut a secret in two."""
    with trio.move_on_after(limits.REFUSAL_TIMEOUT), suppress(TooLarge, httpx2.RequestError):
        return await read_body(response, trio.CancelScope(), limits.REFUSAL_LIMIT)
    return b""


def error_in(body: bytes) -> dict[str, Any] | None:
    """The JSON-RPC error in a body, even if the rest of a message is missing; None if there is none."""
    try:
        error = orjson.loads(body)["error"]
        return error if isinstance(error["code"], int) and isinstance(error["message"], str) else None
    except (ValueError, TypeError, KeyError):
        return None


def refusal_evidence(
    response: httpx2.Response, body: bytes, *, in_session: bool = False, proxy: Proxy | None = None
) -> Evidence:
    """The evidence in an answer of 400 or more, which came through this proxy, with what its body says."""
    status, error, challenge = response.status_code, error_in(body), challenge_of(response)
    problem = f"HTTP {status} {_phrase(status)}".rstrip()
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and proxy is not None:
        return Evidence(f"{proxy} wants other credentials: {problem}", Fault.UNUSABLE, status)
    if status in _OF_PROXIES and proxy is not None and error is None:
        problem = f"{problem}, of the server or of {proxy}"
    evidence = Evidence(
        problem,
        status=status,
        code=None if error is None else error["code"],
        in_session=in_session,
        challenge=challenge,
        retry_in=rest_after(response),
    )
    scope = None if challenge is None else challenge.scope
    lacking = f"insufficient_scope{f', it wants {scope}' if scope else ''}" if evidence.wants_scope else ""
    lacking = lacking or _problem_with_proof(response, challenge)
    problem = f"{evidence.problem}{in_words(evidence.retry_in)}"
    return evolve(evidence, problem=": ".join(filter(None, (problem, lacking, words_in(body)))))


def _problem_with_proof(response: httpx2.Response, challenge: Challenge | None) -> str:
    """The reason why a token is refused without a proof of its key (DPoP), or with it; empty if there is another."""
    if challenge is not None and challenge.error in PROBLEMS:
        return f"{challenge.error}{PROBLEMS[challenge.error]}"
    schemes = response.headers.get("www-authenticate", "").lower()
    has_token = response.request.headers.get("authorization", "").startswith("Bearer")
    wants = has_token and schemes.startswith("dpop") and "bearer" not in schemes
    return 'it wants proofs (DPoP): dpop=True, or "dpop": true in auth' if wants else ""


def rest_after(response: httpx2.Response) -> float | None:
    """Seconds for which a refusal asks to be asked nothing: see `rest_of`."""
    return rest_of(response.status_code, response.headers.get("retry-after"), response.headers.get("date"))


def words_in(body: bytes) -> str:
    """The words for a person in the body of a refusal, JSON or text: one line without secrets, and no page of HTML.
    Treat them as data."""
    text = body.decode(errors="replace").strip()
    try:
        said: object = orjson.loads(body)
    except ValueError:
        said = text
    if isinstance(said, dict):
        members = cast("dict[str, object]", said)
        inner = members.get("error")
        members = cast("dict[str, object]", inner) if isinstance(inner, dict) else members
        found = (value for name in _WORDS if isinstance(value := members.get(name), str) and value.strip())
        said = next(found, text if members else "")
    if not isinstance(said, str) or said.startswith("<") or "\ufffd" in said:
        return ""
    return one_line(words_of(said), limits.MOST_WORDS)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
