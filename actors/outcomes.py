"""How a call can end, one type each: an actor resolves a reply slot with exactly one of them. Values only."""

from collections.abc import Callable
from typing import Any

from attrs import field, frozen


@frozen
class Challenge:
    """What a server said that refuses for want of authorisation. Its own words: take them for data."""

    error: str | None = None
    """A code of RFC 6750, such as `invalid_token` or `insufficient_scope`."""
    scope: str | None = None
    """The scopes that it wants, with spaces between."""
    resource_metadata: str | None = None
    """The URL that says who can authorise (RFC 9728)."""

    def redacted(self, redact: Callable[[str], str]) -> "Challenge":
        """The same without secrets."""
        said = (self.error, self.scope, self.resource_metadata)
        return Challenge(*(None if text is None else redact(text) for text in said))


@frozen
class Loss:
    """What is known of a connection that ended."""

    message: str
    """One line: what happened."""
    exit_code: int | None = None
    """The process's exit code, negative for a signal; None if unknown or no process."""
    stderr_tail: str = field(default="", repr=False)
    """The last lines the process wrote to stderr."""
    unheard: bool = False
    """It ended without having read the first frame: whatever ended it, it was nothing we said."""
    pending: int = 0
    """Calls that were in flight."""
    needs_auth: bool = False
    """The server refuses us for want of authorisation, and nothing we have can mend that."""
    unusable: bool = False
    """Trying again cannot help."""
    refused: bool = False
    """The one call that is told so was refused before its server acted on it."""
    challenge: Challenge | None = None
    """With `needs_auth`: what the server says is missing."""


@frozen
class Answered:
    """The server returned a result."""

    result: dict[str, Any] = field(repr=False)
    """The raw result, this caller's own."""
    size: int = field(default=0, eq=False)
    """Bytes of the message that brought it, at most; 0 for what came over no wire of ours."""


@frozen
class Rejected:
    """The server answered with a JSON-RPC error."""

    code: int
    message: str = field(repr=False)
    data: Any = field(default=None, repr=False)
    size: int = field(default=0, eq=False)
    """Bytes of the message that brought it, at most; 0 for what came over no wire of ours."""


@frozen
class Dropped:
    """The exchange of this one call failed, and what became of the call is not known. The connection goes on."""

    problem: str
    """One line: what happened."""
    status: int | None = None
    """The HTTP status that came instead of an answer."""
    again: bool = True
    """Whether a tool that may run twice may be sent again: not after a time limit."""


@frozen
class Malformed:
    """The server's result is none of the protocol."""

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
    """The call's time was over before an answer came. Its owner was told."""


@frozen
class Unrouted:
    """No live actor owns the tool; nothing was sent."""


@frozen
class Unlisted:
    """The tool is none of those that its server listed last, whatever was known before; nothing was sent."""


Outcome = Answered | Rejected | Dropped | Malformed | Unsendable | Busy | Unrouted | Unlisted | Expired | Loss
"""How a call ended, seen from the actor."""
