"""The introduction of a server: its words about itself when it was connected. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mcp_nursery.actors.extensions import declared_by, declares
from mcp_nursery.actors.messages import Handshake
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import field, frozen


@frozen
class Introduction:
    """The words of a server about itself; all but `hello` without secrets."""

    protocol_version: str
    server_info: dict[str, Any] | None
    """JSON."""
    instructions: str | None
    capabilities: dict[str, Any] | None = None
    """JSON."""
    extensions: tuple[str, ...] = ()
    """The identifiers of the extensions that the server declares, of those that are announced to it."""
    hello: dict[str, Any] | None = field(default=None, repr=False, eq=False)
    """The whole introduction as it came, secrets that the server quotes included: for its clients alone."""

    def own_info(self) -> dict[str, Any] | None:
        """A copy of `server_info` that the caller may change."""
        return None if self.server_info is None else own_copy(self.server_info)

    def own_capabilities(self) -> dict[str, Any] | None:
        """A copy of `capabilities` that the caller may change."""
        return None if self.capabilities is None else own_copy(self.capabilities)


def introduction_of(
    handshake: Handshake, redact: Callable[[str], Steps[str]], announced: Mapping[str, Any] | None = None
) -> Steps[Introduction]:
    """The introduction in a handshake, in pieces: a server may have a lot to say about itself. `announced`: the
    capabilities that are announced to the server."""
    return Introduction(
        handshake.protocol_version,
        (yield from _each_text(handshake.server_info, redact)),
        (yield from _each_text(handshake.instructions, redact)),
        (yield from _each_text(handshake.capabilities, redact)),
        tuple(each for each in declared_by(announced) if declares(handshake.capabilities, each)),
        handshake.hello,
    )


def own_copy(value: Any) -> Any:
    """A copy of the value, and of all that may be changed in it. Often made for all servers at once."""
    if type(value) is dict:
        parts = cast("dict[str, object]", value)
        return {key: own_copy(part) if type(part) in _CHANGEABLE else part for key, part in parts.items()}
    return [own_copy(item) if type(item) in _CHANGEABLE else item for item in value]


_CHANGEABLE = (dict, list)


def _each_text(value: object, change: Callable[[str], Steps[str]]) -> Steps[Any]:
    yield
    if isinstance(value, str):
        return (yield from change(value))
    changed: Any = value
    if isinstance(value, list):
        changed = []
        for item in cast("Sequence[object]", value):
            changed.append((yield from _each_text(item, change)))
    elif isinstance(value, dict):
        changed = {}
        for key, part in cast("Mapping[str, object]", value).items():
            name = yield from change(key)
            changed[name] = yield from _each_text(part, change)
    return changed
