"""A prompt as the host sees it: a definition, named. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import field, frozen

from mcp_nursery.actors.session.recalled import as_sdk_type

from .declared import Declared

if TYPE_CHECKING:
    from mcp_types import Prompt as Definition
    from mcp_types import PromptArgument


@frozen
class Prompt(Declared):
    """One prompt of the catalogue. A value: what it says was true when the catalogue was made."""

    name: str
    """Its public name, made as that of a tool. A tool may have the same: they are called in different ways."""
    server: str
    """The server's name."""
    prompt: str
    """The server's own name of it."""
    declared: "Definition" = field(repr=False, alias="definition")
    """As the server declared it: all that `definition` has, before the SDK is loaded too."""
    available: bool
    """Whether its server was connected."""

    @property
    def definition(self) -> "Definition":
        """As the server declared it: the SDK's type."""
        return as_sdk_type(self.declared)

    @property
    def arguments(self) -> "Sequence[PromptArgument]":
        """What it can be given: `name`, `description` and `required` of each."""
        return tuple(self.declared.arguments or ())
