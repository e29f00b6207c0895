"""The other end of the control socket: a running host, as a program sees it that is not in it."""

import errno
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar, cast, get_args

import trio
from attrs import define, frozen

from ..events import Event, Reloaded
from ..status import ServerStatus
from . import protocol
from .protocol import LONGEST_ANSWER, PATIENCE, ControlError, HostInfo, Lines, ToolSummary, send
from .sockets import connected, path_of

T_co = TypeVar("T_co", covariant=True)

_KNOWN: Final = frozenset(kind.__name__ for kind in get_args(Event))
_RETRY: Final = 0.05
"""Seconds until a host is tried again that has too many callers."""


@frozen
class ControlClient:
    """A running host. Each request has a connection of its own; cancelling one gives it up.

    All methods raise `ControlError` if the host has ended or does not respond, and what the host raised:
    `UnknownServer`, `ServerDown`, `ConfigError`.
    """

    name: str
    """What the host is called by: see `names_of_hosts`."""

    async def info(self, *, within: float = PATIENCE) -> HostInfo:
        """What host it is, if it says so within so many seconds."""
        return protocol.value_of(HostInfo, await self._ask("host", within=within))

    async def status(self) -> tuple[ServerStatus, ...]:
        """Where every server stands now."""
        return tuple(protocol.value_of(ServerStatus, each) for each in await self._ask("status"))

    async def tools(self, server: str) -> tuple[ToolSummary, ...]:
        """A server's part of the catalogue now."""
        return tuple(protocol.value_of(ToolSummary, each) for each in await self._ask("tools", server=server))

    async def statistics(self, *, by_tool: bool = True) -> dict[str, Any]:
        """Figures, as JSON: the fields of `Supervisor.statistics`."""
        return cast("dict[str, Any]", await self._ask("statistics", by_tool=by_tool))

    async def medians(self) -> dict[str, float]:
        """The p50 of each server's calls, in seconds, of those that have any."""
        seen = (await self.statistics(by_tool=False))["by_server"].items()
        return {name: one["latency"]["p50"] for name, one in seen if one["latency"] is not None}

    async def reconnect(self, server: str) -> None:
        """Start a server afresh now, and wait for the outcome."""
        await self._ask("reconnect", within=math.inf, server=server)

    async def start(self, server: str) -> None:
        """Start a server, unless it runs or is being started."""
        await self._ask("start", within=math.inf, server=server)

    async def stop(self, server: str) -> None:
        """End a server, and wait until everything it owned is closed."""
        await self._ask("stop", within=math.inf, server=server)

    async def reload(self, *, restart: bool = False) -> Reloaded:
        """Have the host read its files again; with `restart` every server begins again."""
        event = protocol.event_of(await self._ask("reload", within=math.inf, restart=restart))
        if not isinstance(event, Reloaded):
            raise ControlError(f"host {self.name} has not said what became of it")
        return event

    @asynccontextmanager
    async def events(self) -> "AsyncGenerator[Notifications[Event], None]":
        """A channel of what happens, while the block lasts; it ends when the host does."""
        async with self._stream("events") as lines:
            yield Notifications(lines, self._lost, _event)

    @asynccontextmanager
    async def stderr(self, server: str, *, follow: bool = False) -> "AsyncGenerator[Notifications[str], None]":
        """A channel of what a server's process writes to standard error, while the block lasts: its last lines, and
        with `follow` those that come."""
        async with self._stream("stderr", server=server, follow=follow) as lines:
            yield Notifications(lines, self._lost, lambda said: str(said.get("line", "")))

    # -- connections --------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, *, within: float = PATIENCE, **params: Any) -> Any:
        async with self._asked(method, params, within=within) as (_, answer):
            return answer

    @asynccontextmanager
    async def _stream(self, method: str, **params: Any) -> AsyncGenerator[Lines, None]:
        async with self._asked(method, params, within=PATIENCE) as (lines, _):
            yield lines

    @asynccontextmanager
    async def _asked(
        self, method: str, params: dict[str, Any], *, within: float
    ) -> AsyncGenerator[tuple[Lines, Any], None]:
        """A request that has been answered, and what follows on its connection, while the block lasts."""
        async with await self._connect() as stream:
            lines = Lines(stream, LONGEST_ANSWER)
            yield lines, await self._answer(stream, lines, protocol.request(method, params), within)

    async def _connect(self) -> trio.SocketStream:
        deadline = trio.current_time() + PATIENCE
        while trio.current_time() < deadline:
            try:
                return trio.SocketStream(trio.socket.from_stdlib_socket(connected(path_of(self.name))))
            except OSError as error:
                problem = error
            if problem.errno != errno.EAGAIN:
                raise ControlError(f"host {self.name} is not running: {problem.strerror or problem}")
            await trio.sleep(_RETRY)
        raise self._silent()

    async def _answer(self, stream: trio.SocketStream, lines: Lines, request: bytes, within: float) -> Any:
        try:
            await send(stream, request)
            line = await lines.next(begin=within)
        except trio.TooSlowError:
            raise self._silent() from None
        except trio.BrokenResourceError:
            line = None
        if line is None:
            raise self._lost()
        return _result(line)

    def _silent(self) -> ControlError:
        return ControlError(f"host {self.name} does not respond")

    def _lost(self) -> ControlError:
        return ControlError(f"host {self.name} has ended")


@define(eq=False)
class Notifications(trio.abc.ReceiveChannel[T_co], Generic[T_co]):
    """What a host says, one after the other, until it or the block ends."""

    _lines: Lines
    _lost: Callable[[], ControlError]
    _read: Callable[[dict[str, Any]], T_co | None]
    """Makes a value of what is said; None if it says nothing to this version."""

    async def receive(self) -> T_co:
        """The next.

        Raises:
            trio.EndOfChannel: Nothing more comes.
            ControlError: The host says what makes no sense, or has ended in the middle of it.
        """
        while True:
            try:
                line = await self._lines.next(begin=math.inf)
            except (trio.BrokenResourceError, trio.TooSlowError):
                raise self._lost() from None
            if line is None:
                raise trio.EndOfChannel
            said = protocol.parsed(line).get("params")
            value = self._read(cast("dict[str, Any]", said)) if isinstance(said, dict) else None
            if value is not None:
                return value

    async def aclose(self) -> None:
        """Nothing: the block closes it."""
        await trio.lowlevel.checkpoint()


def _event(said: dict[str, Any]) -> Event | None:
    return protocol.event_of(said) if said.get("event") in _KNOWN else None


def _result(line: bytes) -> Any:
    message = protocol.parsed(line)
    error = message.get("error")
    if isinstance(error, dict):
        said = cast("dict[str, Any]", error)
        raise protocol.error_of(str(said.get("message")), said.get("data") or {})
    return message.get("result")
