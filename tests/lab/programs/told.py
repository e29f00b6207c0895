"""A server that tells what it was told its client can be asked, and has a tool for each of that. Its argument: whether
it speaks 2026-07-28."""

import json
import re
import sys

MODERN = sys.argv[1] == "modern"
META = "io.modelcontextprotocol/clientCapabilities"
told = {}


def answer(message, **said):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize" and not MODERN:
        told["initialize"] = params["capabilities"]
        server = {"name": "told", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": server}
    elif method == "server/discover" and MODERN:
        told["discover"] = params["_meta"][META]
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    elif method == "tools/list":
        if MODERN:
            told["list"] = params["_meta"][META]
        [said, *_] = told.values()
        needs = [
            re.sub(r"\W", "_", f"for_{'_'.join([name, *sorted(members)])}") for name, members in sorted(said.items())
        ]
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("told", *needs)]}
    elif method == "tools/call":
        if params["arguments"].get("die"):
            sys.exit(3)
        result = {"content": [{"type": "text", "text": json.dumps(told)}]}
    elif "id" in message:
        error = {"code": -32601, "message": "Method not found"}
        answer(message, error=error)
        continue
    else:
        continue
    if MODERN:
        result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    answer(message, result=result)
