"""What a call gave, and how it becomes what a model may see. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from .rendering import render
from .signals import scan
from .truncation import truncate
from .wrapping import wrap

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

    from .tool import Tool


@frozen
class ToolResult:
    """A tool's answer. `is_error` is an answer too: the tool ran and says that it failed."""

    text: str = field(repr=lambda text: f"<{len(text)} characters>")
    """What a model may see: the content as text, cut at the server's `max_result_chars`, between marks that say whose
    words these are and that they are untrusted."""
    content: "Sequence[ContentBlock]" = field(repr=False)
    """The content blocks, whole."""
    structured: Any = field(repr=False)
    """The structured content; None if there is none."""
    is_error: bool
    duration: float
    """Seconds from the call to the answer, waiting for the server included."""
    server: str
    tool: str
    """The server's own name of the tool."""
    incarnation: int
    """Which connection of the server answered, from 1."""
    truncated: bool = False
    """Whether `text` was cut."""
    signals: tuple[str, ...] = ()
    """Names of the `signals.SIGNALS` found in the whole content: it may try to instruct the model."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """The result's `_meta`."""

    @property
    def full_text(self) -> str:
        """The content as text, whole and without marks: for people and programs, never for a model."""
        return render(self.content, self.structured)


def tool_result(result: "CallToolResult", tool: "Tool", *, duration: float, incarnation: int) -> ToolResult:
    """What the caller gets of a validated result."""
    rendered = render(result.content, result.structured_content)
    signals = scan(rendered)  # all of it, what is about to be cut too
    shown, truncated = truncate(rendered, tool.max_result_chars)
    return ToolResult(
        text=wrap(shown, server=tool.server, tool=tool.tool),
        content=result.content,
        structured=result.structured_content,
        is_error=bool(result.is_error),
        duration=duration,
        server=tool.server,
        tool=tool.tool,
        incarnation=incarnation,
        truncated=truncated,
        signals=signals,
        meta=None if result.meta is None else dict(result.meta),
    )
