"""What is said on a control socket: JSON-RPC 2.0, one message a line.

A client asks, one request after the other, and closes the connection; that gives up what it waits for. After `events`
and `stderr` nothing more is asked: what happens comes as notifications until either end closes.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import trio
from attrs import AttrsInstance, asdict, frozen, resolve_types
from cattrs import Converter
from cattrs.strategies import configure_tagged_union

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError, NurseryError, ServerDown, UnknownServer
from mcp_nursery.actors.json_depth import with_each

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
PATIENCE: Final = 10.0
"""Seconds that either end may take to write a message it has begun, or to read one; and that a client may say nothing
before its first request, or between two."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
FAILED: Final = -32000
"""The host has tried, and an error of this library came of it; `data` says which."""

_CHUNK: Final = 64 << 10


class ControlError(NurseryError):
    """A running host cannot be told what was to be told to it, or nobody runs."""


@frozen
class HostInfo:
    """A host that runs."""

    name: str
    """What it is called by: the number of its process; for the second supervisor of a process, `PID.2`."""
    program: str
    """The name of its program."""
    folder: str
    """Its working directory when it was opened."""
    servers: tuple[str, ...]
    """The names of its servers."""
    version: str
    """The version of mcp-nursery that it runs."""


@frozen
class ToolSummary:
    """A tool of a host, as a person sees it in a list."""

    name: str
    """Its public name."""
    server: str
    """The server's name."""
    tool: str
    """The server's own name of it."""
    description: str
    """What the server says it does: the beginning of it."""
    available: bool
    """Whether its server was connected."""
    requires_approval: bool
    """Whether calls that a model asks for are asked about."""
    changed: bool
    """Whether it is not what it was when it was first used."""

    @classmethod
    def of(cls, tool: Tool) -> "ToolSummary":
        """What is shown of a tool."""
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

    async def next(self, *, begin: float = PATIENCE) -> bytes | None:
        """The next line; None if no more comes.

        Args:
            begin: Seconds until it begins. It ends within ten seconds more.

        Raises:
            trio.TooSlowError: It does not.
            ControlError: It is too long.
            trio.BrokenResourceError: The connection is lost.
        """
        searched, deadline = 0, trio.current_time() + begin
        while (end := self._received.find(b"\n", searched)) < 0:
            if len(self._received) > self._limit:
                raise ControlError(f"a message of more than {self._limit} bytes")
            if not searched and self._received:
                deadline = trio.current_time() + PATIENCE
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
    """Write a line.

    Raises:
        trio.TooSlowError: The other end takes more than ten seconds to take it.
        trio.BrokenResourceError: The connection is lost.
    """
    with trio.fail_after(PATIENCE):
        await stream.send_all(message)


# -- messages ---------------------------------------------------------------------------------------------------------


def encoded(value: object) -> bytes:
    """The value as JSON. Numbers that JSON does not know become null: servers send them all the same."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(with_each(value, _finite), allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def request(method: str, params: Mapping[str, Any]) -> bytes:
    """A request, as a line. There is one at a time, so that all have the same id."""
    return encoded({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + b"\n"


def result(request_id: object, value: bytes) -> bytes:
    """An answer, as a line; `value` is JSON."""
    return b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (encoded(request_id), value)


def failure(request_id: object, code: int, message: str, data: Mapping[str, Any] | None = None) -> bytes:
    """An answer that says why there is none, as a line."""
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return encoded({"jsonrpc": "2.0", "id": request_id, "error": error}) + b"\n"


def notification(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification, as a line."""
    return encoded({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n"


def parsed(line: bytes) -> dict[str, Any]:
    """The object that a line is.

    Raises:
        ControlError: It is none.
    """
    try:
        message: object = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, dict):
        return cast("dict[str, Any]", message)
    raise ControlError("a line that is no JSON object")


# -- values -----------------------------------------------------------------------------------------------------------

resolve_types(ServerStatus)  # it has others of its kind
_CONVERTER: Final = Converter()
configure_tagged_union(Event, _CONVERTER, tag_name="event")


def document(value: AttrsInstance) -> dict[str, Any]:
    """A status, a tool or the like, as JSON."""
    return asdict(value)


def event_document(event: Event) -> dict[str, Any]:
    """An event as JSON: its fields, and under `event` the name of its class."""
    return cast("dict[str, Any]", _CONVERTER.unstructure(event, unstructure_as=Event))


def value_of(kind: type[T], said: object) -> T:
    """What `document` made JSON of.

    Raises:
        ControlError: It is none of these: the host runs another version.
    """
    return cast("T", _structured(said, kind))


def event_of(said: object) -> Event:
    """What `event_document` made JSON of.

    Raises:
        ControlError: It is no event known here: the host runs another version.
    """
    return cast("Event", _structured(said, Event))


def _structured(said: object, kind: Any) -> Any:
    try:
        return _CONVERTER.structure(said, kind)
    except Exception as error:  # cattrs raises groups of whatever the hooks of its types raise
        problem = type(error).__name__
    raise ControlError(f"the host says what this version of mcp-nursery does not understand ({problem})")


def error_data(error: NurseryError) -> dict[str, Any]:
    """What makes the same error of the message again."""
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
    """The error that the host had, or one that says the same."""
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
