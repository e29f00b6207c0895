"""Requests to issuers of tokens: each on its own, bounded, to https or this machine. Answers are quoted nowhere: where
a token is expected, any text may be one."""

import base64
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

import httpx2
import orjson
import trio
from mcp.shared.auth import OAuthToken
from pydantic import ValidationError

from mcp_nursery.actors.records import evolve

from ..errors import StartFailed
from ..http.address import Address, evidence_of
from ..http.auth import PROBLEMS, USE_NONCE
from ..http.responses import TooLarge, check_head, read_body, rest_after
from ..http.retry_after import in_words
from ..http.routes import Routes
from .settings import OAuth, is_loopback
from .tokens import Tokens

if TYPE_CHECKING:
    from .dpop import Prover

ANSWER_TIMEOUT = 10.0
"""Seconds that one answer may take."""
_LARGEST_ANSWER = 1 << 18
"""Bytes of an answer: a larger one would take a whole turn of the loop."""
_TOKEN_PATTERN = re.compile(r"[\x21-\x7e]{1,16384}")
"""A token: text that fits into a header, and is no longer than servers read."""
_LONGEST_LIFETIME = 10 * 365 * 86400
"""The longest lifetime in seconds that a token may claim."""
_BUSY = (408, 425, 429)
_FAILED = 500
_SUCCESS = (200, 201)
_CODE = re.compile("[a-z_]{1,40}")
CLIENT_REFUSED: Final = frozenset(["invalid_client", "unauthorized_client"])
"""The error codes of an issuer that does not know the client, or not any more."""
_FOR_BODIES = (b"content-encoding", b"content-length", b"transfer-encoding")


class Passing(Exception):
    """The issuer cannot be reached, or has failed. That says nothing about any token."""

    def __init__(self, problem: str, retry_in: float | None = None) -> None:
        self.retry_in = retry_in
        """Seconds for which the issuer wants to be asked nothing; None if it did not say."""
        super().__init__(problem)

    @classmethod
    def of(cls, response: httpx2.Response) -> "Passing":
        """The failure of which an answer tells by its status."""
        rest = rest_after(response)
        return cls(f"{response.request.url.host} answered HTTP {response.status_code}{in_words(rest)}", rest)


class GrantRefused(Exception):
    """The issuer refuses."""

    def __init__(self, problem: str, code: str | None = None) -> None:
        self.code = code
        """The error code (RFC 6749), such as `invalid_grant`; None if there is none."""
        super().__init__(problem)


async def send(request: httpx2.Request, ca_file: str | None) -> httpx2.Response:
    """Send a request; return the whole answer. Redirects are left to the caller. `ca_file`: see `OAuth`.

    Raises:
        Passing: There is no answer.
        GrantRefused: The URL is not valid, or would send clear text to another machine.
    """
    try:
        address = Address.of(str(request.url))
    except StartFailed:
        raise GrantRefused("the issuer's URL is none") from None
    if request.url.scheme != "https" and not is_loopback(str(request.url.copy_with(port=request.url.port or 80))):
        raise GrantRefused(f"{address.bare} is not asked: secrets go by https alone")
    try:
        with trio.move_on_after(ANSWER_TIMEOUT):
            return await _send(request, ca_file)
    except httpx2.RequestError as error:
        raise Passing(evidence_of(error, address).problem) from None
    except TooLarge as error:
        raise Passing(f"{address.host}: {error}") from None
    raise Passing(f"{address.host} did not answer within {ANSWER_TIMEOUT:g} s")


async def _send(request: httpx2.Request, ca_file: str | None) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=Routes(ca_file=ca_file), timeout=None) as client:
        request.extensions = {**request.extensions, "trace": check_head}
        response = await client.send(request, stream=True, follow_redirects=False)
        moved = response.next_request is not None
        body = b"" if moved else await read_body(response, trio.CancelScope(), _LARGEST_ANSWER)
        await response.aclose()
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _FOR_BODIES]
    whole = httpx2.Response(response.status_code, headers=headers, content=body, request=request)
    whole.next_request = response.next_request
    return whole


async def ask(request: httpx2.Request, ca_file: str | None, prover: "Prover | None") -> httpx2.Response:
    """Send a request for a token, with a proof of its key if there is one; once more if the issuer wants a nonce in it,
    since it has not acted then.

    Raises:
        Passing, GrantRefused: See `send`.
    """
    if prover is None:
        return await send(request, ca_file)
    prover.prove(request)
    response = await send(request, ca_file)
    if prover.learn(response) and document(response).get("error") == USE_NONCE:
        prover.prove(request)
        response = await send(request, ca_file)
        prover.learn(response)
    return response


def check_answer(response: httpx2.Response) -> None:
    """Check that an answer to a POST grants something.

    Raises:
        Passing: It decides nothing.
        GrantRefused: The issuer refuses.
    """
    where, status = f"{response.request.url.host}", response.status_code
    if status >= _FAILED or status in _BUSY:
        raise Passing.of(response)
    code = document(response).get("error")
    if status not in _SUCCESS or isinstance(code, str):
        known = code if isinstance(code, str) and _CODE.fullmatch(code) else None
        raise GrantRefused(
            f"{where} refuses: HTTP {status}{f' {known}' if known else ''}{PROBLEMS.get(known or '', '')}", known
        )


def token_in(response: httpx2.Response, *, bound: bool) -> OAuthToken:
    """The token in an answer. `bound`: it has to be bound to the key of which the request had a proof.

    Raises:
        Passing: It decides nothing.
        GrantRefused: The issuer refuses.
    """
    check_answer(response)
    said = dict(document(response))
    if bound:
        if str(said.get("token_type")).lower() != "dpop":
            raise GrantRefused(f"{response.request.url.host} gave a token that is bound to no key, which dpop forbids")
        del said["token_type"]  # the SDK knows no type but Bearer
    said["expires_in"] = _seconds(said.get("expires_in"))
    try:
        token = OAuthToken.model_validate(said)
    except ValidationError:  # whose text quotes it
        token = None
    if token is None or not all(
        _TOKEN_PATTERN.fullmatch(each) for each in (token.access_token, token.refresh_token or "-")
    ):
        raise Passing(f"{response.request.url.host} answered something that is no token")
    return token


def _seconds(said: object) -> int | None:
    """The lifetime of a token, if it is a number: some issuers send it as text. The token counts in any case."""
    try:
        seconds = float(cast("Any", said))
    except (TypeError, ValueError, OverflowError):
        return None
    return int(seconds) if 0 <= seconds <= _LONGEST_LIFETIME else None


def document(response: httpx2.Response) -> Mapping[str, Any]:
    """The JSON object in an answer; empty if there is none."""
    try:
        said = orjson.loads(response.content)
    except ValueError:
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


async def refresh(tokens: Tokens, words: OAuth, prover: "Prover | None" = None) -> Tokens:
    """Renew the tokens, with a proof of the key that they are bound to, if they are.

    Raises:
        Passing: It is not possible now.
        GrantRefused: The issuer refuses.
    """
    client = dict(tokens.client)
    if words.client_id is not None:
        client |= {"client_id": words.client_id, "client_secret": words.client_secret}
    if not client.get("client_id"):
        raise GrantRefused("it is not known which client the tokens were granted to")
    form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh or ""}
    if tokens.resource is not None:
        form["resource"] = tokens.resource
    headers = add_client(form, client)
    request = httpx2.Request("POST", tokens.token_endpoint, data=form, headers=headers)
    token = token_in(await ask(request, words.ca_file, prover), bound=prover is not None)
    return evolve(
        tokens,
        access=token.access_token,
        refresh=token.refresh_token or tokens.refresh,
        expires_at=end_of(token),
        scope=token.scope or tokens.scope,
    )


def end_of(token: OAuthToken) -> float | None:
    """The time at which a token expires, in seconds since 1970."""
    return None if token.expires_in is None else time.time() + token.expires_in


def add_client(form: dict[str, str], client: Mapping[str, Any]) -> dict[str, str]:
    """Name the client in the form, and authenticate it as it was registered: by a secret in the form or in the returned
    headers, or without one."""
    form["client_id"] = client["client_id"]
    secret, method = client.get("client_secret"), client.get("token_endpoint_auth_method") or "client_secret_basic"
    if not secret or method == "none":
        return {}
    if method == "client_secret_post":
        form["client_secret"] = secret
        return {}
    pair = f"{quote(client['client_id'], safe='')}:{quote(secret, safe='')}"
    return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
