"""The client's end of the control socket: a running host, seen from another program."""

import errno
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar, cast, get_args

import trio

from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.records import define, frozen

from ..events import Event, Reloaded
from ..status import ServerStatus, TaskInfo
from . import protocol
from .protocol import LONGEST_ANSWER, MESSAGE_TIMEOUT, ControlError, HostInfo, Lines, ToolSummary, send
from .sockets import connect, path_of

T_co = TypeVar("T_co", covariant=True)

_KNOWN_EVENTS: Final = frozenset(kind.__name__ for kind in get_args(Event))
_RETRY_PAUSE: Final = 0.05
"""Seconds between attempts to connect to a host with too many clients."""


@frozen
class ControlClient:
    """A running host. Each request has a connection of its own; cancelling it closes the connection.

    All methods raise `ControlError` if the host has ended or does not respond, and the errors of the host:
    `UnknownServer`, `ServerDown`, `ConfigError`.
    """

    name: str
    """The name of the host: see `names_of_hosts`."""

    async def info(self, *, within: float = MESSAGE_TIMEOUT) -> HostInfo:
        """Return the host's description of itself, if it comes within so many seconds."""
        return protocol.value_of(HostInfo, await self._ask("host", within=within))

    async def status(self) -> tuple[ServerStatus, ...]:
        """Return the status of every server now."""
        return tuple(protocol.value_of(ServerStatus, each) for each in await self._ask("status"))

    async def tools(self, server: str) -> tuple[ToolSummary, ...]:
        """Return a server's part of the catalogue now."""
        return tuple(protocol.value_of(ToolSummary, each) for each in await self._ask("tools", server=server))

    async def statistics(self, *, by_tool: bool = True) -> dict[str, Any]:
        """Return the figures as JSON: the fields of `Supervisor.statistics`."""
        return cast("dict[str, Any]", await self._ask("statistics", by_tool=by_tool))

    async def medians(self) -> dict[str, float]:
        """Return the p50 of the calls, in seconds, for each server that has any."""
        seen = (await self.statistics(by_tool=False))["by_server"].items()
        return {name: one["latency"]["p50"] for name, one in seen if one["latency"] is not None}

    async def give_order(self, order: str, **given: object) -> Any:
        """Give one of `ORDERS`, and wait until it is carried out. Returns the event of `reload`."""
        outcome = await self._ask(order, within=math.inf, **given)
        return None if outcome is None else protocol.value_of(Reloaded, outcome)

    async def submit(self, name: str, arguments: Mapping[str, Any], *, server: str, timeout: float | None) -> TaskInfo:
        """Have the host call a tool and follow its task, as `Supervisor.submit` does. Waits until the server has
        answered with the task."""
        given = {"name": name, "arguments": arguments, "server": server, "timeout": timeout}
        return protocol.value_of(TaskInfo, await self._ask("submit", within=math.inf, **given))

    @asynccontextmanager
    async def events(self) -> "AsyncGenerator[Notifications[Event], None]":
        """Open a channel of events for a block; it ends with the host."""
        async with self._open_request("events", {}) as (lines, _):
            yield Notifications(lines, self._host_ended, _event)

    @asynccontextmanager
    async def stderr(self, server: str, *, follow: bool = False) -> "AsyncGenerator[Notifications[str], None]":
        """Open a channel of the lines that a server's process writes to standard error, for a block: its last lines,
        and with `follow` new ones."""
        async with self._open_request("stderr", {"server": server, "follow": follow}) as (lines, _):
            yield Notifications(lines, self._host_ended, lambda said: str(said.get("line", "")))

    # -- connections --------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, *, within: float = MESSAGE_TIMEOUT, **params: Any) -> Any:
        async with self._open_request(method, params, within) as (_, answer):
            return answer

    @asynccontextmanager
    async def _open_request(
        self, method: str, params: dict[str, Any], within: float = MESSAGE_TIMEOUT
    ) -> AsyncGenerator[tuple[Lines, Any], None]:
        """Send a request and read its answer; the connection stays open for a block."""
        async with await self._connect() as stream:
            lines = Lines(stream, LONGEST_ANSWER)
            yield lines, await self._answer(stream, lines, codec.request(1, method, params), within)

    async def _connect(self) -> trio.SocketStream:
        deadline = trio.current_time() + MESSAGE_TIMEOUT
        while trio.current_time() < deadline:
            try:
                return trio.SocketStream(trio.socket.from_stdlib_socket(connect(path_of(self.name))))
            except OSError as error:
                problem = error
            if problem.errno != errno.EAGAIN:
                raise ControlError(f"host {self.name} is not running: {problem.strerror or problem}")
            await trio.sleep(_RETRY_PAUSE)
        raise self._no_response()

    async def _answer(self, stream: trio.SocketStream, lines: Lines, request: bytes, within: float) -> Any:
        try:
            await send(stream, request)
            line = await lines.next(begin=within)
        except trio.TooSlowError:
            raise self._no_response() from None
        except trio.BrokenResourceError:
            line = None
        if line is None:
            raise self._host_ended()
        return _result(line)

    def _no_response(self) -> ControlError:
        return ControlError(f"host {self.name} does not respond")

    def _host_ended(self) -> ControlError:
        return ControlError(f"host {self.name} has ended")


@define(eq=False)
class Notifications(trio.abc.ReceiveChannel[T_co], Generic[T_co]):
    """The notifications of a host, one after the other, until it or the block ends."""

    _lines: Lines
    _host_ended: Callable[[], ControlError]
    _read: Callable[[dict[str, Any]], T_co | None]
    """The function that makes a value of a notification; its result is None if this version does not know it."""

    async def receive(self) -> T_co:
        """Receive the next notification.

        Raises:
            trio.EndOfChannel: No more notifications come.
            ControlError: The host sent an invalid message, or has ended in the middle of one.
        """
        while True:
            try:
                line = await self._lines.next(begin=math.inf)
            except (trio.BrokenResourceError, trio.TooSlowError):
                raise self._host_ended() from None
            if line is None:
                raise trio.EndOfChannel
            said = protocol.parse(line).get("params")
            value = self._read(cast("dict[str, Any]", said)) if isinstance(said, dict) else None
            if value is not None:
                return value

    async def aclose(self) -> None:
        """Do nothing: the block closes the connection."""
        await trio.lowlevel.checkpoint()


def _event(said: dict[str, Any]) -> Event | None:
    return protocol.event_of(said) if said.get("event") in _KNOWN_EVENTS else None


def _result(line: bytes) -> Any:
    message = protocol.parse(line)
    error = message.get("error")
    if isinstance(error, dict):
        said = cast("dict[str, Any]", error)
        raise protocol.error_of(str(said.get("message")), said.get("data") or {})
    return message.get("result")
