"""A server that says anything: valid messages with hostile values in any place, and frames that nobody asked for.

Messages are JSON texts, because the worst of them are none that a Python value could be written as.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

from attrs import define, field, frozen
from hypothesis import strategies as st

from mcp_nursery.actors.transports.base import StreamConnector

from .hostile_words import (
    BROKEN,
    NAMES,
    PATHOLOGICAL_SCHEMAS,
    QUESTION,
    REFUSAL,
    STAMP,
    UNASKED,
    VISIT,
    WORST,
    Raw,
    dumps,
    reply,
    tool,
)
from .talker import Talker

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
    st.one_of(
        several(answers()),
        st.lists(st.builds(lambda page: Answer(instead=page), listings()), min_size=1, max_size=3).map(tuple),
    ),
    several(answers(QUESTION, VISIT, REFUSAL, {"content": []})),
    several(answers()),
)


@define(eq=False)
class Speaker:
    """What one connection of a hostile server says, whatever it is spoken over."""

    plan: Plan
    _counts: dict[str, int] = field(factory=dict)
    _ids: list[Any] = field(factory=list)
    """Of the requests, in order."""

    def hear(self, message: dict[str, Any]) -> list[bytes]:
        """What is said because of it; the answer, if there is one, last."""
        method = message.get("method")
        if method is None or "id" not in message:
            return []
        self._ids.append(message["id"])
        answer = self._answer(method)
        said: list[Any] = [mutated(self._addressed(unasked), changes) for unasked, changes in answer.unasked]
        said += [] if answer.broken is None else [answer.broken]
        said += [self._response(message["id"], method, answer)] * (1 + answer.twice)
        return [each if isinstance(each, bytes) else dumps(each).encode() for each in said]

    def _addressed(self, unasked: dict[str, Any]) -> dict[str, Any]:
        """Nobody can guess ids: that of an answer counts the requests, 1 for the first, where there was one."""
        number = unasked.get("id")
        known: dict[str, Any] = {}
        if "method" not in unasked and isinstance(number, int) and number <= len(self._ids):
            known["id"] = self._ids[number - 1]
        return {"jsonrpc": "2.0", **unasked, **known}

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
class HostileServer(StreamConnector):
    """A transport of a `ServerSpec`, and the server behind it."""

    plan: Plan
    kind: str = "hostile"

    def connector(self, *, close_grace: float) -> "HostileServer":
        del close_grace
        return self

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Wire", None]:
        yield Wire(Speaker(self.plan))


class Wire(Talker):
    """The stream of one incarnation."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self._speaker = speaker

    def take(self, message: dict[str, Any]) -> None:
        self.say(*self._speaker.hear(message))


def mutated(message: dict[str, Any], changes: Sequence[Mutation]) -> dict[str, Any]:
    message = deepcopy(message)
    for change in changes:
        message = change.apply(message)
    return message
