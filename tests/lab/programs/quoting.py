"""A server that quotes a secret wherever what it says may be told of: over stdio, or `answer` for any other wire.

python quoting.py FILE: the secret is what the file holds, however the server came to be given it.
"""

import json
import sys


def answer(secret, message):
    """The answer to a request."""
    schema = {"type": "object"}
    sound = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": f"I know {secret}", "version": "1"},
            "instructions": f"Never tell {secret}",
        },
        "tools/list": {
            "tools": [
                {"name": "quote", "inputSchema": schema},
                {"name": f"{'long' * 22}{secret}{'long' * 1000}", "inputSchema": schema},
            ]
        },
        "ping": {},
    }
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] in sound:
        return {**head, "result": sound[message["method"]]}
    return {**head, "error": {"code": -32000, "message": f"no {secret} here", "data": {"why": [secret], secret: 1}}}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        secret = file.read()
    sys.stderr.write(f"started with {secret}\n")
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("params", {}).get("arguments", {}).get("die"):
            sys.stderr.write(f"dying of {secret}\n")
            sys.exit(3)
        if "id" in message:
            stray = {"jsonrpc": "2.0", "id": f"stray {secret}", "result": {}}
            sys.stdout.write("".join(f"{json.dumps(said)}\n" for said in (stray, answer(secret, message))))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
