"""`tasks`, `task` and `call --detach`."""

import sys
import time
from contextlib import closing

import pytest

from mcp_nursery.supervisor.decisions.task_records import TaskInfo, TaskRecord
from mcp_nursery.supervisor.decisions.task_states import TaskStatus
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from ...lab import PROGRAMS
from ...lab.command_line import process
from .test_attached import running
from .test_run import read_until


@pytest.fixture
def lab(config, tmp_path):
    return config(lab={"command": sys.executable, "args": [str(PROGRAMS / "task_server.py"), str(tmp_path), "silent"]})


def recorded(state, **more):
    """A task that a host has left behind."""
    info = TaskInfo("one", "lab", "work", TaskStatus.INPUT_REQUIRED, time.time() - 5, "half done", ("who?",), **more)
    with closing(SqliteStore(state)) as store:
        store.tasks(lambda rows: rows.add(TaskRecord(info, "digest", "hash", "t0"), "[]"))
        store.tasks(lambda rows: rows.release("one", "[]"))


def test_tasks_that_are_recorded(cli, tmp_path):
    state = tmp_path / "state.sqlite3"
    assert cli("tasks", "--state", state, "--json").json == {"tasks": []}
    recorded(state)
    (task,) = cli("tasks", "--state", state, "--json").json["tasks"]
    assert (task["id"], task["status"], task["questions"]) == ("one", "input_required", ["who?"])
    head, row = (line.split("\t") for line in cli("tasks", "--state", state).out.splitlines())
    assert head == ["ID", "SERVER", "TOOL", "STATUS", "AGE", "MESSAGE"]
    assert row[:4] + row[5:] == ["one", "lab", "work", "input_required", "half done; asks: who?"]
    assert cli("task", "one", "--state", state).out.splitlines()[3] == "status: input_required"
    assert cli("task", "one", "--state", state, "--json").json == task
    unknown = cli("task", "two", "--state", state, "--json")
    assert (unknown.code, unknown.json["error"]["type"]) == (2, "UnknownTask")
    with process("tasks", "--watch", "--state", state) as watching:
        read_until(watching.stdout, "one: lab: work: input_required: half done; asks: who?")
        watching.terminate()


def test_a_task_of_another_server(cli, tmp_path, lab):
    state = tmp_path / "state.sqlite3"
    recorded(state)
    ran = cli("task", "one", "--wait", "--state", state, "--config", lab)
    assert ran.code == 3
    assert "its server is reached in another way than it was" in ran.err


def test_no_host_runs(cli, lab):
    ran = cli("call", "mcp_lab_work", "--detach", "--yes", "--config", lab)
    assert (ran.code, ran.out) == (3, "")
    assert "no host is running; start one with 'mcp-nursery run'" in ran.err


@pytest.mark.slow
def test_a_call_that_is_left_to_a_host_and_outlives_it(cli, tmp_path, lab):
    state = tmp_path / "state.sqlite3"
    with running(lab, "--state", state):
        refused = cli("call", "mcp_lab_work", "--detach")
        assert refused.code == 4
        assert cli("call", "mcp_lab_play", "--detach", "--yes").code == 2
        name = cli("call", "mcp_lab_work", "--detach", "--yes").out.strip()
        other = cli("call", "work", "--server", "lab", "--detach", "--yes", "--json").json
        assert other["status"] == "working"
        cancelled = cli("task", other["id"], "--cancel", "--state", state, "--config", lab, "--json").json
        assert cancelled["status"] == "cancelled"
    (tmp_path / "end").touch()
    assert [task["status"] for task in cli("tasks", "--state", state, "--json").json["tasks"]] == [
        "working",
        "cancelled",
    ]
    ran = cli("task", name, "--wait", "--state", state, "--config", lab, "--json")
    assert (ran.code, ran.json["content"]) == (0, [{"type": "text", "text": "done"}])
    assert cli("task", name, "--wait", "--state", state).out.splitlines()[1] == "done"
    assert (tmp_path / "ledger").read_text().split() == ["run", "run", "cancel"]
