"""The hints of a server about a tool besides its schema, as a host may use them. Pure."""

import unicodedata
from typing import TYPE_CHECKING, Any, Final

from mcp_nursery.actors.records import frozen
from mcp_nursery.actors.session.lazy_definitions import annotations_of

from ..security.untrusted_marks import harmless

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

MAX_DESCRIPTION: Final = 2048
"""Characters of a description."""
_MARK = "… [truncated]"
_JOINERS = "\u200d"


@frozen
class ToolHints:
    """A server's hints about a tool; those it does not give are False. They have no effect unless `trusted`."""

    read_only: bool = False
    """True if it changes nothing."""
    destructive: bool = False
    """True if it may destroy something."""
    idempotent: bool = False
    """True if calling it again with the same arguments changes nothing more."""
    open_world: bool = False
    """True if it deals with things outside its server."""
    trusted: bool = False
    """True if the server's hints are believed: `ServerSpec.trust_hints`."""

    @property
    def concurrency_safe(self) -> bool:
        """True if calls of it may run side by side: it is read-only by hints that are trusted."""
        return self.trusted and self.read_only

    @property
    def repeatable(self) -> bool:
        """True if trusted hints say that calling it twice does no harm: read-only or idempotent."""
        return self.trusted and (self.read_only or self.idempotent)


def hints_of(definition: "Definition", *, trusted: bool) -> ToolHints:
    """The hints in a definition."""
    said = annotations_of(definition)
    return ToolHints(
        read_only=bool(said.get("readOnlyHint")),
        destructive=bool(said.get("destructiveHint")),
        idempotent=bool(said.get("idempotentHint")),
        open_world=bool(said.get("openWorldHint")),
        trusted=trusted,
    )


def describe(server: str, full: str) -> str:
    """The description under the name of its server, in at most 2048 characters, none of them cut in two. It cannot
    forge the marks around results."""
    text = harmless(_truncate(f"[MCP: {' '.join(server.split())}] {full}"))
    return _truncate(text)  # once more: `&lt;` is longer than `<`


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION else text[: _find_boundary(text, MAX_DESCRIPTION - len(_MARK))] + _MARK


def search_hint(meta: dict[str, Any] | None) -> str | None:
    """Words to find the tool by, on one line: `anthropic/searchHint`."""
    said = (meta or {}).get("anthropic/searchHint")
    return (" ".join(said.split()) or None) if isinstance(said, str) else None


def always_load(meta: dict[str, Any] | None) -> bool:
    """True if the server wants a model to have it from the start: `anthropic/alwaysLoad`, if exactly true."""
    return (meta or {}).get("anthropic/alwaysLoad") is True


def _find_boundary(text: str, end: int) -> int:
    """The last place not after `end` that is not inside what a reader sees as one character."""
    for place in range(end, max(end - 16, 0), -1):
        if not _is_joined(text[place]) and text[place - 1] not in _JOINERS:
            return place
    return end


def _is_joined(char: str) -> bool:
    return char in _JOINERS or unicodedata.category(char) in ("Mn", "Mc", "Me") or "\U0001f3fb" <= char <= "\U0001f3ff"
