"""The outcomes of a call, one type each: an actor resolves a reply slot with exactly one of them. Values only."""

from collections.abc import Callable
from typing import Any

from mcp_nursery.actors.records import field, frozen


@frozen
class Challenge:
    """The challenge of a server that refused a request as unauthorised. Its own words: treat them as data."""

    error: str | None = None
    """A code of RFC 6750, such as `invalid_token` or `insufficient_scope`."""
    scope: str | None = None
    """The scopes that the server wants, separated by spaces."""
    resource_metadata: str | None = None
    """The URL of the metadata that names the issuer (RFC 9728)."""

    def redacted(self, redact: Callable[[str], str]) -> "Challenge":
        """The challenge without secrets."""
        said = (self.error, self.scope, self.resource_metadata)
        return Challenge(*(None if text is None else redact(text) for text in said))


@frozen
class Loss:
    """The facts about a connection that ended."""

    message: str
    """One line: what happened."""
    exit_code: int | None = None
    """The process's exit code, negative for a signal; None if unknown or no process."""
    stderr_tail: str = field(default="", repr=False)
    """The last lines the process wrote to stderr."""
    stderr_age: float = field(default=0.0, eq=False)
    """Seconds from the last write to stderr to the end; 0 if unknown."""
    unheard: bool = False
    """True if the server ended before it read the first frame: nothing that was sent caused the end."""
    pending: int = 0
    """Calls that were in flight."""
    needs_auth: bool = False
    """True if the server refuses requests as unauthorised, and no stored token helps."""
    unusable: bool = False
    """True if trying again cannot help."""
    challenge: Challenge | None = None
    """The server's challenge, with `needs_auth`."""
    retry_in: float | None = None
    """Seconds for which the server wants to be asked nothing; None if it did not say."""


@frozen
class Answered:
    """The server returned a result."""

    result: dict[str, Any] = field(repr=False)
    """The raw result, this caller's own."""
    size: int = field(default=0, eq=False)
    """Bytes of the message that brought it, at most; 0 if it came over no wire of ours."""


@frozen
class Rejected:
    """The server answered with a JSON-RPC error."""

    code: int
    message: str = field(repr=False)
    data: Any = field(default=None, repr=False)
    size: int = field(default=0, eq=False)
    """Bytes of the message that brought it, at most; 0 if it came over no wire of ours."""
    status: int | None = field(default=None, kw_only=True)
    """The HTTP status that came instead of an answer; None if the error is the server's answer."""
    retry_in: float | None = field(default=None, kw_only=True)
    """Seconds for which the server wants to be asked nothing; None if it did not say."""


@frozen
class Dropped:
    """The exchange of this call failed, and whether the server acted is unknown. The connection goes on."""

    problem: str
    """One line: what happened."""
    status: int | None = None
    """The HTTP status that came instead of an answer."""
    again: bool = True
    """True if the call may be sent again where its tool may run twice: not after a time limit."""
    retry_in: float | None = None
    """Seconds for which the server wants to be asked nothing; None if it did not say."""


@frozen
class Malformed:
    """The server's result is not valid in the protocol."""

    problem: str


@frozen
class Unsendable:
    """The call has no JSON form; nothing was sent."""

    problem: str


@frozen
class Busy:
    """The owner's mailbox or outbox is full; nothing was sent."""


@frozen
class Expired:
    """The call's time was over before an answer came. Its owner was notified."""


@frozen
class Unrouted:
    """No live actor owns the tool, or the call was taken back; nothing was sent, or it was refused."""


@frozen
class Unlisted:
    """The tool is not in the server's latest list; nothing was sent."""


Outcome = Answered | Rejected | Dropped | Malformed | Unsendable | Busy | Unrouted | Unlisted | Expired | Loss
"""The outcome of a call, seen from the actor."""
