"""A model on loopback, in the four dialects that hosts speak.

It keeps what it is asked, and answers with one call of a tool, then with a few words.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field, frozen

WORDS = "All is well."
"""What it says at the end."""

Json = Mapping[str, Any]
Event = tuple[str, Json]
"""The name of an event of a stream, and its data."""


@frozen
class Call:
    """A call of a tool."""

    name: str
    arguments: Json
    namespace: str | None = None
    """As the tool was listed in one; its name is then the one in there."""


@frozen
class Dialect:
    """How a kind of model is spoken to."""

    path: str
    """How the path of a request ends."""
    tools: Callable[[Json], Iterator[Call]]
    """What can be called, with no arguments."""
    answer: Callable[[Call | None], Sequence[Event]]
    named: bool = True
    """Whether events have their names in the stream."""


# -- Anthropic Messages -----------------------------------------------------------------------------------------------


def _messages_tools(body: Json) -> Iterator[Call]:
    return (Call(tool["name"], {}) for tool in body.get("tools", ()))


def _messages_answer(call: Call | None) -> Sequence[Event]:
    if call is None:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": WORDS}
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": call.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "fake", "content": [], "usage": usage}
    events = [
        {"type": "message_start", "message": message | {"stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None},
            "usage": usage,
        },
        {"type": "message_stop"},
    ]
    return [(str(event["type"]), event) for event in events]


# -- OpenAI Responses -------------------------------------------------------------------------------------------------


def _responses_tools(body: Json) -> Iterator[Call]:
    for tool in body.get("tools", ()):
        if tool["type"] == "namespace":
            yield from (Call(each["name"], {}, tool["name"]) for each in tool["tools"])
        elif "name" in tool:
            yield Call(tool["name"], {})


def _responses_answer(call: Call | None) -> Sequence[Event]:
    if call is None:
        content = [{"type": "output_text", "text": WORDS, "annotations": []}]
        item: dict[str, Any] = {"type": "message", "id": "item_1", "role": "assistant", "content": content}
    else:
        arguments = json.dumps(call.arguments)
        item = {"type": "function_call", "id": "item_1", "call_id": "call_1", "name": call.name, "arguments": arguments}
        item |= {"namespace": call.namespace} if call.namespace else {}
    usage = {
        "input_tokens": 1,
        "input_tokens_details": None,
        "output_tokens": 1,
        "output_tokens_details": None,
        "total_tokens": 2,
    }
    return [
        ("response.created", {"type": "response.created", "response": {"id": "resp_1"}}),
        ("response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item}),
        ("response.completed", {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}}),
    ]


# -- OpenAI chat completions ------------------------------------------------------------------------------------------


def _chat_tools(body: Json) -> Iterator[Call]:
    return (Call(tool["function"]["name"], {}) for tool in body.get("tools", ()))


def _chat_answer(call: Call | None) -> Sequence[Event]:
    delta: dict[str, Any] = {"role": "assistant", "content": WORDS}
    if call is not None:
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        delta = {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}],
        }
    chunk = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return [
        ("", chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        ("", chunk | {"choices": [end], "usage": usage}),
    ]


# -- Gemini -----------------------------------------------------------------------------------------------------------


def _gemini_tools(body: Json) -> Iterator[Call]:
    for tool in body.get("tools", ()):
        yield from (Call(each["name"], {}) for each in tool.get("functionDeclarations", ()))


def _gemini_answer(call: Call | None) -> Sequence[Event]:
    part: Json = {"text": WORDS}
    if call is not None:
        part = {"functionCall": {"name": call.name, "args": call.arguments}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return [("", {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "fake"})]


DIALECTS = (
    Dialect("/messages", _messages_tools, _messages_answer),
    Dialect("/responses", _responses_tools, _responses_answer),
    Dialect("/chat/completions", _chat_tools, _chat_answer, named=False),
    Dialect(":streamGenerateContent", _gemini_tools, _gemini_answer, named=False),
)


# -- the server -------------------------------------------------------------------------------------------------------


@define
class Model:
    """What is asked of it, in order; and which tool it calls, if any, the first time that it can."""

    url: str = ""
    calls: tuple[str, Json] | None = None
    """How the name of a tool ends, and its arguments."""
    asked: list[tuple[Dialect, Json]] = field(factory=list)
    """The requests that it understood: the dialect of each, and its body."""
    paths: list[str] = field(factory=list)
    """All requests that came, for the message of an assertion."""

    @property
    def first_tools(self) -> set[str]:
        """The names of the tools in the first request that has any, as the host wrote them."""
        first = next(filter(None, (list(dialect.tools(body)) for dialect, body in self.asked)), [])
        return {"_".join(filter(None, (call.namespace, call.name))) for call in first}

    def forget(self, calls: tuple[str, Json] | None) -> None:
        """What it was asked; and call this."""
        self.calls = calls
        self.asked.clear()
        self.paths.clear()

    def answer(self, dialect: Dialect, body: Json) -> bytes:
        """A stream of events."""
        self.asked.append((dialect, body))
        ending, arguments = self.calls or ("", {})
        found = next((call for call in dialect.tools(body) if self.calls and call.name.endswith(ending)), None)
        call = None
        if found is not None:
            call, self.calls = Call(found.name, arguments, found.namespace), None
        named = dialect.named
        lines = [
            (f"event: {name}\n" if named else "") + f"data: {json.dumps(data)}\n\n"
            for name, data in dialect.answer(call)
        ]
        return "".join([*lines, "data: [DONE]\n\n" if dialect.path == "/chat/completions" else ""]).encode()


@contextmanager
def fake_model() -> Iterator[Model]:
    """It, on a port of its own, for as long as the block lasts."""
    model = Model()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            model.paths.append(path)
            dialect = next((each for each in DIALECTS if path.endswith(each.path)), None)
            if path.endswith(":generateContent"):
                self._send(200, "application/json", json.dumps(_gemini_answer(None)[0][1]).encode())
            elif dialect is None:
                self._send(200, "application/json", b"{}")
            else:
                self._send(200, "text/event-stream", model.answer(dialect, json.loads(body)))

        def do_GET(self) -> None:
            model.paths.append(self.path)
            self._send(404, "application/json", b"{}")

        do_HEAD = do_GET  # noqa: N815

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        model.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()
