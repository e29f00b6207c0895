"""`mcp-nursery run`: supervise until Ctrl-C."""

import time

import trio
from rich.live import Live

from mcp_nursery.supervisor import Supervisor, open_supervisor
from mcp_nursery.supervisor.config import Config
from mcp_nursery.supervisor.events import StateChanged

from .event_lines import line_of_event
from .failures import OK
from .output import safe_line, stdout_is_terminal, terminal, write_line
from .runtime import Interrupted, Options, load, run_async
from .statuses import StatusTable

REDRAW = 0.25
"""Seconds between two drawings of the live table: a countdown in tenths stays readable."""


def run(options: Options) -> int:
    """Keep the servers running and show how they do. Ctrl-C is its normal end."""
    config = load(options)

    async def supervise() -> None:
        await _supervise(config)

    try:
        run_async(supervise)
    except (Interrupted, KeyboardInterrupt):
        return OK
    return OK


async def _supervise(config: Config) -> None:
    async with open_supervisor(config, gate=0.0) as supervisor:
        await (_draw(supervisor) if stdout_is_terminal() else _print_events(supervisor))


async def _draw(supervisor: Supervisor) -> None:
    with Live(console=terminal(), auto_refresh=False) as live:
        while True:
            live.update(StatusTable(supervisor.status()), refresh=True)
            await trio.sleep(REDRAW)


async def _print_events(supervisor: Supervisor) -> None:
    async with supervisor.events() as events:
        async for event in events:
            if not (isinstance(event, StateChanged) and event.old is event.new):  # another step of the same state
                _say(line_of_event(event))


def _say(line: str) -> None:
    write_line(f"{time.strftime('%H:%M:%S')} {safe_line(line)}")
