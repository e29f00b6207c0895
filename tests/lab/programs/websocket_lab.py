"""An MCP server behind a WebSocket, plain and quick to start, that misbehaves as its `key=value` arguments say.

Writes the port it listens on as its first line.

Arguments:
    port=NUMBER     where to listen; any free port otherwise
    exit=yes        exit as soon as the first frame comes
    mute=yes        never answer anything
    probe=silent    never answer `server/discover`
    more=NAME       offer another tool, which does nothing
    status=NUMBER   refuse every connection with this status
    journal=FILE    append a line for every side effect
"""

import json
import os
import signal
import sys
import time

import trio
from trio_websocket import ConnectionClosed, serve_websocket

FLAGS = dict(argument.split("=", 1) for argument in sys.argv[1:])
FACTS = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "websocket lab", "version": "1"}}

TOOLS = ["echo", "sleep", "commit", "babble", "grow", *([FLAGS["more"]] if "more" in FLAGS else [])]


class Session:
    """One connection."""

    def __init__(self, connection, nursery):
        self.connection = connection
        self.nursery = nursery
        self.calls = {}

    async def answer(self, call, result):
        await self.connection.send_message(json.dumps({"jsonrpc": "2.0", "id": call, "result": result}))

    async def heed(self, message):
        call, params = message.get("id"), message.get("params", {})
        match message.get("method"):
            case "initialize":
                await self.answer(call, {"protocolVersion": params["protocolVersion"], **FACTS})
            case "tools/list":
                note("list")
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
                await self.answer(call, {"tools": tools})
            case "tools/call":
                self.calls[call] = scope = trio.CancelScope()
                self.nursery.start_soon(self.work, call, scope, params["name"], params.get("arguments", {}))
            case "server/discover" if FLAGS.get("probe") == "silent":
                note("discover")
            case "notifications/cancelled" if params["requestId"] in self.calls:  # a probe is none
                note("cancelled")
                self.calls[params["requestId"]].cancel()
            case _ if call is not None:
                error = {"code": -32601, "message": "Method not found"}
                await self.connection.send_message(json.dumps({"jsonrpc": "2.0", "id": call, "error": error}))

    async def work(self, call, scope, tool, arguments):
        with scope:
            match tool:
                case "sleep":
                    await trio.sleep(arguments["seconds"])
                case "commit":
                    note("commit")
                    os.kill(os.getpid(), signal.SIGKILL)
                case "grow":
                    for name in arguments["names"]:
                        TOOLS.append(name)
                        change = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
                        await self.connection.send_message(json.dumps(change))
                case "babble":
                    await self.connection.send_message(b"\xff\x00")
                    for n in range(1000):
                        await self.connection.send_message(f"INFO line {n} that is no JSON")
                    await self.connection.send_message("")
            text = str(arguments.get("text", len(self.calls)))
            await self.answer(call, {"content": [{"type": "text", "text": text}]})


def note(what):
    if "journal" in FLAGS:
        with open(FLAGS["journal"], "a") as file:
            file.write(f"{what} {time.monotonic()}\n")


async def handle(request):
    if "status" in FLAGS:
        await request.reject(int(FLAGS["status"]))
        return
    connection = await request.accept(subprotocol="mcp")
    try:
        async with trio.open_nursery() as nursery:
            session = Session(connection, nursery)
            while True:
                try:
                    message = await connection.get_message()
                except ConnectionClosed:
                    nursery.cancel_scope.cancel()
                    break
                if "exit" in FLAGS:
                    os._exit(3)
                if "mute" not in FLAGS:
                    await session.heed(json.loads(message))
    except* ConnectionClosed:
        pass


async def main():
    async with trio.open_nursery() as nursery:
        port = int(FLAGS.get("port", 0))
        server = await nursery.start(serve_websocket, handle, "127.0.0.1", port, None)
        os.write(1, b"%d\n" % server.port)


if __name__ == "__main__":
    trio.run(main)
