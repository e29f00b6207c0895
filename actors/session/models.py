"""Answers that are not plainly valid, checked against the SDK's models, which decide. Loads the models.

Definitions with more fields than the types of the protocol are kept whole, to be handed on. Most have no more, and are
what the SDK makes of them. One that does is of a type derived from the SDK's, which keeps unknown fields at every
level: that costs what these hold, and some 700 bytes.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import mcp_types
from mcp_types import (
    DiscoverResult,
    EmptyResult,
    Implementation,
    InitializeResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    methods,
)
from pydantic import BaseModel, ValidationError, create_model

from ..messages import LISTED
from ..protocol import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from .base import NotValid


def _open(base: type[BaseModel], **nested: Any) -> type[BaseModel]:
    """A type derived from `base`, with fields of any name, and these of the given types."""
    fields: dict[str, Any] = {name: (of | None, None) for name, of in nested.items()}
    return create_model(base.__name__, __base__=base, __cls_kwargs__={"extra": "allow"}, **fields)


_TYPED_FIELDS: Final[Mapping[type[BaseModel], Mapping[str, type[BaseModel]]]] = {
    mcp_types.Tool: {
        "icons": mcp_types.Icon,
        "annotations": mcp_types.ToolAnnotations,
        "execution": mcp_types.ToolExecution,
    },
    mcp_types.Prompt: {"icons": mcp_types.Icon, "arguments": mcp_types.PromptArgument},
    mcp_types.Resource: {"icons": mcp_types.Icon, "annotations": mcp_types.Annotations},
    mcp_types.ResourceTemplate: {"icons": mcp_types.Icon, "annotations": mcp_types.Annotations},
}
"""The listed kinds, and their fields whose objects have types of their own."""
_LIST_FIELDS: Final = ("icons", "arguments")
"""The fields that hold several objects."""


def _field(name: str, of: type[BaseModel]) -> Any:
    several: Any = list[_open(of)]  # type: ignore[misc]
    return several if name in _LIST_FIELDS else _open(of)


_OPEN: Final = {
    of: _open(of, **{name: _field(name, to) for name, to in has.items()}) for of, has in _TYPED_FIELDS.items()
}


def _known(of: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in of.model_fields.items())


_KNOWN_FIELDS: Final = {of: _known(of) for of in _TYPED_FIELDS}
_KNOWN_NESTED: Final = {of: {name: _known(to) for name, to in has.items()} for of, has in _TYPED_FIELDS.items()}


def whole(entry: BaseModel, raw: object) -> BaseModel:
    """The definition with all its fields, of which `raw` came: `entry` itself, if that has all."""
    kind = type(entry)
    said = cast("dict[str, Any]", raw)  # or it would not be valid
    if said.keys() <= _KNOWN_FIELDS[kind]:
        nested = _KNOWN_NESTED[kind]
        if not any(_says_more(said[name], known) for name, known in nested.items() if name in said):
            return entry
    return _OPEN[kind].model_validate(said, by_name=False)


def _says_more(value: object, known: frozenset[str]) -> bool:
    objects = cast("list[object]", value) if isinstance(value, list) else [value]
    return any(isinstance(each, dict) and not cast("dict[str, Any]", each).keys() <= known for each in objects)


def more_of(entry: BaseModel) -> list[object]:
    """The values in fields of a definition that the types do not have."""
    if entry.model_extra is None:
        return []
    said: list[object] = [entry.model_extra]
    for name in ("icons", "annotations", "execution", "arguments"):
        value: object = getattr(entry, name, None)
        objects = cast("list[object]", value) if isinstance(value, list) else [value]
        said += [each.model_extra for each in objects if isinstance(each, BaseModel)]
    return said


_WRITTEN: Final[Mapping[str, Any]] = {"by_alias": True, "mode": "json", "exclude_none": True}

_Page = ListToolsResult | ListResourcesResult | ListResourceTemplatesResult | ListPromptsResult
_PAGES: Final[Mapping[str, type[_Page]]] = {
    "tools/list": ListToolsResult,
    "resources/list": ListResourcesResult,
    "resources/templates/list": ListResourceTemplatesResult,
    "prompts/list": ListPromptsResult,
}
_METHODS: Final = {"resources": "resources/list", "templates": "resources/templates/list"}


@contextmanager
def _judging(above: int | None = None) -> Generator[None, None, None]:
    """Raise `NotValid` for what pydantic refuses; `above`: the problem names the member, below as many levels."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        member = ".".join(map(str, first["loc"][above:])) if above is not None else ""
        raise NotValid(str(error), f"{member}: {first['msg']}" if member else first["msg"]) from None


def _fresh_or_stale(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which no time to live is negative: the protocol asks clients to take it for 0."""
    ttl: object = raw.get("ttlMs")
    return {**raw, "ttlMs": 0} if type(ttl) in (int, float) and cast("float", ttl) < 0 else {**raw}


def _checked(method: str, raw: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Check a result; return it without members that the version does not have.

    Raises:
        pydantic.ValidationError: It is not valid.
    """
    said = _fresh_or_stale(raw)
    methods.validate_server_result(method, version or LATEST_HANDSHAKE_VERSION, said)
    if version not in MODERN_PROTOCOL_VERSIONS:
        for name in ("ttlMs", "cacheScope", "resultType"):
            said.pop(name, None)
    return said


def read_hello(method: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The server's introduction in an answer to `initialize` or `server/discover`.

    Raises:
        NotValid: It is not valid.
    """
    with _judging():
        if method == "initialize":
            model: BaseModel = InitializeResult.model_validate(_checked(method, raw, None), by_name=False)
        else:
            model = DiscoverResult.model_validate(_fresh_or_stale(raw))
        return model.model_dump(**_WRITTEN)


def read_page(method: str, raw: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A page of a list, without its entries.

    Raises:
        NotValid: It is not valid.
    """
    with _judging():
        page = _PAGES[method].model_validate(_checked(method, raw, version), by_name=False)
    said: dict[str, Any] = {} if page.next_cursor is None else {"nextCursor": page.next_cursor}
    if "ttl_ms" in page.model_fields_set:
        said["ttlMs"] = page.ttl_ms
    return said


def check_empty(method: str, raw: Mapping[str, Any], version: str) -> None:
    """Check an answer that only confirms its request.

    Raises:
        NotValid: It is not valid.
    """
    with _judging():
        EmptyResult.model_validate(_checked(method, raw, version), by_name=False)


def read_implementation(raw: object) -> dict[str, Any] | None:
    """The name and version of a program, if valid."""
    try:
        return Implementation.model_validate(raw).model_dump(**_WRITTEN)
    except ValidationError:
        return None


def definition_of(kind: str, raw: object) -> BaseModel:
    """The definition written as `raw`, for a field of `Definitions`.

    Raises:
        NotValid: It is not valid.
    """
    method = _METHODS.get(kind, f"{kind}/list")
    with _judging(above=2):
        page = _PAGES[method].model_validate({LISTED[method]: [raw]}, by_name=False)
        (entry,) = getattr(page, "resource_templates" if kind == "templates" else kind)
        return whole(entry, raw)
