"""A stdio MCP server in plain Python, quick to start, that notes each execution in a ledger and fails as it is told.

Arguments:
    name=NAME       that of its entry, for who looks at the process table
    ledger=FILE     append a line, the key of the call, for every execution
    era=old|new     the protocol it speaks
    fails=HOW       at every ninth call: `crash`, before or after the execution; `hang`, for one call or for seconds;
                    `flood`, of notifications and of lines on standard error
    slow=SECONDS    until it answers anything
    twice=COUNT     execute every so many calls twice: a fault that a judge has to find
"""

import json
import os
import sys
import threading
import time

FLAGS = dict(argument.split("=", 1) for argument in sys.argv[1:])
EVERY = 9
HANGS = 7.0
"""Seconds: longer than any call may take."""
INFO = {"name": "chaos", "version": "1"}
KEY = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "takes": {"type": "number"}},
    "required": ["key"],
}
TASKS = "io.modelcontextprotocol/tasks"
TOOLS = [
    {"name": "once", "description": "Have an effect.", "inputSchema": KEY},
    {"name": "later", "description": "Have an effect, and say so later.", "inputSchema": KEY},
    {"name": "again", "description": "May be repeated.", "inputSchema": KEY, "annotations": {"idempotentHint": True}},
]
CACHING = {"ttlMs": 0, "cacheScope": "private"}
NOTICE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "still here"}}
WRITING = threading.Lock()
calls = 0


def write_all(fd, data):
    view = memoryview(data)
    with WRITING:
        while view:
            view = view[os.write(fd, view) :]


def execute(key):
    fd = os.open(FLAGS["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{key}\n".encode())
    os.close(fd)


def call(params):
    """The result of a call; None: there never is one."""
    global calls  # noqa: PLW0603 - a counter of the process
    calls += 1
    key, fails = params["arguments"]["key"], FLAGS.get("fails") if calls % EVERY == 0 else None
    if fails == "crash" and calls % (2 * EVERY) == 0:
        os._exit(9)
    execute(key)
    if calls % int(FLAGS.get("twice", 1 << 60)) == 0:
        execute(key)
    if fails == "crash":
        os._exit(9)
    if fails == "hang":
        if calls % (4 * EVERY) == 0:
            time.sleep(HANGS)
        return None
    if fails == "flood":
        write_all(2, b"a line that nobody asked for\n" * 20_000)
        write_all(1, json.dumps(NOTICE).encode().join([b"", b"\n"]) * 20_000)
    if params["name"] == "later" and follows(params):
        made = task(f"{key}:{time.time() + params['arguments']['takes']}")
    else:
        made = {"content": [{"type": "text", "text": key}]}
    return made


def follows(params):
    able = params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {})
    return TASKS in able.get("extensions", {})


def task(name):
    """A task, about which its id says all: any incarnation knows it."""
    key, _, ends = name.rpartition(":")
    facts = {"taskId": name, "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": None, "pollIntervalMs": 200}
    if time.time() < float(ends):
        return {"resultType": "task", "status": "working", **facts}
    return {"status": "completed", "result": {"content": [{"type": "text", "text": key}]}, **facts}


def outcome(method, params):
    match method:
        case "tools/call":
            return call(params)
        case "tasks/get":
            return {**task(params["taskId"]), "resultType": "complete"}
        case "tools/list":
            return {"tools": TOOLS, **CACHING}
        case "server/discover" if FLAGS.get("era") == "new":
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            capabilities = {"tools": {}, "extensions": {TASKS: {}}}
            return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "_meta": meta, **CACHING}
        case "initialize":
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}}, "serverInfo": INFO}
        case "ping" | "logging/setLevel" | "tasks/cancel":
            return {}
        case _:
            raise LookupError


def answer(message):
    params = message.get("params") or {}
    try:
        result = outcome(message["method"], params)
    except LookupError:
        reply = {"error": {"code": -32601, "message": "Method not found"}}
    else:
        if result is None:
            return
        modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", ())
        reply = {"result": {"resultType": "complete", **result} if modern else result}
    line = json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}).encode() + b"\n"
    takes = params.get("arguments", {}).get("takes")
    if takes and "taskId" not in reply.get("result", {}):
        threading.Timer(takes, write_all, [1, line]).start()  # others do not wait for it
    else:
        write_all(1, line)


if __name__ == "__main__":
    time.sleep(float(FLAGS.get("slow", 0)))
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            answer(message)
