"""The exchanges that are run through both clients: what is asked, and what the server says to it, line by line."""

import datetime as dt
import decimal
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pydantic
from attrs import field, frozen
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator

OLDEST, HANDSHAKE, MODERN = "2024-11-05", "2025-11-25", "2026-07-28"
HANDSHAKES = (OLDEST, HANDSHAKE)
ERAS = (*HANDSHAKES, MODERN)

STAMP = "io.modelcontextprotocol/"
STAMPS = [f"{STAMP}{key}" for key in ("protocolVersion", "clientInfo", "clientCapabilities")]
"""What a request of the modern era says of its sender; no caller's `meta=` changes it."""


@frozen
class Apart:
    """Where the two clients differ, and mean to: a change on either side must be noticed."""

    ours: object
    sdks: object
    eras: Sequence[str] = ERAS


def _each(apart):
    return [apart] if isinstance(apart, Apart) else apart


@frozen
class Exchange:
    """One call of one tool."""

    name: str
    steps: Sequence[object]
    """See tests/lab/programs/stdio_scripted.py."""
    arguments: Any = None
    meta: Mapping[str, Any] | None = None
    progress: bool = False
    """Whether the caller listens for progress."""
    timeout: float | None = None
    cancels: bool = False
    """Whether the caller gives up at the first report of progress."""
    output: Mapping[str, Any] | None = None
    """The tool's output schema."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    listed: bool = True
    apart: Apart | None = None
    """How the outcomes differ, if they do."""
    frames_apart: Sequence[Apart] = field(default=(), converter=_each)
    """How the frames differ, if they do: each as [method, params], without the stamp of the era."""


# -- what a server says -----------------------------------------------------------------------------------------------


def line(**message: object) -> str:
    return '{"jsonrpc":"2.0",' + json.dumps(message)[1:]


def answer(result: str) -> str:
    """A response with exactly this text as its result."""
    return f'{{"jsonrpc":"2.0","id":$ID,"result":{result}}}'


def result(**fields: object) -> str:
    """A good response, in the era's own shape."""
    return answer("{$KIND" + json.dumps(fields)[1:])


def text(words: str, **fields: object) -> str:
    return result(content=[{"type": "text", "text": words}], **fields)


def structured(**members: object) -> str:
    return result(content=[], structuredContent=members)


def member(schema: object) -> dict[str, object]:
    """An output schema that says this of its member `a`."""
    return {"type": "object", "properties": {"a": schema}}


def error(described: str) -> str:
    return f'{{"jsonrpc":"2.0","id":$ID,"error":{described}}}'


def report(progress: str, **more: object) -> str:
    rest = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in more.items())
    params = f'{{"progressToken":$TOKEN,"progress":{progress}{rest}}}'
    return f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}'


AN_ANSWER = {"await": None}
"""Hold the rest until the client has answered a request of the server."""

CANCELLED = {"await": "notifications/cancelled"}

SECOND = text("second")
"""Follows an answer that a client may take for none: who passed over the first gets this one."""

# -- what a caller gets -----------------------------------------------------------------------------------------------


def got(*content: object, structured: object = None, is_error: bool = False, meta: object = None) -> object:
    return ["result", list(content), structured, is_error, meta]


GOT_SECOND = got({"type": "text", "text": "second"})
REFUSED = ["refused"]
UNSENDABLE = ["unsendable"]
MALFORMED = ["error", -32603, "malformed response"]
"""The data names the keys that came; it is ours alone, and left out of the comparison."""

# -- around a call ----------------------------------------------------------------------------------------------------


@contextmanager
def traced():
    state = trace.TraceState([("vendor", "1")])
    span = trace.SpanContext(trace_id=2**127 + 5, span_id=77, is_remote=False, trace_flags=1, trace_state=state)
    token = context.attach(baggage.set_baggage("user", "ünknown", trace.set_span_in_context(_span(span))))
    try:
        yield
    finally:
        context.detach(token)


def _span(span_context):
    return trace.NonRecordingSpan(span_context)


class _Own(TextMapPropagator):
    """Writes what it knows itself: no context is needed, and one of its keys is a stamp's."""

    def extract(self, carrier, context=None, getter=None):
        raise NotImplementedError

    def inject(self, carrier, context=None, setter=None):
        carrier["x-own"] = "7"

    @property
    def fields(self):
        return {"x-own"}


@contextmanager
def own_propagator():
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(_Own())
    try:
        yield
    finally:
        propagate.set_global_textmap(before)


@contextmanager
def traced_by_own():
    with traced(), own_propagator():
        yield


# -- the lists --------------------------------------------------------------------------------------------------------

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav", "annotations": {"audience": ["user"], "priority": 1}}
LINK = {"type": "resource_link", "uri": "file:///a b", "name": "a", "size": 3, "_meta": {"k": None}}
TEXT_RESOURCE = {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "t"}}
BLOB_RESOURCE = {"type": "resource", "resource": {"uri": "file:///a", "blob": "aGk="}}
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def read_as(*words: str, structured: object = None, is_error: bool = False, eras: Sequence[str] = ERAS) -> Apart:
    """The SDK's client throws away an answer with a part that cannot be read. The tool has acted: ours gives the
    rest, and says what it could not read."""
    return Apart(
        got(*({"type": "text", "text": each} for each in words), structured=structured, is_error=is_error),
        sdks=REFUSED,
        eras=eras,
    )


def unread(what: str, it: str) -> str:
    return f"[{what} of this result cannot be read: {it}]"


_UNCHECKED = read_as(structured={"a": 1})
"""A schema that checks nothing is its server's fault: the answer is given as it came."""

RESULTS = [
    Exchange("text", [text("hi")]),
    Exchange("text_beyond_ascii", [text("naïve 🎺 \u2028 \u0000 \n")]),
    Exchange("nothing", [result(content=[])]),
    Exchange("image", [result(content=[IMAGE])]),
    Exchange("audio", [result(content=[AUDIO])]),
    Exchange("resource_link", [result(content=[LINK])]),
    Exchange("embedded_text", [result(content=[TEXT_RESOURCE])]),
    Exchange("embedded_blob", [result(content=[BLOB_RESOURCE])]),
    Exchange("all_at_once", [result(content=[IMAGE, AUDIO, LINK, TEXT_RESOURCE, BLOB_RESOURCE])]),
    Exchange("result_meta", [text("hi", _meta={"a": [1, None]})]),
    Exchange("unknown_members", [text("hi", more=1, ttlMs=-5, is_error=True, structured_content={"a": 1})]),
    Exchange("is_error", [text("failed", isError=True)]),
    Exchange("is_error_loosely", [text("failed", isError="yes")]),
    Exchange("structured", [result(content=[], structuredContent={"sum": 3})], output=SUM),
    Exchange("structured_without_schema", [result(content=[], structuredContent={"any": [1, None]})]),
    Exchange("structured_big", [result(content=[], structuredContent={"sum": 2**70})], output=SUM),
    Exchange("structured_misses", [result(content=[], structuredContent={"sum": "3"})], output=SUM),
    Exchange("structured_null", [result(content=[], structuredContent=None)], output=SUM),
    Exchange("structured_missing", [text("3")], output=SUM),
    Exchange(
        "structured_only",
        [answer('{$KIND"structuredContent":{"sum":3}}')],
        output=SUM,
        apart=read_as(structured={"sum": 3}),
    ),
    Exchange("error_despite_schema", [text("failed", isError=True)], output=SUM),
    Exchange("error_that_misses", [text("failed", isError=True, structuredContent={"sum": "3"})], output=SUM),
    Exchange("schema_that_is_none", [structured(a=1)], output=member({"type": "nonsense"}), apart=_UNCHECKED),
    Exchange("schema_refers_outside", [structured(a=1)], output=member({"$ref": "file:///etc/x"}), apart=_UNCHECKED),
    Exchange("schema_refers_inside", [structured(a=1)], output=member({"$ref": "#/nowhere"}), apart=_UNCHECKED),
    Exchange("no_content", [answer("{}")], apart=read_as(unread("all", "{}"))),
    Exchange("content_is_text", [result(content="hi")], apart=read_as(unread("'content'", '"hi"'))),
    Exchange(
        "content_is_one_block",
        [result(content={"type": "text", "text": "hi"})],
        apart=read_as(unread("'content'", '{"type": "text", "text": "hi"}')),
    ),
    Exchange(
        "unknown_block",
        [result(content=[{"type": "hologram"}])],
        apart=read_as(unread("block 1", '{"type": "hologram"}')),
    ),
    Exchange(
        "block_without_text", [result(content=[{"type": "text"}])], apart=read_as(unread("block 1", '{"type": "text"}'))
    ),
    Exchange(
        "block_of_a_number",
        [result(content=[{"type": "text", "text": 5}])],
        apart=read_as(unread("block 1", '{"type": "text", "text": 5}')),
    ),
    Exchange(
        "image_without_type",
        [result(content=[{"type": "image", "data": "aGk="}])],
        apart=read_as(unread("block 1", '{"type": "image", "data": "aGk="}')),
    ),
    Exchange(
        "is_error_nonsense",
        [result(content=[], isError="perhaps")],
        apart=read_as(unread("'isError'", '"perhaps"'), is_error=True),
    ),
    Exchange("meta_of_a_number", [result(content=[], _meta=5)], apart=read_as(unread("'_meta'", "5"))),
    Exchange("kind_complete", [answer('{"resultType":"complete","content":[]}')]),
    Exchange(
        # The first clients of 2026-07-28 were written against servers that left it out; "complete" is what it means.
        "kind_absent",
        [answer('{"content":[]}')],
        apart=Apart(ours=got(), sdks=REFUSED, eras=[MODERN]),
    ),
    Exchange(
        # A kind nobody knows may be half a result. The SDK takes it for a whole one if there is content.
        "kind_unknown",
        [answer('{"resultType":"task","content":[]}')],
        apart=Apart(ours=REFUSED, sdks=got(), eras=[MODERN]),
    ),
    Exchange(
        "kind_unknown_no_content",
        [answer('{"resultType":"task"}')],
        apart=read_as(unread("all", "{}"), eras=HANDSHAKES),
    ),
    Exchange("kind_of_a_number", [answer('{"resultType":5,"content":[]}')]),
    Exchange(
        # Only an object before 2026-07-28, by the letter. Nothing is gained by throwing away what the server did.
        "structured_list",
        [result(content=[], structuredContent=[1])],
        apart=Apart(ours=got(structured=[1]), sdks=REFUSED, eras=HANDSHAKES),
    ),
    Exchange(
        # NaN is no JSON; it has no place in a number's schema. The SDK's validator takes it for a float.
        "structured_nan",
        [answer('{$KIND"content":[],"structuredContent":{"sum":NaN}}')],
        output={"type": "object", "properties": {"sum": {"type": "number"}}},
        apart=Apart(ours=REFUSED, sdks=got(structured={"sum": math.nan})),
    ),
    Exchange("nan_without_schema", [answer('{$KIND"content":[],"structuredContent":{"a":NaN,"b":-Infinity}}')]),
    Exchange(
        # The SDK cannot read the line and passes over it; who has no timeout waits for ever. What could be written
        # nowhere is replaced, as bytes that are no UTF-8 are.
        "half_a_surrogate_pair",
        [answer(r'{$KIND"content":[{"type":"text","text":"\ud800"}]}'), SECOND],
        apart=Apart(ours=got({"type": "text", "text": "\ufffd"}), sdks=GOT_SECOND),
    ),
]

_PAGES = [{}, {"cursor": ""}, {"cursor": "2"}]
_NOT_LISTED = [["tools/call", {"name": "not_listed"}], ["tools/list", {}]]

ERRORS = [
    Exchange("error", [error('{"code":-32000,"message":"no"}')]),
    Exchange("error_with_data", [error('{"code":-32602,"message":"no","data":{"a":[1,null,"ü"]}}')]),
    Exchange("error_with_empty_data", [error('{"code":7,"message":"","data":0}')]),
    Exchange("error_with_more", [error('{"code":7,"message":"no","more":1}')]),
    Exchange("error_that_says_closed", [error('{"code":-32000,"message":"Connection closed"}')]),
    Exchange("error_that_says_timeout", [error('{"code":-32001,"message":"Request timed out"}')]),
    Exchange("error_of_the_headers", [error('{"code":-32603,"message":"no"}')]),
    Exchange("error_with_null_result", ['{"jsonrpc":"2.0","id":$ID,"result":null,"error":{"code":1,"message":"no"}}']),
    Exchange("unknown_to_the_server", [error('{"code":-32602,"message":"Unknown tool: x"}')]),
    Exchange(
        # The SDK asks the server all the same, and after each answer looks for the tool in a list it fetches unasked.
        # Ours looks once more for it where the server does not announce what it gains.
        "not_listed",
        [text("hi")],
        listed=False,
        apart=Apart(ours=["unknown tool"], sdks=got({"type": "text", "text": "hi"})),
        frames_apart=[
            Apart(ours=[], sdks=_NOT_LISTED, eras=HANDSHAKES),
            Apart(ours=[["tools/list", page] for page in _PAGES], sdks=_NOT_LISTED, eras=[MODERN]),
        ],
    ),
]

# A response that is none: the SDK cannot read the line and passes over it; the caller waits on, for ever if it set no
# timeout. Ours is told at once what came.
_PASSED_OVER = Apart(ours=MALFORMED, sdks=GOT_SECOND)

MALFORMED_RESPONSES = [
    Exchange("neither", ['{"jsonrpc":"2.0","id":$ID}', SECOND], apart=_PASSED_OVER),
    Exchange("result_null", [answer("null"), SECOND], apart=_PASSED_OVER),
    Exchange("result_list", [answer("[]"), SECOND], apart=_PASSED_OVER),
    Exchange("result_text", [answer('"hi"'), SECOND], apart=_PASSED_OVER),
    Exchange("error_text", [error('"no"'), SECOND], apart=_PASSED_OVER),
    Exchange("error_without_code", [error('{"message":"no"}'), SECOND], apart=_PASSED_OVER),
    Exchange("error_code_null", [error('{"code":null,"message":"no"}'), SECOND], apart=_PASSED_OVER),
    Exchange(
        "error_without_message",
        [error('{"code":5}'), SECOND],
        apart=Apart(ours=["error", 5, "", None], sdks=GOT_SECOND),
    ),
    Exchange(
        "error_message_number",
        [error('{"code":5,"message":6}'), SECOND],
        apart=Apart(ours=["error", 5, "6", None], sdks=GOT_SECOND),
    ),
    Exchange(  # Read as the number by the SDK, whose ints are lax.
        "error_code_text",
        [error('{"code":"5","message":"no"}'), SECOND],
        apart=Apart(ours=MALFORMED, sdks=["error", 5, "no", None]),
    ),
    Exchange(  # Who forgets the version means 2.0.
        "no_version",
        ['{"id":$ID,"result":{$KIND"content":[]}}', SECOND],
        apart=Apart(ours=got(), sdks=GOT_SECOND),
    ),
    Exchange(  # Batches were of 2025-03-26 alone; who still writes one is understood.
        "batch",
        [f"[{text('first')}]", SECOND],
        apart=Apart(ours=got({"type": "text", "text": "first"}), sdks=GOT_SECOND),
    ),
    Exchange("carriage_return", [text("hi") + "\r"]),
    Exchange("both", ['{"jsonrpc":"2.0","id":$ID,"result":{$KIND"content":[]},"error":{"code":1,"message":"no"}}']),
]

IDS = [
    Exchange("id_as_text", ['{"jsonrpc":"2.0","id":"$ID","result":{$KIND"content":[]}}', SECOND]),
    Exchange("id_null", ['{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}', SECOND]),
    Exchange("id_unknown", ['{"jsonrpc":"2.0","id":"nobody","result":{$KIND"content":[]}}', SECOND]),
    Exchange("id_fraction", ['{"jsonrpc":"2.0","id":$ID.0,"result":{$KIND"content":[]}}', SECOND]),
    Exchange("id_true", ['{"jsonrpc":"2.0","id":true,"result":{$KIND"content":[]}}', SECOND]),
    Exchange("id_missing", ['{"jsonrpc":"2.0","result":{$KIND"content":[]}}', SECOND]),
    Exchange("answered_twice", [text("first"), SECOND, error('{"code":1,"message":"third"}')]),
    Exchange("no_json", ["INFO listening", "[1]", '"text"', "{}", "", "{", text("hi")]),
]


class Inner(pydantic.BaseModel):
    a_member: int = pydantic.Field(1, alias="aMember")
    none: str | None = None


NOON = dt.datetime(2026, 7, 28, 12, tzinfo=dt.UTC)

ARGUMENTS = [
    Exchange("no_arguments", [text("hi")]),
    Exchange("empty", [text("hi")], arguments={}),
    Exchange("nested", [text("hi")], arguments={"a": [{"b": {"c": [True, False, 1.5, -0.0, 1e22]}}], "": 1}),
    Exchange("none_members", [text("hi")], arguments={"a": None, "b": [None, {"c": None}]}),
    Exchange("big_integers", [text("hi")], arguments={"a": 2**64, "b": [-(2**70)], "c": None, "d": 2**63}),
    Exchange(
        # The SDK sends null in the place of each, which is another argument than the caller's.
        "no_numbers",
        [text("hi")],
        arguments={"a": math.nan, "b": [math.inf, -math.inf]},
        apart=Apart(ours=UNSENDABLE, sdks=got({"type": "text", "text": "hi"})),
        frames_apart=Apart(
            ours=[], sdks=[["tools/call", {"name": "no_numbers", "arguments": {"a": None, "b": [None, None]}}]]
        ),
    ),
    Exchange("beyond_ascii", [text("hi")], arguments={"ключ": 'naïve 🎺 \u2028 \x00 "\\'}),
    Exchange(
        "values",
        [text("hi")],
        arguments={
            "time": [NOON, NOON.replace(tzinfo=None), NOON.date(), dt.timedelta(seconds=90)],
            "decimal": decimal.Decimal("1.10"),
            "uuid": uuid.UUID(int=7),
            "model": [Inner(), {"deep": Inner(aMember=2**70)}],
            "bytes": b"plain",
            "set": {1},
            "keys": {1: "a", NOON.date(): "b"},
        },
    ),
    Exchange(
        # A letter more tolerant: JSON has no other keys.
        "keys_no_text",
        [text("hi")],
        arguments={1: "a"},
        apart=Apart(ours=got({"type": "text", "text": "hi"}), sdks=UNSENDABLE),
        frames_apart=Apart(ours=[["tools/call", {"name": "keys_no_text", "arguments": {"1": "a"}}]], sdks=[]),
    ),
    Exchange("no_json_form", [text("hi")], arguments={"a": object()}),
    Exchange("bytes_no_text", [text("hi")], arguments={"a": b"\xff"}),
    Exchange("arguments_list", [text("hi")], arguments=[1]),
]


def meta_apart(name: str, *, ours: object, sdks: object) -> Apart:
    return Apart(*([["tools/call", {"name": name} | ({"_meta": meta} if meta else {})]] for meta in (ours, sdks)))


META = [
    Exchange("meta", [text("hi")], arguments={}, meta={"mine": {"a": [1, None]}, "n": None}),
    Exchange("meta_none", [text("hi")], meta={"n": None}),
    Exchange("meta_empty", [text("hi")], meta={}),
    Exchange(
        "meta_forges_the_stamp",
        [text("hi")],
        meta=dict.fromkeys(STAMPS, "forged"),
    ),
    Exchange("meta_of_the_protocol", [text("hi")], meta={f"{STAMP}logLevel": "debug", f"{STAMP}other": 1}),
    Exchange("meta_token", [text("hi")], meta={"progressToken": "own"}),
    Exchange("meta_token_overruled", [text("hi")], meta={"progressToken": "own", "a": 1}, progress=True),
    Exchange("traced", [text("hi")], around=traced),
    Exchange("traced_with_meta", [text("hi")], meta={"traceparent": "forged", "mine": 1}, around=traced),
    Exchange("untraced_with_meta", [text("hi")], meta={"traceparent": "passed on"}),
    Exchange("traced_by_own", [text("hi")], around=traced_by_own),
    Exchange(
        # Propagators read the context, and with an empty one there is nothing for them to do: ours does not ask them.
        "own_propagator",
        [text("hi")],
        around=own_propagator,
        frames_apart=meta_apart("own_propagator", ours={}, sdks={"x-own": "7"}),
    ),
    Exchange("traced_with_progress", [text("hi")], around=traced, progress=True),
]

STEPS = [report(str(n), total=5, message=f"step {n}") for n in range(5)]

PROGRESS = [
    Exchange("steps", [*STEPS, text("hi")], progress=True),
    Exchange("steps_nobody_wants", [line(method="notifications/progress", params={"progress": 1}), text("hi")]),
    Exchange("fractions", [report("0.25"), report("0.5", total=1.5), report("1e2"), text("hi")], progress=True),
    Exchange(
        "progress_nonsense",
        [report('"1"'), report("null"), report("true"), report("1", total="x", message=5), text("hi")],
        progress=True,
    ),
    Exchange(
        "progress_of_others",
        [
            line(method="notifications/progress", params={"progressToken": "nobody", "progress": 1}),
            line(method="notifications/progress", params={"progressToken": None, "progress": 1}),
            line(method="notifications/progress", params=None),
            line(method="notifications/progress"),
            report("7"),
            text("hi"),
        ],
        progress=True,
    ),
    Exchange("token_as_text", [report("7").replace("$TOKEN", '"$TOKEN"'), text("hi")], progress=True),
    Exchange("late_steps", [text("hi"), report("1"), report("2")], progress=False),
]


def cancelled(asked: Mapping[str, object], sdks_reason: str) -> Apart:
    """The reason is words for people; the SDK has others."""
    ours, sdks = (
        [["tools/call", asked], ["notifications/cancelled", {"requestId": "#1", "reason": reason}]]
        for reason in ("the caller gave up", sdks_reason)
    )
    return Apart(ours, sdks)


CANCELLING = [
    Exchange(
        "given_up",
        [report("1"), CANCELLED, text("late"), report("2")],
        progress=True,
        cancels=True,
        frames_apart=cancelled({"name": "given_up", "_meta": {"progressToken": "#1"}}, "caller cancelled"),
    ),
    Exchange(
        "timed_out",
        [CANCELLED, text("late")],
        timeout=0.1,
        frames_apart=cancelled({"name": "timed_out"}, "timed out after 0.1s"),
    ),
    Exchange("in_time", [text("hi")], timeout=30),
    Exchange("after_the_late_answers", [text("hi")]),
]


def asks(name: str, *requests: object, **more: Any) -> Exchange:
    """The server asks in the middle of a call, and answers it when it has its own answers."""
    steps = [step for request in requests for step in (request, AN_ANSWER)]
    return Exchange(name, [*steps, text("hi")], **more)


MESSAGES = [{"role": "user", "content": {"type": "text", "text": "hi"}}]
SAMPLING = {"messages": MESSAGES, "maxTokens": 5}
FORM = {"message": "who?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}

INBOUND = [
    asks("asks_ping", line(id=1, method="ping")),
    asks("asks_with_text_id", line(id="ä-1", method="ping"), line(id="7", method="ping", params={"_meta": {}})),
    asks("asks_with_the_calls_own_id", '{"jsonrpc":"2.0","id":$ID,"method":"ping"}'),
    asks("asks_roots", line(id=2, method="roots/list")),
    asks("asks_sampling", line(id=3, method="sampling/createMessage", params=SAMPLING)),
    asks("asks_sampling_badly", line(id=4, method="sampling/createMessage", params={"maxTokens": "x"})),
    asks("asks_elicitation", line(id=5, method="elicitation/create", params=FORM)),
    asks("asks_the_unknown", line(id=6, method="no/such"), line(id=7, method="tools/list")),
    Exchange("asks_with_null_id", [line(id=None, method="ping"), text("hi")]),
    Exchange("asks_without_id", [line(method="ping"), line(method="roots/list"), text("hi")]),
]

NOTICES = [
    Exchange(
        "notices",
        [
            line(method="notifications/message", params={"level": "info", "data": "hello"}),
            line(method="notifications/message", params={"level": "loud", "data": 1}),
            line(method="notifications/message"),
            line(method="notifications/resources/updated", params={"uri": "file:///a"}),
            line(method="notifications/cancelled", params={"requestId": 999}),
            line(method="notifications/cancelled", params={"requestId": [1]}),
            line(method="notifications/no/such", params={"a": 1}),
            text("hi"),
        ],
    ),
]

ALL = [*RESULTS, *ERRORS, *MALFORMED_RESPONSES, *IDS, *ARGUMENTS, *META, *PROGRESS, *CANCELLING, *INBOUND, *NOTICES]

# What ends the SDK's connection, with this exception. Each is run alone.
ENDING = [
    Exchange(
        "surrogate_argument",
        [text("hi")],
        arguments={"a": "\ud800"},
        apart=Apart(ours=UNSENDABLE, sdks="PydanticSerializationError"),
    ),
    Exchange(
        "byte_that_is_not_utf8",
        ['{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"caf\udce9"}}', text("hi")],
        apart=Apart(ours=got({"type": "text", "text": "hi"}), sdks="UnicodeDecodeError"),
    ),
    Exchange(
        "progress_no_float_holds",
        [report("1" + "0" * 400), report("1", total=10**400), text("hi")],
        progress=True,
        apart=Apart(ours=got({"type": "text", "text": "hi"}), sdks="OverflowError"),
    ),
]

CHANGES = ("tools", "prompts", "resources")

LIST_CHANGED = Exchange(
    "list_changed",
    [*(line(method=f"notifications/{what}/list_changed") for what in CHANGES), text("hi")],
)
"""Run alone: who lists again does so later, and not in the middle of another exchange."""

# -- tools of tests/lab/programs/tapped_server.py, an `MCPServer` of the SDK --

OF_THE_SDKS_SERVER = [
    Exchange("add", [], arguments={"a": 2, "b": 2**70}),
    Exchange("add", [], arguments={"a": "two"}),
    Exchange("picture", []),
    Exchange("everything", []),
    Exchange("fails", []),
    Exchange("refuses", [], arguments={"data": {"a": [1, None]}}),
    Exchange("counts", [], arguments={"to": 5}, progress=True),
    Exchange("counts", [], arguments={"to": 5}),
    Exchange("logs", [], meta={f"{STAMP}logLevel": "debug", "mine": 1}),
    Exchange("echoes_meta", [], meta={"mine": {"a": 1}}, around=traced),
    Exchange("hangs", [], progress=True, cancels=True),
    Exchange("heard_of_cancels", [], arguments={"count": 1}),
    Exchange("hangs", [], timeout=0.2),
    Exchange("heard_of_cancels", [], arguments={"count": 2}),
]
