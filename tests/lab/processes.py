"""Real servers for a whole supervisor: specs of the lab server, its journal, and a look at the process table."""

import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import RestartPolicy, ServerSpec, StdioTransport, Supervisor, open_supervisor
from mcp_nursery.supervisor.status import ServerStatus

from . import PROGRAMS
from .timely import Late

LAB = PROGRAMS / "nursery_lab.py"

AT_ONCE = RestartPolicy(delays=[0.05] * 100)
"""For tests about something else than the ladder."""


def lab(
    name: str = "lab",
    /,
    *,
    journal: "Journal | None" = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    **settings: Any,
) -> ServerSpec:
    """A spec of the lab server; see tests/lab/programs/nursery_lab.py for its flags."""
    flags = dict(flags or {}) | ({} if journal is None else {"journal": journal.path})
    args = ["-I", "-S", LAB, *(f"{key}={value}" for key, value in flags.items())]
    transport = StdioTransport(sys.executable, [str(arg) for arg in args], env=env or {})
    return ServerSpec(name, transport, **{"policy": AT_ONCE, **settings})


@asynccontextmanager
async def supervised(*specs: ServerSpec, within: int = 60, **options: Any) -> AsyncGenerator[Supervisor, None]:
    """A supervisor of these servers, all connected."""
    with trio.fail_after(within):
        async with open_supervisor(specs, **options) as supervisor:
            for spec in specs:
                await supervisor.wait_connected(spec.name)
            yield supervisor


def status_of(supervisor: Supervisor, name: str = "lab") -> ServerStatus:
    return next(status for status in supervisor.status() if status.name == name)


async def outcome_of(call: Awaitable[object]) -> tuple[Any, float]:
    """What a call came to, an exception included, and when, by the clock that journals use too."""
    try:
        outcome = await call
    except Exception as error:
        outcome = error
    return outcome, time.monotonic()


async def next_state(events: AsyncIterator[object], state: ServerState, server: str = "lab") -> Any:
    """The next event of the server's coming to this state."""
    async for event in events:
        if getattr(event, "new", None) == state and getattr(event, "server", None) == server:
            return event
    raise AssertionError(f"{server} never came to {state}")


async def eventually(condition: Callable[[], object], within: int = 30) -> None:
    """Observe something outside this process, for which there is no event to wait for."""
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110 - another process sets no event of ours
            await trio.sleep(0.005)


def removed_in_time(caplog: pytest.LogCaptureFixture) -> None:
    """The docker client had the time that it needed to remove a container. For tests that are `timely`."""
    if "docker took more than" in caplog.text:
        raise Late(caplog.text)


class Journal:
    """What the lab server wrote down, across all its incarnations."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def times(self, what: str) -> list[float]:
        """When it happened, on the monotonic clock that all processes share."""
        if not self.path.exists():
            return []
        lines = (line.split() for line in self.path.read_text().splitlines())
        return [float(line[1]) for line in lines if line[0] == what]

    def details(self, what: str) -> list[str]:
        """What was noted beside it, each time."""
        lines = (line.split() for line in self.path.read_text().splitlines())
        return [line[2] for line in lines if line[0] == what and len(line) > 2]

    def count(self, what: str) -> int:
        return len(self.times(what))

    def clear(self) -> None:
        """For who begins again."""
        self.path.unlink(missing_ok=True)


class Tree:
    """Who belongs to a server, asked of the process table while the server still runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.marker = psutil.Process(pid).environ()["MCP_NURSERY_INCARNATION"]

    def living(self) -> set[int]:
        """The pids of its group, of its session, and of those who carry its marker."""
        return {process.pid for process in psutil.process_iter() if is_alive(process.pid) and self._has(process)}

    def _has(self, process: psutil.Process) -> bool:
        try:
            if self.pid in (os.getpgid(process.pid), os.getsid(process.pid)):
                return True
            return bool(process.environ().get("MCP_NURSERY_INCARNATION") == self.marker)
        except (psutil.Error, OSError):
            return False


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
