"""The issuer of access tokens: its keys, fetched and kept within bounds, and the claims of its tokens.

Needs what the extra `gateway` installs.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx2
import jwt
import orjson
import trio
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from mcp_nursery.actors.errors import unforeseen
from mcp_nursery.actors.http.address import Address, evidence_of
from mcp_nursery.actors.http.responses import rest_after
from mcp_nursery.actors.http.retry_after import in_words
from mcp_nursery.actors.http.routes import Routes
from mcp_nursery.actors.oauth.settings import LOOPBACK

from .principal import RETRY_AFTER, Refused

logger: Final = logging.getLogger(__name__)

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric algorithms: with a shared key, any party that can check a token can make one."""
LONGEST_TOKEN: Final = 8192
"""Characters of a token."""
LEEWAY: Final = 30.0
"""Seconds by which the issuer's clock and ours may differ."""
FRESH: Final = 600.0
"""Seconds for which keys are used before they are fetched again."""
STALE: Final = 3600.0
"""Seconds for which keys are used while they cannot be fetched again."""
FETCH_INTERVAL: Final = 30.0
"""Seconds between two fetches, whatever keys tokens name; more if the issuer asks for more time."""
FETCH_TIMEOUT: Final = 10.0
"""Seconds for a fetch."""
DOCUMENT: Final = 256 << 10
"""Bytes of a document of an issuer."""
MOST_KEYS: Final = 100
"""Keys of an issuer."""
WAITING: Final = 100
"""Requests that wait for a fetch; others are refused. Their clients are not yet identified."""
WEAKEST: Final = 2048
"""Bits that an RSA key has at least."""

_TOKEN_TYPES: Final = frozenset(["jwt", "at+jwt", "application/at+jwt"])
_REQUIRED: Final = ("exp", "iss", "sub", "aud")
_DATES: Final = ("exp", "nbf", "iat")


class InvalidToken(ValueError):
    """The error of a token that admits nobody. Its text is one that the client may read."""


class _Unusable(ValueError):
    """The error of an issuer's answer that cannot be used."""


class _Postponed(_Unusable):
    """The error of an issuer that is not to be asked anything else now."""

    def __init__(self, problem: str, rest: float) -> None:
        self.rest = rest
        """Seconds for which it wants to be asked nothing; 0 if it did not say."""
        super().__init__(problem)


def is_safe(url: str) -> bool:
    """True if nobody on the way can change what this URL returns."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


class Issuer:
    """An issuer of access tokens. `url` is the URL by which it names itself, and `jwks` that of its keys; None: as its
    metadata says."""

    def __init__(self, url: str, jwks: str | None) -> None:
        self._url = url
        self._jwks = jwks
        self._keys: Mapping[str, Mapping[str, Any]] = {}
        self._made: dict[tuple[str, str], jwt.PyJWK] = {}
        self._fetched = self._tried = -math.inf
        self._rest = 0.0
        """Seconds for which the issuer wanted to be asked nothing, when it was last asked."""
        self._fetching = trio.Lock()
        self._is_kept = False
        """True while `keep_fresh` runs, so that no request has to wait for the keys."""

    async def keep_fresh(self) -> None:
        """Fetch the keys before they are too old, until cancelled; requests use the present ones meanwhile."""
        self._is_kept = True
        try:
            while True:
                async with self._fetching:
                    if self._pause() <= 0:
                        await self._fetch_keys()
                await trio.sleep(max(self._pause(), self._fetched + FRESH - trio.current_time()))
        finally:
            self._is_kept = False

    async def claims(self, token: str, audiences: Collection[str]) -> Mapping[str, Any]:
        """The claims of a token, if this issuer has made it for one of these audiences, and it is valid now.

        Raises:
            InvalidToken: The token is not such a one.
            Refused: The issuer's keys cannot be fetched.
        """
        if len(token) > LONGEST_TOKEN:
            raise InvalidToken("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise InvalidToken("this is no JWT") from None
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS or "crit" in header or str(header.get("typ", "JWT")).lower() not in _TOKEN_TYPES:
            raise InvalidToken("tokens of this kind are not taken")
        key = await self._key(header.get("kid"), algorithm)
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=list(audiences),
                issuer=self._url,
                leeway=LEEWAY,
                options={"require": list(_REQUIRED)},
            )
        except jwt.ExpiredSignatureError:
            raise InvalidToken("the token has expired") from None
        except (jwt.PyJWTError, ValueError, ArithmeticError, RecursionError, TypeError):
            raise InvalidToken("the token is not valid here") from None
        if not all(_is_date(claims[name]) for name in _DATES if name in claims):
            raise InvalidToken("the token is not valid here")
        return claims

    async def _key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        await self._refresh(key_id)
        if not self._keys or trio.current_time() - self._fetched > STALE:
            problem = "the issuer of tokens cannot be reached"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, problem, {"retry-after": f"{math.ceil(self._pause())}"})
        name = next(iter(self._keys)) if key_id is None and len(self._keys) == 1 else key_id or ""
        made = self._made.get((name, algorithm))
        if made is None:
            found = self._keys.get(name)
            if found is None or found.get("alg", algorithm) != algorithm:
                raise InvalidToken("the token is not valid here")
            made = self._made[name, algorithm] = _load_key(found, algorithm)
        return made

    async def _refresh(self, key_id: str | None) -> None:
        """Fetch the keys, if they are old or lack this one, and the last attempt is long enough ago.

        Raises:
            Refused: Too many requests wait for the keys.
        """
        if self._is_known(key_id):
            return
        if self._fetching.statistics().tasks_waiting >= WAITING:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many tokens wait for their key", RETRY_AFTER)
        async with self._fetching:
            if not self._is_known(key_id) and self._pause() <= 0:
                await self._fetch_keys()

    def _pause(self) -> float:
        """Seconds until the issuer may be asked again; 0 if it may be now."""
        return max(self._tried + max(FETCH_INTERVAL, self._rest) - trio.current_time(), 0.0)

    async def _fetch_keys(self) -> None:
        """Fetch the keys. If that fails, those that are here stay."""
        try:
            with trio.fail_after(FETCH_TIMEOUT):
                self._keys, self._made = await self._fetch(), {}
            self._fetched, self._rest = trio.current_time(), 0.0
        except trio.TooSlowError:
            logger.warning("the keys of %s cannot be had: not within %g s", self._url, FETCH_TIMEOUT)
        except httpx2.RequestError as error:
            problem = evidence_of(error, Address.of(str(error.request.url))).problem
            logger.warning("the keys of %s cannot be had: %s", self._url, problem)
        except _Unusable as error:
            self._rest = error.rest if isinstance(error, _Postponed) else 0.0
            logger.warning("the keys of %s cannot be had: %s", self._url, error)
        except (httpx2.InvalidURL, OSError, ValueError) as error:
            logger.warning("the keys of %s cannot be had: %s", self._url, unforeseen(error))
        finally:
            self._tried = trio.current_time()

    def _is_known(self, key_id: str | None) -> bool:
        holds = trio.current_time() - self._fetched <= (STALE if self._is_kept else FRESH)
        return holds and (key_id in self._keys or (key_id is None and bool(self._keys)))

    async def _fetch(self) -> Mapping[str, Mapping[str, Any]]:
        async with httpx2.AsyncClient(
            transport=Routes(), timeout=FETCH_TIMEOUT, headers={"accept-encoding": "identity"}
        ) as http:
            document = await _fetch_document(http, self._jwks or await self._find_keys_url(http))
        listed: object = document.get("keys")
        if not isinstance(listed, list):
            raise _Unusable("no list of keys")
        found: dict[str, Mapping[str, Any]] = {}
        for each in cast("list[object]", listed)[:MOST_KEYS]:
            if isinstance(each, dict) and _checks_signatures(key := cast("dict[str, Any]", each)):
                found.setdefault(str(key.get("kid", "")), key)
        return found

    async def _find_keys_url(self, http: httpx2.AsyncClient) -> str:
        """The URL of the keys, by the issuer's metadata."""
        for place in _metadata_urls(self._url):
            try:
                said = await _fetch_document(http, place)
            except _Postponed:
                raise
            except _Unusable:
                continue
            keys = said.get("jwks_uri")
            if said.get("issuer") == self._url and isinstance(keys, str) and is_safe(keys):
                return keys
        raise _Unusable("no metadata that is its own, with a jwks_uri")


def _metadata_urls(issuer: str) -> Sequence[str]:
    """The URLs of an issuer's metadata: by RFC 8414, and by OpenID Connect in both places that are in use."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]


async def _fetch_document(http: httpx2.AsyncClient, url: str) -> Mapping[str, Any]:
    body = b""
    async with http.stream("GET", url, follow_redirects=False) as response:
        if response.status_code != HTTPStatus.OK:
            rest = rest_after(response)
            problem = f"HTTP {response.status_code}{in_words(rest)}"
            if rest is not None or response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
                raise _Postponed(problem, rest or 0.0)
            raise _Unusable(problem)
        async for part in response.aiter_raw():
            body += part
            if len(body) > DOCUMENT:
                raise _Unusable(f"more than {DOCUMENT} bytes")
    try:
        document: object = orjson.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise _Unusable("no JSON object")
    return cast("dict[str, Any]", document)


def _is_date(value: object) -> bool:
    """True if the value is a number of seconds, and not too large for a clock."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _checks_signatures(key: Mapping[str, Any]) -> bool:
    operations: object = key.get("key_ops", ["verify"])
    return (
        key.get("kty") in ("RSA", "EC", "OKP")
        and key.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
    )


def _load_key(key: Mapping[str, Any], algorithm: str) -> jwt.PyJWK:
    try:
        made = jwt.PyJWK(dict(key), algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        raise InvalidToken("the token is not valid here") from None
    if isinstance(made.key, RSAPublicKey) and made.key.key_size < WEAKEST:
        raise InvalidToken("the token is not valid here")
    return made
