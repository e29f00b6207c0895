"""The YAML at the beginning of a skill's `SKILL.md`, compared with what its server says of it in JSON. Pure.

The text is never made into objects: its events are held against the JSON value one by one, so that the work is bounded
by that value and by the text. A plain scalar may mean one thing in YAML 1.1 and another in YAML 1.2 (`yes`, `012`,
`2026-01-31`), and servers render it by either: both are right. A date is a text.
"""

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Final, cast

import yaml

from mcp_nursery.actors.pieces import Steps

MOST_FRONTMATTER: Final = 16 << 10
"""Characters of the frontmatter of one skill."""
MOST_LEVELS: Final = 16
"""Levels of objects and arrays in it: PyYAML takes time quadratic in them."""

_BLOCK: Final = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)(?<=\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_CORE: Final = {
    "null": re.compile(r"|~|null|Null|NULL"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"),
}
"""The plain scalars of YAML 1.2 that are no texts."""
_MOST_DIGITS: Final = 400
_TEXT: Final = "tag:yaml.org,2002:str"


class Differs(Exception):
    """The frontmatter is not what the JSON says."""

    def __init__(self, where: str, expected: object, found: str) -> None:
        self.where = where
        """The field; empty for the whole."""
        self.expected = expected
        """The field as the JSON has it."""
        self.found = found
        """The same in the text, or what is wrong with that."""
        super().__init__(where)


def compare_frontmatter(text: str, expected: Mapping[str, Any]) -> Steps[None]:
    """Compare the frontmatter of a `SKILL.md` with a JSON object, in steps. A field that is null may be left out.

    Raises:
        Differs: It is not the same, not YAML, or there is none.
    """
    block = _BLOCK.match(text[: MOST_FRONTMATTER + 16])
    if block is None or len(block[1]) > MOST_FRONTMATTER:
        raise Differs("", expected, f"none of at most {MOST_FRONTMATTER} characters between lines of ---")
    try:
        loader = _Loader(block[1])
        comparison = _Comparison(loader)
        comparison.next(yaml.StreamStartEvent)
        comparison.next(yaml.DocumentStartEvent)
        yield from comparison.value(expected, "", MOST_LEVELS)
        comparison.next(yaml.DocumentEndEvent)
        comparison.next(yaml.StreamEndEvent)
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or "levels or characters that it may not have"
        where = "" if mark is None else f" in line {mark.line + 2}"
        raise Differs("", expected, f"no YAML that can be read: {said}{where}") from None


def _number(text: str, kind: str) -> float:
    """The number of YAML 1.2; NaN, which equals nothing, for one of very many digits."""
    if len(text) > _MOST_DIGITS:
        return math.nan
    if kind == "float":
        return float(text)
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


class _Loader(yaml.SafeLoader):
    """The loader, which looks no further than `MOST_LEVELS` brackets ahead."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - as the base class names it
        """Read a bracket."""
        scanner = cast("Any", super())
        if cast("Any", self).flow_level > MOST_LEVELS:
            raise yaml.YAMLError
        scanner.fetch_flow_collection_start(TokenClass)


class _Comparison:
    """A comparison of the events of one document with a JSON value."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader: Any = loader  # its methods have no types

    def next(self, kind: type[yaml.Event], where: str = "") -> Any:
        """The next event, which has to be of this kind."""
        event = self._loader.get_event()
        if not isinstance(event, kind):
            raise Differs(where, None, "a name that is no text" if kind is yaml.ScalarEvent else "not one document")
        return event

    def value(self, expected: object, where: str, levels: int) -> Steps[None]:
        """Compare the value that begins with the next event."""
        yield
        event = self._loader.get_event()
        if levels < 0:
            raise Differs(where, expected, f"more than {MOST_LEVELS} levels")
        if isinstance(event, yaml.AliasEvent):
            raise Differs(where, expected, "an alias, which frontmatter may not have")
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event, expected, where)
        elif event.tag is not None:
            raise Differs(where, expected, f"a value with the tag {event.tag:.80}")
        elif isinstance(event, yaml.MappingStartEvent):
            yield from self._object(expected, where, levels)
        elif isinstance(event, yaml.SequenceStartEvent):
            yield from self._array(expected, where, levels)
        else:
            raise Differs(where, expected, "nothing")

    def _object(self, expected: object, where: str, levels: int) -> Steps[None]:
        if not isinstance(expected, dict):
            raise Differs(where, expected, "an object")
        fields, seen = cast("dict[str, object]", expected), set[str]()
        while not self._loader.check_event(yaml.MappingEndEvent):
            name = str(self.next(yaml.ScalarEvent, where).value)
            if name in seen:
                raise Differs(where, fields, f"an object that has {name:.80} twice")
            seen.add(name)
            yield from self.value(fields.get(name), f"{where}.{name}" if where else name, levels - 1)
        self.next(yaml.MappingEndEvent)
        for name in fields.keys() - seen:
            if fields[name] is not None:
                raise Differs(f"{where}.{name}" if where else name, fields[name], "missing")

    def _array(self, expected: object, where: str, levels: int) -> Steps[None]:
        if not isinstance(expected, list):
            raise Differs(where, expected, "an array")
        items = cast("list[object]", expected)
        for place, item in enumerate(items):
            if self._loader.check_event(yaml.SequenceEndEvent):
                raise Differs(f"{where}.{place}", item, "missing")
            yield from self.value(item, f"{where}.{place}", levels - 1)
        if not self._loader.check_event(yaml.SequenceEndEvent):
            raise Differs(where, items, "an array with more items")
        self.next(yaml.SequenceEndEvent)

    def _scalar(self, event: yaml.ScalarEvent, expected: object, where: str) -> None:
        text: str = event.value
        plain = event.implicit[0] and event.tag is None
        if event.tag not in (None, "!", _TEXT):
            raise Differs(where, expected, f"a value with the tag {event.tag:.80}")
        if not (self._plain(text, expected) if plain else isinstance(expected, str) and text == expected):
            raise Differs(where, expected, text)

    def _plain(self, text: str, expected: object) -> bool:
        """True if a plain scalar means this, by YAML 1.2 or 1.1."""
        kind = next((kind for kind, pattern in _CORE.items() if pattern.fullmatch(text)), "")
        match expected:
            case None if kind == "null":
                return True
            case bool() if kind == "bool":
                return (text.lower() == "true") is expected
            case int() | float() if kind in ("int", "float") and not isinstance(expected, bool):
                if expected == _number(text, kind):
                    return True
            case str() if not kind and text == expected:
                return True
            case _:
                pass
        return self._older(text, expected)

    def _older(self, text: str, expected: object) -> bool:
        """True if a plain scalar means this by YAML 1.1."""
        node: Any = yaml.ScalarNode(self._loader.resolve(yaml.ScalarNode, text, (True, False)), text)
        try:
            value: object = self._loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            return False
        if isinstance(value, (date, datetime)):
            return expected in (text, str(value), value.isoformat())
        if isinstance(value, float) and not math.isfinite(value):
            return expected == text
        return type(value) is type(expected) and value == expected
