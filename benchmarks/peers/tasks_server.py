"""A stdio server of 2026-07-28 in plain Python whose tool `work` makes tasks that never end. Its tool `count` says how
many there are, and how many requests there were about them.

Arguments: `notifies` has it agree to notify of changes.
"""

import json
import os
import sys

NOTIFIES = "notifies" in sys.argv[1:]
NS = "io.modelcontextprotocol/"
CACHING = {"ttlMs": 0, "cacheScope": "private"}
CAPABILITIES = {"tools": {}, "extensions": {NS + "tasks": {}}}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("work", "count")]
FACTS = {"status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": None, "pollIntervalMs": 5000}
made = asked = 0


def say(message):
    data = memoryview(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
    while data:
        data = data[os.write(1, data) :]


def outcome(method, params):
    global made, asked  # noqa: PLW0603 - counters of the process
    if method == "tools/call" and params["name"] == "work":
        made += 1
        return {"resultType": "task", "taskId": f"{made:032}", **FACTS}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": json.dumps([made, asked])}]}
    if method == "tasks/get":
        asked += 1
        return {"taskId": params["taskId"], **FACTS}
    if method == "server/discover":
        return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, **CACHING}
    return {"tools": TOOLS, **CACHING} if method == "tools/list" else {} if method == "tasks/cancel" else None


for line in sys.stdin.buffer:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if number is None:
        continue
    if method == "subscriptions/listen" and NOTIFIES:
        asked += 1
        agreed = {"notifications": message["params"]["notifications"], "_meta": {NS + "subscriptionId": number}}
        say({"method": "notifications/subscriptions/acknowledged", "params": agreed})
    elif (result := outcome(method, message.get("params") or {})) is None:
        say({"id": number, "error": {"code": -32601, "message": "Method not found"}})
    else:
        say({"id": number, "result": {"resultType": "complete", **result}})
