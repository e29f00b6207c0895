"""A small MCP server on standard streams, for the demo and for tests. Plain Python, so that it starts at once."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
CRASH_CODE = 3

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
PARSE_ERROR = -32700
INVALID_REQUEST = -32600

Arguments = Mapping[str, Any]


class ToolFailed(Exception):
    """The failure of a tool, which becomes a result with `isError`."""


class DemoRefusal(Exception):
    """A refusal, which becomes a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)


class DemoTool(NamedTuple):
    """A tool of the server."""

    run: Callable[[Arguments], str]
    description: str
    properties: Mapping[str, Any] = {}
    annotations: Mapping[str, Any] = {"readOnlyHint": True}

    def definition(self, name: str) -> dict[str, Any]:
        """Make the definition for `tools/list`."""
        schema = {"type": "object", "properties": dict(self.properties), "required": list(self.properties)}
        return {
            "name": name,
            "description": self.description,
            "inputSchema": schema,
            "annotations": dict(self.annotations),
        }

    def problem_with(self, arguments: Arguments) -> str | None:
        """Describe the fault of arguments if one is missing, perhaps misspelt; None if none is missing."""
        missing = [f"the argument {name!r} is missing" for name in self.properties if name not in arguments]
        unknown = [f"there is no argument {name!r}" for name in arguments if name not in self.properties]
        return "; ".join([*missing, *unknown]) if missing else None


def _echo(arguments: Arguments) -> str:
    return str(arguments["text"])


def _now(_arguments: Arguments) -> str:
    return time.strftime("%H:%M:%S")


def _crash(_arguments: Arguments) -> str:
    sys.stderr.write("crashing, as asked\n")
    raise SystemExit(CRASH_CODE)


TOOLS: Mapping[str, DemoTool] = {
    "echo": DemoTool(_echo, "Say the same text back.", {"text": {"type": "string"}}),
    "now": DemoTool(_now, "The time of day."),
}
CRASH = DemoTool(_crash, "End the server's process without an answer.", annotations={"destructiveHint": True})


class DemoServer:
    """A server that answers one message at a time."""

    def __init__(self, name: str, tools: Mapping[str, DemoTool]) -> None:
        self._name = name
        self._tools = tools

    def reply(self, line: str) -> dict[str, Any] | None:
        """Answer one line; None if it is a notification."""
        try:
            message: Any = json.loads(line)
        except ValueError:
            return _error(None, PARSE_ERROR, "not JSON")
        if not isinstance(message, dict):
            return _error(None, INVALID_REQUEST, "not a JSON-RPC message")
        return self._reply_to(cast("Arguments", message))

    def _reply_to(self, message: Arguments) -> dict[str, Any] | None:
        identifier = message.get("id")
        if identifier is None or "method" not in message:
            return None
        try:
            result = self._result(message["method"], message.get("params") or {})
        except DemoRefusal as refused:
            return _error(identifier, refused.code, refused.message)
        return {"jsonrpc": "2.0", "id": identifier, "result": result}

    def _result(self, method: str, params: Arguments) -> dict[str, Any]:
        match method:
            case "initialize":
                return self._initialize(params)
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [tool.definition(name) for name, tool in self._tools.items()]}
            case "tools/call":
                return self._call(params)
            case _:
                raise DemoRefusal(METHOD_NOT_FOUND, f"no method {method!r}")

    def _initialize(self, params: Arguments) -> dict[str, Any]:
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[-1],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": self._name, "version": "1"},
        }

    def _call(self, params: Arguments) -> dict[str, Any]:
        tool = self._tools.get(params.get("name", ""))
        if tool is None:
            raise DemoRefusal(INVALID_PARAMS, f"no tool {params.get('name')!r}")
        arguments: Arguments = params.get("arguments") or {}
        try:
            if problem := tool.problem_with(arguments):
                raise ToolFailed(problem)
            return _text_result(tool.run(arguments))
        except ToolFailed as failure:
            return {**_text_result(str(failure)), "isError": True}


def _text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def _error(identifier: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identifier, "error": {"code": code, "message": message}}


def serve(name: str, tools: Mapping[str, DemoTool]) -> None:
    """Answer on standard output until standard input ends."""
    server = DemoServer(name, tools)
    for line in sys.stdin:
        answer = server.reply(line)
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def main(argv: Sequence[str]) -> None:
    """Serve; with `--crash` there is a tool that ends the process with code 3."""
    tools = {**TOOLS, "crash": CRASH} if "--crash" in argv else TOOLS
    serve("demo", tools)


if __name__ == "__main__":
    main(sys.argv[1:])
