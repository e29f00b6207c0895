"""Who decides whether a model's wish becomes a call. Pure."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

from attrs import field, frozen

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
    """The same shape with every string replaced by its length: fit for logs."""


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
        if _matches(name, self.denied):
            return Approval.DENY
        if _matches(name, self.always_ask):
            return None
        return Approval.ALLOW if remembered or _matches(name, self.allowed) else None


def redacted(value: object) -> Any:
    """The value's shape without its words: strings become their length, all else stays."""
    if isinstance(value, str):
        return f"<{len(value)} characters>"
    if isinstance(value, Mapping):
        return {str(key): redacted(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in cast("Sequence[object]", value)]
    return value


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
