"""A server that says anything: valid messages with hostile values in any place, and frames that nobody asked for.

Messages are JSON texts, because the worst of them are none that a Python value could be written as.
"""

import json
from collections import deque
from collections.abc import Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import trio
from attrs import define, field, frozen
from hypothesis import strategies as st

from mcp_nursery.actors.connection.wired import open_wired
from mcp_nursery.actors.messages import Loss

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
INFO = {"name": "hostile", "version": "1"}
STAMP = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


@frozen
class Raw:
    """A JSON text in the place of a value."""

    text: str = field(repr=lambda text: text if len(text) < 60 else f"{text[:40]}… ({len(text)})")


def dumps(value: Any) -> str:
    """JSON with raw texts in it."""
    raws: list[str] = []

    def mark(raw: Raw) -> str:
        raws.append(raw.text)
        return f"\x01raw{len(raws) - 1}\x01"

    text = json.dumps(value, default=mark)
    for number, raw in enumerate(raws):
        text = text.replace(f'"\\u0001raw{number}\\u0001"', raw)
    return text


def nested(depth: int, *, array: bool = True) -> Raw:
    return Raw("[" * depth + "]" * depth) if array else Raw('{"a":' * depth + "1" + "}" * depth)


WORST = [
    *(nested(depth, array=array) for depth in (50, 190, 199, 201, 250, 300, 500, 900, 980, 1000) for array in (0, 1)),
    *(Raw("9" * digits) for digits in (10, 19, 20, 310, 4300, 4301, 10000)),
    *map(Raw, ("-1", "0", "1e999", "-1e400", "1.5", "NaN", "Infinity", "-Infinity", "-0.0", "true", "null")),
    *map(Raw, ('"\\ud800"', '"a\\udfff"', '{"\\ud800": 1}', '["\\udc00"]', '"\\u0000"', '""', "[]", "{}", '"1"')),
    *map(Raw, ('"' + "x" * 5000 + '"', '"\\u001b[2J\\u202e\\r\\nroot"', '"e\\u0301"', '"\\u00e9"', '"\\u0665"', '"09"')),
    *map(Raw, ('{"a": 1, "a": 2}', '{"": {"": {"": 0}}}', '[[], {}, null, 1, "x"]', '{"$ref": "#"}', '"input_required"')),
]
"""What a place in a message may be filled with."""

PATHOLOGICAL_SCHEMAS: list[Any] = [
    {"$ref": "#"},
    {"type": "object", "allOf": [{"$ref": "#"}]},
    {"type": "object", "$ref": "http://127.0.0.1:1/schema"},
    {"type": "object", "$ref": "file:///etc/passwd"},
    {"type": "object", "properties": {"a": {"pattern": "^(a|aa)+\\1?(?!x)$"}}},
    {"type": "object", "properties": {"a": {"pattern": "("}}},
    {"type": "object", "properties": {"a": {"enum": list(range(5000))}}},
    {"type": "object", "$schema": "http://example.org/none"},
    {"type": 5},
    {"type": "object", "required": ["\ud800"]},
    {"type": "object", "properties": {"\ud800": {}}},
    {"type": "object", "maxProperties": Raw("9" * 400)},
    {"type": "object", "properties": {"a": {"multipleOf": Raw("1e-320")}}},
    {"$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
     | {"d40": {"type": "string"}}, "type": "object", "$ref": "#/$defs/d0"},
]

# -- what a well-behaved server would say ---------------------------------------------------------------------------


def tool(name: Any, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": "A tool",
        "description": "Does it.",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}},
        "annotations": {"readOnlyHint": True},
        "_meta": {"anthropic/searchHint": "it"},
        **more,
    }


TOOLS: list[Any] = [
    tool("echo"),
    tool("typed", outputSchema={"type": "object", "properties": {"a": {"type": "string"}}}),
    tool("x" * 100),
]
NAMES: list[Any] = ["echo", "Echo", "ECHO", "e\u0301", "\u00e9", "", "\x00", "\ud800", "a b", "a\nb", "x" * 5000, "echo_"]
CALLED = ("echo", "typed", "x" * 100, "a\nb", "\ud800", "nobody has this")


def reply(method: str, *, modern: bool) -> dict[str, Any] | None:
    """The result of a request; None for an error."""
    stamp = STAMP if modern else {}
    match method:
        case "server/discover" if modern:
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            return {"supportedVersions": [MODERN], "capabilities": {"tools": {"listChanged": True}}, "_meta": meta,
                    "instructions": "Be good.", **stamp}
        case "initialize" if not modern:
            return {"protocolVersion": HANDSHAKE, "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": INFO, "instructions": "Be good."}
        case "tools/list":
            return {"tools": deepcopy(TOOLS), **stamp}
        case "tools/call":
            content = [{"type": "text", "text": "fine"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]
            return {"content": content, "structuredContent": {"a": "b"}, "_meta": {"a": 1}, **({"resultType": "complete"} if modern else {})}
        case "ping":
            return {}
        case _:
            return None


ELICIT = {"method": "elicitation/create", "params": {"mode": "form", "message": "who?", "requestedSchema": {"type": "object", "properties": {}}}}
SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 10}}
ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}
QUESTION = {"resultType": "input_required", "inputRequests": {"q": ELICIT, "s": SAMPLE}, "requestState": "state"}
VISIT = {"code": -32042, "message": "visit", "data": {"elicitations": [
    {"mode": "url", "message": "go", "url": "http://127.0.0.1/", "elicitationId": "1"}]}}
REFUSAL = {"code": -32000, "message": "no", "data": {"a": ["b"]}}

UNASKED: list[dict[str, Any]] = [
    {"method": "notifications/progress", "params": {"progressToken": 3, "progress": 1, "total": 2, "message": "m"}},
    {"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "r"}},
    {"method": "notifications/tools/list_changed", "params": {}},
    {"method": "notifications/resources/updated", "params": {"uri": "file:///a"}},
    {"method": "notifications/message", "params": {"level": "info", "data": {"a": 1}, "logger": "l"}},
    {"method": "notifications/elicitation/complete", "params": {"elicitationId": "1"}},
    {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": {}}},
    {"method": "notifications/unheard_of", "params": {}},
    {"id": 7, **ELICIT},
    {"id": 8, **SAMPLE},
    {"id": "r", **ROOTS},
    {"id": 9, "method": "ping"},
    {"id": 10, "method": "unheard/of", "params": {"a": 1}},
    {"id": 424242, "result": {}},
    {"id": 2, "result": {"tools": []}},
    {"id": 3, "error": REFUSAL},
]  # fmt: skip
BROKEN = [b"", b"[]", b"[[]]", b"null", b"{}", b"{", b"\xff\xfe", b"[" * 5000, b'{"a":' * 2000, b'"', b"1" * 6000, b'[1,{"jsonrpc":"2.0"}]']

# -- what is done to it -------------------------------------------------------------------------------------------

Path = tuple[Any, ...]


def places(value: Any, path: Path = ()) -> list[Path]:
    """Every node of a message."""
    found = [path]
    if isinstance(value, dict):
        found += [place for key, item in value.items() for place in places(item, (*path, key))]
    elif isinstance(value, list):
        found += [place for key, item in enumerate(value) for place in places(item, (*path, key))]
    return found


@frozen
class Mutation:
    """Something done to one place of a message; `where` counts its places."""

    where: int
    what: str
    value: Any = None

    def apply(self, message: dict[str, Any]) -> dict[str, Any]:
        spots = places(message)[1:]
        if not spots:
            return message
        *way, last = spots[self.where % len(spots)]
        holder: Any = message
        for key in way:
            holder = holder[key]
        match self.what:
            case "replace":
                holder[last] = self.value
            case "delete":
                del holder[last]
            case "nest":
                holder[last] = Raw("[" * self.value + dumps(holder[last]) + "]" * self.value)
            case "add" if isinstance(holder, dict):
                holder["extra"] = self.value
            case "duplicate" if isinstance(holder, list):
                holder.append(deepcopy(holder[last]))
            case "rename" if isinstance(holder, dict):
                holder["\ud800"] = holder.pop(last)
        return message


values = st.sampled_from(WORST)
mutations = st.builds(
    Mutation, st.integers(0, 60), st.sampled_from(["replace", "replace", "add"]), values
) | st.builds(
    Mutation, st.integers(0, 60), st.sampled_from(["delete", "duplicate", "rename"])
) | st.builds(Mutation, st.integers(0, 60), st.just("nest"), st.sampled_from([1, 60, 190, 199, 300, 980]))  # fmt: skip


@frozen
class Answer:
    """What one request is answered with."""

    mutations: tuple[Mutation, ...] = ()
    instead: dict[str, Any] | None = None
    """A result or, with a `code`, an error in the place of the valid result."""
    twice: bool = False
    unasked: tuple[tuple[dict[str, Any], tuple[Mutation, ...]], ...] = ()
    """Said before the answer."""
    broken: bytes | None = None
    envelope: tuple[Mutation, ...] = ()


def answers(*instead: dict[str, Any]) -> st.SearchStrategy[Answer]:
    few = st.lists(mutations, max_size=2).map(tuple)
    rarely = st.sampled_from([False] * 7 + [True])
    said = st.tuples(st.sampled_from(UNASKED), st.lists(mutations, max_size=2).map(tuple))
    return st.builds(
        Answer,
        few,
        st.sampled_from([None, None, *instead]) if instead else st.none(),
        rarely,
        st.lists(said, max_size=4).map(tuple),
        st.none() | st.none() | st.sampled_from(BROKEN),
        st.one_of(st.just(()), st.just(()), st.just(()), few),
    )


@st.composite
def listings(draw: st.DrawFn) -> dict[str, Any]:
    """Pages of odd tools."""
    schema = st.sampled_from([*PATHOLOGICAL_SCHEMAS, *WORST])
    name = st.sampled_from([*NAMES, *WORST])
    odd = draw(st.lists(st.builds(lambda n, o: tool(n, outputSchema=o), name, schema), max_size=3))
    plain = draw(st.lists(st.builds(tool, name), max_size=3))
    typed = draw(st.lists(st.builds(lambda o: tool("typed", outputSchema=o), schema), max_size=1))
    cursor = draw(st.sampled_from([None, None, "", "next", *WORST]))
    page = {"tools": [*odd, *plain, *typed, tool("echo")], **STAMP}
    return page if cursor is None else {**page, "nextCursor": cursor}


@frozen
class Plan:
    """A whole server."""

    modern: bool
    greeting: tuple[Answer, ...] = (Answer(),)
    listing: tuple[Answer, ...] = (Answer(),)
    calls: tuple[Answer, ...] = (Answer(),)
    others: tuple[Answer, ...] = (Answer(),)


def several(one: st.SearchStrategy[Answer]) -> st.SearchStrategy[tuple[Answer, ...]]:
    return st.lists(one, min_size=1, max_size=3).map(tuple)


tame_greetings = st.just((Answer(),))
plans = st.builds(
    Plan,
    st.booleans(),
    st.one_of(tame_greetings, tame_greetings, several(answers())),
    st.one_of(several(answers()), st.lists(st.builds(lambda page: Answer(instead=page), listings()), min_size=1, max_size=3).map(tuple)),
    several(answers(QUESTION, VISIT, REFUSAL, {"content": []})),
    several(answers()),
)  # fmt: skip


@define(eq=False)
class Speaker:
    """What one connection of a hostile server says, whatever it is spoken over."""

    plan: Plan
    _counts: dict[str, int] = field(factory=dict)

    def hear(self, message: dict[str, Any]) -> list[bytes]:
        """What is said because of it; the answer, if there is one, last."""
        method = message.get("method")
        if method is None or "id" not in message:
            return []
        answer = self._answer(method)
        said: list[Any] = [mutated({"jsonrpc": "2.0", **unasked}, changes) for unasked, changes in answer.unasked]
        said += [] if answer.broken is None else [answer.broken]
        said += [self._response(message["id"], method, answer)] * (1 + answer.twice)
        return [each if isinstance(each, bytes) else dumps(each).encode() for each in said]

    def _answer(self, method: str) -> Answer:
        plan = self.plan
        greeting, listing, calls = plan.greeting, plan.listing, plan.calls
        groups = {"server/discover": greeting, "initialize": greeting, "tools/list": listing, "tools/call": calls}
        chosen = groups.get(method, plan.others)
        count = self._counts[method] = self._counts.get(method, -1) + 1
        return chosen[count % len(chosen)]

    def _response(self, request_id: Any, method: str, answer: Answer) -> dict[str, Any]:
        said = answer.instead if answer.instead is not None else reply(method, modern=self.plan.modern)
        if said is None:
            said = {"code": -32601, "message": "Method not found"}
        key = "error" if "code" in said else "result"
        response = {"jsonrpc": "2.0", "id": request_id, key: mutated(said, answer.mutations)}
        return mutated(response, answer.envelope)


@define(eq=False)
class HostileServer:
    """A transport of a `ServerSpec`, and the server behind it."""

    plan: Plan
    kind: str = "hostile"

    def connector(self, *, close_grace: float) -> "HostileServer":
        del close_grace
        return self

    def connect(self, host: Any) -> Any:
        return open_wired(self._open(), host)

    @asynccontextmanager
    async def _open(self) -> Any:
        yield Wire(Speaker(self.plan))


class Wire:
    """The duplex of one incarnation."""

    pid = None
    unfinished = False

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._said: deque[bytes] = deque()
        self._news = trio.lowlevel.ParkingLot()

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        for frame in frames:
            self._said += self._speaker.hear(json.loads(frame))
        self._news.unpark_all()
        return len(frames)

    async def writable(self) -> None:
        await trio.sleep_forever()

    async def read(self) -> list[bytes]:
        while not self._said:
            await self._news.park()
        batch = list(self._said)
        self._said.clear()
        return batch

    async def loss(self) -> Loss:
        await trio.lowlevel.checkpoint()
        return Loss("gone")


def mutated(message: dict[str, Any], changes: Sequence[Mutation]) -> dict[str, Any]:
    message = deepcopy(message)
    for change in changes:
        message = change.apply(message)
    return message



# -- the worst of it ----------------------------------------------------------------------------------------------


def deep(depth: int) -> Raw:
    return nested(depth, array=False)


def unasked(*messages: dict[str, Any]) -> Answer:
    return Answer(unasked=tuple((message, ()) for message in messages))


def instead(**result: Any) -> Answer:
    return Answer(instead=result)


def listed(*tools: Any, **more: Any) -> Answer:
    return instead(tools=list(tools), **STAMP, **more)


def calling(*answers: Answer, **more: Any) -> Plan:
    return Plan(True, calls=answers, **more)


def listing(*answers: Answer, **more: Any) -> Plan:
    return Plan(True, listing=answers, **more)


def done(structured: Any, **more: Any) -> Answer:
    return instead(content=[], structuredContent=structured, resultType="complete", **more)


CODES: dict[str, Any] = {"code": -1, "message": "m"}
WORST_PLANS = {
    "a name that has no JSON form": listing(listed(tool("\ud800"), tool("echo"))),
    "a cursor that has none": listing(listed(tool("echo"), nextCursor="\ud800")),
    "an id that has none": listing(unasked({"id": "\ud800", "method": "ping"})),
    "a state that has none": calling(Answer(instead={**QUESTION, "requestState": "\ud800"})),
    "questions without end": calling(Answer(instead=QUESTION)),
    "visits without end": Plan(False, calls=(Answer(instead=VISIT),)),
    "a deep uri": listing(unasked({"method": "notifications/resources/updated", "params": {"uri": deep(1000)}})),
    "a deep id": calling(unasked({"id": deep(1000), "result": {}}, {"id": deep(900), "method": "ping"})),
    "a deep message": calling(Answer(instead={"code": 1, "message": deep(1000)})),
    "deep data": calling(*(Answer(instead={**CODES, "data": deep(depth)}) for depth in (150, 300, 900, 1000))),
    "a long code": calling(Answer(instead={**CODES, "code": Raw("9" * 4300)})),
    "long words": calling(Answer(instead={**CODES, "message": "x\n" * 10**6, "data": ["y" * 10**6]})),
    "a deep result": calling(*(done(deep(depth)) for depth in (150, 197, 200, 300, 1000))),
    "a deep schema": listing(*(listed(tool("echo", inputSchema={"type": "object", "a": deep(d)})) for d in (150, 199, 500))),
    "numbers that are none": calling(done({"a": Raw("NaN"), "b": Raw("1e999"), "c": Raw("9" * 4300)}, _meta={"a": Raw("NaN")})),
    "half a character": calling(done({"\ud800": "\udfff"}), instead(content=[{"type": "text", "text": "\ud800"}], **STAMP)),
    "names with lines": listing(listed(tool("a\nb"), tool("echo")), listed(tool("a\nb", description="other"), tool("echo"))),
    "schemas without end": listing(*(listed(tool("typed", outputSchema=schema), tool("echo")) for schema in PATHOLOGICAL_SCHEMAS)),
    "everything unasked": Plan(True, *[(unasked(*UNASKED),)] * 4),
    "everything broken": calling(*(Answer(broken=broken) for broken in BROKEN)),
    "wrong all over": calling(*(Answer(envelope=(Mutation(where, "replace", Raw("[]")),)) for where in range(12))),
}  # fmt: skip
