"""A stdio MCP server that speaks both eras, and becomes what it answers. Writes down what it is asked.

Usage: both_eras.py MANNER JOURNAL

MANNER is `fickle`, as of servers on the TypeScript SDK: `initialize` makes it one of the handshake, whatever came
before; or `firm`, as of those on the Python SDK: the first good answer decides, and the other question is refused.
What is of one era only, it does as of that era.
"""

import json
import sys

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
FACTS = {"capabilities": {"tools": {}}}
INFO = {"name": "both eras", "version": "1"}
CACHING = {"ttlMs": 0, "cacheScope": "private"}


class Server:
    def __init__(self, manner, speaks=None):
        self.manner = manner
        self.speaks = speaks
        """The era it became one of; None before."""

    def reply(self, method, params):
        complete = {"resultType": "complete"} if self.speaks == MODERN else {}
        match method:
            case "initialize" if self.manner == "fickle" or self.speaks != MODERN:
                self.speaks = HANDSHAKE
                return {"result": {"protocolVersion": HANDSHAKE, "serverInfo": INFO, **FACTS}}
            case "server/discover" if self.speaks != HANDSHAKE:
                self.speaks = MODERN
                found = {"supportedVersions": [MODERN], "_meta": {"io.modelcontextprotocol/serverInfo": INFO}}
                return {"result": {**found, **FACTS, **CACHING, "resultType": "complete"}}
            case "initialize":
                return {"error": {"code": -32022, "message": "no", "data": {"supported": [MODERN]}}}
            case "tools/list":
                tools = [{"name": "echo", "inputSchema": {"type": "object"}}]
                return {"result": {"tools": tools, **complete, **(CACHING if complete else {})}}
            case "tools/call":
                return {"result": {"content": [{"type": "text", "text": params["arguments"]["text"]}], **complete}}
        return {"error": {"code": -32601, "message": "Method not found"}}


def main(manner, path):
    server = Server(manner)
    with open(path, "a") as journal:
        for line in sys.stdin:
            message = json.loads(line)
            journal.write(f"{message['method']}\n")
            journal.flush()
            if "id" in message:
                answer = server.reply(message["method"], message.get("params", {}))
                sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
