"""Servers while they run, for as long as somebody looks: a live table, or a line for each event."""

import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence

import trio
from rich.live import Live

from mcp_nursery.supervisor.control.protocol import event_document
from mcp_nursery.supervisor.events import Event, StateChanged
from mcp_nursery.supervisor.status import ServerStatus

from .event_lines import line_of_event
from .output import safe_line, terminal, write_json_line, write_line
from .statuses import StatusTable

REDRAW = 0.25
"""Seconds between two drawings of the live table: a countdown in tenths stays readable."""


async def draw(
    look: Callable[[], Awaitable[Sequence[ServerStatus]]], medians: Callable[[], Awaitable[Mapping[str, float]]]
) -> None:
    """A table that is drawn again and again, of statuses and of how long calls take."""
    with Live(console=terminal(), auto_refresh=False) as live:
        while True:
            live.update(StatusTable(await look(), medians=await medians()), refresh=True)
            await trio.sleep(REDRAW)


async def print_events(events: AsyncIterable[Event], *, as_json: bool) -> None:
    """Where each server stands, and then what happens, until nothing more does: a line each."""
    async for event in events:
        same = isinstance(event, StateChanged) and event.old is event.new  # another step of the same state
        if as_json or not same:
            _print(event, as_json=as_json)


def _print(event: Event, *, as_json: bool) -> None:
    if as_json:
        write_json_line({"time": time.time(), **event_document(event)})
    else:
        write_line(f"{time.strftime('%H:%M:%S')} {safe_line(line_of_event(event))}")
