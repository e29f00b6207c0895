"""What a caller asks for: one tool call, its arguments encoded once."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen

from mcp_nursery.actors.choices import choice, function_or_none, one_of, seconds_or_none
from mcp_nursery.actors.errors import InvalidArguments
from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.messages import RouteKey
from mcp_nursery.actors.reply import ProgressCallback

WhenDown = Literal["wait", "fail"]
Resend = Literal["safe", "always", "never"]


@frozen
class Request:
    """What a caller asked for.

    Raises:
        ValueError: A time, `when_down` or `resend` has a value that is not allowed.
    """

    key: RouteKey
    arguments: bytes | None = field(repr=False)
    timeout: float | None = field(validator=choice(seconds_or_none))
    """Seconds for all of it; None takes the server's."""
    idle_timeout: float | None = field(validator=choice(seconds_or_none))
    when_down: WhenDown | None = field(validator=choice(one_of(WhenDown, optional=True)))
    resend: Resend = field(validator=choice(one_of(Resend)))
    on_progress: ProgressCallback | None = field(validator=choice(function_or_none))
    meta: Mapping[str, Any] | None = field(repr=False)

    @property
    def server(self) -> str | None:
        """The server that was named, if one was."""
        return None if isinstance(self.key, str) else self.key[0]

    @property
    def name(self) -> str:
        """The tool as it was named."""
        return self.key if isinstance(self.key, str) else self.key[1]


def encode_arguments(arguments: object, key: RouteKey) -> bytes | None:
    """Arguments as they go over the wire, for the tool of this key; None for none.

    Raises:
        InvalidArguments: They are no JSON object.
    """
    if arguments is None:
        return None
    if not isinstance(arguments, Mapping):
        decode = ": decode the JSON first" if isinstance(arguments, str) else ""
        raise _invalid(f"the arguments of a tool are an object, not {type(arguments).__name__}{decode}", key)
    try:
        return encode(dict(arguments))  # pyright: ignore[reportUnknownArgumentType]
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(f"the arguments cannot be sent as JSON: {error}", key) from None


def _invalid(problem: str, key: RouteKey) -> InvalidArguments:
    server, tool = (None, key) if isinstance(key, str) else key
    return InvalidArguments(problem, server=server, tool=tool)
