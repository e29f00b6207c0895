"""A person at a browser, who is shown a page, agrees there, and is sent back to a port of this machine with a code."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import trio
from mcp.shared.auth import AuthorizationCodeResult

from mcp_nursery.actors.callbacks import AuthorizationRequest, Authorize
from mcp_nursery.actors.errors import one_line
from mcp_nursery.actors.oauth.settings import OAuth, is_loopback
from mcp_nursery.actors.oauth.token_endpoint import GrantRefused
from mcp_nursery.actors.oauth.tokens import Tokens
from mcp_nursery.actors.records import define, field

from ..http_server.http_connection import Message, Receive, Send
from ..http_server.server import HttpServer

CONSENT: Final = 600.0
"""Seconds that a person may take."""
_CONNECTIONS: Final = 16
"""Connections of browsers at once."""
_LAST_PAGE: Final = b"<!doctype html><meta charset=utf-8><title>mcp-nursery</title><p>%s</p>"
_HEADERS: Final = (
    (b"content-type", b"text/html"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
_GONE_ON: Final = b"That was it: go back to where you came from. This window can be closed."
_NOT_OURS: Final = b"Nobody waits for this."
_DENIED: Final = b"It was not authorised. This window can be closed."


@asynccontextmanager
async def open_redirect(
    server: str, words: OAuth, known: Tokens | None, authorize: Authorize
) -> "AsyncGenerator[PersonAtBrowser, None]":
    """Listen where a browser is sent back to, while the block lasts.

    Raises:
        GrantRefused: On entering: that port is taken.
    """
    listeners, uri = await _listen(words, known)
    try:
        yield PersonAtBrowser(server, uri, listeners, authorize)
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


@define(eq=False)
class PersonAtBrowser:
    """A `Consent`. The browser comes back by itself, or the person brings the URL that it was sent back to."""

    server: str
    redirect_uri: str
    _listeners: list[trio.SocketListener]
    _authorize: Authorize
    _state: str = field(default="", repr=False, init=False)
    _answer: AuthorizationCodeResult | None = field(default=None, repr=False, init=False)
    _problem: str | None = field(default=None, init=False)
    _code: str | None = field(default=None, init=False)
    """The error code that the browser came back with."""
    _done: trio.Event = field(factory=trio.Event, init=False)

    async def ask(self, url: str) -> AuthorizationCodeResult:
        """Show a person the issuer's page, and wait for the answer."""
        if urlsplit(url).scheme != "https" and not is_loopback(url):
            raise GrantRefused("the issuer's page is not shown: it is no https URL")
        self._state = parse_qs(urlsplit(url).query)["state"][0]
        with trio.move_on_after(CONSENT):
            web = HttpServer(self._serve, None, _CONNECTIONS)
            web.end()  # each connection has one request
            async with trio.open_nursery() as nursery:
                for listener in self._listeners:
                    nursery.start_soon(web.accept, listener, nursery)
                nursery.start_soon(self._ask_host, AuthorizationRequest(self.server, url, self.redirect_uri))
                await self._done.wait()
                nursery.cancel_scope.cancel()
        if self._answer is None:
            raise GrantRefused(self._problem or f"nobody has agreed within {CONSENT:g} s", self._code)
        return self._answer

    async def _ask_host(self, request: AuthorizationRequest) -> None:
        try:
            pasted = cast("object", await self._authorize(request))
        except Exception as error:
            self._settle(problem=f"nobody was asked: {type(error).__name__}")
            return
        if pasted is not None and not isinstance(pasted, str):
            self._settle(problem=f"`authorize` must return text or None, not {type(pasted).__name__}")
        elif pasted and (back := pasted.strip()) and not self._take(back):
            self._settle(problem="what was pasted is not what the browser was sent back with")

    def _take(self, back: str) -> bool:
        """Take the URL that the browser was sent back to, or the bare code in it; False if it is of no use."""
        if "://" not in back and "code=" not in back and "error=" not in back:
            self._settle(AuthorizationCodeResult(code=back, state=self._state))
            return True
        said = self._said(_query(back) or back)
        self._hear(said)
        return bool(said)

    def _hear(self, said: dict[str, str]) -> None:
        if "error" in said:
            code = one_line(said["error"], 80)
            self._settle(problem=f"it was not authorised: {code}", code=code)
        elif "code" in said:
            answer = AuthorizationCodeResult(code=said["code"], state=self._state, iss=said.get("iss"))
            self._settle(answer)

    def _said(self, query: str) -> dict[str, str]:
        """The parameters that the browser was sent back with; none if it does not come from the page that this person
        was sent to."""
        said = {name: values[0] for name, values in parse_qs(query).items()}
        ours = secrets.compare_digest(said.get("state", "").encode(), self._state.encode())
        return said if ours and ("code" in said or "error" in said) else {}

    def _settle(
        self, answer: AuthorizationCodeResult | None = None, problem: str | None = None, code: str | None = None
    ) -> None:
        if not self._done.is_set():
            self._answer, self._problem, self._code = answer, problem, code
            self._done.set()

    async def _serve(self, scope: Message, _receive: Receive, send: Send) -> None:
        """Answer one request of a browser, by ASGI. Any other than the one that is waited for changes nothing."""
        place = urlsplit(self.redirect_uri).path or "/"
        if scope["method"] != "GET" or scope["raw_path"].decode("ascii", "replace") != place:
            await _reply(send, HTTPStatus.NOT_FOUND, _NOT_OURS)
            return
        said = {} if self._done.is_set() else self._said(scope["query_string"].decode("ascii", "replace"))
        page = _NOT_OURS if not said else _DENIED if "error" in said else _GONE_ON
        await _reply(send, HTTPStatus.OK if said else HTTPStatus.BAD_REQUEST, page)
        self._hear(said)  # now: what settles this ends the connection


def _query(url: str) -> str:
    """The query of a URL that anybody may have sent."""
    try:
        return urlsplit(url).query
    except ValueError:
        return ""


async def _listen(words: OAuth, known: Tokens | None) -> tuple[list[trio.SocketListener], str]:
    if words.redirect_uri is not None:
        place = urlsplit(words.redirect_uri)
        assert place.port  # or it would be no `OAuth`
        return await _listen_at(place.hostname or "127.0.0.1", place.port), words.redirect_uri
    if words.redirect_port is None and (before := _port_of(known)) is not None:
        try:
            return await _listen_at("127.0.0.1", before), _uri(before)
        except GrantRefused:
            pass  # the client registers itself anew
    listeners = await _listen_at("127.0.0.1", words.redirect_port or 0)
    return listeners, _uri(listeners[0].socket.getsockname()[1])


def _port_of(known: Tokens | None) -> int | None:
    """The port that the client was registered with; an issuer takes no other."""
    uris: Any = (known.client.get("redirect_uris") if known is not None else None) or ("",)
    uri = str(uris[0])
    port = urlsplit(uri).port if is_loopback(uri) else None
    return port if port is not None and _uri(port) == uri else None


def _uri(port: int) -> str:
    return f"http://127.0.0.1:{port}/callback"


async def _listen_at(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise GrantRefused(f"nobody can listen on {host}:{port}: {error.strerror}") from None


async def _reply(send: Send, status: HTTPStatus, text: bytes) -> None:
    page = _LAST_PAGE % text
    headers = [*_HEADERS, (b"content-length", b"%d" % len(page))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": page})
