"""The protocol of a control socket: JSON-RPC 2.0, one message a line.

A connection has one request. A client that closes it cancels the request. After the answer the host closes the
connection, after the answer to `events` and `stderr` when no more notifications come.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import trio
from cattrs import Converter
from cattrs.strategies import configure_tagged_union

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError, NurseryError, ServerDown, UnknownServer
from mcp_nursery.actors.json_depth import with_each
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.records import AttrsInstance, asdict, frozen, resolve_types

from ..events import Event
from ..status import ServerStatus
from ..tools.tool import Tool

T = TypeVar("T", bound=AttrsInstance)

LONGEST_REQUEST: Final = 64 << 10
"""Bytes of a message to a host."""
LONGEST_ANSWER: Final = 16 << 20
"""Bytes of a message of a host."""
LONGEST_DESCRIPTION: Final = 2000
"""Characters of a tool's description in a list."""
MESSAGE_TIMEOUT: Final = 10.0
"""Seconds for either end to write or read a message that has begun, and for a client to send its request."""

FAILED: Final = -32000
"""The code of an error of this library, which the host's attempt has raised; `data` says which."""

_CHUNK: Final = 64 << 10


class ControlError(NurseryError):
    """The error that a running host cannot be reached or cannot do as asked, or that no host runs."""


@frozen
class HostInfo:
    """A running host."""

    name: str
    """The name of the host: the number of its process; for the second supervisor of a process, `PID.2`."""
    program: str
    """The name of its program."""
    folder: str
    """The host's working directory when the supervisor was opened."""
    servers: tuple[str, ...]
    """The names of its servers."""
    version: str
    """The version of mcp-nursery that it runs."""
    nested: bool = False
    """True if it is a server, or part of one, that another mcp-nursery has started."""


@frozen
class ToolSummary:
    """A tool of a host, as lists for people show it."""

    name: str
    """The public name."""
    server: str
    """The server's name."""
    tool: str
    """The server's own name of it."""
    description: str
    """The beginning of the server's description."""
    available: bool
    """True if its server was connected."""
    requires_approval: bool
    """True if calls that a model asks for need an approval."""
    changed: bool
    """True if its definition differs from that of its first use."""

    @classmethod
    def of(cls, tool: Tool) -> "ToolSummary":
        """The summary of a tool."""
        return cls(
            name=tool.name,
            server=tool.server,
            tool=tool.tool,
            description=tool.full_description[:LONGEST_DESCRIPTION],
            available=tool.available,
            requires_approval=tool.requires_approval,
            changed=tool.change is not None,
        )


# -- lines ------------------------------------------------------------------------------------------------------------


class Lines:
    """The lines that come on a stream, none of them longer than a limit."""

    def __init__(self, stream: trio.SocketStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._received = bytearray()

    async def next(self, *, begin: float = MESSAGE_TIMEOUT) -> bytes | None:
        """The next line; None if no more comes. It has to begin within `begin` seconds, and to end within ten seconds
        more.

        Raises:
            trio.TooSlowError: The line does not begin or end in time.
            ControlError: The line is too long.
            trio.BrokenResourceError: The connection is lost.
        """
        searched, deadline = 0, trio.current_time() + begin
        while (end := self._received.find(b"\n", searched)) < 0:
            if len(self._received) > self._limit:
                raise ControlError(f"a message of more than {self._limit} bytes")
            if not searched and self._received:
                deadline = trio.current_time() + MESSAGE_TIMEOUT
            searched = len(self._received)
            with trio.fail_at(deadline):
                data = await self._stream.receive_some(_CHUNK)
            if not data:
                return None
            self._received += data
        if end > self._limit:
            raise ControlError(f"a message of more than {self._limit} bytes")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line


async def send(stream: trio.SocketStream, message: bytes) -> None:
    """Write a message as a line.

    Raises:
        trio.TooSlowError: The other end takes more than ten seconds to read it.
        trio.BrokenResourceError: The connection is lost.
    """
    with trio.fail_after(MESSAGE_TIMEOUT):
        await stream.send_all(message + b"\n")


# -- messages ---------------------------------------------------------------------------------------------------------


def encode(value: object) -> bytes:
    """Encode a value as JSON. Numbers that JSON does not have become null, and halves of surrogate pairs, as in names
    of files that are not UTF-8, question marks."""
    try:
        return codec.encode(value)
    except TypeError:
        return codec.encode(with_each(value, _as_unicode))


def _as_unicode(value: Any) -> Any:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def parse(line: bytes) -> dict[str, Any]:
    """Parse a line as a JSON object.

    Raises:
        ControlError: The line is no JSON object.
    """
    try:
        return codec.message(line)
    except ValueError:
        raise ControlError("a line that is not a JSON object") from None


# -- values -----------------------------------------------------------------------------------------------------------

resolve_types(ServerStatus)  # its instances have the same type
_CONVERTER: Final = Converter()
configure_tagged_union(Event, _CONVERTER, tag_name="event")


def document(value: AttrsInstance) -> dict[str, Any]:
    """Convert a status, a tool or the like to JSON."""
    return asdict(value)


def event_document(event: Event) -> dict[str, Any]:
    """Convert an event to JSON: its fields, and under `event` the name of its class."""
    return cast("dict[str, Any]", _CONVERTER.unstructure(event, unstructure_as=Event))


def value_of(kind: type[T], received: object) -> T:
    """Restore a value from what `document` returned.

    Raises:
        ControlError: What was received has another shape: the host runs another version.
    """
    return cast("T", _structure(received, kind))


def event_of(received: object) -> Event:
    """Restore an event from what `event_document` returned.

    Raises:
        ControlError: What was received is no event known here: the host runs another version.
    """
    return cast("Event", _structure(received, Event))


def _structure(received: object, kind: Any) -> Any:
    try:
        return _CONVERTER.structure(received, kind)
    except Exception as error:  # cattrs raises groups of any errors that hooks of its types raise
        problem = type(error).__name__
    raise ControlError(f"the host sent a message that this version of mcp-nursery does not understand ({problem})")


def error_data(error: NurseryError) -> dict[str, Any]:
    """Make the data from which `error_of` restores the error."""
    data: dict[str, Any] = {"type": type(error).__name__}
    match error:
        case UnknownServer():
            data |= {"server": error.name, "near": list(error.near)}
        case ServerDown():
            data |= {"server": error.server, "state": error.state, "retry_in": error.retry_in, "error": error.error}
            data |= {"revived_by_calls": error.revived_by_calls}
        case _:
            pass
    return data


def error_of(message: str, data: Mapping[str, Any]) -> NurseryError:
    """Restore the error of the host, or make one with its message."""
    try:
        match data.get("type"):
            case "UnknownServer":
                return UnknownServer(data["server"], near=data["near"])
            case "ServerDown":
                state = ServerState(data["state"])
                return ServerDown(
                    server=data["server"],
                    state=state,
                    retry_in=data["retry_in"],
                    revived_by_calls=data.get("revived_by_calls", False) is True,
                    error=data["error"],
                )
            case "ConfigError":
                return ConfigError(message)
            case _:
                return ControlError(message)
    except (KeyError, ValueError, TypeError):
        return ControlError(message)
