"""What a server said of itself when it was connected. Pure."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from attrs import Factory, field, frozen

from mcp_nursery.actors.messages import Handshake

if TYPE_CHECKING:
    from pydantic import BaseModel


@frozen
class Introduction:
    """What a server said of itself, without secrets."""

    protocol_version: str
    server_info: dict[str, Any] | None
    """JSON."""
    instructions: str | None
    capabilities: dict[str, Any] | None = None
    """JSON."""

    _flat: bool = field(
        default=Factory(lambda self: _is_flat(self.server_info), takes_self=True), init=False, repr=False, eq=False
    )
    """Whether it is texts alone, and its copy one step: a third of the time that the status of all servers takes."""

    def own_info(self) -> dict[str, Any] | None:
        """A copy of it, for somebody who may change it."""
        info = self.server_info
        if info is None or self._flat:
            return info and info.copy()
        return cast("dict[str, Any]", _each_text(info, _as_it_is))

    def own_capabilities(self) -> dict[str, Any] | None:
        """A copy of them, as of `own_info`."""
        return None if self.capabilities is None else _each_text(self.capabilities, _as_it_is)


def _is_flat(info: dict[str, Any] | None) -> bool:
    return info is not None and all(type(each) is str for each in info.values())


def introduction_of(handshake: Handshake, redact: Callable[[str], str]) -> Introduction:
    """What a server said of itself, without secrets. To be done once a connection: it takes a while."""
    instructions = handshake.instructions
    return Introduction(
        handshake.protocol_version,
        _shown(handshake.server_info, redact),
        None if instructions is None else redact(instructions),
        _shown(handshake.capabilities, redact),
    )


def _shown(said: "BaseModel | None", redact: Callable[[str], str]) -> dict[str, Any] | None:
    return None if said is None else _each_text(said.model_dump(by_alias=True, mode="json", exclude_none=True), redact)


def _as_it_is(text: str) -> str:
    return text


def _each_text(value: object, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case list():
            return [_each_text(item, change) for item in cast("list[object]", value)]
        case dict():
            return {change(key): _each_text(part, change) for key, part in cast("dict[str, object]", value).items()}
        case _:
            return value
