"""Running hosts of this user: the choice of the host that a command means, and the commands that send a host one
request: `reconnect`, `stop`, `start`, `reload` and `logs`."""

import os
import shlex
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError, NurseryError
from mcp_nursery.actors.nurseries import open_bare_nursery
from mcp_nursery.actors.records import asdict, evolve
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.control.protocol import ControlError, HostInfo
from mcp_nursery.supervisor.control.sockets import control_folder, names_of_hosts
from mcp_nursery.supervisor.events import Reloaded
from mcp_nursery.supervisor.security.trust import TrustRequest
from mcp_nursery.supervisor.status import ServerStatus

from .failures import NOT_APPROVED, OK
from .output import safe_line, safe_text, send_json_line, send_line, warn, write_json, write_line
from .runtime import Interrupted, Options, check_server, load, run_async, servers_of
from .statuses import documents, error_of, first_names, line_of_event, line_of_status, worked

_INFO_TIMEOUT: Final = 2.0
"""Seconds in which a host has to describe itself."""

# -- commands ---------------------------------------------------------------------------------------------------------


def order(options: Options, name: str, host: str | None, *, action: str) -> int:
    """Have a running host reconnect, stop or start this server, and print its state then."""

    async def send() -> Sequence[ServerStatus]:
        client = await find_host(host, name)
        await client.give_order(action, server=name)
        return [status for status in await client.status() if status.name == name]

    statuses = run_async(send)
    if options.as_json:
        write_json({"servers": documents(statuses)})
    else:
        for status in statuses:
            write_line(safe_line(line_of_status(status)))
    return OK


def reload(options: Options, host: str | None, *, restart: bool) -> int:
    """Have a running host read its files again. Fails if a server needs somebody's trust."""

    async def send() -> tuple[Reloaded, Sequence[str]]:
        client = await find_host(host)
        event: Reloaded = await client.give_order("reload", restart=restart)
        return event, await _files_of(client, event.untrusted) if event.untrusted else ()

    event, files = run_async(send)
    if options.as_json:
        write_json({key: value for key, value in asdict(event).items() if key != "at"})
    else:
        write_line(safe_line(line_of_event(event)))
    for file in files:
        warn(f"{file}: servers in it are not trusted; review them with 'mcp-nursery trust {shlex.quote(file)}'")
    return NOT_APPROVED if event.untrusted else OK


async def _files_of(client: ControlClient, servers: Collection[str]) -> Sequence[str]:
    """The files of these servers of a host."""
    folder, statuses = (await client.info()).folder, await client.status()
    files = (os.path.join(folder, each.source) for each in statuses if each.name in servers and each.source)
    return list(dict.fromkeys(files))


async def start_trusted(requests: Iterable[TrustRequest]) -> list[str]:
    """Have running hosts start the servers that were blocked for want of trust in these. Returns a line for each. A
    host that does not respond is left out."""
    trusted = {(request.server, _file(request.file, "")) for request in requests}
    started: list[str] = []
    for host in await _infos(_names_or_none()):
        with trio.move_on_after(_INFO_TIMEOUT), suppress(NurseryError):  # it has ended, or is of another version
            client = ControlClient(host.name)
            for status in await client.status():
                is_meant = (status.name, _file(status.source, host.folder)) in trusted
                if is_meant and status.state is ServerState.BLOCKED:
                    await client.give_order("start", server=status.name)
                    started.append(f"{status.name}: started by host {host.name} ({host.program} in {host.folder})")
    return started


def logs(options: Options, name: str, host: str | None, *, follow: bool) -> int:
    """Print what a server of a running host writes to standard error, or else of one that is started for it."""
    named = options.config or options.trust or not options.project
    if follow or host is not None or (not named and run_async(partial(_any_has, name))):
        return _print_log(options, host, name, follow=follow)
    return _print_first_lines(options, name)


def _print_log(options: Options, host: str | None, name: str, *, follow: bool) -> int:
    """Print the log of a server of a running host. Ctrl-C is the normal end of following it."""
    read: list[str] = []

    async def send() -> None:
        client = await find_host(host, name)
        async with client.stderr(name, follow=follow) as lines:
            async for line in lines:
                if options.as_json and follow:
                    await send_json_line({"name": name, "line": line})
                elif options.as_json:
                    read.append(line)
                else:
                    await send_line(safe_text(line))
        if not options.as_json and follow:
            warn(f"{name}: no more lines: the server was removed, or its host has ended")

    try:
        run_async(send)
    except Interrupted:
        return OK
    if options.as_json and not follow:
        write_json({"name": name, "lines": read})
    return OK


def _print_first_lines(options: Options, name: str) -> int:
    """Start this server alone, wait until it is connected or has failed, and print the end of its log. Fails if it does
    not work."""
    config = load(options)
    check_server(config, name)
    alone = evolve(config, servers=tuple(spec for spec in config.servers if spec.name == name))

    async def look() -> tuple[ServerStatus, ...]:
        async with servers_of(options, alone) as supervisor:
            return supervisor.status()

    (status,) = run_async(look)
    if options.as_json:
        (document,) = documents([status])
        write_json({key: document[key] for key in ("name", "state", "error", "stderr_tail")})
        return worked([status])
    for line in (status.stderr_tail or "").splitlines():
        write_line(safe_text(line))
    if error := error_of(status):
        warn(f"{status.name}: {error}")
    elif not status.stderr_tail:
        warn(f"{status.name}: it is {status.state} and has written nothing to standard error")
    return worked([status])


# -- hosts ------------------------------------------------------------------------------------------------------------


async def find_host(name: str | None, server: str | None = None) -> ControlClient:
    """Find the host with this name; without a name, the only one, or if several hosts run, the only one with the
    server. A host that another one has started counts only if no other may be meant.

    Raises:
        ControlError: No host runs, or not this one.
        ConfigError: Several hosts may be meant.
    """
    names = _names()
    if name is not None:
        if name not in names:
            known = f"; running: {', '.join(names)}" if names else ""
            raise ControlError(f"no host {name} is running{known}")
        return ControlClient(name)
    if not names:
        raise ControlError("no host is running; start one with 'mcp-nursery run'")
    if len(names) == 1:
        return ControlClient(names[0])
    hosts = await _infos(names)
    meant = [host for host in hosts if server in host.servers] or hosts
    meant = [host for host in meant if not host.nested] or meant
    if len(meant) == 1:
        return ControlClient(meant[0].name)
    listed = ", ".join(f"{host.name} ({_described(host)})" for host in meant)
    raise ConfigError(f"several hosts are running: {listed}; choose one with --host PID")


def _described(host: HostInfo) -> str:
    return f"{first_names(host.servers) or 'no servers'}: {host.program} in {host.folder}"


async def _any_has(server: str) -> bool:
    """True if a running host has this server."""
    return any(server in host.servers for host in await _infos(_names()))


async def hosts_of(config: Config) -> list[HostInfo]:
    """The running hosts that supervise exactly these servers: the same names, each from the same file. A host that does
    not respond is left out."""
    if not config.servers:
        return []
    own = sorted(spec.name for spec in config.servers)
    sources = {spec.name: _file(spec.source, "") for spec in config.servers}
    hosts = [host for host in await _infos(_names_or_none()) if sorted(host.servers) == own]
    return [host for host in hosts if await _sources(host) == sources]


async def _sources(host: HostInfo) -> dict[str, Path | None]:
    with trio.move_on_after(_INFO_TIMEOUT), suppress(ControlError):  # it has ended, or is of another version
        seen = await ControlClient(host.name).status()
        return {status.name: _file(status.source, host.folder) for status in seen}
    return {}


def _file(source: str | None, folder: str) -> Path | None:
    """The file of this name, seen from this folder."""
    return None if source is None else Path(folder, source).resolve()


def _names_or_none() -> list[str]:
    """The names of the hosts; none if the folder cannot be used: each host has warned of that at its start."""
    with suppress(OSError):
        return names_of_hosts()
    return []


def _names() -> list[str]:
    try:
        return names_of_hosts()
    except OSError as error:
        problem = f"{control_folder()}: {error.strerror or error}"
    raise ControlError(problem)


async def _infos(names: Sequence[str]) -> list[HostInfo]:
    """The descriptions of these hosts, all requested at once."""
    infos: dict[str, HostInfo] = {}

    async def ask(name: str) -> None:
        try:
            infos[name] = await ControlClient(name).info(within=_INFO_TIMEOUT)
        except ControlError as error:
            infos[name] = HostInfo(name, str(error), "", (), "")

    async with open_bare_nursery() as nursery:
        for name in names:
            nursery.start_soon(ask, name)
    return [infos[name] for name in names]
