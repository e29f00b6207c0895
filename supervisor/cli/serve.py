"""`mcp-nursery serve`: the servers as one MCP server."""

import os
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio
from attrs import evolve, field, frozen

from mcp_nursery.actors.argument_checks import check_setting, one_of, seconds_or_none
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.process.inherited_marks import VARIABLE
from mcp_nursery.supervisor import ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.gateway import Unattended, gateway_callbacks, open_gateway, serve_stdio
from mcp_nursery.supervisor.gateway.client_streams import ClientStreams, open_client_streams
from mcp_nursery.supervisor.gateway.held import HOLD
from mcp_nursery.supervisor.storage.pins import PinMode
from mcp_nursery.supervisor.watch import reload_or_log

from .command_server import CommandServer
from .failures import OK
from .runtime import Options, load, log_failures, run_async
from .serve_http import HttpFront, HttpServing

GATE = 0.0
"""Seconds to wait for first attempts: a client of all servers is told of each when it is there."""


@frozen
class Serving:
    """What is served, and how."""

    command: Sequence[str] = ()
    """One server; empty: those of the configuration."""
    server: CommandServer = field(factory=CommandServer)
    """What else is said of that server."""
    template: str = "{server}_{tool}"
    timeout: float | None = None
    """Seconds for one call to a server."""
    http: HttpServing | None = None
    """How it is served over HTTP; None: to a client on standard streams."""
    hold: float = HOLD
    """Seconds that a call waits for its client to come back with answers."""
    search: bool = False
    """Whether clients see two tools, which find and call all others."""
    mark: bool = False
    """Whether what servers answer is put between marks."""
    ask: Sequence[str] = ()
    """Globs: calls of these tools are asked about."""
    deny: Sequence[str] = ()
    """Globs: calls of these tools are refused."""
    unattended: Unattended = "allow"
    """What becomes of a call that cannot be asked about."""
    pins: PinMode = "report"
    """What becomes of a tool that is not what it was when it was first used."""
    drain: float = 5.0
    """Seconds that calls under way may take after SIGTERM."""

    @property
    def rules(self) -> ApprovalRules | None:
        """What the gateway has to say of calls; None: approval is the affair of its clients."""
        if not (self.ask or self.deny):
            return None
        return ApprovalRules(denied=self.deny, always_ask=self.ask, allowed=["*"])


def serve(options: Options, serving: Serving) -> int:
    """Serve until the client closes its end, or SIGTERM comes: both are the normal end. A second SIGTERM waits for no
    call."""
    check_setting("timeout", serving.timeout, seconds_or_none)
    check_setting("hold", serving.hold, seconds_or_none)
    check_setting("drain", serving.drain, seconds_or_none)
    check_setting("unattended", serving.unattended, one_of(Unattended))
    check_setting("pins", serving.pins, one_of(PinMode))
    given = _given(options, serving)
    if not options.verbose:
        log_failures()
    only = given.name if isinstance(given, ServerSpec) else None

    front = None if serving.http is None else HttpFront(serving.http)
    hang_up, hang_ups = trio.open_memory_channel[None](1)

    async def main() -> None:
        stop = trio.Event()
        with trio.open_signal_receiver(signal.SIGTERM) as signals, trio.CancelScope() as scope:

            async def listen() -> None:
                async for _ in signals:
                    if stop.is_set():
                        scope.cancel()
                    stop.set()

            async with (
                run_alongside(listen),
                _with_client(given, front, stop) as (streams, servers),
                open_supervisor(
                    servers,
                    callbacks=gateway_callbacks(),
                    approval_rules=serving.rules,
                    template=serving.template,
                    pins=serving.pins,
                    gate=GATE,
                    meter_provider=None if front is None else front.meter_provider,
                ) as supervisor,
                open_gateway(
                    supervisor,
                    hold=serving.hold,
                    search=serving.search,
                    mark=serving.mark,
                    unattended=serving.unattended,
                ) as gateway,
            ):
                if front is None:
                    await serve_stdio(gateway, only, streams=streams, stop=stop.wait, drain=serving.drain)
                else:
                    async with run_alongside(partial(_reload_at, hang_ups, supervisor, front)):
                        await front.serve(gateway, only, serving.drain, stop.wait)

    def hung_up() -> None:
        with suppress(trio.WouldBlock):  # one is about to be seen
            hang_up.send_nowait(None)

    run_async(main, None if front is None else hung_up)
    return OK


@asynccontextmanager
async def _with_client(
    given: ServerSpec | Config, front: HttpFront | None, stop: trio.Event
) -> AsyncGenerator[tuple[ClientStreams | None, ServerSpec | Config], None]:
    """The streams of the only client, and the servers, spoken to as they would be by that client: a server of both
    eras may be able to ask in the older one alone."""
    if front is not None:
        yield None, given
        return
    with open_client_streams() as streams:
        if not await _opens_with_handshake(streams, stop):
            yield streams, given
        elif isinstance(given, Config):
            yield streams, evolve(given, servers=tuple(_handshake_first(spec) for spec in given.servers))
        else:
            yield streams, _handshake_first(given)


async def _opens_with_handshake(streams: ClientStreams, stop: trio.Event) -> bool:
    """Whether the client does. Not, if it is to end before its first message."""
    handshake = False
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(end)
        handshake = await streams.opens_with_handshake()
        nursery.cancel_scope.cancel()
    return handshake


def _handshake_first(spec: ServerSpec) -> ServerSpec:
    return evolve(spec, protocol="handshake-first") if spec.protocol == "auto" else spec


async def _reload_at(signals: AsyncIterable[None], supervisor: Supervisor, front: HttpFront) -> None:
    async for _ in signals:
        front.reload()
        await reload_or_log(supervisor)


def _given(options: Options, serving: Serving) -> ServerSpec | Config:
    """One server, or those of files.

    Raises:
        ConfigError: What was given does not go together, or cannot work.
    """
    if serving.command and options.config:
        raise ConfigError("a command and --config cannot be given together", field="command")
    if serving.command:
        return serving.server.spec(serving.command, call_seconds=serving.timeout)
    if serving.server.given:
        raise ConfigError("is for a server that is given as -- COMMAND", field=serving.server.given)
    if not options.config and VARIABLE in os.environ:
        raise ConfigError("mcp-nursery has started it, and would start itself again; name a file", field="--config")
    return _limited(options, serving)


def _limited(options: Options, serving: Serving) -> Config:
    config = load(options)
    if serving.timeout is None:
        return config
    servers = tuple(
        spec if spec.call_timeout is not None else evolve(spec, call_timeout=serving.timeout) for spec in config.servers
    )
    return evolve(config, servers=servers)
