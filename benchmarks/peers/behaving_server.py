"""A small stdio MCP server of both eras in plain Python, which misbehaves as its caller asks.

Arguments: a file, to which it appends a line of JSON for all that it does; a prefix for the names of its tools, which
may be empty; then `exits` or `silent`, for a server that does not start.
"""

import json
import os
import signal
import subprocess
import sys
import time

JOURNAL, PREFIX = sys.argv[1:3]
INFO = {"name": "behaving", "version": "1"}
CACHING = {"ttlMs": 0, "cacheScope": "private"}
NAMES = ("echo", "act", "hang", "wedge", "noise", "stderr", "child")
TOOLS = [
    {
        "name": PREFIX + name,
        "description": f"Do {name}.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    for name in NAMES
]
NOISE = b"2026-11-22 10:00:00 INFO worker 17 says that it is still here, on the wrong stream\n"
NOISE_LINES = 20_000
STDERR_BYTES = 200 << 20
BEFORE_DEATH = 0.5
"""Seconds between the act and the end of the process."""
PROTOCOL = "io.modelcontextprotocol/protocolVersion"


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def note(what, **more):
    line = json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **more}) + "\n"
    fd = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def text(said):
    return {"content": [{"type": "text", "text": said}]}


def act():
    """Have an effect, and die before the answer."""
    note("act")
    time.sleep(BEFORE_DEATH)
    note("death")
    os.kill(os.getpid(), signal.SIGKILL)


def wedge():
    """Read nothing any more."""
    note("wedged")
    time.sleep(3600)


def noise():
    write_all(1, NOISE * NOISE_LINES)
    return text("done")


def stderr():
    piece = NOISE * 1000
    for _ in range(STDERR_BYTES // len(piece)):
        write_all(2, piece)
    return text("done")


def child():
    """Start a process that nothing but a signal ends, in the group of this one."""
    nowhere = subprocess.DEVNULL
    helper = subprocess.Popen(["sleep", "7654"], stdin=nowhere, stdout=nowhere, stderr=nowhere)
    note("child", child=helper.pid)
    return text("done")


def call(params):
    """The result; None: there is no answer."""
    match params["name"].removeprefix(PREFIX):
        case "echo":
            return text((params.get("arguments") or {}).get("text", ""))
        case "hang":
            note("hang")
            return None
        case name:
            return {"act": act, "wedge": wedge, "noise": noise, "stderr": stderr, "child": child}[name]()


def outcome(method, params):
    match method:
        case "tools/call":
            result = call(params)
            return result and {"result": result}
        case "tools/list":
            return {"result": {"tools": TOOLS, **CACHING}}
        case "server/discover":
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            return {
                "result": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "_meta": meta, **CACHING}
            }
        case "initialize":
            return {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}}
        case "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def handle(line):
    message = json.loads(line)
    if "method" not in message:
        return
    if "id" not in message:
        note("notified", method=message["method"])
        return
    params = message.get("params") or {}
    reply = outcome(message["method"], params)
    if reply is None:
        return
    if "result" in reply and PROTOCOL in params.get("_meta", ()):
        reply["result"] = {"resultType": "complete", **reply["result"]}
    write_all(1, json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}).encode() + b"\n")


def main():
    note("start")
    if "exits" in sys.argv[3:]:
        sys.exit("no such database")
    if "silent" in sys.argv[3:]:
        time.sleep(3600)
    rest = b""
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            handle(line)


if __name__ == "__main__":
    main()
