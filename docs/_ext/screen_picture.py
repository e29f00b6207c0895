"""A picture of the full screen of `run`, drawn by what draws it."""

import io
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from rich.console import Console, Group

from mcp_nursery.actors.records import frozen
from mcp_nursery.supervisor.cli.lives import IncarnationRecord, ServerHistory
from mcp_nursery.supervisor.cli.screen.screen import Screen
from mcp_nursery.supervisor.status import CallCounts, ServerState, ServerStatus

_WIDTH = 100
_Lives = dict[str, tuple[tuple[float, float | None, float | None], ...]]


@frozen
class Situation:
    """The servers of one picture, their lives, and the lines of events below."""

    statuses: tuple[ServerStatus, ...]
    lives: _Lives
    now: float
    events: tuple[str, ...]
    height: int = 11


def _situations() -> dict[str, Situation]:
    files = _status("files", ServerState.CONNECTED, tool_count=11, uptime=7505.0, calls=CallCounts(done=412))
    return {
        "overview": Situation(
            (
                files,
                _status(
                    "search", ServerState.CONNECTED, tool_count=3, uptime=64.0, calls=CallCounts(done=57, failed=1)
                ),
                _status("time", ServerState.WAITING, attempt=2, retry_in=1.6, tool_count=2, error="exited with code 7"),
                _status("mail", ServerState.NEEDS_AUTH, error="401: a token is needed"),
            ),
            {
                "files": ((0, 5, None),),
                "search": ((0, 5, 900), (936, 938, None)),
                "time": ((0, 5, 600), (602, 603, 990), (992, 993, 998)),
                "mail": ((0, None, 1),),
            },
            1_000.0,
            (
                "09:30:01 files: connected, incarnation 1, pid 4711",
                "09:30:02 mail: needs_auth (401: a token is needed)",
                "11:34:02 search: connected, incarnation 2, pid 5163",
                "11:35:06 time: waiting, start 2 of 4 in 2.0 s (exited with code 7)",
            ),
            16,
        ),
        "crash-loop": Situation(
            (
                files,
                _status(
                    "crm",
                    ServerState.WAITING,
                    attempt=4,
                    incarnation=3,
                    retry_in=9.3,
                    tool_count=6,
                    error="exited with code 137: out of memory",
                ),
            ),
            {"files": ((0, 2, None),), "crm": ((0, 2, 30), (32, 33, 36), (41, 42, 46))},
            52.0,
            (
                "09:30:32 crm: waiting, start 2 of 4 in 2.0 s (exited with code 137: out of memory)",
                "09:30:38 crm: waiting, start 3 of 4 in 5.0 s (exited with code 137: out of memory)",
                "09:30:48 crm: waiting, start 4 of 4 in 15.0 s (exited with code 137: out of memory)",
            ),
        ),
        "slow-start": Situation(
            (
                files,
                _status(
                    "browser",
                    ServerState.CONNECTING,
                    installing="npx: npm http fetch GET 200 https://registry.npmjs.org/playwright",
                ),
            ),
            {"files": ((0, 2, None),), "browser": ((0, None, None),)},
            52.0,
            ("09:30:03 files: connected, incarnation 1, pid 4711",),
        ),
        "rate-limit": Situation(
            (
                files,
                _status(
                    "web",
                    ServerState.WAITING,
                    transport="http",
                    incarnation=2,
                    retry_in=40.2,
                    tool_count=4,
                    error="HTTP 429 Too Many Requests, not to be asked again for 54 s: one session a minute",
                ),
            ),
            {"files": ((0, 2, None),), "web": ((0, 2, 31), (33, None, 34))},
            48.0,
            (
                "09:30:31 web: waiting, start 2 of 4 in 2.0 s (the connection was lost)",
                "09:30:34 web: waiting, start 1 of 4 in 54.0 s (HTTP 429 Too Many Requests)",
            ),
        ),
    }


def picture(name: str) -> str:
    """The screen in one situation, as SVG."""
    it = _situations()[name]
    screen = Screen("mcp-nursery run", statuses=it.statuses)
    screen.now = it.now
    screen.lives = {status.name: _life(status.state, *it.lives[status.name]) for status in it.statuses}
    for line in it.events:
        screen.add_event(line)
    screen.press("down")
    console = Console(record=True, file=io.StringIO(), width=_WIDTH, force_terminal=True, color_system="truecolor")
    console.print(Group(*screen.render(_WIDTH, it.height)))
    return console.export_svg(title="mcp-nursery run", unique_id=f"screen-{name}")


def _life(state: ServerState, *times: tuple[float, float | None, float | None]) -> ServerHistory:
    """The life of incarnations by the times at which they began, were connected, and were lost: to a wait, but for the
    last, after which the server is in this state."""
    life = ServerHistory()
    for number, (began, connected, ended) in enumerate(times, 1):
        then = state if number == len(times) else ServerState.WAITING
        lost = {} if ended is None else {"why": "lost", "then": then.value}
        life.incarnations.append(IncarnationRecord(number, number, began, connected, ended, **lost))
    return life


def _status(name: str, state: ServerState, **facts: Any) -> ServerStatus:
    known: dict[str, Any] = dict.fromkeys(
        ("error", "uptime", "retry_in", "pid", "protocol_version", "server_info", "instructions")
    )
    known |= {"transport": "stdio", "tool_count": 0, "incarnation": 1, "attempt": 1, "max_attempts": 4}
    return ServerStatus(name=name, state=state, **{**known, "calls": CallCounts(), **facts})


class Picture(Directive):
    """`{screen} SITUATION`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The picture, as it is."""
        return [nodes.raw("", picture(self.arguments[0]), format="html")]


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx."""
    app.add_directive("screen", Picture)
    return {"parallel_read_safe": True}
