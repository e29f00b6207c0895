"""A server that has what others of its kind have too: pages, notes and prompts under the same URIs, each saying whose
it is.

    python nursery_pages.py NAME handshake|modern [FURTHER RESOURCE …]

The tool `show` has a page, and its result links to resources; `change` announces a change of all that is subscribed to.
"""

import json
import sys

NAME, ERA, *FURTHER = sys.argv[1:]
PAGE, NOTE, WEB = "ui://view.html", "note://today", "https://example.com/"
UI = {"ui": {"resourceUri": PAGE}, "ui/resourceUri": PAGE}
CAPABILITIES = {"tools": {}, "prompts": {}, "completions": {}, "resources": {"subscribe": True}}
LINKS = [
    {"type": "text", "text": NAME},
    {"type": "resource_link", "name": "note", "uri": NOTE},
    {"type": "resource_link", "name": "web", "uri": WEB},
    {"type": "resource", "resource": {"uri": "note://page", "text": NAME}},
]
CACHED = {"ttlMs": 0, "cacheScope": "private"} if ERA == "modern" else {}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
subscribed = {}


def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def change():
    for uri, stamp in subscribed.items():
        say(method="notifications/resources/updated", params={"uri": uri, **stamp})
    return {"content": []}


def subscribe(uri):
    subscribed[uri] = {}
    return {}


def listen(request_id, wanted):
    stamp = {"_meta": {SUBSCRIPTION: request_id}}
    subscribed.update(dict.fromkeys(wanted.get("resourceSubscriptions", ()), stamp))
    say(method="notifications/subscriptions/acknowledged", params={"notifications": wanted, **stamp})


def answer(method, params):  # noqa: C901, PLR0911
    match method:
        case "initialize":
            about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": NAME, "version": "1"}}
            return about | {"capabilities": CAPABILITIES}
        case "server/discover":
            return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES} | CACHED
        case "tools/list":
            tools = [{"name": "show", "inputSchema": {"type": "object"}, "_meta": UI}]
            return {"tools": [*tools, {"name": "change", "inputSchema": {"type": "object"}}]} | CACHED
        case "resources/list":
            return {"resources": [{"uri": uri, "name": NAME} for uri in (PAGE, NOTE, *FURTHER)]} | CACHED
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "note://{day}", "name": NAME}]} | CACHED
        case "prompts/list":
            return {"prompts": [{"name": "greet"}]} | CACHED
        case "tools/call":
            return change() if params["name"] == "change" else {"content": LINKS, "_meta": UI}
        case "prompts/get":
            return {"messages": [{"role": "user", "content": block} for block in LINKS]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": f"{NAME}: {params['uri']}"}]} | CACHED
        case "resources/subscribe":
            return subscribe(params["uri"])
        case "completion/complete":
            return {"completion": {"values": [f"{NAME}: {params['ref']['uri']}"]}}
    return None


for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    if method == "subscriptions/listen" and ERA == "modern":
        listen(message["id"], params["notifications"])
        continue
    known = method != ("initialize" if ERA == "modern" else "server/discover")
    result = answer(method, params) if known else None
    if result is None:
        say(id=message["id"], error={"code": -32601, "message": "Method not found"})
    else:
        say(id=message["id"], result=({"resultType": "complete"} if ERA == "modern" else {}) | result)
