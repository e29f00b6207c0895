"""The comparison of tools and skills with what they were at their first use. Pure: `storage.tool_pins` applies it to
what a server lists.

A server that changes a description after its user has agreed to it can instruct a model behind the user's back
(CVE-2025-54136): what a model is shown of a tool, and its hints, are pinned on first use.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from mcp_nursery.actors.json_depth import nested_too_deep
from mcp_nursery.actors.json_parsing import parse_json
from mcp_nursery.actors.pieces import Steps, at_once
from mcp_nursery.actors.records import evolve, field, frozen
from mcp_nursery.actors.session.lazy_definitions import LazyDefinition

from ..security.untrusted_marks import visible
from .fingerprint import canonical, fingerprint
from .hints import always_load, search_hint
from .ui import ui_of

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

SCHEMAS: Final = ("inputSchema", "outputSchema")
"""Fields that count by their meaning."""
MOST_PINS: Final = 20_000
"""Names that the tools of one server may have in its life: four times as many as it may usually have at once. As many
skills are pinned, and they have as much room again."""
MOST_PINNED: Final = 16 * 2**20
"""Characters that the pins of one server may have together, and as many again for definitions that differ from them."""

_MAX_LINES: Final = 1000
"""Lines of a definition that are compared: comparing takes time quadratic in them, and a server chooses them."""
_MAX_LINE: Final = 200
"""Characters of one line of a diff."""
_SENTENCES: Final = re.compile(rf".{{1,{_MAX_LINE - 1}}}?[.!?;]\s|.{{1,{_MAX_LINE}}}", re.DOTALL)
"""Pieces of a line, so that a change is not lost in a long one."""
_HINTS: Final = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_CONTEXT: Final = 1
"""Lines around a difference."""


def pinned_text(definition: "Definition") -> str:
    """The pinned part of a definition, as JSON: name, title, description, schemas, hints, page and callers.

    The rest of `_meta` and the icons are not part of it: nothing of them reaches a model, and they may change at will.
    Schemas count by their meaning, long values by their digest: see `tools.fingerprint`.
    """
    return at_once(pinning_steps(definition))


def pinning_steps(definition: "Definition", *, former: bool = False) -> Steps[str]:
    """`pinned_text`, step by step: none takes more than a few milliseconds, however long the definition is.

    `former`: as earlier versions wrote it, for which the order of names in `required` and the like counted.
    """
    ui = ui_of(definition.meta)
    said = {
        "name": definition.name,
        "title": definition.title,
        "description": definition.description,
        "inputSchema": definition.input_schema,
        "outputSchema": definition.output_schema,
        "annotations": known_hints(definition),
        "searchHint": search_hint(definition.meta),
        "alwaysLoad": always_load(definition.meta) or None,
        "ui": None if ui is None else ui.as_json(),
    }
    return fingerprint({key: value for key, value in said.items() if value is not None}, SCHEMAS, former=former)


def known_hints(definition: "Definition") -> dict[str, Any] | None:
    """The hints of a tool that the protocol knows; None if there are none."""
    if isinstance(definition, LazyDefinition):
        said: dict[str, Any] | None = definition.said.get("annotations")
        return None if said is None else {key: said[key] for key in _HINTS if said.get(key) is not None}
    hints = definition.annotations
    if hints is None:
        return None
    return hints.model_dump(by_alias=True, mode="json", exclude_none=True, include=set(type(hints).model_fields))


@frozen
class DefinitionChange:
    """A tool or a skill that differs from what it was at first use."""

    server: str
    """The server's name."""
    tool: str
    """The server's own name of the tool; of a skill its URI."""
    before: str = field(repr=False)
    """The definition that was pinned on first use, or accepted since, as JSON, lists without order sorted. A field of
    more than 64 Ki characters or 5,000 values is `["sha256-of-pieces", hexadecimal digits, bytes]`, a schema of more is
    `["sha256-of-meaning", …]`."""
    after: str = field(repr=False)
    """The definition that the server declares now."""

    @property
    def kind(self) -> Literal["tool", "skill"]:
        """The kind of what differs."""
        return "skill" if "frontmatter" in json.loads(self.after) else "tool"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that differ: `description`, `inputSchema`, `annotations` and so on; of a skill `frontmatter` and
        `resources`, the files with their digests."""
        before, after = json.loads(self.before), json.loads(self.after)
        return tuple(key for key in {**before, **after} if before.get(key) != after.get(key))

    @property
    def diff(self) -> str:
        """A unified diff to read, of at most a thousand lines a side, from where they differ.

        A line is continued in the next, after `…`, at the end of a sentence or at 200 characters. Invisible characters
        are escaped. The server's words are unmarked: the diff is for people, not for models.
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
    """The comparison of a server's tools, or of its skills, with what they were at first use."""

    changes: Mapping[str, DefinitionChange] = field(factory=dict[str, DefinitionChange])
    """The tools that differ, by the server's own names; or the skills, by URI."""
    held: Mapping[str, str] = field(factory=dict[str, str])
    """The tools or skills that are held back, in the same way, and why, one line each."""
    certain: bool = True
    """True if all could be compared. If not, they are reviewed again."""


UNREVIEWED = Review()
"""The review of a server that has not declared anything yet."""


def changes_between(
    server: str, pinned: Mapping[str, str], declared: Mapping[str, str]
) -> Mapping[str, DefinitionChange]:
    """The tools whose declarations differ from their pins, by the server's own names. Values are texts of
    `pinned_text`; a tool without a pin does not differ."""
    return {
        tool: DefinitionChange(server, tool, before, declared[tool])
        for tool, before in pinned.items()
        if tool in declared and declared[tool] != before
    }


def means_the_same(before: str, after: str) -> bool:
    """True if two pins differ at most in an order that does not count, though it did for earlier versions."""
    return repin(before) == repin(after)


def real_change(change: DefinitionChange, definition: "Definition") -> Steps[DefinitionChange | None]:
    """The difference of a tool, as it is declared now, from its pin, without the fields that are unchanged, in meaning
    or to the letter, but were pinned in another order by an earlier version. None if no other field is left."""
    before, after = json.loads(change.before), json.loads(change.after)
    letters = json.loads((yield from pinning_steps(definition, former=True)))
    means = json.loads((yield from fingerprint(before, SCHEMAS)))
    for key in before.keys() & after.keys():
        if means[key] == after[key] or letters[key] == before[key]:
            before[key] = after[key]
    return None if before == after else evolve(change, before=canonical(before))


def _lines(said: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for key, value in said.items():
        if isinstance(value, str):
            lines += [f"{key}:", *(f"  {line}" for line in value.split("\n"))]
        elif isinstance(value, list):  # no field is one of itself
            _, digest, size = cast("tuple[str, str, int]", value)
            lines.append(f"{key}: too long to be kept, {size} bytes with the SHA-256 {digest}")
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
    """The lines of both that are compared, and whether more differs. If there are many, they begin where the two
    differ."""
    if max(len(before), len(after)) <= _MAX_LINES:
        return before, after, False
    before, after = _ends_cut(*_ends_cut(before, after))
    return before[:_MAX_LINES], after[:_MAX_LINES], before[_MAX_LINES:] != after[_MAX_LINES:]


def _ends_cut(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Both without their common beginning, and reversed: done twice, the order is restored."""
    pairs = enumerate(zip(before, after, strict=False))
    alike = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
    start = max(alike - _CONTEXT, 0)
    return before[start:][::-1], after[start:][::-1]


class UnusablePins(ValueError):
    """A row of pins that cannot be read."""

    def __init__(self) -> None:
        super().__init__("the pins in it are damaged")


@frozen
class Pin:
    """A tool as it was first used, and as it was last seen, as texts of `pinned_text`."""

    text: str
    differs: str | None = None
    """The definition when last seen, if it differs and was not accepted yet."""

    def seen(self, text: str) -> "Pin":
        """The pin after the tool was seen with this text."""
        return Pin(self.text, None if text == self.text else text)

    def accepted(self, text: str) -> "Pin":
        """The pin after a person has accepted this text."""
        return Pin(text, None if text == self.differs else self.differs)


@frozen
class Room:
    """The space that the pins of a server take."""

    names: int
    pinned: int
    """Characters, as `MOST_PINNED` counts them."""
    differing: int

    def after(self, before: Pin | None, pin: Pin) -> "Room":
        """The space with this pin in the place of the other."""
        old_text, old_differs = ("", "") if before is None else (before.text, before.differs or "")
        return Room(
            self.names + (before is None),
            self.pinned + len(pin.text) - len(old_text),
            self.differing + len(pin.differs or "") - len(old_differs),
        )

    @property
    def enough(self) -> bool:
        """True if a server may take as much."""
        return self.names <= MOST_PINS and max(self.pinned, self.differing) <= MOST_PINNED


def pins_after(declared: Mapping[str, str], known: Mapping[str, Pin], taken: Callable[[], Room]) -> Mapping[str, Pin]:
    """The pins that change when a server is seen to declare these texts of `pinned_text`, by the names of its tools.
    `known` has the pins of these tools, as far as there are any. `taken` returns the space that all pins of the server
    take, and is called only if something changes.

    Once there is no room, new tools are not pinned, and a difference is reported but not recorded. No pin is forgotten
    to make room: a server could bring that about.
    """
    changed: dict[str, Pin] = {}
    room: Room | None = None
    for tool, text in declared.items():
        before = known.get(tool)
        pin = Pin(text) if before is None else before.seen(text)
        if pin != before:
            wanted = (taken() if room is None else room).after(before, pin)
            as_it_was = before is not None and pin.differs is None
            if as_it_was or wanted.enough:
                changed[tool], room = pin, wanted
    return changed


def recorded_changes(server: str, pins: Mapping[str, Pin]) -> Sequence[DefinitionChange]:
    """The changes that were seen last."""
    return [
        DefinitionChange(server, tool, pin.text, pin.differs) for tool, pin in pins.items() if pin.differs is not None
    ]


def check_pinned(text: object) -> str:
    """A text of `pinned_text` that was read from somewhere.

    Raises:
        UnusablePins: It is not a valid pin.
    """
    try:
        said: object = parse_json(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        said = None
    fields = cast("dict[str, Any]", said).values() if isinstance(said, dict) else None
    if fields is not None and all(map(_is_kept, fields)):
        return cast("str", text)
    raise UnusablePins


def _is_kept(value: Any) -> bool:
    """True if a value can be a field of a pin: it is no array, except one that stands for a long field."""
    if isinstance(value, list):
        return [type(each) for each in cast("list[object]", value)] == [str, str, int]
    return not nested_too_deep(value)


def repin(text: object) -> str:
    """The text of `pinned_text` for a pin that an earlier version wrote as this.

    Raises:
        UnusablePins: The text is not a valid pin.
    """
    return at_once(fingerprint(json.loads(check_pinned(text)), SCHEMAS))
