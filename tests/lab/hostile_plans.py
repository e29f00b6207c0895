"""The worst that a server is known to say: each of these ended something, held it up, or was close to it."""

from typing import Any

from .hostile import Answer, Mutation, Plan
from .hostile_words import BROKEN, PATHOLOGICAL_SCHEMAS, QUESTION, STAMP, UNASKED, VISIT, Raw, nested, tool


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
    "a deep schema": listing(
        *(listed(tool("echo", inputSchema={"type": "object", "a": deep(d)})) for d in (150, 199, 500))
    ),
    "numbers that are none": calling(
        done({"a": Raw("NaN"), "b": Raw("1e999"), "c": Raw("9" * 4300)}, _meta={"a": Raw("NaN")})
    ),
    "half a character": calling(
        done({"\ud800": "\udfff"}), instead(content=[{"type": "text", "text": "\ud800"}], **STAMP)
    ),
    "names with lines": listing(
        listed(tool("a\nb"), tool("echo")), listed(tool("a\nb", description="other"), tool("echo"))
    ),
    "schemas without end": listing(
        *(listed(tool("typed", outputSchema=schema), tool("echo")) for schema in PATHOLOGICAL_SCHEMAS)
    ),
    "everything unasked": Plan(True, *[(unasked(*UNASKED),)] * 4),
    "everything broken": calling(*(Answer(broken=broken) for broken in BROKEN)),
    "wrong all over": calling(*(Answer(envelope=(Mutation(where, "replace", Raw("[]")),)) for where in range(12))),
}
