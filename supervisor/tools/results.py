"""What a call gave, and how it becomes what a model may see. Pure."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from mcp_nursery.actors.steps import Steps

from .rendering import render
from .signals import scan, scan_in_pieces
from .truncation import truncate
from .wrapping import wrap

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

    from .tool import Tool


NO_OUTPUT = "(no output)"
"""What a model is shown of a result that holds nothing."""


@frozen(slots=False)  # made in a third of the time
class ToolResult:
    """A tool's answer. `is_error` is an answer too: the tool ran and says that it failed."""

    full_text: str = field(repr=lambda text: f"<{len(text)} characters>")
    """The content as text, whole and without marks, empty if there is none: for people and programs, never for a
    model."""
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
    max_result_chars: int = field(repr=False)
    """Characters of it that a model is shown."""
    signals: tuple[str, ...] = ()
    """Names of the `signals.SIGNALS` found in the whole content: it may try to instruct the model."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """The result's `_meta`."""

    @property
    def truncated(self) -> bool:
        """Whether `text` is cut."""
        return len(self.full_text) > self.max_result_chars

    @cached_property
    def text(self) -> str:
        """What a model may see: the content as text, cut at the server's `max_result_chars`, between marks that say
        whose words these are and that they are untrusted."""
        return wrap(truncate(self.full_text, self.max_result_chars) or NO_OUTPUT, server=self.server, tool=self.tool)


def tool_result(
    result: "CallToolResult", tool: "Tool", *, duration: float, incarnation: int, small: bool = False
) -> Steps[ToolResult]:
    """What the caller gets of a validated result: rendered, scanned whole, and cut and wrapped once `text` is read;
    `small`: it came in a message that is seen to in one go."""
    rendered = yield from render(result.content, result.structured_content, small=small)
    signals = scan(rendered) if small else (yield from scan_in_pieces(rendered))  # what will be cut, too
    return ToolResult(  # by position: named, eleven arguments cost half a microsecond
        rendered,
        result.content,
        result.structured_content,
        bool(result.is_error),
        duration,
        tool.server,
        tool.tool,
        incarnation,
        tool.max_result_chars,
        signals,
        None if result.meta is None else dict(result.meta),
    )
