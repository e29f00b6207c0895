"""What rich shows: tables, and the console they are printed on. Loaded by the commands that have any."""

from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .output import give_up_stdout, safe_line, stdout_is_terminal, warn, write_line


class _Console(Console):
    def on_broken_pipe(self) -> None:
        give_up_stdout()


def terminal() -> Console:
    """Standard output for rich; without colours when piped or with NO_COLOR."""
    return _Console(highlight=False, markup=False, emoji=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table whose cells are shown literally."""
    result = Table(*headers, box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in result.columns:
        column.overflow = "fold"
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(safe_line(cell)) for cell in row))
    return result


def write_rows(
    headers: Sequence[str], rows: Iterable[Sequence[object]], errors: Mapping[str, str] | None = None
) -> None:
    """A table on a terminal; piped, one line a row with tabs between the cells. `errors`, of servers that have no rows,
    follow on standard error."""
    if stdout_is_terminal():
        terminal().print(table(headers, rows))
    else:
        for row in (headers, *rows):
            write_line("\t".join(safe_line(cell) for cell in row))
    for server, error in (errors or {}).items():
        warn(f"{server}: {error}")
