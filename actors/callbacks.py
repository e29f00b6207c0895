"""What a host offers to servers that ask it something in the middle of a call."""

import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from attrs import define, field, frozen

from .argument_checks import choice, function_or_none, one_of
from .enums import Protocol
from .limits import USUAL, Limits
from .roots import Folder, root_uris, roots_or_none

if TYPE_CHECKING:
    from mcp_types import (
        CreateMessageRequestParams,
        CreateMessageResult,
        CreateMessageResultWithTools,
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
        LoggingLevel,
        LoggingMessageNotificationParams,
    )

Params = TypeVar("Params")

_LEVELS = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""The protocol's `LoggingLevel`, here without the import of its types."""


@frozen
class ServerMessage(Generic[Params]):
    """What a server asks or tells the host."""

    server: str
    """The server's name."""
    tool: str | None
    """The server's own name of the tool whose call asks; None where nobody knows: before 2026-07-28 a server's request
    does not say for which call it is, and a log line never does."""
    params: Params = field(repr=False)
    """The protocol's own parameters: a type of `mcp_types`."""


Elicit = Callable[["ServerMessage[ElicitRequestParams]"], Awaitable["ElicitResult | ErrorData"]]
"""Ask a person."""

Sample = Callable[
    ["ServerMessage[CreateMessageRequestParams]"],
    Awaitable["CreateMessageResult | CreateMessageResultWithTools | ErrorData"],
]
"""Ask a model."""

Log = Callable[["ServerMessage[LoggingMessageNotificationParams]"], Awaitable[Any]]
"""Take note."""

Roots = Sequence[Folder] | Callable[["ServerMessage[None]"], Awaitable["Sequence[Folder] | ErrorData"]]
"""Folders to work in, or who says which they are for the server that asks."""


@frozen
class AuthorizationRequest:
    """A server wants that its user agrees to something on a page of its issuer's."""

    server: str
    """The server's name."""
    url: str = field(repr=False)
    """The page: to be shown in a browser."""
    redirect_uri: str
    """Where the browser is sent back to: a port of this machine, where it is waited for."""


Authorize = Callable[[AuthorizationRequest], Awaitable[str | None]]
"""Show a page to a person."""


@frozen
class Callbacks:
    """The host's answers to servers. What is left out is not offered to them, and refused if they ask all the same.

    Each is an async function of one `ServerMessage`; `roots` may be fixed, too. It runs in a task of the connection
    that asks, is cancelled when the call is given up, the server takes its question back or the connection ends, and
    holds up no call but the one that asks. One that raises, or returns something else than it should, is logged, and
    the server gets an error.

    Raises:
        ValueError: One of them is not a function, `roots` is neither that nor folders, or `log_level` is not a level.
    """

    elicit: Elicit | None = field(default=None, validator=choice(function_or_none))
    """Asks the user: `ElicitRequestFormParams` wants a form filled in, `ElicitRequestURLParams` a page visited. Returns
    an `ElicitResult`, or an `ErrorData` to refuse."""
    sample: Sample | None = field(default=None, validator=choice(function_or_none))
    """Asks the host's model, perhaps with tools. Returns a `CreateMessageResult`, `CreateMessageResultWithTools` or an
    `ErrorData`."""
    log: Log | None = field(default=None, validator=choice(function_or_none))
    """Gets a server's log messages, one at a time, in order. When it falls 1024 behind, new ones are dropped."""
    roots: Roots | None = field(default=None, validator=choice(roots_or_none))
    """The folders that servers are told to work in, as paths or `file://` URIs; or returns them, for the server that
    asks, whose `message.params` is None, or an `ErrorData`."""
    log_level: "LoggingLevel" = field(default="info", validator=choice(one_of(_LEVELS)))
    """The least severe messages that a server of 2026-07-28 is asked for, where there is a `log`. Older servers send
    what they like."""
    authorize: Authorize | None = field(default=None, validator=choice(function_or_none))
    """Shows a person the page of an `AuthorizationRequest` when a server with `OAuth` has no token that works: once,
    until it was connected again or somebody starts it; and when its token is not enough for a request, which is refused
    meanwhile: once for each scope while it is connected. Returns None, and the browser is waited for where it is sent
    back to; or what it was sent back with, where the person has to bring that: the URL, or the code in it. A person
    has ten minutes. Without it such a server is `needs_auth` until `mcp-nursery login`."""


def _settled(roots: Roots) -> Roots:
    """What they are from now on, whatever becomes of the list that was given, and of the working directory."""
    return roots if callable(roots) else root_uris(roots)


@define(eq=False)
class CurrentRoots:
    """The roots of a host, which may set others: a callback for all its servers. Who asks hears of the latest."""

    given: Roots = field(converter=_settled)

    async def __call__(self, message: "ServerMessage[None]") -> "Sequence[Folder] | ErrorData":
        """What they are now, for this server."""
        given = self.given
        return await given(message) if callable(given) else given


class Logger(typing.Protocol):
    """Takes note of what a server logs, where there is no callback for it."""

    @property
    def level(self) -> "LoggingLevel | None":
        """The least severe messages that it wants now; None for none."""
        ...

    async def take(self, params: "LoggingMessageNotificationParams") -> None:
        """A message has come. Raises nothing, and waits for nobody."""
        ...


@frozen
class Host:
    """The host as one server sees it."""

    server: str
    """The server's name."""
    callbacks: Callbacks
    limits: Limits = USUAL
    """What it may cost the host."""
    protocol: Protocol = "auto"
    """What the host speaks with it."""
    logger: Logger | None = field(default=None, repr=False)
    """What hears its log if the host has no callback for that."""


NO_CALLBACKS = Callbacks()
"""Offers nothing."""

NO_HOST = Host("", NO_CALLBACKS)
"""Of a connection whose server may ask nothing."""
