"""Definitions as JSON, from which the SDK's types are made only when more of one is needed than a list takes: cached
definitions, and those that a server has just listed, if they are plainly valid. A host that lists at its start waits
for no import.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

from ..json_depth import nested_too_deep
from ..messages import Definitions
from ..pieces import Steps

if TYPE_CHECKING:
    from mcp_types import Tool
    from pydantic import BaseModel

D = TypeVar("D")

_REQUIRED_MEMBERS: Final[Mapping[str, Mapping[str, type]]] = {
    "tools": {"name": str, "inputSchema": dict},
    "resources": {"uri": str, "name": str},
    "templates": {"uriTemplate": str, "name": str},
    "prompts": {"name": str},
}
"""The members that an entry must have, by the field of `Definitions`. The first of them identifies an entry."""
_OPTIONAL_MEMBERS: Final[Mapping[str, type]] = {
    "title": str,
    "description": str,
    "mimeType": str,
    "outputSchema": dict,
    "annotations": dict,
    "_meta": dict,
}
_JSON_NAMES: Final[Mapping[str, str]] = {
    "uri": "uri",
    "uri_template": "uriTemplate",
    "title": "title",
    "description": "description",
    "input_schema": "inputSchema",
    "output_schema": "outputSchema",
    "mime_type": "mimeType",
    "size": "size",
    "meta": "_meta",
}
"""Attributes that are read from the JSON unchanged."""
_AS_SAID: Final = {"by_alias": True, "exclude_unset": True}
"""The options that write a definition as it was given."""


class LazyDefinition:
    """One definition, with all attributes of the SDK's type."""

    def __init__(self, kind: str, said: Mapping[str, Any]) -> None:
        self._kind = kind
        self.said: Final = said
        """The definition as JSON."""
        self.name: str = said["name"]  # looked at for all tools of a server at once
        self._model: BaseModel | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _JSON_NAMES:
            return self.said.get(_JSON_NAMES[name])
        if name in ("annotations", "execution") and self.said.get(name) is None:
            return None
        return getattr(self.sdk_model(), name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyDefinition):
            return self._kind == other._kind and self.said == other.said
        return self.sdk_model() == other

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as the SDK's types

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Dump it as the SDK's type would."""
        return dict(self.said) if options == {**_AS_SAID, "mode": "json"} else self.sdk_model().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """Dump it as the SDK's type would."""
        from ..jsonrpc.codec import encode

        return encode(self.said).decode() if options == _AS_SAID else self.sdk_model().model_dump_json(**options)

    def sdk_model(self) -> "BaseModel":
        """The definition as the SDK's type.

        Raises:
            ValueError: It is not valid.
        """
        if self._model is None:
            # By name: nothing that is pure may import what brings in the SDK, and this is pure until somebody asks.
            models = import_module("mcp_nursery.actors.session.models")
            self._model = cast("BaseModel", models.definition_of(self._kind, self.said))
        return self._model


def as_sdk_type(definition: D) -> D:
    """The definition as the SDK's type."""
    return cast("D", definition.sdk_model()) if isinstance(definition, LazyDefinition) else definition


def annotations_of(definition: "BaseModel | LazyDefinition") -> Mapping[str, Any]:
    """The hints in a definition, as JSON; empty if there are none."""
    if isinstance(definition, LazyDefinition):
        return definition.said.get("annotations") or {}
    said: BaseModel | None = getattr(definition, "annotations", None)
    return {} if said is None else said.model_dump(by_alias=True)


def needs_task(definition: "Tool | LazyDefinition") -> bool:
    """True if a tool of the handshake era can be called as a task alone."""
    if isinstance(definition, LazyDefinition):
        execution: Mapping[str, object] = definition.said.get("execution") or {}
        return execution.get("taskSupport") == "required"
    return definition.execution is not None and definition.execution.task_support == "required"


def cached_definitions_steps(listed: Iterable[tuple[str, object]]) -> Steps[Definitions]:
    """Cached definitions: each entry as it was written, with the field of `Definitions` that it belongs to.

    Raises:
        ValueError: An entry is not valid.
    """
    kept: dict[str, dict[str, LazyDefinition]] = {kind: {} for kind in _REQUIRED_MEMBERS}
    for kind, entry in listed:
        yield
        if kind not in kept or not _is_entry(entry, _REQUIRED_MEMBERS[kind]):
            raise ValueError(f"no entry of {kind!r:.80}")
        said = cast("dict[str, Any]", entry)
        kept[kind][said[next(iter(_REQUIRED_MEMBERS[kind]))]] = LazyDefinition(kind, said)
    lists: dict[str, Any] = {kind: tuple(entries.values()) for kind, entries in kept.items()}
    return Definitions(**lists)


def _is_entry(entry: object, needed: Mapping[str, type]) -> bool:
    if not isinstance(entry, dict):
        return False
    said = cast("dict[str, object]", entry)
    return (
        not nested_too_deep([said])
        and all(isinstance(said.get(key), of) for key, of in needed.items())
        and all(said.get(key) is None or isinstance(said[key], of) for key, of in _OPTIONAL_MEMBERS.items())
    )
