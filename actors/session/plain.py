"""Answers that are plainly valid, checked and read without the SDK's models, whose import takes longer than all else.

An answer that fits no shape here may still be valid: the SDK's models decide. So a shape accepts less than they do,
never more.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import orjson

from mcp_nursery.actors.records import frozen

from ..messages import LISTED
from ..pieces import Steps
from ..protocol import MODERN_PROTOCOL_VERSIONS

Kind = Callable[[object], Any]
"""Reads a value, as a model would write it. Raises `Doubtful`."""


class Doubtful(Exception):
    """A value that the SDK's models have to look at."""


def _text(value: object) -> str:
    if type(value) is not str:
        raise Doubtful
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise Doubtful
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise Doubtful
    return value


def _share(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= cast("float", value) <= 1:
        raise Doubtful
    return cast("float", value)


def _object(value: object) -> dict[str, Any]:
    if type(value) is not dict:
        raise Doubtful
    return cast("dict[str, Any]", value)


def _list(value: object) -> object:
    if type(value) is not list:
        raise Doubtful
    return cast("list[object]", value)


def _anything(value: object) -> dict[str, Any]:
    found = _object(value)
    if not _is_finite(found):  # models write null for a number beyond a float, such as 1e999
        raise Doubtful
    return found


def _is_finite(value: object) -> bool:
    if type(value) is dict:
        return all(map(_is_finite, cast("dict[str, object]", value).values()))
    if type(value) is list:
        return all(map(_is_finite, cast("list[object]", value)))
    return type(value) is not float or math.isfinite(value)


def _objects(value: object) -> dict[str, Any]:
    return {name: _anything(each) for name, each in _object(value).items()}


def _one_of(*words: str) -> Kind:
    def read(value: object) -> str:
        if value not in words or type(value) is not str:
            raise Doubtful
        return value

    return read


def _list_of(kind: Kind) -> Kind:
    def read(value: object) -> list[Any]:
        if type(value) is not list:
            raise Doubtful
        return [kind(each) for each in cast("list[object]", value)]

    return read


@frozen(eq=False)
class Shape:
    """The shape of objects with known fields; other fields are left out."""

    fields: Mapping[str, Kind]
    """The known ones, as a model orders them."""
    needed: frozenset[str] = frozenset()
    """The members that must be there; others may be missing or null."""

    def __call__(self, value: object) -> dict[str, Any]:
        """The known fields that have a value."""
        said = _object(value)
        if not self.needed <= said.keys():
            raise Doubtful
        return {
            name: kind(said[name])
            for name, kind in self.fields.items()
            if name in self.needed or said.get(name) is not None
        }


def _shape(*needed: str, **fields: Kind) -> Shape:
    return Shape({name.replace("meta_", "_meta"): kind for name, kind in fields.items()}, frozenset(needed))


_EMPTY: Final = _shape()
_CHANGING: Final = _shape(listChanged=_flag)
_ICONS: Final = _list_of(
    _shape("src", src=_text, mimeType=_text, sizes=_list_of(_text), theme=_one_of("light", "dark"))
)
_ANNOTATIONS: Final = _shape(audience=_list_of(_one_of("user", "assistant")), priority=_share, lastModified=_text)

IMPLEMENTATION: Final = _shape(
    *("name", "version"),
    name=_text,
    title=_text,
    version=_text,
    description=_text,
    websiteUrl=_text,
    icons=_ICONS,
)
_CAPABILITIES: Final = _shape(
    experimental=_objects,
    logging=_EMPTY,
    prompts=_CHANGING,
    resources=_shape(subscribe=_flag, listChanged=_flag),
    tools=_CHANGING,
    completions=_EMPTY,
    extensions=_objects,
    tasks=_shape(list=_EMPTY, cancel=_EMPTY, requests=_shape(tools=_shape(call=_EMPTY))),
)
_INITIALIZED: Final = _shape(
    *("protocolVersion", "capabilities", "serverInfo"),
    meta_=_anything,
    protocolVersion=_text,
    capabilities=_CAPABILITIES,
    serverInfo=IMPLEMENTATION,
    instructions=_text,
)
_CACHEABLE: Final[Mapping[str, Kind]] = {
    "ttlMs": _count,
    "cacheScope": _one_of("public", "private"),
    "resultType": _text,
}
_DISCOVERED: Final = Shape(
    {
        "_meta": _anything,
        **_CACHEABLE,
        "supportedVersions": _list_of(_text),
        "capabilities": _CAPABILITIES,
        "instructions": _text,
    },
    frozenset({*_CACHEABLE, "supportedVersions", "capabilities"}),
)
_PAGE_SHAPE: Final[Mapping[str, Kind]] = {"_meta": _anything, "nextCursor": _text}
_OLDER_PAGE: Final = Shape(_PAGE_SHAPE)
_MODERN_PAGE: Final = Shape({**_PAGE_SHAPE, **_CACHEABLE}, frozenset(_CACHEABLE))

_ENTRIES: Final[Mapping[str, Shape]] = {
    "tools": _shape(
        *("name", "inputSchema"),
        name=_text,
        title=_text,
        description=_text,
        inputSchema=_object,
        execution=_shape(taskSupport=_one_of("forbidden", "optional", "required")),
        outputSchema=_object,
        icons=_ICONS,
        annotations=_shape(
            title=_text, readOnlyHint=_flag, destructiveHint=_flag, idempotentHint=_flag, openWorldHint=_flag
        ),
        meta_=_object,
    ),
    "resources": _shape(
        *("name", "uri"),
        name=_text,
        title=_text,
        uri=_text,
        description=_text,
        mimeType=_text,
        size=_count,
        icons=_ICONS,
        annotations=_ANNOTATIONS,
        meta_=_object,
    ),
    "templates": _shape(
        *("name", "uriTemplate"),
        name=_text,
        title=_text,
        uriTemplate=_text,
        description=_text,
        mimeType=_text,
        icons=_ICONS,
        annotations=_ANNOTATIONS,
        meta_=_object,
    ),
    "prompts": _shape(
        "name",
        name=_text,
        title=_text,
        description=_text,
        arguments=_list_of(_shape("name", name=_text, title=_text, description=_text, required=_flag)),
        icons=_ICONS,
        meta_=_object,
    ),
}
"""Shapes of entries, by the field of `Definitions`."""


def _contents(value: object) -> object:
    said = _CONTENTS(value)
    if "text" not in said and "blob" not in said:
        raise Doubtful
    return said


_CONTENTS: Final = _shape("uri", uri=_text, mimeType=_text, text=_text, blob=_text, meta_=_object)
_BLOCK: Final[Mapping[str, Kind]] = {"type": _text, "annotations": _ANNOTATIONS, "_meta": _object}
_BLOCKS: Final[Mapping[str, Shape]] = {
    "text": Shape({**_BLOCK, "text": _text}, frozenset(["text"])),
    "image": Shape({**_BLOCK, "data": _text, "mimeType": _text}, frozenset(["data", "mimeType"])),
    "audio": Shape({**_BLOCK, "data": _text, "mimeType": _text}, frozenset(["data", "mimeType"])),
    "resource_link": _ENTRIES["resources"],
    "resource": Shape({**_BLOCK, "resource": _contents}, frozenset(["resource"])),
}
"""Shapes of content blocks."""
_RESULT: Final = _shape("content", content=_list, isError=_flag, meta_=_object)
_BLOCKS_AT_ONCE: Final = 1000
"""Blocks that are looked at in a row."""


def _is_plain_block(block: object) -> bool:
    if type(block) is not dict:
        return False
    members = cast("dict[str, object]", block)
    kind = members.get("type")
    return type(kind) is str and (kind not in _BLOCKS or _fits(_BLOCKS[kind], members))


def _fits(shape: Shape, value: object) -> bool:
    try:
        shape(value)
    except Doubtful:
        return False
    return True


def is_text_alone(raw: Mapping[str, Any]) -> bool:
    """True if this is plainly the result of a tool, and a small one of nothing but text, as most are."""
    content: object = raw.get("content")
    if type(content) is not list or type(raw.get("isError", False)) is not bool or "_meta" in raw:
        return False
    blocks = cast("list[object]", content)
    return len(blocks) <= _BLOCKS_AT_ONCE and all(
        type(each) is dict and len(each) == 2 and each.get("type") == "text" and type(each.get("text")) is str  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]  # noqa: PLR2004
        for each in blocks
    )


def is_plain_result(raw: Mapping[str, Any]) -> Steps[bool]:
    """True if this is plainly the result of a tool, perhaps with blocks of unknown types."""
    if not _fits(_RESULT, raw) or raw.get("isError", False) is None:
        return False
    blocks = cast("list[object]", raw["content"])
    for at in range(0, len(blocks), _BLOCKS_AT_ONCE):
        if not all(map(_is_plain_block, blocks[at : at + _BLOCKS_AT_ONCE])):
            return False
        yield
    return True


def _read(shape: Shape, raw: object) -> dict[str, Any]:
    try:
        orjson.dumps(raw)  # fails for half a character, a large number or great depth: none of these is plain
    except TypeError:
        raise Doubtful from None
    return shape(raw)


def read_hello(method: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The server's introduction in an answer to `initialize` or `server/discover`.

    Raises:
        Doubtful: It is not plain.
    """
    return _read(_INITIALIZED if method == "initialize" else _DISCOVERED, raw)


def read_page(method: str, raw: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A page of a list, without its entries.

    Raises:
        Doubtful: It is not plain.
    """
    if type(raw.get(LISTED[method])) is not list:
        raise Doubtful
    return _read(_MODERN_PAGE if version in MODERN_PROTOCOL_VERSIONS else _OLDER_PAGE, raw)


def check_empty(method: str, raw: Mapping[str, Any], version: str) -> None:
    """Check an answer that only confirms its request.

    Raises:
        Doubtful: It is not plain.
    """
    del method
    if "_meta" in raw or "resultType" in raw or version in MODERN_PROTOCOL_VERSIONS:
        raise Doubtful


def is_plain_entry(kind: str, raw: object) -> bool:
    """True if this is plainly an entry of that field of `Definitions`."""
    try:
        _read(_ENTRIES[kind], raw)
    except Doubtful:
        return False
    return True


def read_implementation(raw: object) -> dict[str, Any]:
    """The name and version of a program.

    Raises:
        Doubtful: It is not plain.
    """
    return _read(IMPLEMENTATION, raw)
