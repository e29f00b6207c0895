"""Real servers for a whole supervisor: specs of the lab server, its journal, and a look at the process table."""

import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import trio

from mcp_nursery.supervisor import RestartPolicy, ServerSpec, StdioTransport, open_supervisor

from ..timely import Late

LAB = Path(__file__).parents[1] / "servers" / "nursery_lab.py"

AT_ONCE = RestartPolicy(delays=[0.05] * 100)
"""For tests about something else than the ladder."""


def lab(name="lab", /, *, journal=None, env=None, flags=None, **settings):
    """A spec of the lab server; see tests/servers/nursery_lab.py for its flags."""
    flags = dict(flags or {}) | ({} if journal is None else {"journal": journal.path})
    args = ["-I", "-S", LAB, *(f"{key}={value}" for key, value in flags.items())]
    transport = StdioTransport(sys.executable, [str(arg) for arg in args], env=env or {})
    return ServerSpec(name, transport, **{"policy": AT_ONCE, **settings})


@asynccontextmanager
async def supervised(*specs, within=60, **options):
    """A supervisor of these servers, all connected."""
    with trio.fail_after(within):
        async with open_supervisor(specs, **options) as supervisor:
            for spec in specs:
                await supervisor.wait_connected(spec.name)
            yield supervisor


def status_of(supervisor, name="lab"):
    return next(status for status in supervisor.status() if status.name == name)


async def outcome_of(call):
    """What a call came to, an exception included, and when, by the clock that journals use too."""
    try:
        outcome = await call
    except Exception as error:
        outcome = error
    return outcome, time.monotonic()


async def next_state(events, state, server="lab"):
    """The next event of the server's coming to this state."""
    async for event in events:
        if getattr(event, "new", None) == state and event.server == server:
            return event
    raise AssertionError(f"{server} never came to {state}")


async def eventually(condition, within=30):
    """Observe something outside this process, for which there is no event to wait for."""
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110 - another process sets no event of ours
            await trio.sleep(0.005)


def removed_in_time(caplog):
    """The docker client had the time that it needed to remove a container. For tests that are `timely`."""
    if "docker took more than" in caplog.text:
        raise Late(caplog.text)


class Journal:
    """What the lab server wrote down, across all its incarnations."""

    def __init__(self, path):
        self.path = path

    def times(self, what):
        """When it happened, on the monotonic clock that all processes share."""
        if not self.path.exists():
            return []
        lines = (line.split() for line in self.path.read_text().splitlines())
        return [float(line[1]) for line in lines if line[0] == what]

    def details(self, what):
        """What was noted beside it, each time."""
        lines = (line.split() for line in self.path.read_text().splitlines())
        return [line[2] for line in lines if line[0] == what and len(line) > 2]

    def count(self, what):
        return len(self.times(what))

    def clear(self):
        """For who begins again."""
        self.path.unlink(missing_ok=True)


class Tree:
    """Who belongs to a server, asked of the process table while the server still runs."""

    def __init__(self, pid):
        self.pid = pid
        self.marker = psutil.Process(pid).environ()["MCP_NURSERY_INCARNATION"]

    def living(self):
        """The pids of its group, of its session, and of those who carry its marker."""
        return {process.pid for process in psutil.process_iter() if is_alive(process.pid) and self._has(process)}

    def _has(self, process):
        try:
            if self.pid in (os.getpgid(process.pid), os.getsid(process.pid)):
                return True
            return process.environ().get("MCP_NURSERY_INCARNATION") == self.marker
        except (psutil.Error, OSError):
            return False


def is_alive(pid):
    """Whether it runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
