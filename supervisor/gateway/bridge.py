"""The parts of a message that belong to an era of the protocol or to one hop of it, and those that are handed on.
Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_nursery.actors.extensions import TASKS
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)

from ..tools.model_schema import compiles_anywhere

Json = dict[str, Any]

_HOP: Final = frozenset(
    [PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, LOG_LEVEL_META_KEY]
)
_PARTS: Final = frozenset(["annotations", "arguments", "execution", "icons"])
"""Members of definitions that have optional members of their own."""
_OPTIONAL: Final = frozenset(
    [
        *("_meta", "annotations", "arguments", "audience", "description", "destructiveHint", "execution", "icons"),
        *("idempotentHint", "lastModified", "mimeType", "nextCursor", "openWorldHint", "outputSchema", "priority"),
        *("readOnlyHint", "required", "size", "sizes", "taskSupport", "theme", "title"),
    ]
)
"""Optional members of definitions, of their parts, and of lists."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_CACHEABLE_METHODS: Final = frozenset([*LISTED, "resources/read", "server/discover", "skills/list", "skills/get"])
"""Methods whose results state, since 2026-07-28, how long they are valid."""


def as_object(value: object) -> Json:
    """The value as a JSON object; empty if it is none."""
    return dict(value) if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def is_modern(version: str | None) -> bool:
    """True if the version has no handshake."""
    return version in MODERN_PROTOCOL_VERSIONS


def speaks_modern(hello: Mapping[str, Any]) -> bool:
    """True if the server with this introduction has no handshake."""
    return "supportedVersions" in hello


def with_tasks(hello: Mapping[str, Any]) -> Json:
    """The introduction of a server of which a gateway makes tasks."""
    capabilities = as_object(hello.get("capabilities"))
    extensions: Json = {**as_object(capabilities.get("extensions")), TASKS: {}}
    return {**hello, "capabilities": {**capabilities, "extensions": extensions}}


def strip_hop(meta: Mapping[str, Any]) -> Json:
    """The `_meta` of a client's request, without what belongs to one hop."""
    return {key: value for key, value in meta.items() if key not in _HOP}


def build_envelope(
    meta: Mapping[str, Any], capabilities: Mapping[str, Any], info: Mapping[str, Any] | None, level: str | None
) -> Json:
    """The `_meta` of a request to a server without a handshake: the client's own, without what belongs to one hop, and
    the description of the client."""
    said: Json = {CLIENT_CAPABILITIES_META_KEY: dict(capabilities)}
    if info is not None:
        said[CLIENT_INFO_META_KEY] = dict(info)
    if level is not None:
        said[LOG_LEVEL_META_KEY] = level
    return strip_hop(meta) | said


def bridge_result(method: str, result: Json, *, to_modern: bool, from_modern: bool, server_info: Json) -> Json:
    """A result in the form of its client's era: before 2026-07-28 structured content is an object. Within one era it is
    unchanged otherwise."""
    if not to_modern and method == "tools/call" and not isinstance(result.get("structuredContent", {}), dict):
        result = {key: value for key, value in result.items() if key != "structuredContent"}
    if to_modern == from_modern:
        return result
    meta = dict(result.get("_meta") or {})
    if to_modern:
        meta.setdefault(SERVER_INFO_META_KEY, server_info)
        hints = {"ttlMs": 0, "cacheScope": "private"} if method in _CACHEABLE_METHODS else {}
        return {"resultType": "complete"} | hints | result | {"_meta": meta}
    meta.pop(SERVER_INFO_META_KEY, None)
    caching = ("ttlMs", "cacheScope") if method in _CACHEABLE_METHODS else ()  # a task has a `ttlMs` of its own
    kept = {key: value for key, value in result.items() if key not in ("resultType", "_meta", *caching)}
    if result.get("resultType", "complete") != "complete":
        kept["resultType"] = result["resultType"]  # that of an extension, by which its clients know it
    return kept | ({"_meta": meta} if meta else {})


def fit_list(of: str, result: Json, entries: list[object], *, modern: bool) -> Json:
    """The list that a server has answered, with these entries of it, as `fit_definition` has definitions."""
    needed: Json = {"inputSchema": {}} if of == "tools" else {}
    fit = [
        fit_definition(needed | cast("Json", each), modern=modern) if isinstance(each, dict) else each
        for each in entries
    ]
    return _present(result) | {of: fit}


def fit_definition(definition: Json, *, modern: bool) -> Json:
    """A definition that strict clients of an era take: they refuse a whole list, with the entries of all servers, for
    one that they do not take.

    An optional member that is null is absent, and so is a time without a zone. The schemas of tools are schemas of
    objects, whose properties have objects as schemas: `true` is written as `{}`. Before 2026-07-28 an output schema of
    anything else is left out, and one that not every validator compiles: clients compile all that are listed.
    """
    fit = _without_nulls(definition)
    if "lastModified" in (annotations := as_object(fit.get("annotations"))) and not _TIME.fullmatch(
        str(annotations["lastModified"])
    ):
        del annotations["lastModified"]
        fit["annotations"] = annotations
    if "inputSchema" in definition:
        fit["inputSchema"] = {"type": "object"} | _fit_schema(definition["inputSchema"]) | {"type": "object"}
    if "outputSchema" in fit:
        schema = fit["outputSchema"] = _fit_schema(definition["outputSchema"])
        if not modern and not (schema.get("type") == "object" and compiles_anywhere(schema)):
            del fit["outputSchema"]
    return fit


def _present(said: Mapping[str, Any]) -> Json:
    """The object without its own optional members of the protocol that are null."""
    return {key: value for key, value in said.items() if value is not None or key not in _OPTIONAL}


def _without_nulls(said: Mapping[str, Any]) -> Json:
    """The definition without the optional members of the protocol that are null, in it and in its parts."""
    fit = _present(said)
    for key in _PARTS.intersection(fit):
        value: object = fit[key]
        if isinstance(value, Mapping):
            fit[key] = _without_nulls(cast("Json", value))
        elif isinstance(value, list):
            items = cast("list[object]", value)
            fit[key] = [_without_nulls(cast("Json", each)) if isinstance(each, dict) else each for each in items]
    return fit


def _fit_schema(schema: object) -> Json:
    fit = as_object(schema)
    properties, required = fit.get("properties", {}), fit.get("required", [])
    if not isinstance(properties, dict):
        del fit["properties"]
    elif not all(isinstance(each, dict) for each in cast("Json", properties).values()):
        fit["properties"] = {name: _as_schema(each) for name, each in cast("Json", properties).items()}
    if not isinstance(required, list) or not all(isinstance(each, str) for each in cast("list[object]", required)):
        del fit["required"]
    return fit


def _as_schema(schema: object) -> Json:
    """The schema as an object; one of anything for what is no schema."""
    return {"not": {}} if schema is False else as_object(schema)


def server_info_of(hello: Mapping[str, Any]) -> Json:
    """The name, the version and whatever else a server declares about itself."""
    meta: Mapping[str, Any] = hello.get("_meta") or {}
    return dict(hello.get("serverInfo") or meta.get(SERVER_INFO_META_KEY) or {})


def initialize_result(hello: Mapping[str, Any], wanted: object, versions: tuple[str, ...]) -> Json:
    """The result of `initialize` for a client that offers the version `wanted`, from the server's introduction.
    `versions` are those with a handshake, oldest first. No version newer than an older server's own is agreed on, since
    its results are passed on as it writes them."""
    version = wanted if isinstance(wanted, str) and wanted in versions else versions[-1]
    own = hello.get("protocolVersion")
    if isinstance(own, str) and own in versions:
        version = min(version, own)
    if not speaks_modern(hello):
        return {**hello, "protocolVersion": version}
    kept = bridge_result("server/discover", dict(hello), to_modern=False, from_modern=True, server_info={})
    del kept["supportedVersions"]
    return {"protocolVersion": version, "serverInfo": server_info_of(hello)} | kept


def discover_result(hello: Mapping[str, Any]) -> Json:
    """The result of `server/discover`."""
    if speaks_modern(hello):
        return dict(hello)
    kept = {key: value for key, value in hello.items() if key not in ("protocolVersion", "serverInfo")}
    result: Json = {"supportedVersions": list(MODERN_PROTOCOL_VERSIONS)} | kept
    return bridge_result(
        "server/discover", result, to_modern=True, from_modern=False, server_info=server_info_of(hello)
    )
