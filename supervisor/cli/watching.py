"""`mcp-nursery run` and `top`: running servers on a full screen that takes orders, or with a line for each event."""

import io
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, redirect_stderr, suppress

import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.actors.preload import freeze_loaded
from mcp_nursery.supervisor import Supervisor, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.control.protocol import ControlError, event_document
from mcp_nursery.supervisor.events import Event
from mcp_nursery.supervisor.preload import AHEAD, PATTERNS
from mcp_nursery.supervisor.watch import reload_or_log

from .failures import OK
from .output import StdoutClosed, safe_line, send_json_line, send_line, warn
from .running_hosts import find_host
from .runtime import Interrupted, Options, load, run_async
from .screen.screen import Screen
from .screen.terminal import open_tty, take_terminal
from .screen.viewer import OwnHost, Viewer, WatchedHost
from .statuses import is_step, line_of_event


def run(options: Options, *, web: str | None) -> int:
    """Supervise the servers and show their state. `q` and Ctrl-C are its normal end; SIGHUP reloads the files."""
    freeze_loaded()
    config = load(options)
    hang_up, hang_ups = trio.open_memory_channel[None](1)

    async def supervise() -> None:
        AHEAD.set(False)  # somebody may call a tool on the page, and most never do
        async with (
            _open(options, config) as supervisor,
            _serve_page(supervisor, web),
            run_alongside(lambda: _reload_at(hang_ups, supervisor), PATTERNS.ensure_loaded),
        ):
            await watch(OwnHost(supervisor), "mcp-nursery run", as_json=options.as_json)

    def hung_up() -> None:
        with suppress(trio.WouldBlock):  # one is waiting already
            hang_up.send_nowait(None)

    try:
        run_async(supervise, hung_up)
    except (Interrupted, KeyboardInterrupt):
        return OK
    return OK


async def _reload_at(signals: AsyncIterable[None], supervisor: Supervisor) -> None:
    async for _ in signals:
        await reload_or_log(supervisor)


@asynccontextmanager
async def _open(options: Options, config: Config) -> AsyncGenerator[Supervisor]:
    """Open the servers, with a control socket if possible."""
    async with AsyncExitStack() as stack:
        try:
            supervisor = await stack.enter_async_context(
                open_supervisor(config, state=options.state, gate=0.0, watch=True, control=True)
            )
        except ConfigError as error:
            if error.field != "control":
                raise
            warn(f"warning: {error}")
            supervisor = await stack.enter_async_context(
                open_supervisor(config, state=options.state, gate=0.0, watch=True)
            )
        yield supervisor


@asynccontextmanager
async def _serve_page(supervisor: Supervisor, web: str | None) -> AsyncGenerator[None]:
    if web is None:
        yield
        return
    from .web.serving import serve_page

    async with serve_page(supervisor, web):
        yield


def top(options: Options, host: str | None) -> int:
    """Show the servers of a running host, until `q` or Ctrl-C."""

    async def look() -> None:
        client = await find_host(host)
        if not await watch(client, f"mcp-nursery top, host {client.name}", as_json=options.as_json):
            raise ControlError(f"host {client.name} has ended")

    try:
        run_async(look)
    except Interrupted:
        return OK
    return OK


async def watch(host: WatchedHost, title: str, *, as_json: bool) -> bool:
    """Show the servers of a host: on the full screen of a terminal, until a person quits; otherwise in lines, until
    events end. True if a person quit."""
    tty = None if as_json else open_tty()
    if tty is None:
        async with host.events() as events:
            await print_events(events, as_json=as_json)
        return False
    async with take_terminal(tty) as terminal:
        viewer = Viewer(host, terminal, Screen(title))
        with redirect_stderr(_LogLines(viewer.add_line)) if sys.stderr.isatty() else nullcontext():
            await viewer.look()
    if viewer.lost:
        raise StdoutClosed
    return True


class _LogLines(io.TextIOBase):
    """The log while the screen is shown: its lines become events."""

    def __init__(self, add: Callable[[str], None]) -> None:
        self._add = add

    def write(self, text: str) -> int:
        for line in filter(str.strip, text.splitlines()):
            self._add(line)
        return len(text)


async def print_events(events: AsyncIterable[Event], *, as_json: bool) -> None:
    """Print a line for the status of each server, and then for each event until they end."""
    async for event in events:
        if as_json:
            await send_json_line({"time": time.time(), **event_document(event)})
        elif not is_step(event):
            await send_line(f"{time.strftime('%H:%M:%S')} {safe_line(line_of_event(event))}")
