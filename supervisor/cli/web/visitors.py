"""The visitors of the page: how a browser is known again, and what its visitor may do.

Every browser has a cookie with a random name of it. Each form has a token that only this process, or a replica with
its keys, makes of that name: a page of another origin knows neither. Where tokens are needed, a visitor logs in with
one. The browser keeps it, sealed with the keys of the gateway, in a cookie that no script reads, and it is judged anew
at each request: a token that is removed opens nothing any more, and every replica with the keys knows it.
"""

import hmac
import os
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import frozen

from mcp_nursery.supervisor.gateway import Principal, Refused, SessionKeys
from mcp_nursery.supervisor.gateway.auth.principal import Authenticate
from mcp_nursery.supervisor.gateway.http.exchange import HttpExchange

BROWSER: Final = "mcp_nursery_browser"
"""The cookie with the name of a browser."""
TOKEN: Final = "mcp_nursery_token"  # noqa: S105 - the name of a cookie
"""The cookie with the token of its visitor, sealed."""
MOST_SECONDS: Final = 12 * 3600
"""Seconds for which a browser keeps a token."""
LONGEST_LOGIN: Final = 3_000
"""Characters of a token with which somebody can log in: browsers keep 4,096 bytes of a cookie."""
_NAME: Final = 24
"""Bytes of the name of a browser."""


@frozen
class Visitor:
    """A person who looks at the page, by one browser."""

    browser: str
    """The name of the browser."""
    csrf: str
    """The token of its forms."""
    is_new: bool
    """True if the browser has yet to be given its name."""
    may_look: bool
    may_act: bool
    principal: Principal | None = None
    """None if there are no tokens here, or it is not logged in."""


class Visitors:
    """Knows visitors by what their browsers send.

    Args:
        authenticate: Identifies who has a token; None: there are no tokens, and every visitor may look and act. Then
            only browsers of this machine can come.
        keys: Seal tokens; None: there are no tokens.
    """

    def __init__(self, authenticate: Authenticate | None, keys: SessionKeys | None) -> None:
        self._authenticate = authenticate
        self._keys = keys
        self._own_secret = secrets.token_bytes(32)

    @property
    def needs_token(self) -> bool:
        """True if visitors log in."""
        return self._authenticate is not None

    async def identify(self, exchange: HttpExchange, scope: Mapping[str, Any]) -> Visitor:
        """The visitor of a request."""
        cookies = _cookies(exchange)
        browser = cookies.get(BROWSER, "")
        is_new = len(browser) != len(secrets.token_urlsafe(_NAME)) or not browser.isascii()
        if is_new:
            browser = secrets.token_urlsafe(_NAME)
        csrf = self._csrf(browser)
        if self._authenticate is None:
            return Visitor(browser, csrf, is_new, may_look=True, may_act=True)
        token = self._opened(cookies.get(TOKEN, ""), browser)
        principal = None if token is None else await self.principal_of(token, scope)
        access = None if principal is None else principal.access
        return Visitor(
            browser,
            csrf,
            is_new,
            may_look=access is not None and access.has_page,
            may_act=access is not None and access.has_acts,
            principal=principal,
        )

    async def principal_of(self, token: str, scope: Mapping[str, Any]) -> Principal | None:
        """The principal with this token; None if there is none, or it does not hold any more."""
        assert self._authenticate is not None  # see `needs_token`
        headers = [(b"authorization", b"Bearer " + token.encode("latin-1", "replace"))]
        try:
            return await self._authenticate({**scope, "headers": headers})
        except Refused:
            return None

    def seal(self, token: str, browser: str) -> str | None:
        """The value of the cookie with this token; None if it is too long."""
        assert self._keys is not None  # there are tokens
        return self._keys.seal(token.encode(), _bound(browser), longest=LONGEST_LOGIN)

    def _opened(self, sealed: str, browser: str) -> str | None:
        if not sealed or self._keys is None:
            return None
        plain = self._keys.open(sealed, _bound(browser), longest=LONGEST_LOGIN)
        return None if plain is None else plain.decode()

    def _csrf(self, browser: str) -> str:
        secret = self._own_secret if self._keys is None else self._keys.derive(b"mcpn page forms")
        return hmac.digest(secret, browser.encode(), "sha256").hex()

    def check_form(self, visitor: Visitor, token: str) -> None:
        """Refuse a form that was not sent by a page of ours, in this browser.

        Raises:
            Refused: It was not.
        """
        if not hmac.compare_digest(token.encode(), visitor.csrf.encode()) or visitor.is_new:
            raise Refused(HTTPStatus.FORBIDDEN, "this form is not of this page: load it again")


def check_origin(exchange: HttpExchange) -> None:
    """Refuse what a page of another origin has made a browser send, be it of another port of the same host.

    Raises:
        Refused: It was.
    """
    origin, site = exchange.headers.get("origin"), exchange.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none") and not _is_visit(exchange):
        raise Refused(HTTPStatus.FORBIDDEN, "a page of another origin must not use this one")
    if origin is not None and urlsplit(origin).netloc.lower() != exchange.headers.get("host", "").lower():
        raise Refused(HTTPStatus.FORBIDDEN, "this origin is not served here")


def _is_visit(exchange: HttpExchange) -> bool:
    """True if a person follows a link to a page: it is shown to that person alone."""
    headers = exchange.headers
    return exchange.method == "GET" and headers.get("sec-fetch-mode") == "navigate"


def cookie(name: str, value: str, *, seconds: int | None = None, secure: bool) -> str:
    """The value of `Set-Cookie`; without `seconds` it ends with the browser."""
    ends = "" if seconds is None else f"; Max-Age={seconds}"
    return f"{name}={value}; Path=/ui; HttpOnly; SameSite=Strict{ends}{'; Secure' if secure else ''}"


def random_keys() -> SessionKeys:
    """Keys of this process alone."""
    return SessionKeys([os.urandom(32)])


def _cookies(exchange: HttpExchange) -> Mapping[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(exchange.headers.get("cookie", "")).items()}
    except CookieError:
        return {}


def _bound(browser: str) -> bytes:
    return b"mcp-nursery page 1\0" + browser.encode()
