"""Hosts of this user that run, and which of them a command means."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio
from attrs import frozen

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import open_bare_nursery
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.control.protocol import ControlError, HostInfo
from mcp_nursery.supervisor.control.sockets import control_folder, names_of_hosts

_PROMPT = 2.0
"""Seconds in which a host says who it is."""


@frozen
class HostOptions:
    """What the commands for a running host can be told besides."""

    host: str | None = None
    """What the host is called by; None for the only one, or the only one with the server."""


async def find_host(wanted: HostOptions, server: str | None = None) -> ControlClient:
    """The host that is meant.

    Args:
        wanted: Which, if it was said.
        server: The server that it must have, where several hosts run.

    Raises:
        ControlError: None runs, or not this one.
        ConfigError: It is not clear which.
    """
    names = _names()
    if wanted.host is not None:
        if wanted.host not in names:
            known = f"; running: {', '.join(names)}" if names else ""
            raise ControlError(f"no host {wanted.host} is running{known}")
        return ControlClient(wanted.host)
    if not names:
        raise ControlError("no host is running; start one with 'mcp-nursery run'")
    if len(names) == 1:
        return ControlClient(names[0])
    hosts = await _infos(names)
    having = [host for host in hosts if server in host.servers]
    if len(having) == 1:
        return ControlClient(having[0].name)
    said = ", ".join(f"{host.name} ({host.program} in {host.folder})" for host in having or hosts)
    raise ConfigError(f"several hosts are running: {said}; say which with --host PID")


async def has_server(server: str) -> bool:
    """Whether a running host has this server."""
    return any(server in host.servers for host in await _infos(_names()))


async def hosts_of(config: Config) -> list[HostInfo]:
    """The running hosts that supervise exactly these servers: the same names, each from the same file. One that does
    not respond is none of them."""
    if not config.servers:
        return []
    try:
        names = names_of_hosts()
    except OSError:  # nobody can be asked there; a host has said so when it began
        return []
    own = sorted(spec.name for spec in config.servers)
    sources = {spec.name: _file(spec.source, "") for spec in config.servers}
    hosts = [host for host in await _infos(names) if sorted(host.servers) == own]
    return [host for host in hosts if await _sources(host) == sources]


async def _sources(host: HostInfo) -> dict[str, Path | None]:
    with trio.move_on_after(_PROMPT), suppress(ControlError):  # it has ended, or is of another version
        seen = await ControlClient(host.name).status()
        return {status.name: _file(status.source, host.folder) for status in seen}
    return {}


def _file(source: str | None, folder: str) -> Path | None:
    """The file that is meant by who is in this folder."""
    return None if source is None else Path(folder, source).resolve()


def _names() -> list[str]:
    try:
        return names_of_hosts()
    except OSError as error:
        problem = f"{control_folder()}: {error.strerror or error}"
    raise ControlError(problem)


async def _infos(names: Sequence[str]) -> list[HostInfo]:
    """What each of them says of itself, all asked at once."""
    said: dict[str, HostInfo] = {}
    async with open_bare_nursery() as nursery:
        for name in names:
            nursery.start_soon(partial(_ask, name, said))
    return [said[name] for name in names]


async def _ask(name: str, said: dict[str, HostInfo]) -> None:
    try:
        said[name] = await ControlClient(name).info(within=_PROMPT)
    except ControlError as error:
        said[name] = HostInfo(name, str(error), "", (), "")
