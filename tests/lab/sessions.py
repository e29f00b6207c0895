"""A server told what to answer to each method, and when, under a session or a whole connection."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import frozen

from mcp_nursery.actors.callbacks import NO_HOST
from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.session.changes import Changes
from mcp_nursery.actors.session.connection import open_connection
from mcp_nursery.actors.session.session import open_session

from .wire_peer import GONE, Peer, error, result

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
INFO = {"name": "lab", "version": "7"}
CACHING = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


@frozen
class Reply:
    """What comes back, and after how many seconds. Without a message: nothing ever."""

    message: Callable[[int], dict[str, Any]] | None = None
    after: float = 0.0
    dies: Loss | None = None


MUTE = Reply()


def answers(value: object, after: float = 0.0) -> Reply:
    return Reply(lambda request_id: result(request_id, value), after)


def refuses(code: int, after: float = 0.0, **more: Any) -> Reply:
    return Reply(lambda request_id: error(request_id, code, **more), after)


def dies(loss: Loss = GONE, after: float = 0.0) -> Reply:
    return Reply(after=after, dies=loss)


def discovery(*versions: str, **more: Any) -> dict[str, Any]:
    return {
        "supportedVersions": list(versions or [MODERN]),
        "capabilities": {"tools": {}},
        "instructions": "be kind",
        "_meta": {"io.modelcontextprotocol/serverInfo": INFO},
        **CACHING,
        **more,
    }


def greeting(version: str = HANDSHAKE, **more: Any) -> dict[str, Any]:
    return {
        "protocolVersion": version,
        "capabilities": {"tools": {}},
        "serverInfo": INFO,
        "instructions": "be kind",
        **more,
    }


def unsupported(*versions: str, after: float = 0.0) -> Reply:
    data = {"supported": list(versions), "requested": MODERN}
    return refuses(-32022, after, message="Unsupported protocol version", data=data)


def listing(*tools: str, cursor: str | None = None) -> Reply:
    page = {"tools": [{"name": tool, "inputSchema": {"type": "object"}} for tool in tools], **CACHING}
    return answers(page if cursor is None else {**page, "nextCursor": cursor})


class Lab(Peer):
    """Replies in turn to each method, the last one again and again. What is not scripted it does not know."""

    def __init__(self, nursery: trio.Nursery, **script: Any) -> None:
        super().__init__()
        self.nursery = nursery
        self.script = {
            name.replace("_", "/"): list(replies) if isinstance(replies, (list, tuple)) else [replies]
            for name, replies in script.items()
        }
        self.times: list[tuple[float, str]] = []
        """Every request it heard, and when."""
        self.on_message = self.react
        self.endpoint: Endpoint | None = None
        """That of a `session`."""

    @property
    def asked(self) -> list[str]:
        return [method for _, method in self.times]

    def react(self, message: dict[str, Any]) -> None:
        if "id" not in message or "method" not in message:
            return
        self.times.append((trio.current_time(), message["method"]))
        replies = self.script.get(message["method"], [refuses(-32601)])
        self.nursery.start_soon(self.reply, message["id"], replies.pop(0) if len(replies) > 1 else replies[0])

    async def reply(self, request_id: int, reply: Reply) -> None:
        await trio.sleep(reply.after)
        if reply.dies is not None:
            self.end(reply.dies)
        elif reply.message is not None:
            self.say(reply.message(request_id))


@asynccontextmanager
async def session(**script: Any) -> AsyncGenerator[tuple[Lab, Any], None]:
    """A bare session over the endpoint, and the server under it."""
    async with trio.open_nursery() as nursery:
        lab = Lab(nursery, **script)
        endpoint = lab.endpoint = Endpoint(StreamCarrier(lab))
        async with open_session(endpoint, NO_HOST, Changes("lab")) as opened:
            yield lab, opened
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connection(
    host: Any = NO_HOST, carrier: Any = StreamCarrier, **script: Any
) -> AsyncGenerator[tuple[Lab, Any], None]:
    """A whole connection, and the server under it."""

    async with trio.open_nursery() as nursery:
        lab = Lab(nursery, **script)
        async with open_connection(carrier(lab), host) as opened:
            yield lab, opened
        nursery.cancel_scope.cancel()
