"""A stream through a proxy to a server: HTTP CONNECT, or SOCKS5 with what the extra `socks` installs."""

import base64
from http import HTTPStatus
from typing import Any

import trio

from ...errors import one_line
from ...http.environment import Proxy
from .stream import NoWebSocket
from .upgrade import HEAD_LIMIT, HandshakeRefusal, is_decidable, status_in


async def open_tunnel(stream: trio.abc.Stream, proxy: Proxy, host: str, port: int) -> None:
    """Have the proxy at the other end of a stream connect it to a server.

    Raises:
        NoWebSocket: It does not.
    """
    try:
        await (_ask_socks if proxy.is_socks else _ask_http)(stream, proxy, host, port)
    except trio.BrokenResourceError as error:
        raise _refusal(proxy, "the connection broke") from error


async def _ask_http(stream: trio.abc.Stream, proxy: Proxy, host: str, port: int) -> None:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    head = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    if proxy.url.username or proxy.url.password:
        pair = f"{proxy.url.username}:{proxy.url.password}".encode()
        head.append(f"Proxy-Authorization: Basic {base64.b64encode(pair).decode()}")
    await stream.send_all("\r\n".join([*head, "", ""]).encode())
    answer = b""
    while not is_decidable(answer):
        part = await stream.receive_some(HEAD_LIMIT)
        if not part:
            raise _refusal(proxy, "the connection ended")
        answer += part
    status = status_in(answer)
    if status is None:
        raise _refusal(proxy, "it does not speak HTTP", retriable=False)
    if status not in range(200, 300):
        words = one_line(answer.partition(b"\r\n")[0].partition(b" ")[2].decode("latin-1"), 80)
        raise _refusal(proxy, words, retriable=status != HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)


async def _ask_socks(stream: trio.abc.Stream, proxy: Proxy, host: str, port: int) -> None:
    from socksio import socks5
    from socksio.exceptions import SOCKSError

    async def exchange(request: Any) -> Any:
        socks.send(request)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        await stream.send_all(socks.data_to_send())
        return socks.receive_data(bytes(await stream.receive_some(HEAD_LIMIT)))

    socks = socks5.SOCKS5Connection()
    user, password = proxy.url.username.encode(), proxy.url.password.encode()
    method = socks5.SOCKS5AuthMethod.USERNAME_PASSWORD if user else socks5.SOCKS5AuthMethod.NO_AUTH_REQUIRED
    try:
        chosen = await exchange(socks5.SOCKS5AuthMethodsRequest([method]))
        if chosen != socks5.SOCKS5AuthReply(method):
            raise _refusal(proxy, "it wants other credentials", retriable=False)
        if user and not (await exchange(socks5.SOCKS5UsernamePasswordRequest(user, password))).success:
            raise _refusal(proxy, "it wants other credentials", retriable=False)
        connect = socks5.SOCKS5CommandRequest.from_address(socks5.SOCKS5Command.CONNECT, (host, port))
        reply = await exchange(connect)
    except SOCKSError as error:
        raise _refusal(proxy, "it does not speak SOCKS5") from error
    if reply.reply_code is not socks5.SOCKS5ReplyCode.SUCCEEDED:
        raise _refusal(proxy, reply.reply_code.name.lower().replace("_", " "))


def _refusal(proxy: Proxy, problem: str, *, retriable: bool = True) -> NoWebSocket:
    return NoWebSocket(HandshakeRefusal(f"cannot be reached: {proxy} did not connect to it: {problem}", retriable))
