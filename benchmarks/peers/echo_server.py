"""A small stdio MCP server of both eras in plain Python. Quick to start, and as cheap to call as Python allows.

Arguments: `plain` leaves out the output schema and the structured content.
"""

import json
import os
import sys
import threading
import time

PLAIN = "plain" in sys.argv[1:]
INFO = {"name": "echo", "version": "1"}
CACHING = {"ttlMs": 0, "cacheScope": "private"}
TEXT_IN = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TEXT_OUT = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
ECHO = {"name": "echo", "description": "Say it again.", "inputSchema": TEXT_IN}
TOOLS = [
    ECHO if PLAIN else ECHO | {"outputSchema": TEXT_OUT},
    {"name": "big", "inputSchema": {"type": "object", "properties": {"size": {"type": "integer"}}}},
    {"name": "flood", "inputSchema": {"type": "object"}},
]
FLOODS = {
    "notifications": b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"here"}}\n',
    "noise": b"2026-11-22 10:00:00 INFO worker 17 says that it is still here, on the wrong stream\n",
}
FLOODING = []
"""Floods that begin once the answer is out; nobody calls this server again."""
LINE = '2026-11-22 10:00:00 INFO a line of a log like any other, quoted "now and then"\n'


def write_all(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def flood(kind, rate):
    """Write `rate` lines a second in bursts of a hundredth; 0: as fast as they are read."""
    per_burst = rate // 100 or 500
    burst = FLOODS[kind] * per_burst
    due = time.monotonic()
    while True:
        write_all(burst)
        if rate:
            due = max(due + 0.01, time.monotonic() - 0.05)
            time.sleep(max(0.0, due - time.monotonic()))


def text_result(text, *, structured):
    result = {"content": [{"type": "text", "text": text}]}
    return result | {"structuredContent": {"result": text}} if structured else result


def call(params):
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "echo":
        return text_result(arguments["text"], structured=not PLAIN)
    if name == "big":
        size = arguments["size"]
        return text_result((LINE * (size // len(LINE) + 1))[:size], structured=False)
    FLOODING.append(threading.Thread(target=flood, args=(arguments["kind"], arguments["rate"]), daemon=True))
    return text_result("flooding", structured=False)


def outcome(method, params):
    match method:
        case "tools/call":
            return call(params)
        case "tools/list":
            return {"tools": TOOLS, **CACHING}
        case "server/discover":
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "_meta": meta, **CACHING}
        case "initialize":
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}
        case "ping":
            return {}
    return None


def answer(line):
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        return b""
    params = message.get("params") or {}
    result = outcome(message["method"], params)
    if result is None:
        reply = {"error": {"code": -32601, "message": "Method not found"}}
    else:
        modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", ())
        reply = {"result": {"resultType": "complete", **result} if modern else result}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}).encode() + b"\n"


def main():
    rest = b""
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        if replies := b"".join([answer(line) for line in lines]):
            write_all(replies)
        while FLOODING:
            FLOODING.pop().start()


if __name__ == "__main__":
    main()
