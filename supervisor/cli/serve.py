"""`mcp-nursery serve`: the servers as one MCP server."""

import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import PurePath

import trio
from attrs import evolve, frozen

from mcp_nursery.actors.argument_checks import check_setting, seconds_or_none
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.gateway import Gateway, gateway_callbacks, open_gateway, serve_stdio
from mcp_nursery.supervisor.gateway.held import HOLD
from mcp_nursery.supervisor.gateway.web_server import bound, serve_http

from .failures import OK
from .runtime import Options, load, run_async

GATE = 0.0
"""Seconds to wait for first attempts: a client of all servers is told of each when it is there."""


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Where nobody else on the network can reach it: it asks nobody who he is."""


@frozen
class Serving:
    """What is served, and how."""

    command: Sequence[str] = ()
    """One server; empty: those of the configuration."""
    template: str = "{server}_{tool}"
    timeout: float | None = None
    """Seconds for one call to a server."""
    http: str | None = None
    """Where to listen, as `HOST:PORT`; None: a client on standard streams."""
    hold: float = HOLD
    """Seconds that a call waits for its client to come back with answers."""
    search: bool = False
    """Whether clients see two tools, which find and call all others."""
    drain: float = 5.0
    """Seconds that calls under way may take after SIGTERM."""


def serve(options: Options, serving: Serving) -> int:
    """Serve until the client closes its end, or SIGTERM comes: both are the normal end."""
    check_setting("timeout", serving.timeout, seconds_or_none)
    check_setting("hold", serving.hold, seconds_or_none)
    check_setting("drain", serving.drain, seconds_or_none)
    if serving.command and options.config:
        raise ConfigError("a command and --config cannot be given together", field="command")
    given = _of_command(serving) if serving.command else _limited(options, serving)
    only = given.name if isinstance(given, ServerSpec) else None

    listening = None if serving.http is None else _listening(serving.http)

    async def main() -> None:
        stop = trio.Event()
        with trio.open_signal_receiver(signal.SIGTERM) as signals:  # until all is closed: it is no failure, sent twice

            async def listen() -> None:
                async for _ in signals:
                    stop.set()

            async with (
                run_alongside(listen),
                open_supervisor(
                    given, callbacks=gateway_callbacks(), template=serving.template, gate=GATE
                ) as supervisor,
                open_gateway(supervisor, hold=serving.hold, search=serving.search) as gateway,
            ):
                if listening is None:
                    await serve_stdio(gateway, only, stop=stop.wait, drain=serving.drain)
                else:
                    await _serve_port(gateway, listening, only, serving.drain, stop)

    run_async(main)
    return OK


def _of_command(serving: Serving) -> ServerSpec:
    """The one server. It has the environment that its host meant for it, and a failure is not for good: there is nobody
    who could start it again."""
    program, *args = serving.command
    transport = StdioTransport(program, args, inherit_env=True)
    name = PurePath(program).stem or "server"
    return ServerSpec(name, transport, revive="on_call", call_timeout=serving.timeout)


def _limited(options: Options, serving: Serving) -> Config:
    config = load(options)
    if serving.timeout is None:
        return config
    servers = tuple(
        spec if spec.call_timeout is not None else evolve(spec, call_timeout=serving.timeout) for spec in config.servers
    )
    return evolve(config, servers=servers)


def _listening(address: str) -> socket.socket:
    """The socket to serve on.

    Raises:
        ConfigError: The address is none, or not of this machine alone.
    """
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(f"must be HOST:PORT, such as 127.0.0.1:8000, not {address!r}", field="--http")
    if host not in _LOOPBACK:
        raise ConfigError(f"{host} is not of this machine alone; one of {', '.join(_LOOPBACK)}", field="--http")
    return bound(host, int(port))


async def _serve_port(
    gateway: Gateway, listening: socket.socket, only: str | None, drain: float, stop: trio.Event
) -> None:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"serving on http://{shown}:{port}/mcp\n")
    sys.stderr.flush()
    await serve_http(gateway, listening, server=only, drain=drain, stop=stop.wait)
