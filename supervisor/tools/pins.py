"""Whether a tool is still what it was when it was first used. Pure.

A server that changes a description after its user has agreed to it can instruct a model behind the user's back
(CVE-2025-54136): what a model is told of a tool, and what its hints say, is pinned on first use.
"""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import define, field, frozen

from .hints import always_load, search_hint
from .visible import visible

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

MOST_PINS: Final = 20_000
"""Names that the tools of one server may have in its life: twice as many as it may have at once."""

_MAX_LINES: Final = 1000
"""Lines of a definition that are compared: to compare takes time quadratic in them, and a server chooses them."""
_MAX_LINE: Final = 200
"""Characters of one line of a diff."""
_SENTENCES: Final = re.compile(rf".{{1,{_MAX_LINE - 1}}}?[.!?;]\s|.{{1,{_MAX_LINE}}}", re.DOTALL)
"""Pieces of a line: a change within a long one is then not lost in it."""
_CONTEXT: Final = 1
"""Lines around a difference."""


def pinned_text(definition: "Definition") -> str:
    """What of a definition is pinned, as JSON: name, title, description, schemas and hints.

    The rest of `_meta` and the icons are not part of it: nothing of them reaches a model, and they may change at will.
    """
    hints = definition.annotations
    said = {
        "name": definition.name,
        "title": definition.title,
        "description": definition.description,
        "inputSchema": definition.input_schema,
        "outputSchema": definition.output_schema,
        "annotations": None if hints is None else hints.model_dump(by_alias=True, mode="json", exclude_none=True),
        "searchHint": search_hint(definition.meta),
        "alwaysLoad": always_load(definition.meta) or None,
    }
    return _canonical({key: value for key, value in said.items() if value is not None})


def _canonical(value: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # half a surrogate pair, an integer beyond 64 bits, or nested deeper than orjson goes
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


@frozen
class DefinitionChange:
    """A tool that is not what it was when it was first used."""

    server: str
    tool: str
    """The server's own name of it."""
    before: str = field(repr=False)
    """What was pinned on first use, or accepted since, as JSON."""
    after: str = field(repr=False)
    """What the server declares now."""

    @property
    def fields(self) -> tuple[str, ...]:
        """What differs: `description`, `inputSchema`, `annotations` and so on."""
        before, after = json.loads(self.before), json.loads(self.after)
        return tuple(key for key in {**before, **after} if before.get(key) != after.get(key))

    @property
    def diff(self) -> str:
        """A unified diff to read, of at most a thousand lines a side, from where they differ.

        A line goes on in the next, after `…`, at the end of a sentence or at 200 characters. Characters that cannot be
        seen are escaped. The server's words stand in it unmarked: it is for people, not for models.
        """
        before, after, more = _comparable(_lines(json.loads(self.before)), _lines(json.loads(self.after)))
        before, after, still_more = _comparable(_pieces(before), _pieces(after))
        shown = unified_diff(before, after, "first used", "now", n=_CONTEXT, lineterm="")
        lines = [visible(line) for line in shown]
        if more or still_more:
            lines.append(f"(more differs after {_MAX_LINES} lines)")
        return "\n".join(lines)


@frozen
class Review:
    """How the tools of a server compare with what they were when they were first used."""

    changes: Mapping[str, DefinitionChange] = field(factory=dict[str, DefinitionChange])
    """Those that differ, by the server's own names."""
    held: Mapping[str, str] = field(factory=dict[str, str])
    """Those that are held back, by the server's own names, and why, one line each."""


UNREVIEWED = Review()
"""Of a server that has not declared anything yet."""


def changes_between(
    server: str, pinned: Mapping[str, str], declared: Mapping[str, str]
) -> Mapping[str, DefinitionChange]:
    """The tools that are declared otherwise than they were pinned, by the server's own names. Values are texts as of
    `pinned_text`; a tool that is not pinned differs from nothing."""
    return {
        tool: DefinitionChange(server, tool, before, declared[tool])
        for tool, before in pinned.items()
        if tool in declared and declared[tool] != before
    }


def _lines(said: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for key, value in said.items():
        if isinstance(value, str):
            lines += [f"{key}:", *(f"  {line}" for line in value.split("\n"))]
        else:
            lines += f"{key}: {json.dumps(value, indent=2, ensure_ascii=False)}".split("\n")
    return lines


def _pieces(lines: Sequence[str]) -> list[str]:
    pieces: list[str] = []
    for line in lines:
        first, *rest = _SENTENCES.findall(line)
        pieces += [first, *(f"… {piece}" for piece in rest)]
    return pieces


def _comparable(before: list[str], after: list[str]) -> tuple[list[str], list[str], bool]:
    """What of them is compared, and whether more differs. If they are many, from where they begin to differ."""
    if max(len(before), len(after)) <= _MAX_LINES:
        return before, after, False
    before, after = _ends_cut(*_ends_cut(before, after))
    return before[:_MAX_LINES], after[:_MAX_LINES], before[_MAX_LINES:] != after[_MAX_LINES:]


def _ends_cut(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Both without what they begin with alike, and the other way round: twice is as they were."""
    pairs = enumerate(zip(before, after, strict=False))
    alike = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
    start = max(alike - _CONTEXT, 0)
    return before[start:][::-1], after[start:][::-1]


_DAMAGED = "the pins in it are damaged"


class UnusablePins(ValueError):
    """What was written down of pins cannot be read."""


@define
class Pins:
    """The tools of one server as they were first used, and those that were seen to differ since, as texts of
    `pinned_text` by the server's own names."""

    pinned: dict[str, str] = field(factory=dict[str, str])
    differing: dict[str, str] = field(factory=dict[str, str])
    """As last seen; not accepted yet."""

    def see(self, declared: Mapping[str, str]) -> Mapping[str, str]:
        """Pin what is new, note what differs, and return the pins of these tools.

        Once they are too many, what is new is not pinned and has none. No pin is forgotten to make room: a server
        could have its own forgotten.
        """
        room = max(MOST_PINS - len(self.pinned), 0)
        self.pinned.update(islice(((tool, declared[tool]) for tool in declared if tool not in self.pinned), room))
        pins = {tool: self.pinned[tool] for tool in declared if tool in self.pinned}
        gone = {tool: text for tool, text in self.differing.items() if tool not in declared}
        self.differing = gone | {tool: declared[tool] for tool, pin in pins.items() if pin != declared[tool]}
        return pins

    def accept(self, change: DefinitionChange) -> None:
        """Pin the tool as it is after the change."""
        self.pinned[change.tool] = change.after
        if self.differing.get(change.tool) == change.after:
            del self.differing[change.tool]

    def changes(self, server: str) -> Sequence[DefinitionChange]:
        """What differed when it was last seen."""
        return list(changes_between(server, self.pinned, self.differing).values())

    def to_json(self) -> str:
        """To be written down. ASCII: a name may hold what no other encoding can."""
        return json.dumps([self.pinned, self.differing], sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Pins":
        """What was written down.

        Raises:
            UnusablePins: It is none.
        """
        try:
            pinned, differing = json.loads(text)
            if all(isinstance(json.loads(each), dict) for each in (*pinned.values(), *differing.values())):
                return cls(pinned, differing)
        except (ValueError, TypeError, AttributeError) as error:
            raise UnusablePins(_DAMAGED) from error
        raise UnusablePins(_DAMAGED)
