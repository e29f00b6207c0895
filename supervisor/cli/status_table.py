"""Statuses of servers on a terminal: what rich draws of them."""

from collections.abc import Mapping, Sequence

from attrs import frozen
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.status import ServerStatus

from .output import safe_line
from .statuses import GOOD, HEADERS, row

_SECONDARY = ("TRY", "RETRY IN", "PID", "CALLS")
"""Columns that a terminal of 80 characters has no room for."""
_TERTIARY = ("UP",)
"""Nor one of 60."""

_BAD = frozenset({ServerState.FAILED, ServerState.BLOCKED})
_PASSING = frozenset({ServerState.CONNECTING, ServerState.WAITING, ServerState.NEEDS_AUTH})


@frozen
class StatusTable:
    """The statuses for a terminal of any size: a line a server, cells cut, columns left out where there is no room."""

    statuses: Sequence[ServerStatus]
    whole: bool = False
    """Whether all servers are shown, even if they are more than there are lines."""
    title: str = ""
    """A line above it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in the room there is."""
        room = len(self.statuses) if self.whole else max(console.size.height - _FRAME - bool(self.title), 1)
        if self.title:
            yield Text(self.title, no_wrap=True, overflow="ellipsis")
        yield from table_lines(self.statuses[:room], options.max_width, {})
        if len(self.statuses) > room:
            yield Text(f"… and {len(self.statuses) - room} more", style="dim")


_FRAME = 3
"""Lines of a live table that are no servers: the header, what says that there are more, and the cursor's."""
_GAP = 2
"""Characters between two columns."""
_WIDE, _MIDDLE = 140, 80
"""Characters of a line that all columns have room in, and most."""


def table_lines(statuses: Sequence[ServerStatus], width: int, medians: Mapping[str, float]) -> list[Text]:
    """The header and a line a server, none wider than this; what there is no room for is left out or cut."""
    shown = [row(status, medians.get(status.name)) for status in statuses]
    rows = [{header: Text(safe_line(cell)) for header, cell in zip(HEADERS, cells, strict=True)} for cells in shown]
    for cells, status in zip(rows, statuses, strict=True):
        cells["STATE"].stylize(_style(status.state))
    left_out: tuple[str, ...] = () if width >= _WIDE else (*_SECONDARY, *(_TERTIARY if width < _MIDDLE else ()))
    if left_out:
        for cells in rows:  # when it is tried again is said in any case
            cells["STATE"] = Text(" ").join(cell for cell in (cells["STATE"], cells["RETRY IN"]) if cell)
    if not any(cells["TRY"] for cells in rows):
        left_out = (*left_out, "TRY")
    headers = [header for header in HEADERS if header not in left_out]
    lines = [Text() for _ in (headers, *rows)]
    for header in headers:
        column = [Text(header, style="bold"), *(cells[header] for cells in rows)]
        for cell in column:
            cell.truncate(width // 4 if header == headers[0] else width, overflow="ellipsis")
        broadest = max(cell.cell_len for cell in column) + _GAP
        for line, cell in zip(lines, column, strict=True):
            line.append_text(cell).append(" " * (broadest - cell.cell_len))
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return lines


def _style(state: ServerState) -> str:
    if state in GOOD:
        return "green"
    if state in _BAD:
        return "red"
    return "yellow" if state in _PASSING else "dim"
