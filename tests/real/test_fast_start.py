"""Real processes that are offered before they are started, and a host that is killed while it writes that down."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing

import psutil
import pytest
import trio

from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from ..lab import PROGRAMS
from ..lab.processes import eventually, lab, status_of

HOST = PROGRAMS / "caching_host.py"
FORTY = 40


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.mark.slow
async def test_forty_servers_of_which_one_is_used(tmp_path):
    """G7: no process before the first call, one after it, none when its idle time is over; with every tool there."""
    names = [f"s{number}" for number in range(FORTY)]
    state, before = tmp_path / "state.sqlite3", len(children())
    with trio.fail_after(240):
        async with open_supervisor([lab(name) for name in names], state=state) as supervisor:
            tools = [tool.name for tool in await supervisor.list_tools()]
            for name in names:
                await supervisor.wait_connected(name)
        assert len(children()) == before
        specs = [lab(name, lazy="cached", stop_idle_after=1) for name in names]
        async with open_supervisor(specs, state=state, gate=60) as supervisor:
            assert [tool.name for tool in supervisor.tools] == tools
            assert {status.state for status in supervisor.status()} == {ServerState.IDLE}
            await supervisor.list_tools()
            assert len(children()) == before
            result = await supervisor.call_tool("mcp_s7_echo", {"text": "hello"})
            assert result.full_text == "hello"
            assert len(children()) == before + 1
            assert [status.name for status in supervisor.status() if status.pid is not None] == ["s7"]
            await eventually(lambda: len(children()) == before)
            assert status_of(supervisor, "s7").state is ServerState.IDLE
            assert [tool.name for tool in supervisor.tools] == tools


@pytest.mark.night
def test_the_cache_outlives_a_host_that_is_killed_while_it_writes(tmp_path):
    """G5: a hundred times, at any moment: what is read afterwards is one whole list that was written, never an older
    one than was known to be written, and the next host writes on."""
    file = tmp_path / "state.sqlite3"
    dice, newest = random.Random(5), 0
    for _ in range(100):
        host = subprocess.Popen([sys.executable, HOST, file, str(newest + 1)], stdout=subprocess.PIPE)
        assert host.stdout is not None
        written = int(host.stdout.readline())
        for _ in range(dice.randrange(4)):
            written = int(host.stdout.readline())
        _pass(dice.random() / 100)
        os.kill(host.pid, signal.SIGKILL)
        host.wait()
        host.stdout.close()
        with closing(SqliteStore(file)) as store:
            kept = store.definitions("lab", "d", most=2**30)
        number, _, rest = kept.partition(b" ")
        assert rest == number * 30_000
        assert int(number) >= written
        newest = int(number)
    assert newest > 100


def _pass(seconds: float) -> None:
    """More exactly than a sleep does."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
