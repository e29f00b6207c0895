"""The visitors of the page: how a browser is recognised, and what its visitor may do.

Every browser has a cookie with its random name. Each form has a token that only this process, or a replica with its
keys, can derive from that name: a page of another origin knows neither. If clients need tokens, a visitor logs in with
one. The browser keeps that token, sealed with the keys of the gateway, in a cookie that no script reads. It is checked
anew at each request, so that a token that is removed opens nothing any more; every replica with the keys can read it.
"""

import hmac
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from mcp_nursery.actors.records import frozen
from mcp_nursery.supervisor.gateway import Principal, Refused, SessionKeys
from mcp_nursery.supervisor.gateway.auth.principal import Authenticate
from mcp_nursery.supervisor.gateway.http.exchange import HttpExchange

K = TypeVar("K")
V = TypeVar("V")

BROWSER: Final = "mcp_nursery_browser"
"""The cookie with the name of a browser; the port follows."""
TOKEN: Final = "mcp_nursery_token"  # noqa: S105 - the name of a cookie
"""The cookie with the sealed token of its visitor; the port follows."""
MOST_SECONDS: Final = 12 * 3600
"""Seconds for which a login is valid."""
MOST_ENDED: Final = 10_000
"""Ended logins that are recorded: the latest ones."""
LONGEST_LOGIN: Final = 3_000
"""Characters of a sealed token with which a visitor can log in: browsers keep 4,096 bytes of a cookie."""
_NAME: Final = 24
"""Bytes of the name of a browser."""


@frozen
class Visitor:
    """A person who looks at the page in one browser."""

    browser: str
    """The name of the browser."""
    csrf: str
    """The token of its forms."""
    is_new: bool
    """True if the browser has yet to be given its name."""
    may_look: bool
    may_act: bool
    has_clients: bool = True
    """False if the page is of a supervisor without a gateway, which has no page of clients."""
    principal: Principal | None = None
    """The principal; None if there are no tokens here, or the visitor is not logged in."""
    login: bytes = b""
    """The name of the login, for `Visitors.holds`."""
    login_ends: float = math.inf
    """The Unix time at which the login ends."""

    @property
    def who(self) -> str:
        """The name under which the limits of one visitor count it."""
        return self.browser if self.principal is None else self.principal.name


class Visitors:
    """The visitors, recognised by what their browsers send. `authenticate` identifies the principal of a token, which
    the keys seal. None: there are no tokens, and every visitor may look and act; then only browsers of this machine can
    connect. With `secure`, browsers use HTTPS, though a proxy hides that. `has_clients`: see `Visitor`."""

    def __init__(
        self,
        authenticate: Authenticate | None,
        keys: SessionKeys | None,
        *,
        secure: bool = False,
        has_clients: bool = True,
    ) -> None:
        self.secure: Final = secure
        self._has_clients = has_clients
        self._authenticate = authenticate
        self._keys = keys
        self._own_secret = secrets.token_bytes(32)
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    @property
    def needs_token(self) -> bool:
        """True if visitors log in."""
        return self._authenticate is not None

    async def identify(self, exchange: HttpExchange, scope: Mapping[str, Any]) -> Visitor:
        """The visitor of a request."""
        cookies = _cookies(exchange)
        browser = cookies.get(cookie_name(BROWSER, exchange), "")
        is_new = len(browser) != len(secrets.token_urlsafe(_NAME)) or not browser.isascii()
        if is_new:
            browser = secrets.token_urlsafe(_NAME)
        csrf = self._csrf(browser)
        if self._authenticate is None:
            return Visitor(browser, csrf, is_new, may_look=True, may_act=True, has_clients=self._has_clients)
        sealed = cookies.get(cookie_name(TOKEN, exchange), "")
        token, ends = self._opened(sealed, browser)
        principal = None if token is None else await self.principal_of(token, scope)
        access = None if principal is None else principal.access
        return Visitor(
            browser,
            csrf,
            is_new,
            may_look=access is not None and access.has_page,
            may_act=access is not None and access.has_acts,
            has_clients=self._has_clients,
            principal=principal,
            login=_digest(sealed),
            login_ends=ends,
        )

    def holds(self, visitor: Visitor) -> bool:
        """True if the visitor's login has neither been ended nor expired meanwhile."""
        return visitor.login not in self._ended and time.time() < visitor.login_ends

    async def principal_of(self, token: str, scope: Mapping[str, Any]) -> Principal | None:
        """The principal with this token; None if there is none, or the token is no longer valid."""
        assert self._authenticate is not None  # see `needs_token`
        headers = [(b"authorization", b"Bearer " + token.encode("latin-1", "replace"))]
        try:
            return await self._authenticate({**scope, "headers": headers})
        except Refused:
            return None

    def seal(self, token: str, browser: str) -> str | None:
        """The value of the cookie with this token; None if that is too long."""
        assert self._keys is not None  # there are tokens
        return self._keys.seal(f"{time.time():.0f} {token}".encode(), _bound(browser), longest=LONGEST_LOGIN)

    def _opened(self, sealed: str, browser: str) -> tuple[str | None, float]:
        """The token of a login, if that is valid, and the Unix time at which it ends."""
        if not sealed or self._keys is None or _digest(sealed) in self._ended:
            return None, 0.0
        plain = self._keys.open(sealed, _bound(browser), longest=LONGEST_LOGIN)
        if plain is None:
            return None, 0.0
        at, _, token = plain.decode().partition(" ")
        ends = float(at) + MOST_SECONDS
        return (token if time.time() <= ends else None), ends

    def log_out(self, visitor: Visitor) -> None:
        """End a login here, for all browsers that have its cookies."""
        if visitor.principal is not None:  # others have no login, and must not fill this
            remember(self._ended, visitor.login, None, MOST_ENDED)

    def _csrf(self, browser: str) -> str:
        secret = self._own_secret if self._keys is None else self._keys.derive(b"mcpn page forms")
        return hmac.digest(secret, browser.encode(), "sha256").hex()

    def check_form(self, visitor: Visitor, token: str) -> None:
        """Refuse a form that was not sent by a page of ours, in this browser.

        Raises:
            Refused: The form lacks the token of this browser.
        """
        if not hmac.compare_digest(token.encode(), visitor.csrf.encode()) or visitor.is_new:
            raise Refused(HTTPStatus.FORBIDDEN, "this form is not of this page: load it again")


def remember(latest: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Add a value to a mapping of which only the latest ones are kept, so many at most."""
    latest[key] = value
    while len(latest) > most:
        latest.popitem(last=False)


def check_origin(exchange: HttpExchange) -> None:
    """Refuse a request that a page of another origin has made a browser send, even of another port of the same host.

    Raises:
        Refused: Such a page has sent it.
    """
    origin, site = exchange.headers.get("origin"), exchange.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none") and not _is_visit(exchange):
        raise Refused(HTTPStatus.FORBIDDEN, "a page of another origin must not use this one")
    if origin is not None and urlsplit(origin).netloc.lower() != exchange.headers.get("host", "").lower():
        raise Refused(HTTPStatus.FORBIDDEN, "this origin is not served here")


def _is_visit(exchange: HttpExchange) -> bool:
    """True if a person follows a link to a page: the answer is shown to that person alone."""
    headers = exchange.headers
    is_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
    return exchange.method == "GET" and is_page and not exchange.path.startswith("/ui/live")


def cookie_name(name: str, exchange: HttpExchange) -> str:
    """The name of a cookie, with the port to which the browser has connected."""
    port = exchange.headers.get("host", "").rpartition("]")[2].rpartition(":")[2]
    return f"{name}_{port}" if port.isdecimal() and port.isascii() else name


def set_cookie(exchange: HttpExchange, name: str, value: str, *, seconds: int | None = None, secure: bool) -> None:
    """Let the browser keep a cookie: for `seconds`, or without them until it is closed."""
    ends = "" if seconds is None else f"; Max-Age={seconds}"
    # Lax: with Strict, a visitor who follows a link from elsewhere would seem new, and be given another name. A link
    # does nothing: acts are forms, which need the token of the browser and our own origin.
    exchange.answer_headers["set-cookie"] = (
        f"{cookie_name(name, exchange)}={value}; Path=/ui; HttpOnly; SameSite=Lax{ends}{'; Secure' if secure else ''}"
    )


def _cookies(exchange: HttpExchange) -> Mapping[str, str]:
    """The cookies of a request. Cookies that others have set on this host may be anything, and do not affect ours."""
    pairs = [
        part.strip().partition("=") for name, value in exchange.lines if name == "cookie" for part in value.split(";")
    ]
    return {name: value for name, _, value in reversed(pairs) if name.startswith((BROWSER, TOKEN))}


def _digest(sealed: str) -> bytes:
    return sha256(sealed.encode()).digest()


def _bound(browser: str) -> bytes:
    return b"mcp-nursery page 1\0" + browser.encode()
