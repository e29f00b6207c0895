"""A server on stdio that means harm to a terminal, a JSON document and a state file.

Arguments: a file with what it says of its tool, what it says of itself, and what it answers to a call: each a JSON
text, put into a message as it is.
"""

import json
import sys
from pathlib import Path

TOOL, INFO, ANSWER = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


def say(request_id, text):
    sys.stdout.write(f'{{"jsonrpc":"2.0","id":{request_id},{text}}}\n')
    sys.stdout.flush()


for line in sys.stdin:
    message = json.loads(line)
    request_id = json.dumps(message.get("id"))
    match message.get("method"):
        case "initialize":
            capabilities = '"protocolVersion":"2025-11-25","capabilities":{"tools":{}}'
            say(request_id, f'"result":{{{capabilities},"serverInfo":{INFO},"instructions":"\\u001b[2J\\ud800"}}')
        case "tools/list":
            say(request_id, f'"result":{{"tools":[{TOOL.read_text()}]}}')
        case "tools/call" if ANSWER == "die":
            sys.stderr.write("\x1b[2Joh no\x1b]0;title\x07\n")
            sys.exit(3)
        case "tools/call":
            say(request_id, ANSWER)
        case _ if "id" in message:
            say(request_id, '"error":{"code":-32601,"message":"no"}')
