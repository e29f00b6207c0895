"""Commands for a host that runs: each finds the host, tells it one thing, and says what came of it."""

from collections.abc import Awaitable, Callable, Sequence

from attrs import asdict, frozen

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.control.protocol import ControlError, HostInfo
from mcp_nursery.supervisor.control.sockets import control_folder, names_of_hosts
from mcp_nursery.supervisor.events import Reloaded
from mcp_nursery.supervisor.status import ServerStatus

from .event_lines import line_of_event, line_of_status
from .failures import OK
from .output import safe_line, safe_text, send_json_line, send_line, warn, write_json, write_line
from .runtime import Interrupted, Options, run_async
from .status import print_statuses
from .statuses import documents
from .watching import watch

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
        raise ControlError("no host is running; start one with 'mcp-nursery run' or open_supervisor(control=True)")
    if len(names) == 1:
        return ControlClient(names[0])
    hosts = [await _info(name) for name in names]
    having = [host for host in hosts if server in host.servers]
    if len(having) == 1:
        return ControlClient(having[0].name)
    said = ", ".join(f"{host.name} ({host.program} in {host.folder})" for host in having or hosts)
    raise ConfigError(f"several hosts are running: {said}; say which with --host PID")


async def has_server(server: str) -> bool:
    """Whether a running host has this server."""
    return any([server in (await _info(name)).servers for name in _names()])


def _names() -> list[str]:
    try:
        return names_of_hosts()
    except OSError as error:
        problem = f"{control_folder()}: {error.strerror or error}"
    raise ControlError(problem)


async def _info(name: str) -> HostInfo:
    try:
        return await ControlClient(name).info(within=_PROMPT)
    except ControlError as error:
        return HostInfo(name, str(error), "", (), "")


# -- commands ---------------------------------------------------------------------------------------------------------


def attached_status(options: Options, wanted: HostOptions) -> int:
    """Show where the servers of a running host stand."""

    async def look() -> tuple[ServerStatus, ...]:
        return await (await find_host(wanted)).status()

    return print_statuses(run_async(look), as_json=options.as_json)


def command(options: Options, wanted: HostOptions, name: str, act: Callable[[ControlClient], Awaitable[None]]) -> int:
    """Tell a running host to do something with this server, and show where it stands then."""

    async def tell() -> Sequence[ServerStatus]:
        host = await find_host(wanted, name)
        await act(host)
        return [status for status in await host.status() if status.name == name]

    statuses = run_async(tell)
    if options.as_json:
        write_json({"servers": documents(statuses)})
    else:
        for status in statuses:
            write_line(safe_line(line_of_status(status)))
    return OK


def reload(options: Options, wanted: HostOptions, *, restart: bool) -> int:
    """Have a running host read its files again."""

    async def tell() -> Reloaded:
        return await (await find_host(wanted)).reload(restart=restart)

    event = run_async(tell)
    if options.as_json:
        write_json({key: value for key, value in asdict(event).items() if key != "at"})
    else:
        write_line(safe_line(line_of_event(event)))
    return OK


def attached_log(options: Options, wanted: HostOptions, name: str, *, follow: bool) -> int:
    """Show what a server of a running host writes to standard error. Ctrl-C is the normal end of following it."""
    said: list[str] = []

    async def tell() -> None:
        host = await find_host(wanted, name)
        async with host.stderr(name, follow=follow) as lines:
            async for line in lines:
                if options.as_json and follow:
                    await send_json_line({"name": name, "line": line})
                elif options.as_json:
                    said.append(line)
                else:
                    await send_line(safe_text(line))
        if not options.as_json and follow:
            warn(f"{name}: nothing more comes: it was removed, or its host has ended")

    try:
        run_async(tell)
    except Interrupted:
        return OK
    if options.as_json and not follow:
        write_json({"name": name, "lines": said})
    return OK


def top(options: Options, wanted: HostOptions) -> int:
    """Show how the servers of a running host do, until `q` or Ctrl-C."""

    async def look() -> None:
        host = await find_host(wanted)
        if not await watch(host, f"mcp-nursery top, host {host.name}", as_json=options.as_json):
            raise ControlError(f"host {host.name} has ended")

    try:
        run_async(look)
    except Interrupted:
        return OK
    return OK
