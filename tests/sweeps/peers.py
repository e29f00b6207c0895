"""Servers that execute calls into a ledger, and do to one exchange what a fault says. One for each kind of wire.

A peer is honest but for its fault: it executes what it has read whole, whenever that is, and answers it. So what was
executed is in the ledger, whoever was told what.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from .links import Ended, Link

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
TOOLS = [
    {"name": "once", "inputSchema": {"type": "object"}},
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]
FACTS = {"capabilities": {"tools": {}}}
INFO = {"name": "peer", "version": "1"}
KEY = "5ecret-of-the-peer"
"""What the supervisor gives it, in a header or a variable, and shows nobody."""

Message = dict[str, Any]
Leg = tuple[Link, bytes]


@define(eq=False)
class Asked:
    """A message of the client, and what else it takes to answer it."""

    message: Any
    link: Link
    """Where it came."""
    head: bytes = b""
    """Of the HTTP request."""

    @property
    def key(self) -> str | None:
        """Which call of the sweep it is; None if it is no call."""
        if not isinstance(self.message, dict) or self.message.get("method") != "tools/call":
            return None
        return self.message["params"]["arguments"]["key"]


class NotYet(Exception):
    """What was read is not the call that a fault waits for: a stream that is opened late, a session that is ended."""


@define(eq=False)
class Exchange:
    """One call as its fault has it."""

    peer: "Peer"
    link: Link
    at: int
    over: trio.Event
    """The call has its outcome."""
    reached: trio.Event
    """The fault has come to its place."""
    asked: Asked | None = None

    async def hear(self) -> Message:
        """Read the request whole.

        Raises:
            NotYet: It is something else.
        """
        self.asked = await self.peer.read(self.link)
        if self.asked.key is None:
            raise NotYet
        return self.asked.message

    def execute(self) -> bytes:
        """Do what is asked, and give the message that says so."""
        assert self.asked is not None
        return dumps(self.peer.reply(self.asked))

    def legs(self, *messages: bytes) -> list[Leg]:
        assert self.asked is not None
        return self.peer.legs(self.asked, messages)


Script = Callable[[Exchange], Awaitable[None]]


@define(eq=False)
class Plan:
    """A fault that waits for its exchange."""

    script: Script
    at: int = 0
    over: trio.Event = field(factory=trio.Event)
    reached: trio.Event = field(factory=trio.Event)


class Peer(ABC):
    """A server. `kind` says what it speaks over what."""

    bodies_end = False
    """Whether an answer that is none ends its exchange: over HTTP."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.ledger = Counter[str]()
        self.plan: Plan | None = None
        self.links = set[Link]()
        self.nursery: trio.Nursery

    @asynccontextmanager
    async def serving(self) -> "AsyncGenerator[Peer, None]":
        async with trio.open_nursery() as self.nursery:
            await self.listen()
            yield self
            self.nursery.cancel_scope.cancel()
        for link in list(self.links):
            link.close()

    @abstractmethod
    async def listen(self) -> None: ...

    @abstractmethod
    def transport(self) -> Any:
        """How the supervisor reaches it."""

    @abstractmethod
    async def read(self, link: Link) -> Asked: ...

    @abstractmethod
    def legs(self, asked: Asked, messages: Sequence[bytes]) -> list[Leg]:
        """What is to be written to answer with these messages, and where."""

    async def open(self, link: Link) -> None:  # noqa: B027 - not every kind has to
        """Whatever goes before the first message."""

    def refuse(self) -> None:  # noqa: B027 - not every kind has to
        """Connections are refused from now on."""

    async def accept(self) -> None:  # noqa: B027 - not every kind has to
        """And no more."""

    async def serve(self, link: Link) -> None:
        """One connection from its first byte to its last."""
        self.links.add(link)
        try:
            await self.open(link)
            while not link.closed:
                await link.reads(1)
                if self.plan is None:
                    await self.answer(await self.read(link))
                else:
                    await self._misbehave(self.plan, link)
        except Ended:
            pass
        finally:
            self.links.discard(link)
            link.close()

    async def _misbehave(self, plan: Plan, link: Link) -> None:
        self.plan, exchange = None, Exchange(self, link, plan.at, plan.over, plan.reached)
        try:
            await plan.script(exchange)
        except NotYet:
            if not plan.over.is_set():
                self.plan = plan
            assert exchange.asked is not None
            await self.answer(exchange.asked)

    async def answer(self, asked: Asked) -> None:
        reply = self.reply(asked)
        for link, data in self.legs(asked, [] if reply is None else [dumps(reply)]):
            await link.send(data)

    def reply(self, asked: Asked) -> Message | None:
        message = asked.message
        if not isinstance(message, dict) or "id" not in message or "method" not in message:
            return None
        return {"jsonrpc": "2.0", "id": message["id"], **self._outcome(asked, message)}

    def _outcome(self, asked: Asked, message: Message) -> Message:
        modern = self.version == MODERN
        stamp = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if modern else {}
        match message["method"]:
            case "server/discover" if modern:
                info = {"_meta": {"io.modelcontextprotocol/serverInfo": INFO}}
                return {"result": {"supportedVersions": [MODERN], **info, **FACTS, **stamp}}
            case "initialize" if not modern:
                return {"result": {"protocolVersion": HANDSHAKE, "serverInfo": INFO, **FACTS}}
            case "tools/list":
                return {"result": {"tools": TOOLS, **stamp}}
            case "tools/call":
                self.ledger[asked.key] += 1
                content = [{"type": "text", "text": asked.key}]
                return {"result": {"content": content, **({"resultType": "complete"} if modern else {})}}
            case "ping":
                return {"result": {}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}


def dumps(message: Any) -> bytes:
    return json.dumps(message).encode()
