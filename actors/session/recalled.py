"""Definitions that a server gave some time ago, offered until it gives them again: JSON, from which the SDK's types are
made when somebody wants more of one than a list of them takes. A host that lists at its start waits for no import.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from ..json_depth import nested_too_deep
from ..messages import Definitions
from ..pieces import Steps

if TYPE_CHECKING:
    from pydantic import BaseModel

_NEEDED: Final[Mapping[str, Mapping[str, type]]] = {
    "tools": {"name": str, "inputSchema": dict},
    "resources": {"uri": str, "name": str},
    "templates": {"uriTemplate": str, "name": str},
    "prompts": {"name": str},
}
"""What an entry has, by the field of `Definitions`. By the first of it entries are told apart."""
_OTHERS: Final[Mapping[str, type]] = {
    "title": str,
    "description": str,
    "mimeType": str,
    "outputSchema": dict,
    "annotations": dict,
    "_meta": dict,
}
_READ: Final[Mapping[str, str]] = {
    "name": "name",
    "uri": "uri",
    "uri_template": "uriTemplate",
    "title": "title",
    "description": "description",
    "input_schema": "inputSchema",
    "output_schema": "outputSchema",
    "meta": "_meta",
}
"""Attributes that are as they stand in the JSON."""
_AS_CACHED: Final = {"by_alias": True, "mode": "json", "exclude_unset": True}
"""How what is cached was written."""


class Recalled:
    """One definition, with all that the SDK's type of it has."""

    def __init__(self, kind: str, said: Mapping[str, Any]) -> None:
        self._kind = kind
        self.said: Final = said
        """As JSON."""
        self._made: BaseModel | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _READ:
            return self.said.get(_READ[name])
        return getattr(self.made(), name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Recalled):
            return self._kind == other._kind and self.said == other.said
        return self.made() == other

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as the SDK's types

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """As the SDK's type would."""
        return dict(self.said) if options == _AS_CACHED else self.made().model_dump(**options)

    def made(self) -> "BaseModel":
        """The SDK's type of it.

        Raises:
            ValueError: It is none.
        """
        if self._made is None:
            # By name: nothing that is pure may import what brings in the SDK, and this is pure until somebody asks.
            lists = import_module("mcp_nursery.actors.session.lists")
            self._made = cast("BaseModel", lists.definition_of(self._kind, self.said))
        return self._made


def recalling_steps(listed: Iterable[tuple[str, object]]) -> Steps[Definitions]:
    """What a server has listed some time ago: each entry as it was written, with the field of `Definitions` that it
    belongs to.

    Raises:
        ValueError: One is no such entry.
    """
    kept: dict[str, dict[str, Recalled]] = {kind: {} for kind in _NEEDED}
    for kind, entry in listed:
        yield
        if kind not in kept or not _is_entry(entry, _NEEDED[kind]):
            raise ValueError(f"no entry of {kind!r:.80}")
        said = cast("dict[str, Any]", entry)
        kept[kind][said[next(iter(_NEEDED[kind]))]] = Recalled(kind, said)
    recalled: dict[str, Any] = {kind: tuple(entries.values()) for kind, entries in kept.items()}
    return Definitions(**recalled)


def _is_entry(entry: object, needed: Mapping[str, type]) -> bool:
    if not isinstance(entry, dict):
        return False
    said = cast("dict[str, object]", entry)
    return (
        not nested_too_deep([said])
        and all(isinstance(said.get(key), of) for key, of in needed.items())
        and all(said.get(key) is None or isinstance(said[key], of) for key, of in _OTHERS.items())
    )
