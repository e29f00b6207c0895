"""A server with one tool that starts in an instant: nothing of the SDK is imported."""

import json
import sys

ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "quick", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = ANSWERS.get(message["method"])
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "no such method"}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
        sys.stdout.flush()
