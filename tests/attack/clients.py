"""Hostile clients of a gateway: raw connections over HTTP, and the other end of its standard streams."""

import base64
import json
import os
import socket
import struct
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from ..lab.raw_clients import NEW, OLD, request
from ..lab.token_issuer import TokenIssuer, part
from . import words

AUDIENCE = "https://gateway.example/mcp"
GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
"""What a connection says that the gateway has ended."""
INITIALIZE = {"protocolVersion": OLD, "capabilities": {"elicitation": {}, "roots": {}, "sampling": {}}}
ABOUT = {"clientInfo": {"name": "hostile", "version": "1"}}


def call(version: str, number: Any, tool: str, **arguments: Any) -> str:
    return request(version, number, "tools/call", name=tool, arguments=arguments)


def post(text: str, version: str, *, session: str | None = None, more: str = "", path: str = "/mcp") -> bytes:
    """A whole request of HTTP."""
    body = text.encode()
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    method, name = "", ""
    if isinstance(message, dict):
        method, name = message.get("method") or "", (message.get("params") or {}).get("name")
    lines = [
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n",
        "accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n",
        f"mcp-session-id: {session}\r\n" if session else "",
        "" if method == "initialize" else f"mcp-protocol-version: {version}\r\n",
        f"mcp-method: {method}\r\n" if version == NEW and method else "",
        f"mcp-name: {name}\r\n" if version == NEW and name else "",
        more,
    ]
    return "".join([*lines, "\r\n"]).encode() + body


class Crowd:
    """Clients over HTTP, from an address of their own."""

    def __init__(self, port: int, guarded: int, issuer: TokenIssuer) -> None:
        self._port, self._guarded, self._issuer = port, guarded, issuer

    async def move(self, name: str, said: dict[str, Any]) -> None:
        with suppress(*GONE):
            await getattr(self, f"do_{name.replace(' ', '_')}")(**said)

    @asynccontextmanager
    async def _connected(self, port: int | None = None):
        stream = await trio.open_tcp_stream("127.0.0.1", port or self._port, local_address="127.0.0.2")
        async with stream:
            yield stream

    async def _many(self, count: int, one: Any) -> None:
        async def quietly(number: int) -> None:
            with suppress(*GONE):
                await one(number)

        async with trio.open_nursery() as nursery:
            for number in range(int(count)):
                nursery.start_soon(quietly, number)

    async def _said(self, stream: trio.SocketStream, *frames: bytes) -> bytes:
        """Send these, and read the head of what comes, at least."""
        await stream.send_all(b"".join(frames))
        got = b""
        while b"\r\n\r\n" not in got and (data := await stream.receive_some(1 << 16)):
            got += data
        return got

    async def _session(self, stream: trio.SocketStream) -> str:
        got = await self._said(stream, post(request(OLD, 1, "initialize", **INITIALIZE, **ABOUT), OLD))
        for line in got.split(b"\r\n"):
            if line.lower().startswith(b"mcp-session-id:"):
                return line.partition(b":")[2].strip().decode()
        raise trio.BrokenResourceError(got)

    async def _read(self, stream: trio.SocketStream, seconds: float) -> None:
        with trio.move_on_after(seconds):
            async for _ in stream:
                pass

    # -- moves ----------------------------------------------------------------------------------------------------

    async def do_connections(self, count: int, what: str, seconds: float) -> None:
        whole = post(call(NEW, 1, "load_echo", text="x" * 5000), NEW)
        said = {"silent": b"", "half a head": whole[:60], "half a body": whole[:-2000], "slow": b""}[what]

        async def one(_: int) -> None:
            async with self._connected() as stream:
                await stream.send_all(said)
                with trio.move_on_after(seconds):
                    for place in range(len(whole)) if what == "slow" else ():
                        await stream.send_all(whole[place : place + 1])
                        await trio.sleep(0.05)
                    await trio.sleep_forever()

        await self._many(count, one)

    async def do_flood(self, what: str, count: int, version: str) -> None:
        async with self._connected() as stream:
            session = await self._session(stream) if version == "old" else None
            era = OLD if version == "old" else NEW
            for messages in words.flood(what, count):
                for message in messages:
                    await self._said(stream, post(message.decode("latin-1"), era, session=session))

    async def do_unread(self, count: int, mebibytes: float, seconds: float) -> None:
        async def one(number: int) -> None:
            async with self._connected() as stream:
                await stream.send_all(post(call(NEW, number, "load_big", size=int(mebibytes * (1 << 20))), NEW))
                await trio.sleep(seconds)

        await self._many(count, one)

    async def do_vanish(self, count: int, seconds: float, how: str) -> None:
        async def one(number: int) -> None:
            async with self._connected() as stream:
                await stream.send_all(post(call(NEW, number, "lab_sleep", seconds=1, label="x"), NEW))
                await trio.sleep(seconds)
                if how == "half":
                    await stream.send_eof()
                    await trio.sleep(1)
                elif how == "reset":
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        await self._many(count, one)

    async def do_cancels(self, count: int, seconds: float) -> None:
        """Calls that are taken back at once, one by one."""
        async with self._connected() as stream:
            session = await self._session(stream)

        async def one(number: int) -> None:
            async with self._connected() as calling, self._connected() as cancelling:
                await calling.send_all(post(call(OLD, number, "lab_sleep", seconds=1, label="x"), OLD, session=session))
                await trio.sleep(seconds)
                told = {"requestId": number, "reason": "x" * 1000}
                text = json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": told})
                await self._said(cancelling, *[post(text, OLD, session=session)] * 3)

        await self._many(count, one)

    async def do_sessions(self, count: int) -> None:
        async def one(_: int) -> None:
            async with self._connected() as stream:
                await self._session(stream)

        await self._many(count, one)

    async def do_listen(self, count: int, version: str, seconds: float) -> None:
        """Streams of news that nobody reads."""
        about = request(NEW, 1, "subscriptions/listen", notifications={"toolsListChanged": True})

        async def one(_: int) -> None:
            async with self._connected() as stream:
                said = post(about, NEW)
                if version == "old":
                    session = await self._session(stream)
                    lines = (
                        "GET /mcp HTTP/1.1",
                        "host: 127.0.0.1",
                        "accept: text/event-stream",
                        f"mcp-session-id: {session}",
                    )
                    said = "\r\n".join([*lines, "", ""]).encode()
                await stream.send_all(said)
                await trio.sleep(seconds)

        await self._many(count, one)

    async def do_same_id(self, count: int) -> None:
        async with self._connected() as stream:
            session = await self._session(stream)

        async def one(_: int) -> None:
            async with self._connected() as stream:
                await self._said(stream, post(call(OLD, 7, "load_echo", text="x"), OLD, session=session))

        await self._many(count, one)

    async def do_pipelined(self, count: int, read: str) -> None:
        async with self._connected() as stream:
            frames = [post(call(NEW, number, "load_echo", text="x" * 100), NEW) for number in range(count)]
            await stream.send_all(b"".join(frames))
            if read == "yes":
                await self._read(stream, 1)
            else:
                await trio.sleep(1)

    async def do_lists(self, count: int) -> None:
        async def one(number: int) -> None:
            async with self._connected() as stream:
                await stream.send_all(post(request(NEW, number, "tools/list"), NEW))
                await self._read(stream, 1)

        await self._many(count, one)

    async def do_answers(self, count: int) -> None:
        """To questions that nobody has asked."""
        async with self._connected() as stream:
            session = await self._session(stream)
            for number in range(count):
                text = json.dumps({"jsonrpc": "2.0", "id": number, "result": {"action": "accept", "content": {}}})
                await self._said(stream, post(text, OLD, session=session))

    async def do_subscribe(self, count: int) -> None:
        async with self._connected() as stream:
            session = await self._session(stream)
            for number in range(count):
                asked = request(OLD, number + 2, "resources/subscribe", uri=f"a:{number}")
                await self._said(stream, post(asked, OLD, session=session))

    async def do_calls(self, count: int, version: str) -> None:
        """Of a hostile server, all at once, answered or not."""

        async def one(number: int) -> None:
            async with self._connected() as stream:
                session = await self._session(stream) if version == "old" else None
                era = OLD if version == "old" else NEW
                frame = call(era, number + 2, "h0_once", key=f"x{number}")
                await stream.send_all(post(frame, era, session=session))
                await self._read(stream, 1)

        await self._many(count, one)

    async def do_heads(self, what: str) -> None:
        said = {
            "long": b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 500_000,
            "many": b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 50_000 + b"\r\n",
            "wrong": b"BREW /mcp HTTP/9.9\r\n\r\n" * 100,
            "nothing": b"\r\n" * 10_000,
            "chunks": b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"1\r\nx\r\n" * 50_000,
            "sizes": b"POST /mcp HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: -6\r\n\r\nabcdefg",
        }[what]

        async def one(_: int) -> None:
            async with self._connected() as stream:
                await self._said(stream, said)

        await self._many(10, one)

    async def do_tokens(self, count: int, what: str) -> None:
        """Of which none lets anybody in."""
        made = self.tokens()[what]

        async def one(number: int) -> None:
            async with self._connected(self._guarded) as stream:
                frame = call(NEW, number, "load_echo", text="in")
                got = await self._said(stream, post(frame, NEW, more=f"authorization: Bearer {made()}\r\n"))
                assert b" 200 " not in got[:20], f"let in by a token: {what}"

        await self._many(count, one)

    def tokens(self) -> dict[str, Callable[[], str]]:
        """By what is wrong with them, what makes one."""
        return {
            "none": lambda: "",
            "junk": lambda: base64.b64encode(os.urandom(200)).decode(),
            "long": lambda: "a" * 12_000,
            "unsigned": lambda: (
                f"{part({'alg': 'none', 'typ': 'at+jwt'})}.{self._issuer.token(AUDIENCE).split('.')[1]}."
            ),
            "unknown key": lambda: self._issuer.token(AUDIENCE, kid=os.urandom(4).hex(), key=self._issuer.keys["rsa"]),
            "another's": lambda: self._issuer.token("https://elsewhere.example/mcp"),
            "old": lambda: self._issuer.token(AUDIENCE, exp=1),
        }


class Pipe:
    """A client on standard streams, of which the gateway has the other ends. Reads unless it is told not to."""

    def __init__(self, writing: int, reading: int, era: str) -> None:
        self._writing, self._reading = trio.lowlevel.FdStream(writing), trio.lowlevel.FdStream(reading)
        self._era = era
        self._hearing, self._saying = trio.Lock(), trio.Lock()

    async def run(self) -> None:
        """Open, and read whatever comes."""
        if self._era == OLD:
            await self._say(request(OLD, "first", "initialize", **INITIALIZE, **ABOUT))
            await self._say('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        with suppress(*GONE):
            while True:
                async with self._hearing:
                    data = await self._reading.receive_some(1 << 16)
                if not data:
                    return
                await trio.lowlevel.checkpoint()

    async def move(self, name: str, said: dict[str, Any]) -> None:
        with suppress(*GONE):
            await getattr(self, f"do_{name}")(**said)

    async def _say(self, *frames: str | bytes) -> None:
        data = b"".join((frame if isinstance(frame, bytes) else frame.encode()) + b"\n" for frame in frames)
        async with self._saying:
            await self._writing.send_all(data)

    async def do_flood(self, what: str, count: int) -> None:
        for messages in words.flood(what, count):
            await self._say(*messages)

    async def do_calls(self, count: int) -> None:
        await self._say(*(call(self._era, f"c{number}", "h0_once", key=f"y{number}") for number in range(count)))

    async def do_cancels(self, count: int) -> None:
        for number in range(count):
            told = {"requestId": f"s{number}"}
            await self._say(
                call(self._era, f"s{number}", "lab_sleep", seconds=1, label="x"),
                json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": told}),
            )

    async def do_unread(self, count: int, mebibytes: int, seconds: float) -> None:
        async with self._hearing:
            size = mebibytes << 20
            await self._say(*(call(self._era, f"u{number}", "load_big", size=size) for number in range(count)))
            await trio.sleep(seconds)

    async def do_half(self, seconds: float) -> None:
        said = call(self._era, "half", "load_echo", text="x" * 5000).encode() + b"\n"
        async with self._saying:
            await self._writing.send_all(said[:2000])
            await trio.sleep(seconds)
            await self._writing.send_all(said[2000:])

    async def do_end(self) -> None:
        await self._writing.aclose()
