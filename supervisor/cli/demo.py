"""`mcp-nursery demo`: three built-in servers, one of which crashes. Ends by itself."""

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import trio
from mcp.server.mcpserver import MCPServer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConnectionLost, NurseryError
from mcp_nursery.actors.nurseries import open_bare_nursery, run_alongside
from mcp_nursery.actors.records import asdict, frozen
from mcp_nursery.supervisor import Call, InProcessTransport, ServerSpec, StdioTransport, Supervisor, open_supervisor
from mcp_nursery.supervisor.events import Event, StateChanged
from mcp_nursery.supervisor.status import ServerStatus

from .demo_server import CRASH_CODE
from .failures import OK
from .output import safe_line, stdout_is_terminal, write_json, write_line
from .runtime import Options, run_async
from .statuses import documents, line_of_event
from .tables import StatusTable, terminal

LIMIT = 14.0
"""Seconds after which the demo gives up: it promises to end within 15."""
LIVE_REDRAW = 0.1
"""Seconds between two drawings of the live table."""
CALLS_EACH = 10
"""Calls to each server in the fan-out."""

LOCAL, STEADY, FRAGILE = "local", "steady", "fragile"


class DemoFailed(NurseryError):
    """The failure of a step of the demo."""


@frozen
class Step:
    """One step that was shown."""

    step: str
    at: float
    """Seconds since the demo began."""
    text: str


class Story:
    """The steps so far; each is printed at once, if there is a printer."""

    def __init__(self, print_line: Callable[[str], None] | None) -> None:
        self.print_line = print_line
        self.steps: list[Step] = []
        self._began = trio.current_time()

    def show(self, step: str, text: str) -> None:
        """Add a step."""
        self.steps.append(Step(step, round(trio.current_time() - self._began, 3), safe_line(text)))
        if self.print_line is not None:
            self.print_line(_line(self.steps[-1]))

    def draw(self, statuses: Sequence[ServerStatus]) -> Group:
        """Draw servers and steps for a terminal."""
        return Group(StatusTable(statuses), Text("\n".join(map(_line, self.steps))))


def demo(options: Options) -> int:
    """Play the demo."""
    live = stdout_is_terminal() and not options.as_json

    async def play() -> tuple[Story, Sequence[ServerStatus]]:
        story = Story(None if options.as_json or live else write_line)
        return story, await _play(story, live=live)

    try:
        story, statuses = run_async(play)
    except NurseryError as error:
        raise DemoFailed(str(error)) from error
    if options.as_json:
        write_json({"ok": True, "steps": [asdict(step) for step in story.steps], "servers": documents(statuses)})
    return OK


async def _play(story: Story, *, live: bool) -> Sequence[ServerStatus]:
    try:
        with trio.fail_after(LIMIT):
            async with open_supervisor(_specs()) as supervisor, _drawing(story, supervisor) if live else nullcontext():
                await _script(story, supervisor)
                statuses = supervisor.status()
            story.print_line = None if not live and story.print_line is None else write_line
            _check_gone(story, statuses)
    except trio.TooSlowError:
        raise DemoFailed(f"the demo did not end within {LIMIT:g} s") from None
    return statuses


def _specs() -> list[ServerSpec]:
    # -P: nothing in the working directory may replace the module.
    command = ("-P", "-m", "mcp_nursery.supervisor.cli.demo_server")
    return [
        ServerSpec(LOCAL, InProcessTransport(_local_server())),
        ServerSpec(STEADY, StdioTransport(sys.executable, args=command)),
        ServerSpec(FRAGILE, StdioTransport(sys.executable, args=(*command, "--crash"))),
    ]


def _local_server() -> MCPServer:
    server = MCPServer("local")

    server.add_tool(_add, name="add")
    server.add_tool(_greet, name="greet")
    return server


def _add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _greet(name: str) -> str:
    """Say hello."""
    return f"Hello {name}!"


async def _script(story: Story, supervisor: Supervisor) -> None:
    tools = await supervisor.list_tools()
    names = ", ".join(tool.name for tool in tools)
    story.show("start", f"{len(supervisor.status())} servers supervised, {len(tools)} tools: {names}")
    await _expect(story, supervisor, "mcp_local_add", {"a": 2, "b": 3}, "5")
    await _expect(story, supervisor, "mcp_steady_echo", {"text": "hello"}, "hello")
    await _expect(story, supervisor, "mcp_fragile_echo", {"text": "so far so good"}, "so far so good")
    await _fan_out(story, supervisor)
    async with supervisor.events() as events:
        await _crash(story, supervisor)
        async with open_bare_nursery() as nursery:
            nursery.start_soon(_follow_restart, story, supervisor, events)
            await _hold(story, supervisor)


async def _hold(story: Story, supervisor: Supervisor) -> None:
    """Call the server that has crashed, as a host does that knows nothing of it."""

    async def held(_progress: float, _total: float | None, message: str | None) -> None:
        story.show("held", f"the next call of {FRAGILE} is held: {message}")

    await _expect(
        story, supervisor, "mcp_fragile_echo", {"text": "no gap"}, "no gap", when_down="hold", on_progress=held
    )


async def _expect(
    story: Story, supervisor: Supervisor, name: str, arguments: dict[str, Any], text: str, **options: Any
) -> None:
    result = await supervisor.call_tool(name, arguments, **options)
    if result.is_error or result.full_text != text:
        raise DemoFailed(f"{name} answered {result.full_text!r}, not {text!r}")
    where = f"{result.server}, incarnation {result.incarnation}, {result.duration * 1000:.1f} ms"
    story.show("call", f"{name} -> {text!r} ({where})")


async def _fan_out(story: Story, supervisor: Supervisor) -> None:
    calls = [Call("mcp_local_greet", {"name": "you"}), Call("mcp_steady_now"), Call("mcp_fragile_now")]
    began = trio.current_time()
    answers = await supervisor.gather(calls * CALLS_EACH)
    for answer in answers:
        if isinstance(answer, NurseryError):
            raise answer
    took = (trio.current_time() - began) * 1000
    story.show("fan-out", f"{len(answers)} calls to {len(calls)} servers at once: answered in {took:.0f} ms")


async def _crash(story: Story, supervisor: Supervisor) -> None:
    story.show("crash", f"asking {FRAGILE} to crash")
    try:
        await supervisor.call_tool("crash", server=FRAGILE)
    except ConnectionLost as error:
        if error.exit_code != CRASH_CODE:
            raise DemoFailed(f"exit code {error.exit_code} was noticed, not {CRASH_CODE}") from error
        story.show("noticed", str(error))
    else:
        raise DemoFailed("the crash was not noticed")


async def _follow_restart(story: Story, supervisor: Supervisor, events: AsyncIterable[Event]) -> None:
    async for event in events:
        if not isinstance(event, StateChanged) or event.server != FRAGILE:
            continue
        story.show(str(event.new), line_of_event(event))
        if event.new is ServerState.WAITING:
            await _expect(story, supervisor, "mcp_steady_echo", {"text": "not affected"}, "not affected")
        elif event.new in (ServerState.CONNECTED, ServerState.FAILED):
            return


def _check_gone(story: Story, statuses: Sequence[ServerStatus]) -> None:
    left = [status.pid for status in statuses if status.pid is not None and _exists(status.pid)]
    if left:
        raise DemoFailed(f"processes left behind: {left}")
    story.show("end", "all servers ended, no process is left")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def _drawing(story: Story, supervisor: Supervisor) -> AsyncGenerator[None]:
    with Live(console=terminal(), auto_refresh=False) as live:

        def draw() -> None:
            live.update(story.draw(supervisor.status()), refresh=True)

        async def keep_drawing() -> None:
            while True:
                draw()
                await trio.sleep(LIVE_REDRAW)

        async with run_alongside(keep_drawing):
            yield
        draw()


def _line(step: Step) -> str:
    return f"{step.at:6.2f} s  {step.text}"
