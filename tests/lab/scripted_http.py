"""A server over streamable HTTP that says what its script says, word for word, and keeps what it reads.

The script is that of tests/lab/programs/stdio_scripted.py. A request whose last step is its only one is answered by a
document, any other on a stream.
"""

import json
from collections.abc import Mapping
from typing import Any

import trio

from .hostile_http import JSON, STREAM, event, read_request

SESSION = b"mcp-session-id: scripted\r\n"


class ScriptedHttp:
    """`read` is every frame, as text."""

    def __init__(self, script: Mapping[str, Any]) -> None:
        self._script = script
        self._answered = trio.lowlevel.ParkingLot()
        self.read: list[str] = []

    async def serve(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp")
        await trio.serve_listeners(self._exchange, [listener])

    async def _exchange(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                request, body = await read_request(stream)
                if not request.startswith(b"POST"):
                    await stream.send_all(_head(b"405 No") + b"content-length: 0\r\n\r\n")
                    return
                self.read.append(body.decode())
                await self._respond(stream, json.loads(body))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client has gone

    async def _respond(self, stream: trio.SocketStream, message: dict[str, Any]) -> None:
        if "id" not in message or "method" not in message:
            await stream.send_all(_head(b"202 Accepted") + b"content-length: 0\r\n\r\n")
            self._answered.unpark_all()
            return
        steps = self._steps(message)
        session = SESSION if message["method"] == "initialize" else b""
        if len(steps) == 1:
            said = steps[0].encode()
            size = b"content-length: %d\r\n\r\n" % len(said)
            await stream.send_all(_head(b"200 OK", JSON) + session + size + said)
            return
        await stream.send_all(_head(b"200 OK", STREAM) + session + b"\r\n")
        for step in steps:
            if isinstance(step, str):
                await stream.send_all(event(step.encode()))
            else:
                await self._answered.park()

    def _steps(self, message: dict[str, Any]) -> list[Any]:
        method, params = message["method"], message.get("params", {})
        if method == "tools/call":
            steps = self._script["calls"][params["name"]]
        else:
            steps = self._script["answers"].get(method, [_UNKNOWN])
        known = {"$ID": message["id"], "$TOKEN": params.get("_meta", {}).get("progressToken")}
        return [_filled(step, known) if isinstance(step, str) else step for step in steps]


_UNKNOWN = '{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"Method not found"}}'


def _filled(step: Any, known: Mapping[str, Any]) -> Any:
    for name, value in known.items():
        step = step.replace(name, json.dumps(value))
    return step


def _head(status: bytes, kind: bytes | None = JSON) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\nconnection: close\r\n" % (status, kind)
