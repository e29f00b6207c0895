"""The WebSocket transport: one message a frame, subprotocol `mcp`, over TCP or TLS."""

import os
import re
import socket
import ssl
import string
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

import trio

from mcp_nursery.actors.records import field, frozen

from ...errors import leaves, one_line
from ...http.environment import EnvironmentUnusable, Proxy, authorities, proxy_for, why_untrusted
from ...http.header_rules import problem_with_header
from ...jsonrpc.carrier import FRAME_LIMIT, FrameStream
from ...secrets import shown_url
from ...version import VERSION
from ..base import StreamConnector
from .stream import NoWebSocket, UpgradeRequest, open_stream
from .tunnel import open_tunnel
from .upgrade import HandshakeRefusal

_PORTS = {"ws": 80, "wss": 443}
_OWN_HEADERS = re.compile(r"host|upgrade|connection|content-length|transfer-encoding|sec-websocket-.*")


@frozen
class _Target:
    host: str
    port: int
    secure: bool
    request: UpgradeRequest


@frozen
class WebSocketConnector(StreamConnector):
    """A connector that opens a WebSocket for every `open` or `connect`."""

    url: str = field(repr=shown_url)
    """`ws://…` or `wss://…`. Shown without user, password, query and fragment."""
    headers: Mapping[str, str] = field(repr=False)
    """The headers of the handshake. Never shown."""
    close_grace: float
    """Seconds the server gets to answer the closing frame."""
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    """For `wss`; by default with the system's certificate authorities, as for HTTP, and those of `ca_file`."""
    ca_file: str | None = None
    """The file of authorities that are trusted besides the usual ones."""
    frame_limit: int = FRAME_LIMIT
    """Characters of one message before the connection counts as lost."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[FrameStream, None]:
        """Open the WebSocket; leaving the block closes it.

        Leaving takes at most `close_grace` seconds, also when cancelled. The block's exception is not wrapped.

        Raises:
            StartFailed: On entering: no WebSocket could be opened.
        """
        try:
            target = _target_of(self.url, self.headers)
            stream = await self._reach(target)
            try:
                opening = open_stream(
                    stream, target.request, close_grace=self.close_grace, frame_limit=self.frame_limit
                )
                async with opening as frames:
                    yield frames
            finally:
                await _drop(stream)
        except NoWebSocket as failed:
            raise failed.refusal.failure(shown_url(self.url)) from failed

    async def _reach(self, target: _Target) -> trio.abc.Stream:
        try:
            proxy = proxy_for(self.url)
            through = "" if proxy is None else f" through {proxy}"
            stream = await (_dial(target.host, target.port) if proxy is None else _tunnel(proxy, target, through))
            if not target.secure:
                return stream
            return await _secure(stream, self.ssl_context, target.host, through, self.ca_file)
        except EnvironmentUnusable as error:
            raise NoWebSocket(HandshakeRefusal(f"cannot be reached: {error}", retriable=False)) from error


async def _tunnel(proxy: Proxy, target: _Target, through: str) -> trio.abc.Stream:
    stream = await _dial(proxy.url.host, proxy.port, through)
    if proxy.url.scheme == "https":
        stream = await _secure(stream, None, proxy.url.host, through)
    try:
        await open_tunnel(stream, proxy, target.host, target.port)
    except BaseException:
        await _drop(stream)
        raise
    return stream


async def _dial(host: str, port: int, through: str = "") -> trio.abc.Stream:
    try:
        return await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise NoWebSocket(_unreachable(error, through)) from error


async def _secure(
    stream: trio.abc.Stream,
    context: ssl.SSLContext | None,
    host: str,
    through: str = "",
    ca_file: str | None = None,
) -> trio.abc.Stream:
    try:
        context = context or await authorities(ca_file)
        secured = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
        await secured.do_handshake()
    except BaseException as error:
        await _drop(stream)
        if isinstance(error, trio.BrokenResourceError):
            raise NoWebSocket(_insecure(error, through)) from error
        raise
    return secured


async def _drop(stream: trio.abc.Stream) -> None:
    with trio.CancelScope(shield=True):  # takes no time
        await trio.aclose_forcefully(stream)


def _target_of(url: str, headers: Mapping[str, str]) -> _Target:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError as error:
        raise NoWebSocket(HandshakeRefusal("is malformed", retriable=False)) from error
    if parts.scheme not in _PORTS or not host:
        raise NoWebSocket(HandshakeRefusal("must be ws://host… or wss://host…", retriable=False))
    if "@" in parts.netloc:
        problem = "has a user or password in it, which is not sent: use the header Authorization"
        raise NoWebSocket(HandshakeRefusal(problem, retriable=False))
    resource = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", safe=string.punctuation)
    name = f"[{host}]" if ":" in host else host
    usual = _PORTS[parts.scheme]
    request = UpgradeRequest(
        host=name if port in (None, usual) else f"{name}:{port}", resource=resource, headers=_check_headers(headers)
    )
    return _Target(host, usual if port is None else port, parts.scheme == "wss", request)


def _check_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """The headers as bytes. A problem names the header and never its value."""
    given = {"User-Agent": f"mcp-nursery/{VERSION}"}
    for name, value in headers.items():
        problem = problem_with_header(name, value, encoding="latin-1")
        if problem is None and _OWN_HEADERS.fullmatch(name.lower()):
            problem = f"the header {name} is set by the WebSocket handshake"
        if problem is not None:
            raise NoWebSocket(HandshakeRefusal(f"cannot be requested: {problem}", retriable=False))
        if name.lower() == "user-agent":
            given.clear()
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in [*given.items(), *headers.items()]]


def _unreachable(error: OSError, through: str) -> HandshakeRefusal:
    subject = f"cannot be reached{through}"
    if isinstance(error, socket.gaierror):
        return HandshakeRefusal(f"{subject}: the host is not known: {error.strerror}")
    causes = [cause for cause in leaves(error.__cause__ or error) if isinstance(cause, OSError)]
    problems = sorted({os.strerror(cause.errno) if cause.errno else one_line(cause) for cause in causes})
    return HandshakeRefusal(f"{subject}: {', '.join(problems)}")


def _insecure(error: trio.BrokenResourceError, through: str) -> HandshakeRefusal:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        problem = f"has a certificate that cannot be trusted{through}: {why_untrusted(cause)}"
        return HandshakeRefusal(problem, retriable=False)
    problem = f"failed the TLS handshake{through}"
    if isinstance(cause, ssl.SSLError):
        return HandshakeRefusal(f"{problem}: {(cause.reason or 'no reason given').lower().replace('_', ' ')}")
    return HandshakeRefusal(f"{problem}: the connection ended")
