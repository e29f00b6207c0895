"""A server on stdio that asks and asks, and reads nothing until a file says so; then it reads all, and writes down
what it was answered.

Arguments: the file that lets it read, the file for its findings, how many requests, their method, and the length of
their ids.
"""

import json
import sys
import threading
import time
from pathlib import Path

GO, FOUND, COUNT, METHOD, LENGTH = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("attack", "echo")]
PARAMS = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}} if METHOD != "ping" else None
ids = [f"{number:0{LENGTH}}" for number in range(COUNT)]
answered = []


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask():
    for each in ids:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": each, "method": METHOD, "params": PARAMS or {}}) + "\n")
    sys.stdout.flush()


asking = threading.Thread(target=ask, daemon=True)
for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case None:
            answered.append((message["id"], "result" in message))
            if len(answered) == COUNT:
                asking.join()
                in_order = [each for each, _ in answered] == ids
                FOUND.write_text(json.dumps([in_order, sum(good for _, good in answered)]))
        case "initialize":
            info = {"serverInfo": {"name": "deaf", "version": "1"}, "capabilities": {"tools": {}}}
            say({"id": message["id"], "result": {"protocolVersion": "2025-06-18", **info}})
        case "tools/list":
            say({"id": message["id"], "result": {"tools": TOOLS}})
        case "tools/call":
            answer = {"id": message["id"], "result": {"content": []}}
            if message["params"]["name"] == "echo":  # behind what it asks, while that is read
                threading.Thread(target=lambda answer=answer: (asking.join(), say(answer)), daemon=True).start()
                continue
            say(answer)
            asking.start()
            while not GO.exists():
                time.sleep(0.01)
        case _ if "id" in message:
            say({"id": message["id"], "error": {"code": -32601, "message": "no"}})
