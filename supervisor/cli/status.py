"""`mcp-nursery status`: where each server stands."""

from collections.abc import Sequence

from mcp_nursery.supervisor.status import ServerStatus

from .output import safe_line, stdout_is_terminal, terminal, write_json, write_line, write_rows
from .runtime import Options, load, run_async, servers_of
from .statuses import HEADERS, StatusTable, documents, error_of, row, worked


def show_status(options: Options) -> int:
    """Start the servers, wait for them, show them, stop them. Fails if none of them works."""
    config = load(options)

    async def look() -> tuple[ServerStatus, ...]:
        async with servers_of(config) as supervisor:
            return supervisor.status()

    return print_statuses(run_async(look), as_json=options.as_json)


def print_statuses(statuses: Sequence[ServerStatus], *, as_json: bool) -> int:
    """Show them; the exit code of a command that wants them to work."""
    if as_json:
        write_json({"servers": documents(statuses)})
    elif stdout_is_terminal():
        terminal().print(StatusTable(statuses, whole=True))
        for status in statuses:
            if error := error_of(status):
                write_line(f"{safe_line(status.name)}: {error}")
    else:
        write_rows(HEADERS, [row(status) for status in statuses])
    return worked(statuses)
