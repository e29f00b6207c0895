"""The callbacks of a host for servers that ask it something in the middle of a call."""

import typing
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from mcp_nursery.actors.records import Factory, define, evolve, field, frozen

from .account import Account
from .argument_checks import choice, function_or_none, mapping_or_none, one_of
from .enums import Protocol
from .extensions import TASKS, Settings, declared_by, with_extensions
from .limits import HUMAN_TIMEOUT, USUAL, CostLimits
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

_PASSED: Final = ("extensions", "experimental")
"""Capabilities of a client that no callback stands for."""

_LEVELS = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""The protocol's `LoggingLevel`, here without the import of its types."""


@frozen
class ServerMessage(Generic[Params]):
    """A question or a message of a server to the host."""

    server: str
    """The server's name."""
    tool: str | None
    """The server's own name of the tool whose call asks; None where it is unknown: before 2026-07-28 a server's request
    does not name its call, and a log message never does."""
    params: Params = field(repr=False)
    """The protocol's own parameters: a type of `mcp_types`."""


Elicit = Callable[["ServerMessage[ElicitRequestParams]"], Awaitable["ElicitResult | ErrorData"]]
"""Asks a person."""

Sample = Callable[
    ["ServerMessage[CreateMessageRequestParams]"],
    Awaitable["CreateMessageResult | CreateMessageResultWithTools | ErrorData"],
]
"""Asks a model."""

Log = Callable[["ServerMessage[LoggingMessageNotificationParams]"], Awaitable[Any]]
"""Takes a log message."""

Roots = Sequence[Folder] | Callable[["ServerMessage[None]"], Awaitable["Sequence[Folder] | ErrorData"]]
"""Folders to work in, or a function that returns them for the server that asks."""


@frozen
class AuthorizationRequest:
    """A request for a user's consent, on a page of the server's issuer."""

    server: str
    """The server's name."""
    url: str = field(repr=False)
    """The page to show in a browser."""
    redirect_uri: str
    """The place to which the issuer sends the browser back: a port of this machine, on which the supervisor listens."""


Authorize = Callable[[AuthorizationRequest], Awaitable[str | None]]
"""Shows a page to a person."""


@frozen
class Callbacks:
    """The host's answers to servers. A callback left out is not advertised, and its requests are refused.

    Each is an async function of one `ServerMessage` (`authorize`: of an `AuthorizationRequest`); `roots` may also be
    fixed. It runs in a task of the connection that asks, and delays no call but the one that asks. It is cancelled when
    the call is cancelled, the server cancels its request, or the connection ends. If it raises or returns a wrong type,
    that is logged, and the server gets an error. If it takes longer than the server's `human_timeout`, it is cancelled,
    and the server gets the answer of a user who dismisses the question, or an error if it has not asked the user.

    Raises:
        ValueError: A callback is not a function, `roots` is neither a function nor folders, or `log_level` is no level.
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
    """The folders that servers are told to work in, as paths or `file://` URIs; `"cwd"`: the working directory; or a
    function that returns them, or an `ErrorData`, for the server that asks. Its `message.params` is None."""
    log_level: "LoggingLevel" = field(default="info", validator=choice(one_of(_LEVELS)))
    """The least severe level that a server of 2026-07-28 is asked for if there is a `log`. Older servers send any
    level."""
    authorize: Authorize | None = field(default=None, validator=choice(function_or_none))
    """Shows a person the page of an `AuthorizationRequest`. It is called when a server with `OAuth` has no valid token:
    once, until the server was connected again or somebody starts it. It is also called when the token lacks a scope for
    a request: once for each scope while the server is connected; the request is refused meanwhile. Returns None to wait
    for the browser at `redirect_uri`; or, where the person has to copy it, the URL that the browser was sent back to,
    or the code in it. A person has ten minutes. Without this callback such a server is `needs_auth` until
    `mcp-nursery login`."""
    capabilities: Mapping[str, Any] | None = field(default=None, validator=choice(mapping_or_none))
    """The capabilities that `elicit`, `sample` and `roots` are declared with: the protocol's `elicitation`, `sampling`
    and `roots` with the members of each, such as `{"elicitation": {"form": {}}}`, where a host answers for a client
    that can do less. One left out is declared with all that the protocol has of it; one without a callback is not
    declared. `extensions` and `experimental` are declared as they stand here, and not at all where they are left
    out."""

    def announcing(self, extensions: Mapping[str, Settings] | None) -> "Callbacks":
        """The same, with these extensions in place of its own; None: with its own."""
        if extensions is None:
            return self
        return evolve(self, capabilities=with_extensions(self.capabilities or {}, extensions))

    @property
    def declared(self) -> dict[str, Any]:
        """The capabilities of the host as servers are told of them, by the protocol's names."""
        own: dict[str, dict[str, Any] | None] = {
            "sampling": None if self.sample is None else {"tools": {}},
            "elicitation": None if self.elicit is None else {"form": {}, "url": {}},
            "roots": None if self.roots is None else {"listChanged": True},
        }
        given = self.capabilities or {}
        passed = {name: given[name] for name in _PASSED if name in given}
        return {name: given.get(name, value) for name, value in own.items() if value is not None} | passed


def _settled(roots: Roots | None) -> Roots | None:
    """A copy that later changes of the given list, or of the working directory, do not affect."""
    return roots if roots is None or callable(roots) else root_uris(roots)


@define(eq=False)
class CurrentRoots:
    """The roots of a host, which may change them: a callback for all its servers, which get the latest."""

    given: Roots | None = field(default=None, converter=_settled)
    """None: there are none, and servers that connect are not offered any."""

    async def __call__(self, message: "ServerMessage[None]") -> "Sequence[Folder] | ErrorData":
        """The current roots for this server."""
        given = self.given
        return await given(message) if callable(given) else given or ()


Overhear = Callable[[str, Mapping[str, Any], Hashable], None]
"""Called with a notification as it came: `(method, params, principal)`, with the one principal of all calls that it may
be about; None: it is about none. Never waits."""


class Logger(typing.Protocol):
    """The receiver of a server's log messages if the host has no callback for them."""

    @property
    def level(self) -> "LoggingLevel | None":
        """The least severe level that is wanted now; None for no messages."""
        ...

    async def take(self, params: "LoggingMessageNotificationParams") -> None:
        """Take a message. Never raises and never waits."""
        ...


@frozen
class Host:
    """The host as one server sees it."""

    server: str
    """The server's name."""
    callbacks: Callbacks
    limits: CostLimits = USUAL
    """The limits of its cost to the host."""
    protocol: Protocol = "auto"
    """The protocol that the host speaks with it."""
    logger: Logger | None = field(default=None, repr=False)
    """Takes its log messages if the host has no callback for them."""
    overhear: "Overhear | None" = field(default=None, repr=False)
    """Called with its notifications about no request, if set."""
    account: Account = field(factory=Account, repr=False)
    """The account to which waiting messages to the server and from the server are charged."""
    human_timeout: float = HUMAN_TIMEOUT
    """Seconds for an answer to one of its questions; `inf`: no limit."""
    told: dict[str, Any] = field(default=Factory(lambda host: host.callbacks.declared, takes_self=True))
    """The capabilities of the host as a server since 2026-07-28 is told of them with each request."""


def told_of_tasks(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The capabilities, with the extension Tasks."""
    return with_extensions(capabilities, {TASKS: {}, **declared_by(capabilities)})


NO_CALLBACKS = Callbacks()
"""Callbacks that offer nothing."""

NO_HOST = Host("", NO_CALLBACKS)
"""The host of a connection whose server may ask nothing."""
