"""A small stdio MCP server in plain Python whose tools misbehave, for `behaviours.py`.

Arguments: `fails` ends it at once; `log=FILE` is where it writes that it was told of a cancellation.
"""

import json
import os
import subprocess
import sys

TOOLS = ("echo", "pid", "die", "stall", "spend", "child")
LOG = next((each.removeprefix("log=") for each in sys.argv[1:] if each.startswith("log=")), os.devnull)


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(name, arguments):
    """The text of the answer; None: there is none."""
    match name:
        case "echo":
            return arguments["text"]
        case "pid":
            return str(os.getpid())
        case "die":
            os._exit(7)
        case "spend":
            with open(arguments["text"], "a") as file:
                file.write("spent\n")
            os._exit(7)
        case "child":
            return str(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid)
    return None


def outcome(method, params):
    match method:
        case "initialize":
            info = {"name": "behaving", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            return {"tools": [{"name": name, "description": name, "inputSchema": schema} for name in TOOLS]}
        case "tools/call":
            text = call(params["name"], params.get("arguments") or {})
            return None if text is None else {"content": [{"type": "text", "text": text}]}
        case "ping":
            return {}
    return ...


if "fails" in sys.argv[1:]:
    sys.exit("no database here")
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "notifications/cancelled":
        with open(LOG, "a") as file:
            file.write("cancelled\n")
    elif "id" in message and "method" in message:
        found = outcome(message["method"], message.get("params") or {})
        if found is ...:
            say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        elif found is not None:
            say({"id": message["id"], "result": found})
