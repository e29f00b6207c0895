"""Hostile servers: peers of the sweep, which execute into a ledger, and do besides what moves say."""

import gzip
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import trio

from ..sweeps.http_peers import STREAM, HttpPeer, SsePeer, chunk, event, response
from ..sweeps.links import Ended, Link
from ..sweeps.peers import HANDSHAKE, TOOLS, Asked, Message, Peer, Plan, dumps
from ..sweeps.stream_peers import TcpPeer, WebSocketPeer, frame
from ..sweeps.sweep import KINDS, rows
from . import words

PEER = Path(__file__).parents[2] / "benchmarks" / "peers" / "hostile_server.py"
_spec = spec_from_file_location("hostile_server", PEER)
hostile_server = module_from_spec(_spec)
_spec.loader.exec_module(hostile_server)

Trick = Callable[[Asked], Awaitable[None]]


class Hostile(Peer):
    """What is hostile in a peer of any kind."""

    kind = "http-json"
    twice = False
    """A fault that is planted: every third call is executed twice."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.tricks = deque[Trick]()
        """What becomes of the next calls."""
        self.defined: Callable[[int, Any], Message] | None = None
        """What a list is, by its number and cursor."""
        self.ears = set[Link]()
        """Streams on which the host hears what it has not asked for, over HTTP."""
        self.moving: trio.Nursery
        self._lists = itertools.count()
        self._hearing = trio.Lock()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["Hostile", None]:
        async with super().serving():
            yield self

    # -- moves ----------------------------------------------------------------------------------------------------

    async def move(self, name: str, said: dict[str, Any]) -> None:
        """Do one thing."""
        with suppress(Ended):
            await getattr(self, f"do_{name.replace(' ', '_')}")(**said)

    async def do_fault(self, row: int, at: int, over: float) -> None:
        """A row of the sweep, at a byte."""
        table = rows(self.kind)
        plan = self.plan = Plan(table[row % len(table)].script, at)
        await trio.sleep(over)
        if self.plan is plan:
            self.plan = None
        plan.over.set()

    async def do_flood(self, what: str, count: int, deaf: float) -> None:
        """Thousands of messages, perhaps without reading meanwhile."""
        if deaf:
            self.moving.start_soon(self.move, "deaf", {"seconds": deaf})
        for messages in words.flood(what, count):
            await self.cry(messages)

    async def do_trick(self, how: str, count: int, seconds: float) -> None:
        """Something else in the place of the next answers to calls."""
        trick = getattr(self, f"_{how.replace(' ', '_').replace(chr(39), '')}")
        self.tricks.extend([partial(trick, seconds=seconds)] * count)

    async def do_large(self, what: str, mebibytes: int, count: int) -> None:
        """Results of many bytes."""
        hostile_server.SIZE = mebibytes << 20
        made = hostile_server.RESULTS[what]()
        stamped = b'{"resultType":"complete",' + made[1:]

        async def answer(asked: Asked) -> None:
            self.reply(asked)
            await self.say(
                asked, b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(asked.message["id"]).encode(), stamped)
            )

        self.tricks.extend([answer] * count)

    async def do_define(self, what: str, count: int) -> None:
        """Other tools, and word of it."""
        self.defined = _DEFINITIONS[what]
        await self.cry([words.dumps(method="notifications/tools/list_changed")] * count)

    async def do_deaf(self, seconds: float) -> None:
        """Read nothing for so long."""
        async with self._hearing:
            await trio.sleep(seconds)

    async def do_vanish(self, seconds: float, how: str) -> None:
        """End every connection, and refuse others for a while."""
        self.refuse()
        for link in list(self.links):
            link.close() if how == "close" else link.reset()
        await trio.sleep(seconds)
        await self.accept()

    async def do_half(self, seconds: float, then: str) -> None:
        """A message that stops in the middle."""
        said = self.framed(words.dumps(method="notifications/message", params={"level": "info", "data": "x" * 500}))
        for link in self.outlets():
            await link.send(said[:200])
        await trio.sleep(seconds)
        for link in self.outlets():
            if then == "rest":
                await link.send(said[200:])
            else:
                link.close() if then == "close" else link.reset()

    async def do_end_streams(self, count: int) -> None:
        """End whatever is held open for news, again and again."""
        for _ in range(count):
            for link in self.outlets():
                link.close()
            await trio.sleep(0.1)

    async def calm(self) -> None:
        """Be honest from now on, with new connections."""
        self.moving.cancel_scope.cancel()
        await self.accept()
        self.tricks.clear()
        self.plan = self.defined = None
        for link in list(self.links):
            link.reset()

    # -- what is said -----------------------------------------------------------------------------------------------

    def outlets(self) -> Sequence[Link]:
        """Where it may speak unasked."""
        if isinstance(self, SsePeer):
            return [] if self.stream is None else [self.stream]
        return list(self.ears if isinstance(self, HttpPeer) else self.links)

    def framed(self, message: bytes) -> bytes:
        if isinstance(self, HttpPeer):
            return chunk(event(message))
        return frame(message) if isinstance(self, WebSocketPeer) else message + b"\n"

    async def cry(self, messages: Sequence[bytes]) -> None:
        """Say it unasked to everybody."""
        for link in self.outlets():
            await link.send(b"".join(map(self.framed, messages)))

    async def say(self, asked: Asked, *messages: bytes) -> None:
        """Say it in answer."""
        for link, data in self.legs(asked, messages):
            await link.send(data)

    # -- what is heard ----------------------------------------------------------------------------------------------

    async def read(self, link: Link) -> Asked:
        async with self._hearing:
            pass
        return await super().read(link)

    async def answer(self, asked: Asked) -> None:
        if asked.head.startswith(b"GET /mcp") and self.version == HANDSHAKE:
            await self._listen(asked.link)
        elif asked.key is None or not self.tricks:
            await super().answer(asked)
        elif isinstance(self, HttpPeer):  # an exchange of its own
            await self.tricks.popleft()(asked)
        else:
            self.nursery.start_soon(self._beside, self.tricks.popleft(), asked)

    async def _beside(self, trick: Trick, asked: Asked) -> None:
        with suppress(Ended):
            await trick(asked)

    async def _listen(self, link: Link) -> None:
        await link.send(STREAM % b"")
        self.ears.add(link)
        try:
            await link.reads(1)
        finally:
            self.ears.discard(link)

    def _outcome(self, asked: Asked, message: Message) -> Message:
        said = super()._outcome(asked, message)
        result = said.get("result", {})
        if "capabilities" in result:
            result["capabilities"] = {"tools": {"listChanged": True}, "logging": {}}
        if "tools" in result and self.defined is not None:
            result.update(self.defined(next(self._lists), message.get("params", {}).get("cursor")))
        if self.twice and asked.key is not None and sum(self.ledger.values()) % 3 == 0:
            self.ledger[asked.key] += 1
        return said

    # -- tricks -----------------------------------------------------------------------------------------------------

    async def _twice(self, asked: Asked, seconds: float) -> None:
        await self.say(asked, *[dumps(self.reply(asked))] * 2)

    async def _another(self, asked: Asked, seconds: float) -> None:
        """In the name of a call that is not this one."""
        reply = self.reply(asked)
        number = asked.message["id"]
        await self.say(asked, dumps({**reply, "id": number - 1 if isinstance(number, int) else f"{number}0"}))

    async def _never(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        await trio.sleep(seconds)

    async def _late(self, asked: Asked, seconds: float) -> None:
        await trio.sleep(seconds)
        await self.say(asked, dumps(self.reply(asked)))

    async def _drip(self, asked: Asked, seconds: float) -> None:
        for link, data in self.legs(asked, [dumps(self.reply(asked))]):
            for place in range(0, len(data), 8):
                await link.send(data[place : place + 8])
                await trio.sleep(seconds / 20)

    async def _progress(self, asked: Asked, seconds: float) -> None:
        token = asked.message["params"].get("_meta", {}).get("progressToken", 1)
        notices = [
            words.dumps(method="notifications/progress", params={"progressToken": token, "progress": step})
            for step in range(2000)
        ]
        await self.say(asked, *notices, dumps(self.reply(asked)))

    async def _ask(self, asked: Asked, seconds: float) -> None:
        """Questions in the middle of the call, and after it."""
        questions = [message for batch in words.flood("elicitation", 20) for message in batch]
        await self.say(asked, *questions, dumps(self.reply(asked)), *questions)

    async def _nonsense(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        await self.say(asked, dumps({"jsonrpc": "2.0", "id": asked.message["id"], "result": [1, {"content": 7}]}))

    async def _null(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        await self.say(asked, dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no"}}))

    async def _error(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        error = {"code": -32001, "message": "session not found; request timed out", "data": ["x" * 50_000] * 10}
        await self.say(asked, dumps({"jsonrpc": "2.0", "id": asked.message["id"], "error": error}))

    async def _half(self, asked: Asked, seconds: float) -> None:
        for link, data in self.legs(asked, [dumps(self.reply(asked))]):
            await link.send(data[: len(data) // 2])
            await trio.sleep(seconds)
            link.close()

    async def _gone(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        asked.link.reset()

    async def _notice_first(self, asked: Asked, seconds: float) -> None:
        for link, data in self.legs(asked, [words.dumps(method="notifications/tools/list_changed")]):
            await link.send(data)
        await trio.sleep(seconds)
        await self.say(asked, dumps(self.reply(asked)))

    # Those that only HTTP can do; elsewhere they are answers that never come.

    async def _redirected(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        await asked.link.send(self._http(response(307, more=b"location: /moved\r\n")))

    async def _expired(self, asked: Asked, seconds: float) -> None:
        error = {"code": -32600, "message": "Session not found"}
        self.reply(asked)
        said = dumps({"jsonrpc": "2.0", "id": asked.message["id"], "error": error})
        await asked.link.send(self._http(response(404, said)))

    async def _page(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        await asked.link.send(self._http(response(200, b"<p>" * 100_000, b"text/html")))

    async def _packed(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        packed = gzip.compress(bytes(64 << 20))
        await asked.link.send(self._http(response(200, packed, more=b"content-encoding: gzip\r\n")))

    async def _many_events(self, asked: Asked, seconds: float) -> None:
        self.reply(asked)
        await asked.link.send(self._http(STREAM % b"" + chunk(b"id: 1\ndata:\n\n" * 20_000) + b"0\r\n\r\n"))

    async def _slow_stream(self, asked: Asked, seconds: float) -> None:
        """A stream that says nothing for a while, ends without the answer, and can be resumed."""
        self.reply(asked)
        await asked.link.send(self._http(STREAM % b"" + chunk(b"id: 1\nretry: 10\ndata: \n\n")))
        await trio.sleep(seconds)
        await asked.link.send(self._http(b"0\r\n\r\n"))

    def _http(self, said: bytes) -> bytes:
        return said if isinstance(self, HttpPeer) else b""


_OTHER = {"name": "other", "inputSchema": {"type": "object"}}
_PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "a?" * 50_000}}}
_INVALID = [{"name": 7}, None, {"name": "x" * 100_000, "inputSchema": {"type": "array"}}]


def _nested() -> Message:
    schema: Message = {"type": "object"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema, "b": {"anyOf": [schema["type"], {}]}}}
    return {**_OTHER, "inputSchema": schema}


_DEFINITIONS: dict[str, Callable[[int, Any], Message]] = {
    "many": lambda number, cursor: {"tools": [*TOOLS, *({**_OTHER, "name": f"t{at}"} for at in range(3000))]},
    "changing": lambda number, cursor: {"tools": [{**tool, "description": f"as of {number}"} for tool in TOOLS]},
    "pattern": lambda number, cursor: {"tools": [{**tool, "outputSchema": _PATTERN} for tool in TOOLS]},
    "nested": lambda number, cursor: {"tools": [*TOOLS, _nested()]},
    "loop": lambda number, cursor: {"tools": TOOLS, "nextCursor": "again"},
    "endless": lambda number, cursor: {"tools": [{**_OTHER, "name": f"t{number}"}], "nextCursor": f"c{number}"},
    "twins": lambda number, cursor: {"tools": [*TOOLS, *TOOLS]},
    "invalid": lambda number, cursor: {"tools": [*TOOLS, *_INVALID]},
    "none": lambda number, cursor: {"tools": []},
    "plain": lambda number, cursor: {"tools": TOOLS},
}


class Guarded(Hostile, HttpPeer):
    """Executes nothing without a token of its issuer's."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.good = set[str]()
        """Tokens that it takes."""
        self.origin = ""
        """Of its issuer."""

    async def read(self, link: Link) -> Asked:
        """What is no JSON is a form for an issuer: who finds no metadata asks the server itself."""
        try:
            return await super().read(link)
        except json.JSONDecodeError:
            return Asked(None, link, b"POST /token")

    async def answer(self, asked: Asked) -> None:
        if b"/.well-known/" in asked.head.split(b"\r\n")[0]:
            described = {"resource": self.url, "authorization_servers": [self.origin]}
            await asked.link.send(response(200, json.dumps(described).encode()))
        elif not any(f"bearer {token}".encode() in asked.head.lower() for token in self.good):
            await asked.link.send(response(401, more=b"www-authenticate: Bearer\r\n"))
        else:
            await super().answer(asked)


def made(kind: str) -> Hostile:
    """A hostile server of this kind."""
    base, version = KINDS[kind]
    return type(f"Hostile{base.__name__}", (Hostile, base), {"kind": kind})(version)


def place_of(peer: Peer) -> dict[str, Any]:
    """How a process that was forked from ours reaches it."""
    if isinstance(peer, TcpPeer):
        kind = "sse" if isinstance(peer, SsePeer) else "http" if isinstance(peer, HttpPeer) else "ws"
        return {"kind": kind, "url": peer.transport().url}
    transport = peer.transport()
    return {"kind": "stdio", "command": transport.command, "args": list(transport.args)}
