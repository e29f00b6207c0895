"""`mcp-nursery serve`: the servers as one MCP server."""

import os
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import trio
from attrs import evolve, field, frozen

from mcp_nursery.actors.argument_checks import check_setting, one_of, seconds_or_none
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import open_bare_nursery, run_alongside
from mcp_nursery.actors.process.inherited_marks import VARIABLE
from mcp_nursery.supervisor import ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.gateway import Gateway, Unattended, gateway_callbacks, open_gateway, serve_stdio
from mcp_nursery.supervisor.gateway.client_streams import ClientStreams, open_client_streams
from mcp_nursery.supervisor.gateway.gate import GATE
from mcp_nursery.supervisor.gateway.held import HOLD
from mcp_nursery.supervisor.preload import AHEAD, freeze_loaded, loaded
from mcp_nursery.supervisor.storage.pins import PinMode
from mcp_nursery.supervisor.tools.filters import matches
from mcp_nursery.supervisor.watch import reload_or_log

from .command_server import CommandServer
from .failures import OK
from .http_options import HttpServing
from .output import LogStream, safe_text, warn
from .runtime import Interrupted, Options, load, log_failures, run_async

if TYPE_CHECKING:
    from .serve_http import HttpFront

LOADED_AFTER = 1.0
"""Seconds after a first list until what calls need is loaded, unless one comes before."""

REVIVED_AFTER = 300.0
"""Seconds after which a server that has failed is started afresh, unless its entry says what does: nobody watches."""


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
    gate: float = GATE
    """Seconds that lists wait at most for servers of which nothing is known yet."""
    lazy: bool = False
    """Whether a server whose tools are known is started by its first call, whatever its entry says."""
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
        return ApprovalRules(denied=_by_any_name(self.deny), always_ask=_by_any_name(self.ask), allowed=["*"])


def serve(options: Options, serving: Serving) -> int:
    """Serve until the client closes its end, or SIGTERM comes: both are the normal end. A second SIGTERM waits for no
    call."""
    for option in ("timeout", "hold", "gate", "drain"):
        check_setting(f"--{option}", getattr(serving, option), seconds_or_none)
    check_setting("--unattended", serving.unattended, one_of(Unattended))
    check_setting("--pins", serving.pins, one_of(PinMode))
    freeze_loaded()
    given = _given(options, serving)
    _check_globs(serving, [given.name] if isinstance(given, ServerSpec) else [spec.name for spec in given.servers])
    if not options.verbose:
        log_failures()
    only = given.name if isinstance(given, ServerSpec) else None

    front = None if serving.http is None else _front(serving.http)
    hang_up, hang_ups = trio.open_memory_channel[None](1)

    async def main() -> None:
        AHEAD.set(False)
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
                open_bare_nursery() as nursery,
                open_supervisor(
                    servers,
                    callbacks=gateway_callbacks(None if streams is None else streams.capabilities),
                    approval_rules=serving.rules,
                    template=serving.template,
                    pins=serving.pins,
                    lazy="cached" if serving.lazy else None,
                    gate=0,  # the gateway has its own
                    meter_provider=None if front is None else front.meter_provider,
                ) as supervisor,
                open_gateway(
                    supervisor,
                    hold=serving.hold,
                    gate=serving.gate,
                    search=serving.search,
                    mark=serving.mark,
                    unattended=serving.unattended,
                ) as gateway,
                run_alongside(partial(_load_in_peace, gateway)),
            ):
                if front is None:
                    for status in supervisor.status():
                        nursery.start_soon(_pass_on_stderr, supervisor, status.name, status.name != only)
                    await serve_stdio(gateway, only, streams=streams, stop=stop.wait, drain=serving.drain)
                else:
                    async with run_alongside(partial(_reload_at, hang_ups, supervisor, front)):
                        await front.serve(gateway, only, serving.drain, stop.wait)

    def hung_up() -> None:
        with suppress(trio.WouldBlock):  # one is about to be seen
            hang_up.send_nowait(None)

    _run_to_the_end(main, None if front is None else hung_up)
    return OK


def _run_to_the_end(main: Callable[[], Awaitable[None]], hung_up: Callable[[], None] | None) -> None:
    try:
        run_async(main, hung_up)
    except Interrupted as interrupted:
        if interrupted.signum != signal.SIGTERM:  # that one came before there was anything to drain
            raise


async def _load_in_peace(gateway: Gateway) -> None:
    """Load what a call needs, but not beside the first answers, which need none of it."""
    await gateway.has_listed.wait()
    await trio.sleep(LOADED_AFTER)
    await loaded()


def _front(serving: HttpServing) -> "HttpFront":
    from .serve_http import HttpFront

    return HttpFront(serving)


def _by_any_name(globs: Iterable[str]) -> Iterator[str]:
    """One without a server fits a tool by its own name as well: a client of one server knows no other."""
    for glob in globs:
        yield glob
        if "/" not in glob:
            yield f"*/{glob}"


def _check_globs(serving: Serving, servers: Sequence[str]) -> None:
    """Whoever misspells what he wants refused has to hear of it: it would be allowed.

    Raises:
        ConfigError: A glob is empty.
    """
    for option, globs in (("--deny", serving.deny), ("--ask", serving.ask)):
        for glob in globs:
            if not glob:
                raise ConfigError("must be SERVER/TOOL, and not empty", field=option)
            server, slash, _ = glob.partition("/")
            if slash and not any(matches(name, [server]) for name in servers):
                warn(f"warning: {option} {glob!r} fits no server: there are {', '.join(servers) or 'none'}")


async def _pass_on_stderr(supervisor: Supervisor, server: str, named: bool) -> None:
    """Write to our standard error what a server's process writes to its own, to the end: a host shows it to its user.
    `named`: each line says which server it is."""
    log, prefix = LogStream(), f"{server}: " if named else ""
    async with supervisor.stderr(server) as lines:
        async for line in lines:
            log.write(f"{prefix}{safe_text(line)}\n")


@asynccontextmanager
async def _with_client(
    given: ServerSpec | Config, front: "HttpFront | None", stop: trio.Event
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
            yield streams, given.with_each(_handshake_first)
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


async def _reload_at(signals: AsyncIterable[None], supervisor: Supervisor, front: "HttpFront") -> None:
    async for _ in signals:
        front.reload()
        await reload_or_log(supervisor)


def _given(options: Options, serving: Serving) -> ServerSpec | Config:
    """One server, or those of files. What has failed comes back by itself, unless its entry says otherwise.

    Raises:
        ConfigError: What was given does not go together, or cannot work.
    """
    if serving.command and options.config:
        raise ConfigError("a command and --config cannot be given together", field="command")
    if serving.command:
        return _revived(serving.server.spec(serving.command, call_seconds=serving.timeout))
    if serving.server.given:
        raise ConfigError("is for a server that is given as -- COMMAND", field=serving.server.given)
    if not options.config and VARIABLE in os.environ:
        raise ConfigError("mcp-nursery has started it, and would start itself again; name a file", field="--config")
    config, timeout = load(options).with_each(_revived), serving.timeout
    if timeout is None:
        return config
    return config.with_each(lambda spec: spec if spec.call_timeout is not None else evolve(spec, call_timeout=timeout))


def _revived(spec: ServerSpec) -> ServerSpec:
    return spec if spec.revive is not None else evolve(spec, revive=("on_call", REVIVED_AFTER))
