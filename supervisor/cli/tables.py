"""Tables on a terminal, drawn by rich. Commands load this late: their first line does not need it."""

from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.records import frozen
from mcp_nursery.supervisor.status import ServerStatus

from .output import give_up_stdout, safe_line, stdout_is_terminal, warn, write_line
from .statuses import GOOD, HEADERS, row

_SECONDARY = ("TRY", "RETRY IN", "PID", "CALLS")
"""Columns that do not fit a terminal of 80 characters."""
_TERTIARY = ("UP",)
"""Columns that do not fit a terminal of 60 characters either."""

_BAD = frozenset({ServerState.FAILED, ServerState.BLOCKED})
_PASSING = frozenset({ServerState.CONNECTING, ServerState.WAITING, ServerState.NEEDS_AUTH})


class _Console(Console):
    def on_broken_pipe(self) -> None:
        give_up_stdout()


def terminal() -> Console:
    """Make a console on standard output; without colours when piped or with NO_COLOR."""
    return _Console(highlight=False, markup=False, emoji=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Make a table with literal cells."""
    result = Table(*headers, box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in result.columns:
        column.overflow = "fold"
    for cells in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(safe_line(cell)) for cell in cells))
    return result


def write_rows(
    headers: Sequence[str], rows: Iterable[Sequence[object]], errors: Mapping[str, str] | None = None
) -> None:
    """Print a table on a terminal; piped, a line for each row, with tabs between the cells. `errors`, of servers that
    have no rows, follow on standard error."""
    if stdout_is_terminal():
        terminal().print(table(headers, rows))
    else:
        for cells in (headers, *rows):
            write_line("\t".join(safe_line(cell) for cell in cells))
    for server, error in (errors or {}).items():
        warn(f"{server}: {error}")


@frozen
class StatusTable:
    """The statuses for a terminal of any size: a line for each server, with cells cut and columns left out to fit."""

    statuses: Sequence[ServerStatus]
    whole: bool = False
    """True to show all servers, even if there are more than lines."""
    title: str = ""
    """A line above the table."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table, as large as fits."""
        room = len(self.statuses) if self.whole else max(console.size.height - _FIXED_LINES - bool(self.title), 1)
        if self.title:
            yield Text(self.title, no_wrap=True, overflow="ellipsis")
        yield from table_lines(self.statuses[:room], options.max_width, {})
        if len(self.statuses) > room:
            yield Text(f"… and {len(self.statuses) - room} more", style="dim")


_FIXED_LINES = 3
"""Lines of a live table besides servers: the header, the number of further servers, and the line of the cursor."""
_COLUMN_GAP = 2
"""Characters between two columns."""
_WIDE, _MIDDLE = 140, 80
"""Characters of a line that has room for all columns, and of one that has room for most."""


@frozen
class Lives:
    """A column with the lives of servers."""

    header: str
    lines: Mapping[str, str]
    """The line of each server, by name."""


def table_lines(
    statuses: Sequence[ServerStatus], width: int, medians: Mapping[str, float], lives: Lives | None = None
) -> list[Text]:
    """Draw the header and a line for each server, none wider than this; cells are cut and columns left out to fit."""
    shown = [row(status, medians.get(status.name)) for status in statuses]
    rows = [{header: Text(safe_line(cell)) for header, cell in zip(HEADERS, cells, strict=True)} for cells in shown]
    for cells, status in zip(rows, statuses, strict=True):
        cells["STATE"].stylize(_style(status.state))
    left_out: tuple[str, ...] = () if width >= _WIDE else (*_SECONDARY, *(_TERTIARY if width < _MIDDLE else ()))
    if left_out:
        for cells in rows:  # the time of the next start is shown in any case
            cells["STATE"] = Text(" ").join(cell for cell in (cells["STATE"], cells["RETRY IN"]) if cell)
    if not any(cells["TRY"] for cells in rows):
        left_out = (*left_out, "TRY")
    headers = _headers(left_out, statuses, rows, lives)
    lines = [Text() for _ in (headers, *rows)]
    for header in headers:
        column = [Text(header, style="bold"), *(cells[header] for cells in rows)]
        for cell in column:
            cell.truncate(width // 4 if header == headers[0] else width, overflow="ellipsis")
        broadest = max(cell.cell_len for cell in column) + _COLUMN_GAP
        for line, cell in zip(lines, column, strict=True):
            line.append_text(cell).append(" " * (broadest - cell.cell_len))
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return lines


def _headers(
    left_out: Sequence[str], statuses: Sequence[ServerStatus], rows: Sequence[dict[str, Text]], lives: Lives | None
) -> list[str]:
    headers = [header for header in HEADERS if header not in left_out]
    if lives is not None:
        headers.insert(2, lives.header)
        for cells, status in zip(rows, statuses, strict=True):
            cells[lives.header] = Text(lives.lines.get(status.name, ""))
    return headers


def _style(state: ServerState) -> str:
    if state in GOOD:
        return "green"
    if state in _BAD:
        return "red"
    return "yellow" if state in _PASSING else "dim"
