"""A picture of the full screen of `run`, drawn by what draws it."""

import io
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from rich.console import Console, Group

from mcp_nursery.supervisor.cli.lives import IncarnationRecord, ServerHistory
from mcp_nursery.supervisor.cli.screen.screen import Screen
from mcp_nursery.supervisor.status import CallCounts, ServerState, ServerStatus

_WIDTH, _HEIGHT = 100, 16


def picture() -> str:
    """The screen with four servers, as SVG."""
    statuses = (
        _status("files", ServerState.CONNECTED, tool_count=11, uptime=7505.0, calls=CallCounts(done=412)),
        _status("search", ServerState.CONNECTED, tool_count=3, uptime=64.0, calls=CallCounts(done=57, failed=1)),
        _status("time", ServerState.WAITING, attempt=2, retry_in=1.6, tool_count=2, error="exited with code 7"),
        _status("mail", ServerState.NEEDS_AUTH, error="401: a token is needed"),
    )
    screen = Screen("mcp-nursery run", statuses=statuses)
    screen.now, screen.lives = (
        1_000.0,
        {
            "files": _life((0, 5, None)),
            "search": _life((0, 5, 900), (936, 938, None)),
            "time": _life((0, 5, 600), (602, 603, 990), (992, 993, 998)),
            "mail": _life((0, None, 1)),
        },
    )
    for line in (
        "09:30:01 files: connected, incarnation 1, pid 4711",
        "09:30:02 mail: needs_auth (401: a token is needed)",
        "11:34:02 search: connected, incarnation 2, pid 5163",
        "11:35:06 time: waiting, start 2 of 4 in 2.0 s (exited with code 7)",
    ):
        screen.add_event(line)
    screen.press("down")
    console = Console(record=True, file=io.StringIO(), width=_WIDTH, force_terminal=True, color_system="truecolor")
    console.print(Group(*screen.render(_WIDTH, _HEIGHT)))
    return console.export_svg(title="mcp-nursery run", unique_id="screen")


def _life(*times: tuple[float, float | None, float | None]) -> ServerHistory:
    """The life of incarnations by the times at which they began, were connected, and were lost."""
    life = ServerHistory()
    for number, (began, connected, ended) in enumerate(times, 1):
        lost = {} if ended is None else {"why": "lost", "then": "waiting" if connected else "needs_auth"}
        life.incarnations.append(IncarnationRecord(number, number, began, connected, ended, **lost))
    return life


def _status(name: str, state: ServerState, **facts: Any) -> ServerStatus:
    known: dict[str, Any] = dict.fromkeys(
        ("error", "uptime", "retry_in", "pid", "protocol_version", "server_info", "instructions")
    )
    known |= {"transport": "stdio", "tool_count": 0, "incarnation": 1, "attempt": 1, "max_attempts": 4}
    return ServerStatus(name=name, state=state, **{**known, "calls": CallCounts(), **facts})


class Picture(Directive):
    """`{screen}`."""

    def run(self) -> list[nodes.Node]:
        """The picture, as it is."""
        return [nodes.raw("", picture(), format="html")]


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx."""
    app.add_directive("screen", Picture)
    return {"parallel_read_safe": True}
