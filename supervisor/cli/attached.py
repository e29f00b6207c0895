"""Commands for a host that runs: each finds the host, tells it one thing, and says what came of it."""

from collections.abc import Awaitable, Callable, Sequence

from attrs import asdict

from mcp_nursery.supervisor.control.client import ControlClient
from mcp_nursery.supervisor.control.protocol import ControlError
from mcp_nursery.supervisor.events import Reloaded
from mcp_nursery.supervisor.status import ServerStatus

from .event_lines import line_of_event, line_of_status
from .failures import OK
from .hosts import HostOptions, find_host
from .output import safe_line, safe_text, send_json_line, send_line, warn, write_json, write_line
from .runtime import Interrupted, Options, run_async
from .statuses import documents
from .watching import watch


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
