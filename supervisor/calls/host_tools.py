"""What the tools of our own that a model is offered have in common: they are no server's."""

from collections.abc import Collection
from hashlib import sha256
from typing import Any, Final

from ..resources.results import ResourceResult
from ..security.untrusted_marks import MAX_RESULT_CHARS
from ..tools.results import ToolResult
from ..tools.tool import Invoke, Tool

LIST_RESOURCES: Final = "list_mcp_resources"
READ_RESOURCE: Final = "read_mcp_resource"
FIND_TOOLS: Final = "find_tools"
CALL_TOOL: Final = "call_tool"
NAMES: Final = frozenset([LIST_RESOURCES, READ_RESOURCE, FIND_TOOLS, CALL_TOOL])
"""No tool of a server gets one of these."""

EVERY_SERVER: Final = "every server"
"""In the place of a server's name."""


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
    """A tool of ours; with a hash after its name if the host's own tools have that (`reserved`)."""
    from mcp_types import Tool as Definition
    from mcp_types import ToolAnnotations

    hints = ToolAnnotations(read_only_hint=True) if read_only else None
    return Tool(
        name=name if name not in reserved else f"{name}_{sha256(name.encode()).hexdigest()[:8]}",
        server=EVERY_SERVER,
        tool=name,
        definition=Definition(name=name, description=description, input_schema=schema, annotations=hints),
        available=True,
        trusted_hints=True,
        requires_approval=requires_approval,
        invoke=invoke,
    )


def host_result(tool: Tool, text: str, read: ResourceResult | None = None) -> ToolResult:
    """What a tool of ours answers: this text, of the server that was `read`."""
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
