"""A server of the handshake era with resources, a template and a prompt, in plain Python: it starts in an instant."""

import base64
import json
import sys

FACTS = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"resources": {}, "prompts": {}},
    "serverInfo": {"name": "library", "version": "1"},
}
RESOURCES = [{"uri": f"note://{name}", "name": name, "mimeType": "text/plain"} for name in ("file", "today")]
PICTURE = {"uri": "note://picture", "name": "picture", "mimeType": "image/png"}
TEMPLATE = {"uriTemplate": "note://day/{day}", "name": "day", "mimeType": "text/plain"}
PROMPT = {"name": "summarise", "description": "", "arguments": [{"name": "topic", "required": True}]}


def read(uri):
    if uri == PICTURE["uri"]:
        return {"uri": uri, "mimeType": "image/png", "blob": base64.b64encode(b"\x89PNG").decode()}
    if uri == "note://today":
        return {"uri": uri, "mimeType": "text/plain", "text": "Buy milk."}
    raise LookupError(f"Unknown resource: {uri}")


def result(method, params):
    match method:
        case "initialize":
            return FACTS
        case "resources/list":
            return {"resources": [*RESOURCES, PICTURE]}
        case "resources/templates/list":
            return {"resourceTemplates": [TEMPLATE]}
        case "resources/read":
            return {"contents": [read(params["uri"])]}
        case "prompts/list":
            return {"prompts": [PROMPT]}
        case "prompts/get":
            text = f"Summarise {params['arguments']['topic']}."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
    raise LookupError("Method not found")


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        try:
            answer = {"result": result(message["method"], message.get("params"))}
        except LookupError as error:
            answer = {"error": {"code": -32601, "message": error.args[0]}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
        sys.stdout.flush()
