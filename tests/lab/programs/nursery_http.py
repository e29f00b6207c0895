"""A server of the SDK on loopback, over streamable HTTP or SSE, that misbehaves on order.

    python nursery_http.py port=8123 transport=http journal=/path [era=old] [json=1] [stateless=1] [headers=/path]

`more=tool` offers another one, which does nothing.

The journal gets a line `what time` for each execution of a tool and each HTTP request (`POST initialize`, `DELETE`).
`POST /control` with a JSON list sets the faults from then on; each is for `method` (JSON-RPC) or `http` (its method),
`times` times, see `misbehave`. It also takes back the tools that `grow` made.
"""

import asyncio
import json
import os
import sys
import time

import uvicorn
from asgi_body import read
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

FLAGS = dict(argument.split("=", 1) for argument in sys.argv[1:])
GROWN = []
RESETS = []
"""One for each test that begins."""
READS = ToolAnnotations(read_only_hint=True)
server = MCPServer("lab over HTTP", version="1")


def note(what):
    with open(FLAGS["journal"], "a") as journal:
        journal.write(f"{what.replace(' ', '_')} {time.monotonic()}\n")


@server.tool()
def commit(text: str = "") -> str:
    """Have an effect."""
    note("commit")
    return f"committed {text}"


@server.tool(annotations=READS)
def look() -> str:
    """Have none."""
    note("look")
    return "seen"


@server.tool()
async def hang(seconds: float = 3600) -> str:
    """Answer late."""
    note("hang")
    test = len(RESETS)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if test == len(RESETS):
            note("cancelled")
        raise
    return "rested"


@server.tool()
async def steps(context: Context, count: int = 5, pause: float = 0.0) -> str:
    """Report progress."""
    for step in range(count):
        await context.report_progress(step, count, f"step {step}")
        await asyncio.sleep(pause)
    return "done"


@server.tool()
async def grow(context: Context, names: list[str]) -> str:
    """Offer more tools, and say so in every way there is, once for each."""
    for name in names:
        server.add_tool(lambda: "new", name=name, description="New.")
        GROWN.append(name)
        await context.notify_tools_changed()
        await context.session.send_tool_list_changed()
    return "grown"


@server.tool()
def refuse() -> str:
    """Fail as a tool."""
    raise ValueError("not today")


class Faulty:
    """Stands before the app."""

    def __init__(self, app):
        self.app = app
        self.faults = []

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, receive = await read(receive)
        if scope["path"] == "/control":
            self.control(json.loads(body))
            await answer(send, 204)
            return
        method = json.loads(body).get("method", "response") if body.startswith(b"{") else ""
        note(f"{scope['method']} {method}".strip())
        note_headers(scope)
        fault = self.take(scope, method)
        if FLAGS.get("era") == "old" and method == "server/discover":
            fault = {"status": 400, "code": -32600, "message": "Bad Request: Missing session ID"}
        if fault is None:
            await self.app(scope, receive, send)
            return
        if fault.get("act"):
            await self.app(scope, receive, swallow)
        if "junk" in fault:
            await self.app(scope, receive, littered(send))
            return
        await misbehave(fault, body, send)

    def control(self, faults):
        """These from now on; what an earlier test left behind is gone."""
        self.faults = faults
        if not faults:
            RESETS.append(None)
        while GROWN:
            server.remove_tool(GROWN.pop())

    def take(self, scope, method):
        for fault in self.faults:
            if fault.get("method", method) == method and fault.get("http", "POST") == scope["method"]:
                fault["times"] = fault.get("times", 1) - 1
                if not fault["times"]:
                    self.faults.remove(fault)
                return fault
        return None


async def misbehave(fault, body, send):
    """What became of the request.

    `act`: the app has acted first; `hang` seconds; `exit`: the process is gone; `cut`: an answer that ends too early;
    `status` and the rest. `junk` is another: the app's own answer, with events between that are no JSON.
    """
    if "exit" in fault:
        os._exit(fault["exit"])
    await asyncio.sleep(fault.get("hang", 0))
    headers = {"content-type": fault.get("type", "text/html")}
    content = fault.get("body", "<h1>no</h1>")
    if "code" in fault:
        headers["content-type"] = "application/json"
        error = {"code": fault["code"], "message": fault["message"], "data": fault.get("data")}
        content = json.dumps({"jsonrpc": "2.0", "id": json.loads(body).get("id"), "error": error})
    if "location" in fault:
        headers["location"] = fault["location"]
    if "cut" in fault:
        headers["content-length"] = str(len(content) + fault["cut"])
    await answer(send, fault["status"], headers, content.encode())


def littered(send):
    async def litter(message):
        if message["type"] == "http.response.body" and message.get("more_body"):
            message = {**message, "body": message["body"] + b"event: message\r\ndata: no JSON\r\n\r\n" * 3}
        await send(message)

    return litter


async def swallow(message):
    """An answer that nobody gets."""


async def answer(send, status, headers=(), content=b""):
    pairs = [(name.encode(), value.encode()) for name, value in dict(headers).items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": content})


def note_headers(scope):
    if "headers" in FLAGS:
        with open(FLAGS["headers"], "a") as file:
            pairs = [[name.decode(), value.decode()] for name, value in scope["headers"]]
            query = scope["query_string"].decode()
            file.write(json.dumps({"path": scope["path"], "query": query, "headers": dict(pairs)}) + "\n")


def more():
    """Do nothing."""


def over_http():
    return server.streamable_http_app(json_response="json" in FLAGS, stateless_http="stateless" in FLAGS)


def main():
    if "more" in FLAGS:
        server.add_tool(more, name=FLAGS["more"])
    apps = {"sse": server.sse_app, "http": over_http}
    config = uvicorn.Config(
        Faulty(apps[FLAGS["transport"]]()), host="127.0.0.1", port=int(FLAGS["port"]), log_level="error"
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
