"""Servers and callers that the tests of calls share."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import CallError
from mcp_nursery.actors.transports.base import StreamConnector

from .talker import Talker

S = ServerState


async def nap(arguments: Mapping[str, Any]) -> object:
    await trio.sleep(arguments.get("for", 1))
    return "rested"


class Peer(Talker, StreamConnector):
    """A server frame by frame: `handle(peer, message)` sends what it likes. Also its own transport and connector."""

    kind = "peer"

    def __init__(self, handle: Callable[["Peer", dict[str, Any]], object], *, tools: Sequence[str] = ("work",)) -> None:
        super().__init__()
        self.handle = handle
        self.tools = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
        self.received: list[dict[str, Any]] = []

    def connector(self, *, close_grace: float) -> "Peer":
        return self

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Peer", None]:
        yield self

    def send(self, **message: Any) -> None:
        self.say(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def answer(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        self.send(id=request["id"], result=result)

    def take(self, message: dict[str, Any]) -> None:
        self.received.append(message)
        match message.get("method"):
            case "server/discover":
                self.send(id=message["id"], error={"code": -32601, "message": "Method not found"})
            case "initialize":
                greeting = {"capabilities": {"tools": {}}, "serverInfo": {"name": "peer", "version": "1"}}
                self.answer(message, {"protocolVersion": "2025-11-25", **greeting})
            case "tools/list":
                self.answer(message, {"tools": self.tools})
            case "tools/call" | "notifications/cancelled":
                self.handle(self, message)


TEXT = {"content": [{"type": "text", "text": "done"}]}


async def outcome_of(call: Callable[[], Any]) -> object:
    try:
        return await call()
    except CallError as error:
        return error


async def nothing(arguments: object) -> object:
    return "done"


def ticking(times: Sequence[float], *, end: float | None) -> Peer:
    """A peer that reports progress at these times after a call, and answers at `end`."""

    async def tick(peer: Peer, message: dict[str, Any]) -> None:
        start = trio.current_time()
        for count, moment in enumerate(times):
            await trio.sleep_until(start + moment)
            token = message["params"].get("_meta", {}).get("progressToken", "nobody's")
            peer.send(method="notifications/progress", params={"progressToken": token, "progress": count})
        if end is not None:
            await trio.sleep_until(start + end)
            peer.answer(message, dict(TEXT))

    def handle(peer: Peer, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            trio.lowlevel.spawn_system_task(tick, peer, message)

    return Peer(handle)
