"""The host's end of the control socket. Whatever a client does costs a bounded amount, and nobody waits for it.

There are so many clients at a time, and each request takes its place for a while at least; the others wait in the
system's queue. Those that are told what happens have a part of the places, so that commands always find one, and who
has asked nothing gives way to others, the longest silent first.
"""

import errno
import logging
import math
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import trio
from attrs import AttrsInstance, asdict, define, evolve, field

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.nurseries import run_alongside

from ..events import DefinitionsChanged, Event, Lagged, SnapshotEvent
from ..supervisor import Supervisor
from . import protocol
from .protocol import LONGEST_ANSWER, LONGEST_REQUEST, PATIENCE, ControlError, HostInfo, Lines, ToolSummary, send
from .sockets import Listener, is_own, listening

logger: Final = logging.getLogger(__name__)

MOST_CLIENTS: Final = 32
"""Connections that are served at once. For one more, the one that has asked for nothing for longest gives way; if none
has asked for nothing, it waits."""
MOST_STREAMS: Final = 16
"""How many of them may be told what happens. More are refused."""
MOST_WAITING: Final = 8
"""Requests of one connection that wait for their turn. Who sends more is let go."""
PAUSE: Final = 0.05
"""Seconds that each request takes its place at least, and that a connection may be silent before it gives way."""
_AT_ONCE: Final = 50
"""Servers, or tools, that are written down in one turn of the loop."""
_LARGE: Final = 1 << 20
"""Characters of definitions in one event: a client hears of a larger one that it was missed."""
_FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


Params = Mapping[str, Any]


class _InvalidParams(Exception):
    """A request says what it cannot say."""


async def serve_control(supervisor: Supervisor, *, task_status: trio.TaskStatus[None]) -> None:
    """Serve this supervisor, until cancelled. It is started once somebody can connect.

    Raises:
        ConfigError: Before it is started: there can be no socket.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = "a folder that was removed"
    with listening() as listener:
        info = HostInfo(listener.name, os.path.basename(sys.argv[0]), folder, (), version("mcp-nursery"))
        task_status.started()
        await ControlServer(supervisor, info).serve(listener)


@define(eq=False)
class ControlServer:
    """Serves a supervisor to whoever connects and is its user, or root."""

    supervisor: Supervisor
    info: HostInfo
    """What this process is, but for its servers."""
    _streams: int = field(default=0, init=False)
    _silent: dict["_Client", float] = field(factory=dict["_Client", float], init=False)
    """Connections on which nothing is asked, and since when; the longest first."""

    async def serve(self, listener: Listener) -> None:
        """Serve, until cancelled."""
        sock, places = trio.socket.from_stdlib_socket(listener.socket), trio.Semaphore(MOST_CLIENTS)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await sock.accept()
                except OSError as error:
                    if error.errno not in _FULL:
                        raise
                    await trio.sleep(1)
                else:
                    stream = trio.SocketStream(connection)
                    async with AsyncExitStack() as unserved:
                        await unserved.enter_async_context(stream)
                        await self._place(places)
                        unserved.pop_all()
                    nursery.start_soon(self._attend, stream, places)

    async def _place(self, places: trio.Semaphore) -> None:
        """Take a place, if need be of who is silent."""
        while True:
            with trio.move_on_after(PAUSE if places.value == 0 and not self._made_way() else math.inf):
                await places.acquire()
                return

    def _made_way(self) -> bool:
        """Whether the longest silent client was let go."""
        for client, since in self._silent.items():
            if trio.current_time() >= since + PAUSE:
                del self._silent[client]
                client.give_way()
                return True
            break
        return False

    @contextmanager
    def silent(self, client: "_Client") -> Generator[None, None, None]:
        """While the block lasts the client asks for nothing."""
        self._silent[client] = trio.current_time()
        try:
            yield
        finally:
            self._silent.pop(client, None)

    async def _attend(self, stream: trio.SocketStream, places: trio.Semaphore) -> None:
        """One client, from its first request to the end. What crashes here is to end no host."""
        try:
            client = _Client(self, stream)
            async with stream:
                if is_own(stream.socket):
                    await client.serve()
            if not client.gave_way:
                await trio.sleep(PAUSE)
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # it has gone, or is as good as gone
        except Exception:
            logger.exception("the control socket failed for a client; please report it")
        finally:
            places.release()

    @contextmanager
    def streaming(self) -> Generator[None, None, None]:
        """A client is told what happens, while the block lasts.

        Raises:
            ControlError: On entering: so many are told already.
        """
        if self._streams >= MOST_STREAMS:
            raise ControlError(f"{MOST_STREAMS} clients follow what happens already; end one of them")
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


@define(eq=False)
class _Client:
    """One connection. A task of its own reads requests: a client that goes is noticed while it waits for an answer."""

    server: ControlServer
    _stream: trio.SocketStream
    gave_way: bool = field(default=False, init=False)
    """Whether it was let go for another one."""
    _life: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def give_way(self) -> None:
        """Let it go."""
        self.gave_way = True
        self._life.cancel()

    async def serve(self) -> None:
        """Answer requests, one after the other, as long as it is connected."""
        requests, waiting = trio.open_memory_channel[bytes](MOST_WAITING)
        with self._life:
            async with run_alongside(partial(self._read, requests)):
                await self._work(waiting)

    async def _work(self, waiting: trio.MemoryReceiveChannel[bytes]) -> None:
        going_on = True
        while going_on:
            with self.server.silent(self), trio.fail_after(PATIENCE):
                line = await waiting.receive()
            going_on = await self._answer(line)
            await trio.sleep(PAUSE)

    async def _read(self, requests: trio.MemorySendChannel[bytes]) -> None:
        lines = Lines(self._stream, LONGEST_REQUEST)
        try:
            while (line := await lines.next(begin=math.inf)) is not None:
                requests.send_nowait(line)  # reading goes on, whatever waits: the end has to be seen
        except ControlError:
            await requests.send(b"")  # too long: it is answered as what cannot be read
            return
        except (trio.BrokenResourceError, trio.TooSlowError, trio.WouldBlock):
            pass
        self._life.cancel()

    async def send(self, message: bytes) -> None:
        """Write a line. See `protocol.send`."""
        await send(self._stream, message)

    async def _answer(self, line: bytes) -> bool:
        """Answer a request; whether another may follow."""
        try:
            message = protocol.parsed(line)
        except ControlError:
            problem = f"not a JSON object on a line of at most {LONGEST_REQUEST} bytes"
            await self.send(protocol.failure(None, protocol.PARSE_ERROR, problem))
            return False
        request, method, params = (message.get(key) for key in ("id", "method", "params"))
        if not isinstance(request, int | str) or not isinstance(method, str) or not isinstance(params or {}, dict):
            await self.send(protocol.failure(None, protocol.INVALID_REQUEST, "not a request of JSON-RPC 2.0"))
            return False
        return await self._do(request, method, params or {})

    async def _do(self, request: int | str, method: str, params: Params) -> bool:
        try:
            if method in _STREAMS:
                with self.server.streaming():
                    await _STREAMS[method](self, params, protocol.result(request, b"null"))
                return False
            if method in _COMMANDS:
                await self.send(protocol.result(request, await _COMMANDS[method](self.server, params)))
                return True
            failure = protocol.failure(request, protocol.METHOD_NOT_FOUND, f"there is no {method[:80]!r} here")
        except _InvalidParams as error:
            failure = protocol.failure(request, protocol.INVALID_PARAMS, str(error))
        except NurseryError as error:
            failure = protocol.failure(request, protocol.FAILED, error.fact, protocol.error_data(error))
        await self.send(failure)
        return True


# -- commands: each gives JSON ---------------------------------------------------------------------------------------


async def _host(server: ControlServer, _params: Params) -> bytes:
    servers = tuple(status.name for status in server.supervisor.status())
    return protocol.encoded(protocol.document(evolve(server.info, servers=servers)))


async def _status(server: ControlServer, _params: Params) -> bytes:
    return await _array(server.supervisor.status())


async def _tools(server: ControlServer, params: Params) -> bytes:
    name = _name(params)
    return await _array(ToolSummary.of(tool) for tool in server.supervisor.tools if tool.server == name)


async def _statistics(server: ControlServer, params: Params) -> bytes:
    return protocol.encoded(asdict(server.supervisor.statistics(by_tool=_truth(params, "by_tool"))))


async def _reconnect(server: ControlServer, params: Params) -> bytes:
    await server.supervisor.reconnect(_name(params))
    return b"null"


async def _start(server: ControlServer, params: Params) -> bytes:
    await server.supervisor.start_server(_name(params))
    return b"null"


async def _stop(server: ControlServer, params: Params) -> bytes:
    await server.supervisor.stop_server(_name(params))
    return b"null"


async def _reload(server: ControlServer, params: Params) -> bytes:
    event = await server.supervisor.reload(restart=_truth(params, "restart"))
    return protocol.encoded(protocol.event_document(event))


_COMMANDS: Final[Mapping[str, Callable[[ControlServer, Params], Awaitable[bytes]]]] = {
    "host": _host,
    "status": _status,
    "tools": _tools,
    "statistics": _statistics,
    "reconnect": _reconnect,
    "start": _start,
    "stop": _stop,
    "reload": _reload,
}


async def _array(values: Iterable[AttrsInstance]) -> bytes:
    """All of them as JSON, some in each turn of the loop."""
    parts: list[bytes] = []
    size = 0
    for number, value in enumerate(values, 1):
        parts.append(protocol.encoded(protocol.document(value)))
        size += len(parts[-1])
        if size > LONGEST_ANSWER:
            raise ControlError(f"what was asked for takes more than {LONGEST_ANSWER >> 20} MiB")
        if number % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return b"[%s]" % b",".join(parts)


def _name(params: Params) -> str:
    server = params.get("server")
    if not isinstance(server, str):
        raise _InvalidParams("'server' must be the name of a server")
    return server


def _truth(params: Params, key: str) -> bool:
    value = params.get(key, False)
    if not isinstance(value, bool):
        raise _InvalidParams(f"{key!r} must be true or false")
    return value


# -- streams: each begins with an answer, and goes on with notifications ----------------------------------------------


async def _events(client: _Client, _params: Params, begin: bytes) -> None:
    supervisor = client.server.supervisor
    async with supervisor.events() as events:
        await client.send(begin)
        async for event in events:
            for line in _lines_of(event, supervisor):
                await client.send(line)


def _lines_of(event: Event, supervisor: Supervisor) -> Generator[bytes, None, None]:
    """An event as notifications. One that is too large is missed, like those that come too fast."""
    definitions = event.changes if isinstance(event, DefinitionsChanged) else ()
    if sum(len(change.before) + len(change.after) for change in definitions) <= _LARGE:
        line = protocol.notification("event", protocol.event_document(event))
        if len(line) <= LONGEST_ANSWER:
            yield line
            return
    instead: list[Event] = [Lagged(1), *map(SnapshotEvent, supervisor.status())]
    for each in instead:
        yield protocol.notification("event", protocol.event_document(each))


async def _stderr(client: _Client, params: Params, begin: bytes) -> None:
    name, follow = _name(params), _truth(params, "follow")
    async with client.server.supervisor.stderr(name) as lines:
        await client.send(begin)
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                line = await lines.receive() if follow else lines.receive_nowait()
                await client.send(protocol.notification("line", {"line": line}))


_STREAMS: Final[Mapping[str, Callable[[_Client, Params, bytes], Awaitable[None]]]] = {
    "events": _events,
    "stderr": _stderr,
}
