"""A tool as the host sees it: a definition, named, with whoever calls it. Pure."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from mcp_types import Tool as Definition
    from mcp_types import ToolAnnotations

    from .results import ToolResult

Invoke = Callable[["Tool", Mapping[str, Any] | None], Awaitable["ToolResult"]]
"""Asks for approval, then calls."""


@frozen
class Tool:
    """One tool of the catalogue. A value: what it says was true when the catalogue was made."""

    name: str
    """Its public name, unique in the catalogue."""
    server: str
    tool: str
    """The server's own name of it."""
    definition: "Definition" = field(repr=False)
    """As the server declared it."""
    available: bool
    """Whether its server was connected."""
    trusted_hints: bool = field(repr=False)
    """Whether its annotations may decide that a lost call is sent again."""
    definition_hash: str = field(repr=False)
    """SHA-256 of what the server declared; approval for good holds for this."""
    requires_approval: bool = True
    """Calls that a model asks for go through `approve`."""
    _invoke: Invoke | None = field(default=None, repr=False, eq=False, alias="invoke")

    @property
    def description(self) -> str:
        """What the server says it does; empty if it says nothing."""
        return self.definition.description or ""

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""
        return self.definition.input_schema

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """JSON Schema of its structured content, if declared."""
        return self.definition.output_schema

    @property
    def annotations(self) -> "ToolAnnotations | None":
        """The server's hints about it, as declared."""
        return self.definition.annotations

    @property
    def repeatable(self) -> bool:
        """Whether trusted hints say that calling it twice does no harm: read-only or idempotent."""
        hints = self.definition.annotations
        return self.trusted_hints and hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)

    async def __call__(self, arguments: Mapping[str, Any] | None = None) -> "ToolResult":
        """Call it for a model: with approval.

        Raises:
            NotApproved: Denied, or nobody to ask. The server was not touched.
            NurseryError: See `Supervisor.call_tool`.
        """
        if self._invoke is None:
            raise TypeError(f"{self.name}: this tool is a description only; call the one in supervisor.tools")
        return await self._invoke(self, arguments)


def definition_hash(definition: "Definition") -> str:
    """SHA-256 over everything the server declared of a tool."""
    declared = definition.model_dump(by_alias=True, mode="json", exclude_none=True)
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()
