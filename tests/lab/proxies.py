"""Proxies on loopback: over HTTP, for CONNECT and plain requests, and over SOCKS5. A name is reached at the port that
the test gives it, so that a server on loopback can be far away."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import trio

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def only(monkeypatch: Any, **variables: str) -> None:
    """Set these variables about proxies, and no others."""
    for name in (*VARIABLES, *map(str.upper, VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


class LabProxy:
    """A proxy that keeps what it was asked. `answer`: what it says instead of what its protocol wants."""

    def __init__(
        self, scheme: str, ports: Mapping[str, int], answer: bytes | None, wants: tuple[str, str] | None
    ) -> None:
        self.scheme = scheme
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self._ports = ports
        self._answer = answer
        self._wants = wants
        self.port = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def serve(self, client: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await (self._socks if self.scheme.startswith("socks") else self._http)(client)

    async def _http(self, client: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            part = await client.receive_some()
            if not part:
                return
            head += part
        self.heads.append(head)
        method, target, _ = head.split(b" ", 2)
        place = target.decode() if method == b"CONNECT" else urlsplit(target.decode()).netloc
        self.asked.append(place)
        if self._answer is not None:
            await client.send_all(self._answer)
        elif method == b"CONNECT":
            await self._join(client, place.rpartition(":")[0], b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            there = urlsplit(target.decode())
            await self._join(client, there.hostname or "", b"", head.replace(f"http://{there.netloc}".encode(), b"", 1))

    async def _socks(self, client: trio.SocketStream) -> None:
        methods = await client.receive_some()
        if self._answer is not None:
            await client.send_all(self._answer)
            return
        wanted = 2 if self._wants else 0
        if not methods.startswith(b"\x05") or wanted not in methods[2:]:
            await client.send_all(b"\x05\xff")
            return
        await client.send_all(bytes((5, wanted)))
        if self._wants is not None:
            user, word = (text.encode() for text in self._wants)
            given = await client.receive_some()
            right = given == bytes((1, len(user))) + user + bytes((len(word),)) + word
            await client.send_all(bytes((1, not right)))
            if not right:
                return
        request = await client.receive_some()
        host = request[5:-2].decode() if request[3] == 3 else str(ip_address(request[4:-2]))
        self.asked.append(f"{host}:{int.from_bytes(request[-2:])}")
        if host not in self._ports:
            await client.send_all(b"\x05\x04\x00\x01" + bytes(6))
            return
        await self._join(client, host, b"\x05\x00\x00\x01" + bytes(6))

    async def _join(self, client: trio.SocketStream, host: str, first: bytes, to_server: bytes = b"") -> None:
        async with await trio.open_tcp_stream("127.0.0.1", self._ports[host]) as server, trio.open_nursery() as nursery:
            await client.send_all(first)
            await server.send_all(to_server)
            nursery.start_soon(_pass, client, server, nursery.cancel_scope)
            nursery.start_soon(_pass, server, client, nursery.cancel_scope)


async def _pass(source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope) -> None:
    with suppress(trio.BrokenResourceError):
        async for data in source:
            await target.send_all(data)
    both.cancel()


@asynccontextmanager
async def lab_proxy(
    scheme: str = "http",
    ports: Mapping[str, int] | None = None,
    *,
    answer: bytes | None = None,
    wants: tuple[str, str] | None = None,
) -> AsyncGenerator[LabProxy, None]:
    """A proxy that reaches these names at these ports of loopback. `wants`: user and password, over SOCKS."""
    proxy = LabProxy(scheme, ports or {}, answer, wants)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, proxy.serve, 0, host="127.0.0.1"))
        proxy.port = listener.socket.getsockname()[1]
        yield proxy
        nursery.cancel_scope.cancel()
