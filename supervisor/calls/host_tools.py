"""The common parts of the tools of our own for a model, which belong to no server."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, cast

from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.session.lazy_definitions import LazyDefinition

from ..catalogue.catalogue import Catalogue
from ..resources import ResourceResult
from ..security.untrusted_marks import MAX_RESULT_CHARS
from ..servers.view import ServerView
from ..tools.tool import Invoke, Tool
from ..tools.tool_result import ToolResult

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

LIST_RESOURCES: Final = "list_mcp_resources"
READ_RESOURCE: Final = "read_mcp_resource"
FIND_TOOLS: Final = "find_tools"
CALL_TOOL_NAME: Final = "call_tool"
NAMES: Final = frozenset([LIST_RESOURCES, READ_RESOURCE, FIND_TOOLS, CALL_TOOL_NAME])
"""Names that no tool of a server gets."""

EVERY_SERVER: Final = "every server"
"""The text in place of a server's name."""


@define(eq=False)
class HostTools(ABC):
    """Two tools of our own, and those of the catalogue that a model is given with them."""

    _servers: ServerView
    _reserved: Collection[str]
    """Names of the host's own tools."""
    _seen: tuple[Catalogue, tuple[Tool, ...]] | None = field(default=None, init=False)

    def beside(self, catalogue: Catalogue) -> tuple[Tool, ...]:
        """The tools that a model is given, sorted by name; the same tuple for the same catalogue."""
        if self._seen is None or self._seen[0] is not catalogue:
            given = (*self.servers_tools(catalogue.for_models), *self.own(catalogue))
            self._seen = catalogue, tuple(sorted(given, key=lambda tool: tool.name))
        return self._seen[1]

    @abstractmethod
    def servers_tools(self, catalogue: Catalogue) -> Collection[Tool]:
        """The tools that a model is given, of those that it may call."""

    @abstractmethod
    def own(self, catalogue: Catalogue) -> tuple[Tool, ...]:
        """The tools of our own; none where they are of no use."""

    @abstractmethod
    async def find(self, name: str) -> Tool:
        """The tool of this public name, one of our own or a server's. Lists that may be old are fetched again before a
        name counts as unknown.

        Raises:
            NotApproved: It is held back.
            UnknownTool: There is no such tool now.
        """

    def find_own(self, name: str) -> Tool | None:
        """The tool of our own that has this name now."""
        return next((tool for tool in self.own(self._servers.catalogue.value) if tool.name == name), None)


def host_tool(
    name: str,
    description: str,
    schema: dict[str, Any],
    invoke: Invoke,
    *,
    reserved: Collection[str],
    requires_approval: bool,
    read_only: bool,
) -> Tool:
    """A tool of our own; with a hash after its name if a tool of the host has that name (`reserved`)."""
    said = {"name": name, "description": description, "inputSchema": schema}
    if read_only:
        said["annotations"] = {"readOnlyHint": True}
    return Tool(
        name=name if name not in reserved else f"{name}_{sha256(name.encode()).hexdigest()[:8]}",
        server=EVERY_SERVER,
        tool=name,
        definition=cast("Definition", LazyDefinition("tools", said)),
        available=True,
        trusted_hints=True,
        requires_approval=requires_approval,
        invoke=invoke,
    )


async def host_result(tool: Tool, text: str, read: ResourceResult | None = None) -> ToolResult:
    """The answer of a tool of our own: this text, from the server of what was `read`."""
    await RESULT_TYPES.ensure_loaded()
    from mcp_types import TextContent

    return ToolResult(
        full_text=text,
        content=[TextContent(type="text", text=text)],
        structured=None,
        is_error=False,
        duration=0.0 if read is None else read.duration,
        server=tool.server if read is None else read.server,
        tool=tool.tool,
        incarnation=0 if read is None else read.incarnation,
        max_result_chars=MAX_RESULT_CHARS if read is None else read.max_result_chars,
        signals=() if read is None else read.signals,
    )
