"""The table of servers on terminals of the usual sizes."""

import io

import pytest
from rich.console import Console

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.cli.tables import StatusTable
from mcp_nursery.supervisor.status import BreakerStatus, CallCounts, ServerStatus

ERROR = "the process ended with exit code 1: npm error code E404, 名前がありません, and much more than fits"


def status(number, **facts):
    known = {
        "name": f"server-{number:02}-of-a-name-that-is-long",
        "state": ServerState.CONNECTED,
        "transport": "stdio",
        "tool_count": 12,
        "error": None,
        "uptime": 12_000.0,
        "incarnation": 1,
        "attempt": 1,
        "max_attempts": 4,
        "retry_in": None,
        "pid": 1234567,
        "protocol_version": None,
        "server_info": None,
        "instructions": None,
        "calls": CallCounts(in_flight=3, done=1234, failed=2),
    }
    return ServerStatus(**{**known, **facts})


WAITING = {"state": ServerState.WAITING, "retry_in": 14.9, "error": ERROR, "uptime": None}
FAILED = {"state": ServerState.FAILED, "error": ERROR, "uptime": None}
TWELVE = [status(number, **(WAITING, FAILED, {}, {})[number % 4]) for number in range(12)]


def test_further_instances_stand_beside_the_name():
    line = drawn([status(1, name="lab", instances=(status(1), status(2)))], width=200, height=9)[1]
    assert line.startswith("lab +2  connected")


def test_calls_that_became_tasks_are_counted_with_those_that_ask():
    calls = CallCounts(in_flight=3, done=7, tasks=2, asking=1)
    assert "7, 3 running (2 tasks, 1 asking)" in drawn([status(1, calls=calls)], width=200, height=9)[1]


def drawn(statuses, *, width, height, **options):
    out = io.StringIO()
    Console(file=out, width=width, height=height, force_terminal=False).print(StatusTable(statuses, **options))
    return out.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 24), (200, 40)])
def test_twelve_servers_fit(width, height):
    """A line a server, none longer than the terminal is wide; what is cut says so."""
    lines = drawn(TWELVE, width=width, height=height)
    assert len(lines) < height - 1
    assert all(Console(width=width).render_str(line).cell_len <= width for line in lines)
    servers = [line for line in lines if line.startswith("server-")]
    assert [line[:9] for line in servers] == [f"server-{number:02}" for number in range(12)]
    assert all("waiting" in line for line in servers[::4])
    assert all("…" in line for line in servers[::4])


@pytest.mark.parametrize(
    ("width", "headers"),
    [
        (60, ["SERVER", "STATE", "TOOLS", "ERROR"]),
        (80, ["SERVER", "STATE", "UP", "TOOLS", "ERROR"]),
        (140, ["SERVER", "STATE", "TRY", "RETRY", "IN", "UP", "TOOLS", "PID", "CALLS", "ERROR"]),
    ],
)
def test_what_there_is_room_for(width, headers):
    """When it is tried again is shown at any width."""
    lines = drawn(TWELVE, width=width, height=24)
    assert next(line.split() for line in lines if "SERVER" in line) == headers
    assert "14.9 s" in "\n".join(lines)
    assert "the proc" in "\n".join(lines)


def test_the_number_of_a_start_stands_where_it_says_something():
    """Of who is to be tried again, or is being; where nobody is, there is no column."""
    again = {"state": ServerState.CONNECTING, "attempt": 2, "uptime": None}
    trying = [status(0, name="a"), status(1, name="b", attempt=3, **WAITING), status(2, name="c", **again)]
    header, *lines = drawn([*trying, status(3, name="d", attempt=4, **FAILED)], width=200, height=24)
    at = header.index("TRY")
    assert [line[at : at + 3].strip() for line in lines] == ["", "3/4", "2/4", ""]
    calm = drawn([status(0), status(1, **FAILED)], width=200, height=24)[0]
    assert calm.split() == ["SERVER", "STATE", "RETRY", "IN", "UP", "TOOLS", "PID", "CALLS", "ERROR"]


def test_more_servers_than_lines():
    """The last line counts those that are not shown; `status` shows them all."""
    many = [status(number) for number in range(30)]
    lines = drawn(many, width=80, height=24)
    assert len(lines) < 24
    assert lines[-1] == "… and 9 more"
    assert sum(line.startswith("server-") for line in lines) == 21
    assert sum(line.startswith("server-") for line in drawn(many, width=80, height=24, whole=True)) == 30


def test_a_breaker_that_is_open():
    (_, line) = drawn([status(1, breaker=BreakerStatus("half_open", 3, 12.5))], width=160, height=24)
    assert "circuit breaker half open, next try in 12.5 s" in line


def test_no_servers():
    """There is a table all the same."""
    assert "SERVER" in "\n".join(drawn([], width=60, height=24))
