"""A stdio MCP server in plain Python whose tools ask the host. With `era=old` it never heard of 2026-07-28."""

import json
import sys

OLD = "era=old" in sys.argv[1:]
SERVER = {"name": "asking", "version": "1"}
waiting = {}
"""Calls that wait for an answer, by the ids of our requests."""
modern = {}
"""Members of each result since 2026-07-28."""


def greet():
    name = yield "What is your name?", {"name": {"type": "string"}}
    age = yield f"How old is {name}?", {"age": {"type": "integer"}}
    return f"hello {name}, {age}"


def talk(lines):
    yield from ()
    return "talked"


TOOLS = {
    "greet": (greet, {"type": "object", "properties": {}}),
    "talk": (talk, {"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}),
}


def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def go_on(call, params, answers):
    """Run a tool anew with all answers so far, up to its next question or its end."""
    tool = TOOLS[params["name"]][0](**params.get("arguments", {}))
    try:
        message, properties = next(tool)
        for answer in answers:
            [value] = answer["content"].values()
            message, properties = tool.send(value)
    except StopIteration as ended:
        send(id=call, result={"content": [{"type": "text", "text": ended.value}]} | modern)
        return
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    form = {"mode": "form", "message": message, "requestedSchema": schema}
    if modern:
        asks = {"inputRequests": {"answer": {"method": "elicitation/create", "params": form}}}
        send(id=call, result={"resultType": "input_required", "requestState": json.dumps(answers), **asks})
    else:
        request = f"{call} {len(answers)}"
        waiting[request] = call, params, answers
        send(id=request, method="elicitation/create", params=form)


for line in sys.stdin:
    match json.loads(line):
        case {"method": "initialize", "id": call}:
            facts = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": SERVER}
            send(id=call, result=facts)
        case {"method": "server/discover", "id": call} if not OLD:
            modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            facts = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            send(id=call, result=facts | modern | {"_meta": {"io.modelcontextprotocol/serverInfo": SERVER}})
        case {"method": "tools/list", "id": call}:
            tools = [{"name": name, "inputSchema": schema} for name, (_, schema) in TOOLS.items()]
            send(id=call, result={"tools": tools} | modern)
        case {"method": "tools/call", "id": call, "params": params}:
            before = json.loads(params.get("requestState", "[]"))
            go_on(call, params, [*before, *params.get("inputResponses", {}).values()])
        case {"method": _, "id": call}:
            send(id=call, error={"code": -32601, "message": "Method not found"})
        case {"id": request, "result": answer}:
            call, params, answers = waiting.pop(request)
            go_on(call, params, [*answers, answer])
