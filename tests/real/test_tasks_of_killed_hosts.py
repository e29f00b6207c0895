"""A host that is killed at any point of a task's life: the next one ends the task, which ran once, and nobody is asked
again what was answered."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import trio
from mcp_types import ElicitResult

from mcp_nursery.supervisor import ServerSpec, StdioTransport
from mcp_nursery.supervisor.callbacks import Callbacks

from ..lab import PROGRAMS
from ..lab.processes import supervised
from ..lab.timely import in_time

NOTHING, ALL = "", "ab"
POINTS = {
    # the questions that the first host was asked, and that were answered and stored
    "after the task is stored": (NOTHING, NOTHING),
    "when there is a handle": (NOTHING, NOTHING),
    "after a status is seen": (NOTHING, NOTHING),
    "while a is asked": ("a", NOTHING),
    "before the answer a is stored": ("a", NOTHING),
    "after the answer a is stored": ("a", "a"),
    "while b is asked": ("ab", "a"),
    "before the answer b is stored": ("ab", "a"),
    "after the answer b is stored": ("ab", ALL),
    "before the result is stored": ("ab", ALL),
    "after the result is stored": ("ab", ALL),
    "when there is a result": ("ab", ALL),
}


def killed(state, folder, point):
    command = [sys.executable, PROGRAMS / "task_host.py", state, folder, point]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL


def lines(folder, name):
    file = folder / name
    return file.read_text().splitlines() if file.exists() else []


def lab(folder):
    command = ["-I", "-S", str(PROGRAMS / "task_server.py"), str(folder)]
    return ServerSpec("lab", StdioTransport(sys.executable, command))


@pytest.mark.parametrize("point", POINTS)
async def test_the_next_host_ends_the_task(tmp_path, point):
    state, folder = tmp_path / "state.sqlite3", tmp_path
    killed(state, folder, point)
    asked_before, stored = POINTS[point]
    assert "".join(lines(folder, "asked")) == asked_before
    asked: list[str] = []

    async def elicit(message):
        asked.append(message.params.message[0])
        return ElicitResult(action="accept", content={"name": asked[-1]})

    async with supervised(lab(folder), state=state, callbacks=Callbacks(elicit=elicit)) as supervisor:
        (info,) = await supervisor.tasks()
        task = await supervisor.task(info.id)
        result = await task.result()
    assert result.full_text == ALL
    assert "".join(asked) == ALL.removeprefix(stored)
    ledger = lines(folder, "ledger")
    assert (ledger.count("run"), ledger.count("cancel")) == (1, 0)
    assert set(ledger) == {"run", "answer a", "answer b"}


async def test_a_host_that_is_killed_before_the_task_is_stored_leaves_none(tmp_path):
    """Its call is like any other whose host was killed: nobody knows whether the server has acted."""
    state = tmp_path / "state.sqlite3"
    killed(state, tmp_path, "before the task is stored")
    async with supervised(state=state) as supervisor:
        assert await supervisor.tasks() == ()
    assert lines(tmp_path, "ledger") == ["run"]


@contextmanager
def host(state, folder):
    """A host whose user never answers the first question."""
    command = [sys.executable, PROGRAMS / "task_host.py", str(state), folder, "asked"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "a\n"
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("kind", ["file", "database"])
async def test_a_host_that_is_frozen_is_taken_over_and_learns_the_end(tmp_path, kind, request):
    state = tmp_path / "state.sqlite3" if kind == "file" else request.getfixturevalue("database")
    asked: list[str] = []

    async def elicit(message):
        asked.append(message.params.message[0])
        return ElicitResult(action="accept", content={"name": asked[-1]})

    with host(state, tmp_path) as frozen:
        async with supervised(lab(tmp_path), state=state, callbacks=Callbacks(elicit=elicit)) as supervisor:
            (info,) = await supervisor.tasks()
            task = await supervisor.task(info.id)
            frozen.send_signal(signal.SIGSTOP)
            began = trio.current_time()
            changes = task.changes()
            while not asked:
                await anext(changes)
            in_time(trio.current_time() - began, 12)
            assert (await task.result()).full_text == ALL
        frozen.send_signal(signal.SIGCONT)
        assert await trio.to_thread.run_sync(frozen.stdout.readline) == "ab\n"
    assert asked == ["a", "b"]
    ledger = lines(tmp_path, "ledger")
    assert (ledger.count("run"), ledger.count("cancel")) == (1, 0)
