"""A stdio MCP server, plain Python and quick to start, whose tools give all that a framework for agents has to map."""

import json
import os
import sys

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
TEXT = {"text": {"type": "string"}}
TOOLS = {
    "pid": ({}, "The number of the process."),
    "echo": (TEXT, "Say it again."),
    "config": ({"config": {"type": "string"}, "self": {"type": "string"}}, "Arguments with names of others."),
    "weather": ({}, "Structured content."),
    "picture": ({}, "A picture and a sound."),
    "torn": ({}, "A picture and a sound that are cut off."),
    "count": ({}, "Reports progress."),
    "fail": ({}, "Fails."),
    "die": ({}, "Ends the process without an answer."),
    "learn": ({}, "Have one tool more, and say of another in other words what it does."),
    "stall": ({}, "Never answers."),
    "meta": ({}, "The request's `_meta`."),
    "odd": ({"any": True}, "A schema that only JSON Schema has words for."),
    "refused": ({}, "A definition that strict clients refuse, and APIs of models, and with it all tools."),
}
REFUSED = {
    "title": None,
    "annotations": {"readOnlyHint": None},
    "inputSchema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "anyOf": [
            {"properties": {"$filter": {"type": "string", "required": True}, "list": {"type": "array"}}},
            {"properties": {"of": {"$ref": "#/definitions/missing"}}},
        ],
    },
    "outputSchema": {"type": "array"},
}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def count(token):
    for step in (1, 2):
        params = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
        send({"method": "notifications/progress", "params": params})
    return text("counted")


def learn():
    TOOLS["learned"] = ({}, "What was learned.")
    TOOLS["weather"] = ({}, "Said in other words.")
    send({"method": "notifications/tools/list_changed"})
    return text("learned")


def picture(data):
    media = [("image", "image/png"), ("audio", "audio/wav"), ("audio", "audio/midi")]
    blocks = [{"type": kind, "data": data, "mimeType": form} for kind, form in media]
    return {"content": [{"type": "text", "text": "a dot"}, *blocks]}


ANSWERS = {
    "pid": lambda arguments, token: text(str(os.getpid())),
    "echo": lambda arguments, token: text(arguments["text"]),
    "weather": lambda arguments, token: {**text("mild"), "structuredContent": {"degrees": 20}},
    "picture": lambda arguments, token: picture(PIXEL),
    "torn": lambda arguments, token: picture(PIXEL[:9]),
    "count": lambda arguments, token: count(token),
    "fail": lambda arguments, token: {**text("it did not work"), "isError": True},
    "die": lambda arguments, token: os._exit(3),
    "learn": lambda arguments, token: learn(),
    "refused": lambda arguments, token: {**text(json.dumps(arguments)), "structuredContent": [len(arguments)]},
}


def call(name, arguments, token):
    if name in ANSWERS:
        return ANSWERS[name](arguments, token)
    return text(json.dumps(arguments, sort_keys=True))


def tools():
    schema = {"type": "object", "properties": {"degrees": {"type": "number"}}}
    return [
        {
            **({"outputSchema": schema} if name == "weather" else {}),
            "name": name,
            "description": words,
            "inputSchema": {"type": "object", "properties": properties, "required": ["text"] if name == "echo" else []},
            **(REFUSED if name == "refused" else {}),
        }
        for name, (properties, words) in TOOLS.items()
    ]


def answer(message):
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}, "prompts": {}},
                "serverInfo": {"name": "agent", "version": "1"},
                "instructions": "Use pid first.",
            }
        case "tools/list":
            return {"tools": tools()}
        case "tools/call":
            meta = params.get("_meta", {})
            arguments = meta if params["name"] == "meta" else params.get("arguments", {})
            return call(params["name"], arguments, meta.get("progressToken"))
        case "prompts/list":
            return {"prompts": [{"name": "summarise", "arguments": [{"name": "topic", "required": True}]}]}
        case "prompts/get":
            words = f"Summarise {params['arguments']['topic']}."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": words}}]}
        case _:
            return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "server/discover":
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
    elif message.get("params", {}).get("name") != "stall":
        send({"id": message["id"], "result": answer(message)})
