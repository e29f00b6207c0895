"""Answers that are not plainly valid, held against the SDK's models: those decide. Loads them."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

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
from pydantic import BaseModel, ValidationError

from ..messages import LISTED
from ..protocol import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from .base import NotValid
from .unknown_fields import whole

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
def _judging() -> Generator[None, None, None]:
    try:
        yield
    except ValidationError as error:
        raise NotValid(str(error), error.errors()[0]["msg"]) from None


def _fresh_or_stale(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which no time to live is negative: the protocol asks clients to take it for 0."""
    ttl: object = raw.get("ttlMs")
    return {**raw, "ttlMs": 0} if type(ttl) in (int, float) and cast("float", ttl) < 0 else {**raw}


def _checked(method: str, raw: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """What a version of the protocol has for this result.

    Raises:
        pydantic.ValidationError: It is another.
    """
    said = _fresh_or_stale(raw)
    methods.validate_server_result(method, version or LATEST_HANDSHAKE_VERSION, said)
    if version not in MODERN_PROTOCOL_VERSIONS:
        for name in ("ttlMs", "cacheScope", "resultType"):
            said.pop(name, None)
    return said


def read_hello(method: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """See `plain.read_hello`.

    Raises:
        NotValid: It is none.
    """
    with _judging():
        if method == "initialize":
            model: BaseModel = InitializeResult.model_validate(_checked(method, raw, None), by_name=False)
        else:
            model = DiscoverResult.model_validate(_fresh_or_stale(raw))
        return model.model_dump(**_WRITTEN)


def read_page(method: str, raw: Mapping[str, Any], version: str) -> dict[str, Any]:
    """See `plain.read_page`.

    Raises:
        NotValid: It is none.
    """
    with _judging():
        page = _PAGES[method].model_validate(_checked(method, raw, version), by_name=False)
    said: dict[str, Any] = {} if page.next_cursor is None else {"nextCursor": page.next_cursor}
    if "ttl_ms" in page.model_fields_set:
        said["ttlMs"] = page.ttl_ms
    return said


def check_empty(method: str, raw: Mapping[str, Any], version: str) -> None:
    """Check an answer that says no more than that something is done.

    Raises:
        NotValid: It is none.
    """
    with _judging():
        EmptyResult.model_validate(_checked(method, raw, version), by_name=False)


def read_implementation(raw: object) -> dict[str, Any] | None:
    """The name of a program; None if it is none."""
    try:
        return Implementation.model_validate(raw).model_dump(**_WRITTEN)
    except ValidationError:
        return None


def definition_of(kind: str, raw: object) -> BaseModel:
    """The definition that was written so, of this field of `Definitions`.

    Raises:
        NotValid: It is none.
    """
    method = _METHODS.get(kind, f"{kind}/list")
    with _judging():
        page = _PAGES[method].model_validate({LISTED[method]: [raw]}, by_name=False)
        (entry,) = getattr(page, "resource_templates" if kind == "templates" else kind)
        return whole(entry, raw)
