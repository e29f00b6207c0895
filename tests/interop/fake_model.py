"""A model on loopback, in the four dialects that hosts speak.

It keeps what it is asked, and answers with calls of tools, one after the other, then with a few words.
"""

import json
import threading
import time
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
    number: int = 1
    """Among those of the conversation."""


@frozen
class Dialect:
    """How a kind of model is spoken to."""

    path: str
    """How the path of a request ends."""
    tools: Callable[[Json], Iterator[Call]]
    """What can be called, with no arguments."""
    answer: Callable[[Call | None], Sequence[Event]]
    results: Callable[[Json], Iterator[Json]]
    """What came of its calls by now."""
    named: bool = True
    """Whether events have their names in the stream."""


# -- Anthropic Messages -----------------------------------------------------------------------------------------------


def _messages_tools(body: Json) -> Iterator[Call]:
    return (Call(tool["name"], {}) for tool in body.get("tools", ()))


def _messages_answer(call: Call | None) -> Sequence[Event]:
    if call is None:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": WORDS}
    else:
        block = {"type": "tool_use", "id": f"toolu_{call.number}", "name": call.name, "input": {}}
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


def _messages_results(body: Json) -> Iterator[Json]:
    said = [message["content"] for message in body["messages"] if not isinstance(message["content"], str)]
    return (block for blocks in said for block in blocks if block["type"] == "tool_result")


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
        item = {"type": "function_call", "id": f"item_{call.number}", "call_id": f"call_{call.number}"}
        item |= {"name": call.name, "arguments": arguments}
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


def _responses_results(body: Json) -> Iterator[Json]:
    return (item for item in body["input"] if item.get("type") == "function_call_output")


# -- OpenAI chat completions ------------------------------------------------------------------------------------------


def _chat_tools(body: Json) -> Iterator[Call]:
    return (Call(tool["function"]["name"], {}) for tool in body.get("tools", ()))


def _chat_answer(call: Call | None) -> Sequence[Event]:
    delta: dict[str, Any] = {"role": "assistant", "content": WORDS}
    if call is not None:
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        delta = {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": f"call_{call.number}", "type": "function", "function": function}],
        }
    chunk = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return [
        ("", chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        ("", chunk | {"choices": [end], "usage": usage}),
    ]


def _chat_results(body: Json) -> Iterator[Json]:
    return (message for message in body["messages"] if message["role"] == "tool")


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


def _gemini_results(body: Json) -> Iterator[Json]:
    said = (part for content in body["contents"] for part in content["parts"])
    return (part["functionResponse"] for part in said if "functionResponse" in part)


DIALECTS = (
    Dialect("/messages", _messages_tools, _messages_answer, _messages_results),
    Dialect("/responses", _responses_tools, _responses_answer, _responses_results),
    Dialect("/chat/completions", _chat_tools, _chat_answer, _chat_results, named=False),
    Dialect(":streamGenerateContent", _gemini_tools, _gemini_answer, _gemini_results, named=False),
)


# -- the server -------------------------------------------------------------------------------------------------------


@frozen
class Turn:
    """A call that it makes, once it can."""

    ending: str
    """How the name of the tool ends."""
    arguments: Json = field(factory=dict[str, Any])
    before: Callable[[], None] | None = None
    """Called just before it makes the call."""


@frozen
class Told:
    """What came of a call."""

    result: str
    """As the host has put it, in JSON."""
    took: float
    """Seconds from the call to the request that had it."""


@define
class Model:
    """What is asked of it, in order; and which tools it calls, in turn, once it can."""

    url: str = ""
    turns: list[Turn] = field(factory=list)
    """The calls still to be made."""
    told: list[Told] = field(factory=list)
    """What came of those that were made."""
    asked: list[tuple[Dialect, Json]] = field(factory=list)
    """The requests that it understood: the dialect of each, and its body."""
    paths: list[str] = field(factory=list)
    """All requests that came, for the message of an assertion."""
    _called_at: float | None = None
    """When the call was made that it waits for."""

    @property
    def first_tools(self) -> set[str]:
        """The names of the tools in the first request that has any, as the host wrote them."""
        first = next(filter(None, (list(dialect.tools(body)) for dialect, body in self.asked)), [])
        return {"_".join(filter(None, (call.namespace, call.name))) for call in first}

    def forget(self, *turns: Turn) -> None:
        """What it was asked; and call these."""
        self.turns = list(turns)
        self.told.clear()
        self.asked.clear()
        self.paths.clear()
        self._called_at = None

    def answer(self, dialect: Dialect, body: Json) -> bytes:
        """A stream of events."""
        self.asked.append((dialect, body))
        self._listen(dialect, body)
        call = self._next_call(dialect, body)
        named = dialect.named
        lines = [
            (f"event: {name}\n" if named else "") + f"data: {json.dumps(data)}\n\n"
            for name, data in dialect.answer(call)
        ]
        return "".join([*lines, "data: [DONE]\n\n" if dialect.path == "/chat/completions" else ""]).encode()

    def _listen(self, dialect: Dialect, body: Json) -> None:
        """Note what came of the last call, if that stands in this request."""
        results = list(dialect.results(body))
        if self._called_at is not None and len(results) > len(self.told):
            self.told.append(Told(json.dumps(results[-1]), time.monotonic() - self._called_at))
            self._called_at = None

    def _next_call(self, dialect: Dialect, body: Json) -> Call | None:
        if not self.turns or self._called_at is not None:
            return None
        turn = self.turns[0]
        found = next((call for call in dialect.tools(body) if call.name.endswith(turn.ending)), None)
        if found is None:
            return None
        del self.turns[0]
        if turn.before is not None:
            turn.before()
        self._called_at = time.monotonic()
        return Call(found.name, turn.arguments, found.namespace, len(self.told) + 1)


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
