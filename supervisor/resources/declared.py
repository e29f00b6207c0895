"""What the definitions of resources, templates and prompts have in common. Pure."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mcp_types import Prompt, Resource, ResourceTemplate


class _Defined(Protocol):
    @property
    def declared(self) -> "Resource | ResourceTemplate | Prompt": ...


class Declared:
    """What a definition says, in any of them."""

    __slots__ = ()

    @property
    def title(self: _Defined) -> str | None:
        """Its name for people."""
        return self.declared.title

    @property
    def description(self: _Defined) -> str | None:
        """What it is, or what it is for: the server's words."""
        return self.declared.description

    @property
    def meta(self: _Defined) -> dict[str, Any] | None:
        """The definition's `_meta`."""
        return None if self.declared.meta is None else dict(self.declared.meta)
