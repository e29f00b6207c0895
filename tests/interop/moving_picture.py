"""Draws the moving picture of `mcp-nursery run` in the README: the screen itself, in virtual time, from the moment at
which a server crashes until it is back, and under it a call that was made meanwhile. From the project's folder:

python -m tests.interop.moving_picture
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path

import trio
import trio.testing
from rich.color import ColorTriplet
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import MONOKAI as THEME
from rich.text import Text

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.supervisor import ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.cli.screen.screen import Screen
from mcp_nursery.supervisor.cli.statuses import is_step, line_of_event
from mcp_nursery.supervisor.events import SnapshotEvent
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.specs import lasting, nothing

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "run.svg"
WIDTH, HEIGHT = 100, 19
CALL_LINES = 3
"""Lines at the foot, which tell of the call."""
FRAME = 0.5
"""Seconds between two frames, and until the next one is shown."""
SECONDS = 13.0
BEFORE = 6.0
"""Seconds for which all is well before the picture begins."""
CELL, LINE = 8.0, 18
"""Pixels of a character, and of a line."""


class Caller:
    """A call of the server that crashed, and what is to be told of it."""

    NAME = "mcp_documents_fetch"

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._made = trio.current_time()
        self._answer = ""

    async def call(self) -> None:
        """Make the call, and wait."""
        result = await self._supervisor.call_tool(self.NAME, when_down="hold")
        self._answer = f"{result.full_text!r}, {trio.current_time() - self._made:.1f} s after it was made"

    @property
    def lines(self) -> list[Text]:
        """The call, and what has become of it so far."""
        held = f"held for {trio.current_time() - self._made:.1f} s: its server is not there"
        told = Text(f"  {self._answer or held}", style="bold green" if self._answer else "bold yellow")
        return [
            Text("-" * WIDTH, style="dim"),
            Text(f'> await supervisor.call_tool("{self.NAME}", when_down="hold")'),
            told,
        ]


async def record() -> list[list[list[Segment]]]:
    """The frames: lines of segments."""
    lives = [Life(exit_code=137, stderr="out of memory"), Life(refuses="exited with code 1"), Life()]
    tools = {"search": lasting(0.03), "fetch": lasting(0.2), "rename": nothing}
    documents = ScriptedServer(*lives, tools=tools)
    servers = {
        "calendar": ScriptedServer(tools={"list_events": lasting(0.04)}),
        "documents": documents,
        "mail": ScriptedServer(tools={"send": nothing, "read": nothing}),
    }
    specs = [ServerSpec(name, server.transport) for name, server in servers.items()]
    screen, console = Screen("mcp-nursery run"), Console(width=WIDTH, force_terminal=True, color_system="truecolor")
    frames: list[list[list[Segment]]] = []
    async with open_supervisor(specs, gate=20) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(follow, supervisor, screen)
        nursery.start_soon(work, supervisor)
        await trio.sleep(BEFORE)
        documents.crash(137)
        await trio.testing.wait_all_tasks_blocked()
        caller = Caller(supervisor)
        nursery.start_soon(caller.call)
        began = trio.current_time()
        while trio.current_time() < began + SECONDS:
            screen.statuses = supervisor.status()
            seen = supervisor.statistics(by_tool=False).by_server.items()
            screen.medians = {name: each.latency.p50 for name, each in seen if each.latency is not None}
            lines = [*screen.render(WIDTH, HEIGHT - CALL_LINES), *caller.lines]
            frames.append([list(Segment.simplify(line.render(console))) for line in lines])
            await trio.sleep(FRAME)
        nursery.cancel_scope.cancel()
    return frames


async def follow(supervisor: Supervisor, screen: Screen) -> None:
    """Show events, at the times of a day that begins at noon."""
    noon = 12 * 3600 - trio.current_time()
    async with supervisor.events() as events:
        async for event in events:
            if not isinstance(event, SnapshotEvent) and not is_step(event):
                clock = time.strftime("%H:%M:%S", time.gmtime(noon + trio.current_time()))
                screen.add_event(f"{clock} {line_of_event(event)}")


async def work(supervisor: Supervisor) -> None:
    """Call tools now and then, of servers that are there."""
    while True:
        for tool in supervisor.tools:
            if tool.available:
                with suppress(NurseryError):  # the server goes on its way, as it is drawn
                    await supervisor.call_tool(tool.name, timeout=2)
        await trio.sleep(0.4)


def picture(frames: Sequence[Sequence[Sequence[Segment]]]) -> str:
    """An SVG of these frames, one after the other, without end; for who wants no motion the one in the middle."""
    width, height = WIDTH * CELL + 24, HEIGHT * LINE + 24
    drawn = [
        f'<g class="f" style="animation-delay:{number * FRAME}s">{"".join(map(line_of, range(HEIGHT), frame))}</g>'
        for number, frame in enumerate(frames)
    ]
    middle = len(frames) // 2
    style = (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}"
        f".f{{visibility:hidden;animation:s {len(frames) * FRAME}s step-end infinite}}"
        f"@keyframes s{{0%{{visibility:visible}}{100 / len(frames):.4f}%{{visibility:hidden}}}}"
        f"@media(prefers-reduced-motion){{.f{{animation:none}}.f:nth-of-type({middle}){{visibility:visible}}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">'
        "<title>mcp-nursery run: a server has crashed, waits, is started again, and a held call is answered</title>"
        f"<style>{style}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{THEME.background_color.hex}"/>{"".join(drawn)}</svg>\n'
    )


def line_of(number: int, segments: Sequence[Segment]) -> str:
    """One line of a frame. What has a background is drawn on it."""
    y, column, pieces, behind = 12 + number * LINE, 0, "", ""
    for text, style, _ in segments:
        front, back, bold = colours_of(style or Style.null())
        x, length = 12 + column * CELL, len(text) * CELL
        if back is not None:
            behind += f'<rect x="{x:g}" y="{y}" width="{length:g}" height="{LINE}" fill="{back}"/>'
        if text.strip():
            weight = ' font-weight="700"' if bold else ""
            pieces += f'<tspan x="{x:g}" textLength="{length:g}" fill="{front}"{weight}>{escape(text)}</tspan>'
        column += len(text)
    return f'{behind}<text y="{y + 14}">{pieces}</text>' if pieces or behind else ""


def colours_of(style: Style) -> tuple[str, str | None, bool]:
    """The colour of a text, that behind it, and whether it is bold."""
    front = THEME.foreground_color if style.color is None else style.color.get_truecolor(THEME)
    back = None if style.bgcolor is None else style.bgcolor.get_truecolor(THEME, foreground=False)
    if style.reverse:
        front, back = back or THEME.background_color, front
    if style.dim:
        front = ColorTriplet(
            *(round(0.6 * each + 0.4 * under) for each, under in zip(front, THEME.background_color, strict=True))
        )
    return front.hex, None if back is None else back.hex, bool(style.bold)


def main() -> None:
    """Draw it."""
    frames = trio.run(record, clock=trio.testing.MockClock(autojump_threshold=0))
    PICTURE.write_text(picture(frames))


if __name__ == "__main__":
    main()
