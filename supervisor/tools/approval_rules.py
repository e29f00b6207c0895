"""The decision whether a model's wish becomes a call. Pure."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from mcp_nursery.actors.argument_checks import several

from .naming import matches

if TYPE_CHECKING:
    from .tool import Tool


class Approval(StrEnum):
    """An answer to an `ApprovalRequest`."""

    ALLOW = "allow"
    """The decision to allow this one call."""
    DENY = "deny"
    """Not this time."""
    ALLOW_ALWAYS = "allow_always"
    """For as long as the tool's definition stays what it is, in this supervisor."""


@frozen
class ApprovalRequest:
    """The question to a person."""

    tool: "Tool"
    """The tool to be called; `tool.server` and `tool.tool` say whose it is."""
    arguments: Mapping[str, Any] = field(repr=False)
    """The arguments as they would be sent."""
    redacted: Mapping[str, Any]
    """The same without secrets: fit for logs."""


Approve = Callable[[ApprovalRequest], Awaitable[Approval]]
"""The host's way to ask: `async (request) -> Approval`.

It runs in the task of the call, may take as long as it likes, and is cancelled with the call. Calls that are made at
once are asked about at once. What it raises comes out of the call, and the server is not touched.
"""


@frozen
class ApprovalRules:
    """Standing decisions, by globs. Denied goes first, then always-ask, then allowed; the rest asks.

    A glob with a `/` is held against `server/tool`, both as they call themselves: `git/*` is the server `git` and no
    other. One without is held against public names, where `mcp_git_*` fits the tools of a server `git_hub` as well,
    and `mcp_git_hub_*` those of a server `git` that begin with `hub_`.

    Raises:
        ConfigError: One text was given where a list is wanted.
    """

    denied: Sequence[str] = field(default=(), converter=several)
    """Never called, and never asked about."""
    always_ask: Sequence[str] = field(default=(), converter=several)
    """Asked every time, whatever was allowed before."""
    allowed: Sequence[str] = field(default=(), converter=several)
    """Called without asking."""

    def decide(self, tool: "Tool", *, remembered: bool) -> Approval | None:
        """The decision for a tool; None means ask.

        Args:
            tool: What would be called.
            remembered: Whether ALLOW_ALWAYS was given for this very definition.
        """
        if _fits(tool, self.denied):
            return Approval.DENY
        if _fits(tool, self.always_ask):
            return None
        return Approval.ALLOW if remembered or _fits(tool, self.allowed) else None


def _fits(tool: "Tool", globs: Sequence[str]) -> bool:
    own = f"{tool.server}/{tool.tool}"
    return any(matches(own if "/" in glob else tool.name, (glob,)) for glob in globs)
