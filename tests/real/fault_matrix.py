"""What happens when a server fails: each way it does, over each transport. Data; the proof is test_fault_matrix.py.

Run as a program it prints the table of the documentation: `python tests/real/fault_matrix.py`.
"""

from enum import StrEnum

from attrs import frozen

COLUMNS = {
    "stdio": "stdio",
    "handshake": "http (to 2025-11-25)",
    "modern": "http (2026-07-28)",
    "sse": "sse",
    "ws": "ws",
    "in_process": "in-process",
}


class When(StrEnum):
    """The moment of the fault."""

    START = "start"
    """Before the server is started, with a call that waits for it."""
    IDLE = "idle"
    """Connected, and nobody calls."""
    CALL = "call"
    """A call is in flight, or about to be made."""


@frozen
class Cell:
    """What is promised."""

    call: str
    """What a call gets, and whether the server may have acted on it; empty: there is none."""
    state: str
    """What the server comes to.

    It is started again in `waiting` alone, and `connected` is still the same connection.
    """
    within: float | str = 0.0
    """Seconds until then, or a setting that bounds it."""

    @property
    def bound(self) -> str:
        """The seconds, for people."""
        if self.state == KEPT:
            return ""
        return f"{self.within:g} s" if isinstance(self.within, float) else self.within


@frozen
class Row:
    """One way to fail."""

    name: str
    when: When
    fault: str
    """The method of a rig that causes it."""
    cells: dict[str, Cell]
    argument: int | None = None
    """What that method takes."""


LOST = "`ConnectionLost` (unknown)"
TURNED_AWAY = "`ConnectionLost` (not_sent)"
TIMEOUT = "`CallTimeout` (unknown)"
DOWN = "`ServerDown` (not_sent)"
ANSWER = "its answer"
PROBE = "`interval` + `timeout`"
CONNECT = "`connect_timeout`"

REMOTE = ("handshake", "modern", "sse")
NETWORK = (*REMOTE, "ws")
ALL = tuple(COLUMNS)
KEPT = "connected"


def error(code: int, delivery: str = "answered") -> str:
    return f"`ServerError` {code} ({delivery})"


def each(columns: tuple[str, ...], cell: Cell, **others: Cell) -> dict[str, Cell]:
    return dict.fromkeys(columns, cell) | others


def refusal(code: int, state: str) -> dict[str, Cell]:
    return each(NETWORK, Cell(DOWN, state, 1.0))


ROWS = [
    Row(
        "killed while idle",
        When.IDLE,
        "killed",
        each(ALL, Cell("", "waiting", 0.5), handshake=Cell("", "waiting", 2.0)),
    ),
    Row(
        "killed mid-call",
        When.CALL,
        "killed",
        each(ALL, Cell(LOST, "waiting", 0.5), handshake=Cell(LOST, "waiting", 2.0)),
    ),
    Row(
        "frozen",
        When.CALL,
        "frozen",
        each(NETWORK, Cell(TIMEOUT, "waiting", PROBE), stdio=Cell(TIMEOUT, KEPT), in_process=Cell(TIMEOUT, KEPT)),
    ),
    Row("link cut without a word", When.CALL, "cut", each(NETWORK, Cell(TIMEOUT, "waiting", PROBE))),
    Row("hangs at start", When.START, "hangs", each(ALL, Cell(DOWN, "waiting", CONNECT))),
    Row("exits at start", When.START, "exits", each(ALL, Cell(DOWN, "waiting", 1.0))),
    Row(
        "is not there: no such command, connection refused",
        When.START,
        "refuses",
        each(NETWORK, Cell(DOWN, "waiting", 1.0), stdio=Cell(DOWN, "failed", 1.0)),
    ),
    Row("writes what is no JSON", When.CALL, "garbage", each(("stdio", *NETWORK), Cell(ANSWER, KEPT))),
    Row("401 at start", When.START, "refused", refusal(401, "needs_auth"), 401),
    Row("403 at start", When.START, "refused", refusal(403, "failed"), 403),
    Row("404 at start", When.START, "refused", refusal(404, "waiting"), 404),
    Row("500 at start", When.START, "refused", refusal(500, "waiting"), 500),
    Row("503 at start", When.START, "refused", refusal(503, "waiting"), 503),
    Row("401 to a call", When.CALL, "status", each(REMOTE, Cell(TURNED_AWAY, "needs_auth", 0.5)), 401),
    Row("403 to a call", When.CALL, "status", each(REMOTE, Cell(error(403), KEPT)), 403),
    Row(
        "404 to a call, in a session", When.CALL, "status", each(("handshake", "sse"), Cell(LOST, "waiting", 0.5)), 404
    ),
    Row("404 to a call, without", When.CALL, "stateless", each(("handshake", "modern"), Cell(error(404), KEPT)), 404),
    Row("500 to a call", When.CALL, "status", each(REMOTE, Cell(error(500), KEPT)), 500),
    Row("503 to a call", When.CALL, "status", each(REMOTE, Cell(error(503, "unknown"), KEPT)), 503),
    Row("answers a call with no JSON", When.CALL, "nonsense", each(("handshake", "modern"), Cell(LOST, KEPT))),
]


def markdown() -> str:
    """The table: a line for each row and each promise in it, with the transports that it holds for."""
    lines = [["the fault", "over", "a call gets", "the server comes to", "within"], ["---"] * 5]
    for row in ROWS:
        for cell in dict.fromkeys(row.cells.values()):
            over = ", ".join(name for column, name in COLUMNS.items() if row.cells.get(column) == cell)
            lines.append([row.name, over, cell.call, f"`{cell.state}`", cell.bound])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(markdown())  # noqa: T201 - for who runs it
