"""The decision whether a call that a model wants is made. Pure."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mcp_nursery.actors.argument_checks import several
from mcp_nursery.actors.records import evolve, field, frozen

from .naming import matches

if TYPE_CHECKING:
    from ..transports import Transport
    from .tool import Tool


class Approval(StrEnum):
    """An answer to an `ApprovalRequest`."""

    ALLOW = "allow"
    """The decision to allow this one call."""
    DENY = "deny"
    """The decision to refuse this one call."""
    ALLOW_ALWAYS = "allow_always"
    """The decision to allow all calls, in this supervisor, while the tool's definition and its server's transport stay
    what they are."""


@frozen
class ApprovalRequest:
    """The question to a person."""

    tool: "Tool"
    """The tool to be called; `tool.server` and `tool.tool` say whose it is."""
    arguments: Mapping[str, Any] = field(repr=False)
    """The arguments as they would be sent."""
    redacted: Mapping[str, Any]
    """The same without secrets: fit for logs."""


@frozen
class Agreement:
    """The definition and the transport for which a call was approved. A call with this agreement is not sent to a tool
    that is defined otherwise, nor by another transport. Its arguments are not part of it."""

    server: str
    """The server that has the tool."""
    tool: str
    """The server's own name of the tool."""
    definition_hash: str | None
    """The `Tool.definition_hash` of the definition; None: any."""
    transport: "Transport" = field(repr=False)
    """The transport by which the server was reached."""


def of_any_definition(agreed: Agreement | None) -> Agreement | None:
    """The agreement without the definition: the transport alone has to be the same."""
    return None if agreed is None else evolve(agreed, definition_hash=None)


Approve = Callable[[ApprovalRequest], Awaitable[Approval]]
"""The host's way to ask: `async (request) -> Approval`.

It runs in the task of the call, may take any time, and is cancelled with the call. Concurrent calls are asked about
concurrently. An exception of it comes out of the call, and the server is not touched.
"""


@frozen
class ApprovalRules:
    """Standing decisions, by globs. `denied` goes first, then `always_ask`, then `allowed`; other calls are asked
    about.

    A glob with a `/` is matched against `server/tool`, the server's own names: `git/*` is the server `git` and no
    other. One without is matched against public names, where `mcp_git_*` fits the tools of a server `git_hub` as well,
    and `mcp_git_hub_*` those of a server `git` that begin with `hub_`.

    Raises:
        ConfigError: One text was given where a list is wanted.
    """

    denied: Sequence[str] = field(default=(), converter=several)
    """Tools that are never called, and never asked about."""
    always_ask: Sequence[str] = field(default=(), converter=several)
    """Tools that are asked about every time, whatever was allowed before."""
    allowed: Sequence[str] = field(default=(), converter=several)
    """Tools that are called without asking."""

    def decide(self, tool: "Tool", *, remembered: bool) -> Approval | None:
        """The decision for a tool; None means ask.

        Args:
            tool: The tool to be called.
            remembered: Whether ALLOW_ALWAYS was given for this very definition and transport.
        """
        if _fits(tool, self.denied):
            return Approval.DENY
        if _fits(tool, self.always_ask):
            return None
        return Approval.ALLOW if remembered or _fits(tool, self.allowed) else None


def _fits(tool: "Tool", globs: Sequence[str]) -> bool:
    own = f"{tool.server}/{tool.tool}"
    return any(matches(own if "/" in glob else tool.name, (glob,)) for glob in globs)
