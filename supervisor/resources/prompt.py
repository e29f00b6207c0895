"""A prompt as the host sees it: a definition, named. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from mcp_types import Prompt as Definition
    from mcp_types import PromptArgument


@frozen
class Prompt:
    """One prompt of the catalogue. A value: what it says was true when the catalogue was made."""

    name: str
    """Its public name, made as that of a tool. A tool may have the same: they are called in different ways."""
    server: str
    """The server's name."""
    prompt: str
    """The server's own name of it."""
    definition: "Definition" = field(repr=False)
    """As the server declared it."""
    available: bool
    """Whether its server was connected."""

    @property
    def title(self) -> str | None:
        """Its name for people."""
        return self.definition.title

    @property
    def description(self) -> str | None:
        """What it is for: the server's words."""
        return self.definition.description

    @property
    def arguments(self) -> "Sequence[PromptArgument]":
        """What it can be given: `name`, `description` and `required` of each."""
        return tuple(self.definition.arguments or ())

    @property
    def meta(self) -> dict[str, Any] | None:
        """The definition's `_meta`."""
        return None if self.definition.meta is None else dict(self.definition.meta)
