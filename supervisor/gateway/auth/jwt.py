"""The gateway as a resource server of OAuth: access tokens that an issuer has made for it, as JWTs.

Clients discover the issuer by themselves, by RFC 9728.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit

from mcp_nursery.actors.errors import ConfigError

from ...extras import needs_extra
from .principal import Principal, Refused, bearer_of, path_of

WELL_KNOWN: Final = ".well-known/oauth-protected-resource"


class OAuthResource:
    """The protected resource of OAuth: it admits clients with an issuer's access token for this gateway. For
    `open_http(oauth=…)`. Needs what the extra `gateway` installs.

    A token is a JWT, signed by a key of the issuer with an asymmetric algorithm, for one of `audiences` or for the
    requested address (`URL/mcp`, `URL/mcp/{server}`), and valid now. A client is identified by issuer and subject, and
    may use everything.

    Args:
        issuer: The issuer of tokens, by the name in its tokens.
        url: The address by which clients call this gateway, `https://HOST[:PORT]`, without `/mcp`.
        audiences: Further audiences that tokens may be for.
        scopes: The scopes that a token needs, all of them.
        jwks: The address of the issuer's keys. Default: as its metadata (RFC 8414, OpenID Connect) says.

    Raises:
        ConfigError: An address cannot be used.
        ModuleNotFoundError: The extra is not installed.
    """

    def __init__(
        self,
        issuer: str,
        url: str,
        *,
        audiences: Collection[str] = (),
        scopes: Sequence[str] = (),
        jwks: str | None = None,
    ) -> None:
        with needs_extra("gateway"):
            from .issuer import Issuer, is_safe

        for name, place in (("issuer", issuer), ("jwks", jwks)):
            if place is not None and not (is_safe(place) and urlsplit(place).hostname):
                raise ConfigError(f"must be an https URL, not {place!r}", field=name)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ConfigError(f"must be https://HOST[:PORT], not {url!r}", field="url")
        self.issuer: Final = issuer
        """The issuer of tokens."""
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._audiences = frozenset(audiences)
        self._scopes = tuple(scopes)
        self._tokens: Issuer = Issuer(issuer, jwks)

    def metadata(self, path: str) -> Mapping[str, Any]:
        """The metadata that shows clients the issuer of tokens, by RFC 9728.

        Args:
            path: The path of the resource that they mean, such as `/mcp`.
        """
        said: dict[str, Any] = {
            "resource": self._resource(path),
            "authorization_servers": [self.issuer],
            "bearer_methods_supported": ["header"],
        }
        return said | ({"scopes_supported": list(self._scopes)} if self._scopes else {})

    async def keep_fresh(self) -> None:
        """Fetch the issuer's keys before they are too old, until cancelled, so that no request waits for them.
        `open_http` runs this."""
        await self._tokens.keep_fresh()

    async def authenticate(self, scope: MutableMapping[str, Any]) -> Principal:
        """The principal that has sent a request, by its ASGI scope.

        Raises:
            Refused: The request has no valid token, or its token lacks a scope, or the issuer's keys cannot be
                fetched.
        """
        from .issuer import LEEWAY, InvalidToken

        path, token = "/" + path_of(scope).strip("/"), bearer_of(scope)
        if token is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, "a bearer token is needed", self._challenge(path))
        try:
            claims = await self._tokens.claims(token, self._audiences | {self._resource(path)})
        except InvalidToken as error:
            challenge = self._challenge(path, error="invalid_token", error_description=str(error))
            raise Refused(HTTPStatus.UNAUTHORIZED, str(error), challenge) from None
        if not set(self._scopes) <= _scopes_of(claims):
            challenge = self._challenge(path, error="insufficient_scope")
            raise Refused(HTTPStatus.FORBIDDEN, "the token lacks a scope", challenge)
        return Principal(str(claims["sub"]), key=self.issuer, expires=float(claims["exp"]) + LEEWAY)

    def _resource(self, path: str) -> str:
        return self._url + quote(path)

    def _challenge(self, path: str, **said: str) -> Mapping[str, str]:
        needed = {"scope": " ".join(self._scopes)} if self._scopes else {}
        place = {"resource_metadata": f"{self._url}/{WELL_KNOWN}{quote(path)}"}
        return {"www-authenticate": "Bearer " + ", ".join(f'{k}="{v}"' for k, v in (said | needed | place).items())}


def _scopes_of(claims: Mapping[str, Any]) -> set[str]:
    """The scopes of a token: issuers write them as texts with spaces, or as lists."""
    found: set[str] = set()
    for name in ("scope", "scp"):
        said: object = claims.get(name)
        parts = said.split() if isinstance(said, str) else said
        if isinstance(parts, list):
            found |= {each for each in cast("list[object]", parts) if isinstance(each, str)}
    return found
