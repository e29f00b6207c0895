"""`mcp-nursery serve`: the servers as one MCP server."""

import logging
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from mcp_nursery.actors.argument_checks import check_setting, one_of, seconds_or_none
from mcp_nursery.actors.errors import ConfigError, UnknownServer
from mcp_nursery.actors.nurseries import open_bare_nursery, run_alongside
from mcp_nursery.actors.preload import freeze_loaded, import_all, run_aside
from mcp_nursery.actors.process.inherited_marks import VARIABLE
from mcp_nursery.actors.records import evolve, fields
from mcp_nursery.supervisor import ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.control.sockets import listening
from mcp_nursery.supervisor.events import Lagged, Reloaded
from mcp_nursery.supervisor.gateway import Gateway, Unattended, gateway_callbacks, open_gateway, serve_stdio
from mcp_nursery.supervisor.gateway.stdio.streams import ClientStreams, open_client_streams
from mcp_nursery.supervisor.preload import AHEAD, PATTERNS
from mcp_nursery.supervisor.storage.tool_pins import PinMode
from mcp_nursery.supervisor.tools.naming import matches

from .command_server import CommandServer, option_of
from .failures import OK
from .output import LOG_FORMAT, LogStream, log_object, safe_text, warn
from .runtime import Interrupted, Options, load, log_failures, run_async

if TYPE_CHECKING:
    from .serve_http import HttpFront

logger: Final = logging.getLogger(__name__)

CONTROLLED_AFTER = 1.0
"""Seconds from the start of the servers until commands find this host: the client's first requests come first."""

STDERR_LOGGER = "mcp_nursery.stderr"
"""The logger, in a log of JSON, of what servers write to standard error."""
REVIVED_AFTER = 300.0
"""Seconds after which a failed server starts anew, unless its entry has `revive`: no person watches a gateway."""


def serve(
    options: Options,
    command: Sequence[str],
    *,
    http: str | None,
    template: str,
    timeout: float | None,
    hold: float,
    answer_within: float | None,
    tasks: float | None,
    gate: float,
    drain: float,
    lazy: bool,
    search: bool,
    mark: bool,
    ask: Sequence[str],
    deny: Sequence[str],
    unattended: Unattended,
    pins: PinMode,
    **more: Any,
) -> int:
    """Serve until the client closes its end or SIGTERM comes: both are the normal end. A second SIGTERM ends calls at
    once. `commands.py` explains the options; `more` has the fields of `CommandServer`
    and the arguments of `HttpFront`."""
    server = CommandServer(**{each.name: more.pop(each.name) for each in fields(CommandServer)})
    if http is None:
        _check_without_http(more)
    _check_seconds(timeout=timeout, hold=hold, answer_within=answer_within, tasks=tasks, gate=gate, drain=drain)
    check_setting("--unattended", unattended, one_of(Unattended))
    check_setting("--pins", pins, one_of(PinMode))
    freeze_loaded()
    given = _choose_servers(options, command, server, timeout)
    names = [given.name] if isinstance(given, ServerSpec) else [spec.name for spec in given.servers]
    _check_globs("--deny", deny, names)
    _check_globs("--ask", ask, names)
    if not options.verbose:
        log_failures()
    only = given.name if isinstance(given, ServerSpec) else None

    front = None if http is None else _front(http, more)
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
                _open_client(given, front, stop) as (streams, servers),
                open_bare_nursery() as nursery,
                open_supervisor(
                    servers,
                    callbacks=gateway_callbacks(None if streams is None else streams.capabilities),
                    approval_rules=_rules(ask, deny),
                    template=template,
                    state=options.state,
                    pins=pins,
                    lazy="cached" if lazy else None,
                    gate=0,  # the gateway has its own
                    meter_provider=None if front is None else front.meter_provider,
                ) as supervisor,
                open_gateway(
                    supervisor,
                    hold=hold,
                    answer_within=answer_within,
                    gate=gate,
                    search=search,
                    mark=mark,
                    unattended=unattended,
                    session_keys=None if front is None else front.session_keys,
                    tasks_after=tasks,
                ) as gateway,
                run_alongside(partial(_compile_later, gateway), partial(_serve_control, supervisor)),
            ):
                if front is None:
                    nursery.start_soon(_copy_each_stderr, supervisor, only)
                    await serve_stdio(gateway, only, streams=streams, stop=stop.wait, drain=drain)
                else:
                    async with run_alongside(partial(_reload_at, hang_ups, supervisor, front)):
                        await front.serve(gateway, only, drain, stop.wait)

    def hung_up() -> None:
        with suppress(trio.WouldBlock):  # one is waiting already
            hang_up.send_nowait(None)

    _run_until_stopped(main, None if front is None else hung_up)
    return OK


def _run_until_stopped(main: Callable[[], Awaitable[None]], hung_up: Callable[[], None] | None) -> None:
    try:
        run_async(main, hung_up)
    except Interrupted as interrupted:
        if interrupted.signum != signal.SIGTERM:  # SIGTERM came before there was anything to drain
            raise


async def _compile_later(gateway: Gateway) -> None:
    """Compile the patterns that answers are searched for after the first list, which does not need them. The SDK is
    loaded when something comes that needs its models: most gateways never need them, and take half of the memory."""
    await gateway.has_listed.wait()
    await PATTERNS.ensure_loaded()


async def _serve_control(supervisor: Supervisor) -> None:
    """Serve the commands for running hosts, such as `status` and `reload`. Without a socket for them all else goes
    on."""
    await trio.sleep(CONTROLLED_AFTER)
    try:
        with listening() as listener:
            await trio.lowlevel.wait_readable(listener.socket)
            await run_aside(partial(import_all, "mcp_nursery.supervisor.control.server"))  # which most hosts never need
            from mcp_nursery.supervisor.control.server import serve_clients

            await serve_clients(supervisor, listener)
    except ConfigError as error:
        logger.info("%s", error)


def _check_seconds(**options: float | None) -> None:
    for option, seconds in options.items():
        check_setting(option_of(option), seconds, seconds_or_none)


def _check_without_http(options: Mapping[str, Any]) -> None:
    """Refuse options that need `--http`.

    Raises:
        ConfigError: One was given.
    """
    given = [name for name, value in options.items() if value]
    if given:
        raise ConfigError("needs --http HOST:PORT", field=option_of(min(given)))


def _front(address: str, options: Mapping[str, Any]) -> "HttpFront":
    from .serve_http import HttpFront

    return HttpFront(address, **options)


def _rules(ask: Sequence[str], deny: Sequence[str]) -> ApprovalRules | None:
    """The gateway's own rules for calls; None: its clients approve calls."""
    if not (ask or deny):
        return None
    return ApprovalRules(denied=_with_own_names(deny), always_ask=_with_own_names(ask), allowed=["*"])


def _with_own_names(globs: Iterable[str]) -> Iterator[str]:
    """The globs, and for each without a server one that matches a tool's own name: a client of one server knows only
    those names."""
    for glob in globs:
        yield glob
        if "/" not in glob:
            yield f"*/{glob}"


def _check_globs(option: str, globs: Sequence[str], servers: Sequence[str]) -> None:
    """Warn of globs that match no server: a misspelt glob would allow a call that it should refuse.

    Raises:
        ConfigError: A glob is empty.
    """
    for glob in globs:
        if not glob:
            raise ConfigError("must be SERVER/TOOL, and not empty", field=option)
        server, slash, _ = glob.partition("/")
        if slash and not any(matches(name, [server]) for name in servers):
            warn(f"warning: {option} {glob!r} matches no server; the servers are {', '.join(servers) or 'none'}")


async def _copy_each_stderr(supervisor: Supervisor, only: str | None) -> None:
    """Copy the standard error of each server, also of those that a reload adds. `only`: the name of the only server."""
    copied: set[str] = set()

    async def copy(server: str) -> None:
        with suppress(UnknownServer):  # it was removed at once
            await _copy_stderr(supervisor, server, server != only)
        copied.discard(server)

    async with supervisor.events() as events, trio.open_nursery() as nursery:

        def begin() -> None:
            for name in {status.name for status in supervisor.status()} - copied:
                copied.add(name)
                nursery.start_soon(copy, name)

        begin()
        async for event in events:
            if isinstance(event, Reloaded | Lagged):
                begin()


async def _copy_stderr(supervisor: Supervisor, server: str, named: bool) -> None:
    """Copy a server's standard error to our own, which a host shows to its user. `named`: begin each line with the name
    of the server."""
    log, prefix, as_json = LogStream(), f"{server}: " if named else "", LOG_FORMAT.get() == "json"
    async with supervisor.stderr(server) as lines:
        async for line in lines:
            said = log_object(time.time(), "INFO", STDERR_LOGGER, line, server) if as_json else None
            log.write(f"{said or prefix + safe_text(line)}\n")


@asynccontextmanager
async def _open_client(
    given: ServerSpec | Config, front: "HttpFront | None", stop: trio.Event
) -> AsyncGenerator[tuple[ClientStreams | None, ServerSpec | Config], None]:
    """Yield the streams of the only client, and the servers, in the protocol era of that client: a server of both eras
    may be able to ask its client only in the older one."""
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
    """True if the client opens with a handshake; False also if `stop` comes first."""
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
    from mcp_nursery.supervisor.watch import reload_or_log

    async for _ in signals:
        front.reload()
        await reload_or_log(supervisor)


def _choose_servers(
    options: Options, command: Sequence[str], server: CommandServer, timeout: float | None
) -> ServerSpec | Config:
    """The one server, or those of files. Each is given `revive`, unless its entry has it.

    Raises:
        ConfigError: The options exclude each other, or cannot work.
    """
    if command and options.config:
        raise ConfigError("a command and --config cannot be given together", field="command")
    if command:
        return _with_revive(server.spec(command, call_seconds=timeout))
    if server.first_option:
        raise ConfigError("needs a server given as -- COMMAND", field=server.first_option)
    if not options.config and VARIABLE in os.environ:
        raise ConfigError(
            "mcp-nursery started this process and would start itself again; name a file", field="--config"
        )
    config = load(options).with_each(_with_revive)
    if timeout is None:
        return config
    return config.with_each(lambda spec: spec if spec.call_timeout is not None else evolve(spec, call_timeout=timeout))


def _with_revive(spec: ServerSpec) -> ServerSpec:
    return spec if spec.revive is not None else evolve(spec, revive=("on_call", REVIVED_AFTER))
