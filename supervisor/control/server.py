"""The host's end of the control socket. The cost of a client is bounded, and nothing in the host waits for one.

A fixed number of clients is served at once, and each request holds its place for a while at least; further clients wait
in the system's queue. Streams may take only a part of the places, so that commands always find one. A client without a
request gives way to others, the one that is silent longest first.
"""

import errno
import logging
import math
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

import trio

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.codec import Encoded
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.process.inherited_marks import VARIABLE
from mcp_nursery.actors.protocol import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from mcp_nursery.actors.records import AttrsInstance, asdict, define, evolve, field
from mcp_nursery.actors.version import VERSION

from ..events import DefinitionsChanged, Event, Lagged, Reloaded, SnapshotEvent
from ..orders import ORDERS, InvalidOrder, OrderHost, OrderParams, flag_of, text_of
from ..supervisor import Supervisor
from . import protocol
from .protocol import LONGEST_ANSWER, LONGEST_REQUEST, MESSAGE_TIMEOUT, ControlError, HostInfo, Lines, ToolSummary, send
from .sockets import ControlListener, is_own, listening

logger: Final = logging.getLogger(__name__)

MOST_CLIENTS: Final = 32
"""Connections that are served at once. A further one takes the place of the one that is silent longest; if all have a
request, it waits."""
MOST_STREAMS: Final = 16
"""The number of streams of events and stderr at once. More are refused."""
LEAST_PAUSE: Final = 0.05
"""Seconds for which a connection holds its place at least, after its answer, and for which it may be silent before it
gives way."""
_ROWS_AT_ONCE: Final = 50
"""Servers, or tools, that are encoded in one turn of the loop."""
_LARGEST_EVENT: Final = 1 << 20
"""Characters of definitions in one event: in place of a larger one a client is sent `Lagged`."""
_NOTHING: Final = Encoded(b"null")
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


async def serve_control(supervisor: Supervisor, *, task_status: trio.TaskStatus[None]) -> None:
    """Serve this supervisor, until cancelled. It has started once clients can connect.

    Raises:
        ConfigError: Before it has started: there can be no socket.
    """
    with listening() as listener:
        task_status.started()
        await serve_clients(supervisor, listener)


async def serve_clients(supervisor: Supervisor, listener: ControlListener) -> None:
    """Serve this supervisor to those who connect, until cancelled."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = "a folder that was removed"
    program, nested = os.path.basename(sys.argv[0]), VARIABLE in os.environ
    info = HostInfo(listener.name, program, folder, (), VERSION, nested=nested)
    await ControlServer(supervisor, info).serve(listener)


@define(eq=False)
class ControlServer:
    """The server of a supervisor's clients, which are its user or root."""

    supervisor: Supervisor
    info: HostInfo
    """The description of this process, without its servers."""
    _streams: int = field(default=0, init=False)
    _silent: dict["_ControlClient", float] = field(factory=dict["_ControlClient", float], init=False)
    """Connections without a request, and the times since when; the one that is silent longest first."""

    async def serve(self, listener: ControlListener) -> None:
        """Serve, until cancelled."""
        sock, places = trio.socket.from_stdlib_socket(listener.socket), trio.Semaphore(MOST_CLIENTS)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await sock.accept()
                except OSError as error:
                    if error.errno not in _OUT_OF_RESOURCES:
                        raise
                    await trio.sleep(1)
                else:
                    stream = trio.SocketStream(connection)
                    async with AsyncExitStack() as unserved:
                        await unserved.enter_async_context(stream)
                        await self._acquire_place(places)
                        unserved.pop_all()
                    nursery.start_soon(self._serve_client, stream, places)

    async def _acquire_place(self, places: trio.Semaphore) -> None:
        """Take a place, if need be that of a silent client."""
        while True:
            with trio.move_on_after(LEAST_PAUSE if places.value == 0 and not self._disconnect_silent() else math.inf):
                await places.acquire()
                return

    def _disconnect_silent(self) -> bool:
        """Disconnect the client that is silent longest. True if there was one."""
        for client, since in self._silent.items():
            if trio.current_time() >= since + LEAST_PAUSE:
                del self._silent[client]
                client.give_way()
                return True
            break
        return False

    @contextmanager
    def silent(self, client: "_ControlClient") -> Generator[None, None, None]:
        """Count the client as silent for a block."""
        self._silent[client] = trio.current_time()
        try:
            yield
        finally:
            self._silent.pop(client, None)

    async def _serve_client(self, stream: trio.SocketStream, places: trio.Semaphore) -> None:
        """Serve one client to its end. A crash here must not end the host."""
        try:
            client = _ControlClient(self, stream)
            async with stream:
                if is_own(stream.socket):
                    await client.serve()
            if not client.gave_way:
                await trio.sleep(LEAST_PAUSE)
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # it has gone, or does not respond
        except Exception:
            logger.exception("the control socket failed for a client; please report it")
        finally:
            places.release()

    @contextmanager
    def streaming(self) -> Generator[None, None, None]:
        """Hold one of the streams for a block.

        Raises:
            ControlError: On entering: all are taken.
        """
        if self._streams >= MOST_STREAMS:
            raise ControlError(f"{MOST_STREAMS} clients follow events or logs already; end one of them")
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


@define(eq=False)
class _ControlClient:
    """One connection, which has one request."""

    server: ControlServer
    _stream: trio.SocketStream
    gave_way: bool = field(default=False, init=False)
    """True if it was disconnected for another one."""
    _life: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def give_way(self) -> None:
        """Disconnect it for another one."""
        self.gave_way = True
        self._life.cancel()

    async def send(self, message: bytes) -> None:
        """Write a message, as `protocol.send` does."""
        await send(self._stream, message)

    async def serve(self) -> None:
        """Answer the request, unless the client goes or sends more meanwhile."""
        lines = Lines(self._stream, LONGEST_REQUEST)
        with self._life:
            try:
                with self.server.silent(self), trio.fail_after(MESSAGE_TIMEOUT):
                    line = await lines.next()
                message = None if line is None else protocol.parse(line)
            except ControlError:
                problem = f"not a JSON object on a line of at most {LONGEST_REQUEST} bytes"
                await self.send(codec.error(None, PARSE_ERROR, problem))
                return
            if message is not None:
                async with run_alongside(partial(self._watch, lines)):
                    await self._answer(message)

    async def _watch(self, lines: Lines) -> None:
        """Disconnect the client when it goes, or sends more than its request."""
        with suppress(ControlError, trio.BrokenResourceError, trio.TooSlowError):
            await lines.next(begin=math.inf)
        self._life.cancel()

    async def _answer(self, message: Mapping[str, Any]) -> None:
        request, method, params = (message.get(key) for key in ("id", "method", "params"))
        if not isinstance(request, int | str) or not isinstance(method, str) or not isinstance(params or {}, dict):
            await self.send(codec.error(None, INVALID_REQUEST, "not a request of JSON-RPC 2.0"))
            return
        try:
            await self._execute(request, method, params or {})
        except InvalidOrder as error:
            failure = codec.error(request, INVALID_PARAMS, error.fact)
        except NurseryError as error:
            failure = codec.error(request, protocol.FAILED, error.fact, protocol.error_data(error))
        else:
            return
        await self.send(failure)

    async def _execute(self, request: int | str, method: str, params: OrderParams) -> None:
        if method in _STREAMS:
            with self.server.streaming():
                await _STREAMS[method](self, params, codec.result(request, _NOTHING))
        elif method in _COMMANDS:
            answer = await _COMMANDS[method](self.server, params)
            await self.send(codec.result(request, Encoded(answer)))
        else:
            await self.send(codec.error(request, METHOD_NOT_FOUND, f"there is no {method[:80]!r} here"))


# -- commands: each returns JSON -------------------------------------------------------------------------------------


async def _host(server: ControlServer, _params: OrderParams) -> bytes:
    servers = tuple(status.name for status in server.supervisor.status())
    return protocol.encode(protocol.document(evolve(server.info, servers=servers)))


async def _status(server: ControlServer, _params: OrderParams) -> bytes:
    return await _array(server.supervisor.status())


async def _tools(server: ControlServer, params: OrderParams) -> bytes:
    name = text_of(params, "server")
    return await _array(ToolSummary.of(tool) for tool in server.supervisor.tools if tool.server == name)


async def _statistics(server: ControlServer, params: OrderParams) -> bytes:
    return protocol.encode(asdict(server.supervisor.statistics(by_tool=flag_of(params, "by_tool"))))


async def _submit(server: ControlServer, params: OrderParams) -> bytes:
    arguments, timeout = params.get("arguments"), params.get("timeout")
    if not isinstance(arguments, dict) or not isinstance(timeout, int | float | None):
        raise InvalidOrder("'arguments' must be an object, and 'timeout' a number or null")
    name, owner = text_of(params, "name"), text_of(params, "server")
    given = cast("dict[str, Any]", arguments)
    try:
        task = await server.supervisor.submit(name, given, server=owner, timeout=timeout)
    except ValueError as error:
        raise InvalidOrder(str(error)) from None
    return protocol.encode(protocol.document(task.info))


async def _order(order: str, server: ControlServer, params: OrderParams) -> bytes:
    outcome = await ORDERS[order](OrderHost(server.supervisor), params)
    return protocol.encode(protocol.event_document(outcome) if isinstance(outcome, Reloaded) else None)


_COMMANDS: Final[Mapping[str, Callable[[ControlServer, OrderParams], Awaitable[bytes]]]] = {
    "host": _host,
    "status": _status,
    "tools": _tools,
    "statistics": _statistics,
    "submit": _submit,
    **{name: partial(_order, name) for name in ("reconnect", "start", "stop", "reload")},
}


async def _array(values: Iterable[AttrsInstance]) -> bytes:
    """Encode these values, some of them in each turn of the loop."""
    parts: list[bytes] = []
    size = 0
    for number, value in enumerate(values, 1):
        parts.append(protocol.encode(protocol.document(value)))
        size += len(parts[-1])
        if size > LONGEST_ANSWER:
            raise ControlError(f"the answer takes more than {LONGEST_ANSWER >> 20} MiB")
        if number % _ROWS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return b"[%s]" % b",".join(parts)


# -- streams: each begins with an answer, and goes on with notifications ----------------------------------------------


async def _events(client: _ControlClient, _params: OrderParams, begin: bytes) -> None:
    supervisor = client.server.supervisor
    async with supervisor.events() as events:
        await client.send(begin)
        async for event in events:
            for line in _encode_event(event, supervisor):
                await client.send(line)


def _encode_event(event: Event, supervisor: Supervisor) -> Generator[bytes, None, None]:
    """Encode an event as notifications. An event that is too large is missed, like events that come too fast."""
    definitions = event.changes if isinstance(event, DefinitionsChanged) else ()
    if sum(len(change.before) + len(change.after) for change in definitions) <= _LARGEST_EVENT:
        line = _notification("event", protocol.event_document(event))
        if len(line) <= LONGEST_ANSWER:
            yield line
            return
    instead: list[Event] = [Lagged(1), *map(SnapshotEvent, supervisor.status())]
    for each in instead:
        yield _notification("event", protocol.event_document(each))


def _notification(method: str, params: Mapping[str, Any]) -> bytes:
    return codec.notification(method, Encoded(protocol.encode(params)))


async def _stderr(client: _ControlClient, params: OrderParams, begin: bytes) -> None:
    name, follow = text_of(params, "server"), flag_of(params, "follow")
    async with client.server.supervisor.stderr(name) as lines:
        await client.send(begin)
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                line = await lines.receive() if follow else lines.receive_nowait()
                await client.send(_notification("line", {"line": line}))


_STREAMS: Final[Mapping[str, Callable[[_ControlClient, OrderParams, bytes], Awaitable[None]]]] = {
    "events": _events,
    "stderr": _stderr,
}
