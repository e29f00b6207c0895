"""Who decides whether a model's wish becomes a call. Pure."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from .filters import matches

if TYPE_CHECKING:
    from .tool import Tool


class Approval(StrEnum):
    """An answer to an `ApprovalRequest`."""

    ALLOW = "allow"
    """This once."""
    DENY = "deny"
    """Not this time."""
    ALLOW_ALWAYS = "allow_always"
    """For as long as the tool's definition stays what it is, in this supervisor."""


@frozen
class ApprovalRequest:
    """What a person is asked."""

    tool: "Tool"
    """The tool to be called; `tool.server` and `tool.tool` say whose it is."""
    arguments: Mapping[str, Any] = field(repr=False)
    """The arguments as they would be sent."""
    redacted: Mapping[str, Any]
    """The same without secrets: fit for logs."""


Approve = Callable[[ApprovalRequest], Awaitable[Approval]]
"""The host's way to ask."""


def _globs(patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(patterns)


@frozen
class ApprovalRules:
    """Standing decisions, by globs on public names. Denied goes first, then always-ask, then allowed; the rest asks."""

    denied: Sequence[str] = field(default=(), converter=_globs)
    always_ask: Sequence[str] = field(default=(), converter=_globs)
    """Asked every time, whatever was allowed before."""
    allowed: Sequence[str] = field(default=(), converter=_globs)

    def decide(self, name: str, *, remembered: bool) -> Approval | None:
        """The decision for a tool; None means ask.

        Args:
            name: The tool's public name.
            remembered: Whether ALLOW_ALWAYS was given for this very definition.
        """
        if matches(name, self.denied):
            return Approval.DENY
        if matches(name, self.always_ask):
            return None
        return Approval.ALLOW if remembered or matches(name, self.allowed) else None
