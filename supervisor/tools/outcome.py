"""What a model gets for a call it asked for: always an answer, also where there was none. Pure."""

from typing import TYPE_CHECKING

from attrs import field, frozen

from mcp_nursery.actors.errors import NurseryError

from .error_content import error_content

if TYPE_CHECKING:
    from mcp_types import ContentBlock, TextContent

    from .results import ToolResult


@frozen
class ToolOutcome:
    """A call's result or its failure, as a model may see it."""

    text: str = field(repr=lambda text: f"<{len(text)} characters>")
    """All of it as text, between marks: for models that take nothing else."""
    content: "tuple[ContentBlock, ...]" = field(repr=False)
    """The same for models that take pictures and sound: `text` as the first block, then the result's images and audio
    as they came. What stands in a picture cannot be marked."""
    is_error: bool
    """Whether the tool said that it failed, or the call did."""
    error: NurseryError | None = None
    """What the call raised; None if the tool answered."""
    result: "ToolResult | None" = field(default=None, repr=False)
    """The result, whole and without marks; None if there is none."""


def outcome_of_result(result: "ToolResult") -> ToolOutcome:
    """The outcome of a call that was answered."""
    others = [block for block in result.content if block.type in ("image", "audio")]
    return ToolOutcome(result.text, (_block(result.text), *others), result.is_error, result=result)


def outcome_of_error(error: NurseryError, *, transport: str | None = None) -> ToolOutcome:
    """The outcome of a call that raised.

    Args:
        error: What it raised.
        transport: How the server is reached, if known.
    """
    text = error_content(error, transport=transport)
    return ToolOutcome(text, (_block(text),), is_error=True, error=error)


def _block(text: str) -> "TextContent":
    from mcp_types import TextContent

    return TextContent(type="text", text=text)
