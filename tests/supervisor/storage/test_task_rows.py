"""The rows of tasks in every store: what is recorded, who follows, and what is forgotten."""

import json
import os
import time
from contextlib import closing

import pytest
from attrs import evolve

from mcp_nursery.actors.process.orphans import HostProcess, this_host
from mcp_nursery.supervisor.decisions.task_records import TaskInfo, TaskRecord
from mcp_nursery.supervisor.decisions.task_states import TaskStatus
from mcp_nursery.supervisor.storage import task_rows
from mcp_nursery.supervisor.storage.task_rows import host_name

ODD = "näme\0\ud800"


def record(name="one", created=None, **more):
    info = TaskInfo(name, "lab", ODD, TaskStatus.WORKING, time.time() if created is None else created)
    return TaskRecord(info, "digest", "hash", ODD, **more)


def over(one, outcome=None):
    return one.over(time.time(), TaskStatus.COMPLETED, outcome, None)


def do(store, name, *args, **options):
    return store.tasks(lambda rows: getattr(rows, name)(*args, **options))


def test_a_record_comes_back_as_it_was(any_store):
    full = record(deadline=5.5, asked=frozenset("ab"), answers={"a": {"action": "accept", "content": {"n": ODD}}})
    full = evolve(full, info=evolve(full.info, message=ODD, questions=("who?",), expires=7.0))
    do(any_store, "add", full, "me")
    assert do(any_store, "read", "one") == full
    assert do(any_store, "all") == [full]
    assert do(any_store, "read", "two") is None
    assert do(any_store, "claim", "two", "me") == (None, False)
    do(any_store, "add", record(), "another")  # as where it was tried again
    assert do(any_store, "read", "one") == full


def test_any_number_of_leases_is_renewed(any_store):
    """More than a database takes as values of one statement."""
    do(any_store, "add", record(), "me")
    do(any_store, "renew", "me", 0.0)
    names = [*(f"none {number}" for number in range(70_000)), "one"]
    assert do(any_store, "renew", "me", only=names) == {"one": False}
    assert do(any_store, "claim", "one", "other")[1] is False


def test_one_host_has_the_lease(any_store):
    do(any_store, "add", record(), "me")
    assert do(any_store, "claim", "one", "other")[1] is False
    assert do(any_store, "claim", "one", "me")[1] is True
    changed = evolve(record(), asked=frozenset("a"))
    assert do(any_store, "write", changed, "other") is False
    assert do(any_store, "read", "one").asked == frozenset()
    assert do(any_store, "write", changed, "me") is True
    assert do(any_store, "renew", "other") == {}
    assert do(any_store, "renew", "me") == {"one": False}
    do(any_store, "want_cancelled", "one")
    assert do(any_store, "renew", "me") == {"one": True}
    do(any_store, "release", "one", "other")
    assert do(any_store, "claim", "one", "other")[1] is False
    do(any_store, "release", "one", "me")
    assert do(any_store, "renew", "me") == {}
    assert do(any_store, "claim", "one", "other")[1] is True


def test_a_lease_that_is_over_or_given_up_is_anybodys(any_store):
    do(any_store, "add", record(), "me")
    do(any_store, "renew", "me", 0.0)
    assert do(any_store, "claim", "one", "other")[1] is True
    do(any_store, "renew", "other", -1.0)
    assert do(any_store, "renew", "other") == {"one": False}  # nobody has taken it meanwhile
    assert do(any_store, "claim", "one", "me")[1] is False


def test_a_lease_that_no_host_has_written_is_free(any_store):
    do(any_store, "add", record(), "me")
    do(any_store, "renew", "me", 3600.0)
    assert do(any_store, "claim", "one", "other")[1] is True


def test_the_lease_of_a_dead_process_is_free_at_once(any_store):
    me = this_host()
    assert me is not None
    dead = host_name(HostProcess(me.machine, me.pid, me.started + 1), "x")
    elsewhere = host_name(HostProcess("another machine", me.pid, me.started + 1), "x")
    for name, owner, free in (
        ("a", dead, True),
        ("b", elsewhere, False),
        ("c", host_name(me, "x"), False),
        ("d", "[]", False),
        ("deep", "[" * 100_000, False),
        ("huge", host_name(HostProcess(me.machine, 10**30, 0), "x"), False),
        ("e", "{", False),
        ("f", host_name(None, "x"), False),
    ):
        do(any_store, "add", record(name), owner)
        assert do(any_store, "claim", name, host_name(me, "y"))[1] is free
    assert os.getpid() == me.pid


def test_a_finished_task_has_its_outcome_and_no_host(any_store):
    do(any_store, "add", record(answers={"a": 1}), "me")
    done = over(record(), {"result": {"content": ODD}})
    assert do(any_store, "write", done, "me") is True
    assert do(any_store, "renew", "me") == {}
    found, is_ours = do(any_store, "claim", "one", "me")
    assert (found.outcome, found.answers, is_ours) == ({"result": {"content": ODD}}, {}, False)
    assert do(any_store, "all") == [evolve(found, outcome=None)]
    do(any_store, "forget", "one")
    assert do(any_store, "all") == []


def test_old_tasks_are_forgotten_and_those_that_a_host_follows_are_not(any_store):
    now = time.time()
    do(any_store, "add", record("done"), "me")
    do(any_store, "write", record("done").over(now - 3601, TaskStatus.COMPLETED, None, None), "me")
    assert do(any_store, "all") == []
    assert do(any_store, "read", "done") is not None
    for name, age in (("young", 29), ("followed", 31), ("month", 31)):
        do(any_store, "add", record(name, now - age * 24 * 3600), name)
    assert do(any_store, "read", "done") is None
    do(any_store, "renew", "month", -1.0)
    assert {one.info.id for one in do(any_store, "all")} == {"month", "followed", "young"}
    do(any_store, "add", record("new"), "me")
    assert {one.info.id for one in do(any_store, "all")} == {"followed", "young", "new"}


@pytest.mark.parametrize("hours", [-2, 2, 24 * 31])
def test_the_clock_of_a_host_has_no_say(any_store, monkeypatch, hours):
    now = time.time
    do(any_store, "add", record("under way"), "me")
    monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)
    do(any_store, "add", record("done"), "other")
    do(any_store, "write", over(record("done")), "other")
    assert abs(do(any_store, "read", "done").info.finished - time.time()) < 60
    monkeypatch.undo()
    do(any_store, "renew", "me", -1.0)
    do(any_store, "add", record("new"), "me")
    found = {one.info.id: one.info for one in do(any_store, "all")}
    assert found.keys() == {"under way", "done", "new"}
    assert all(abs(info.created - time.time()) < 60 for info in found.values())
    assert abs(found["done"].finished - time.time()) < 60


def test_of_too_many_the_oldest_go_those_that_are_over_first(any_store, monkeypatch):
    monkeypatch.setattr(task_rows, "MOST_TASKS", 2)
    now = time.time()
    do(any_store, "add", record("old", now - 3), "me")
    do(any_store, "add", record("over", now - 2), "me")
    do(any_store, "write", over(record("over", now - 2)), "me")
    do(any_store, "add", record("new", now - 1), "me")
    assert [one.info.id for one in do(any_store, "all")] == ["old", "new"]
    do(any_store, "add", record("newest", now), "me")
    assert [one.info.id for one in do(any_store, "all")] == ["new", "newest"]


def test_results_have_bounds(any_store, monkeypatch):
    monkeypatch.setattr(task_rows, "MOST_RESULT", 100)
    monkeypatch.setattr(task_rows, "MOST_RESULTS", 120)
    for number, length in enumerate((101, 50, 50, 50)):
        do(any_store, "add", record(str(number)), "me")
        outcome = {"result": "x" * (length - len(json.dumps({"result": ""})))}
        do(
            any_store,
            "write",
            record(str(number)).over(time.time() + number, TaskStatus.COMPLETED, outcome, None),
            "me",
        )
        assert (do(any_store, "read", str(number)).outcome is not None) == (length <= 100)
    assert [do(any_store, "read", str(number)).outcome is not None for number in range(4)] == [False, False, True, True]
    assert do(any_store, "claim", "1", "me")[1] is True  # it is fetched again


def made(name, **more):
    return evolve(record(name, **more), task="")


def test_gateways_make_so_many_tasks_of_calls_at_once(any_store, monkeypatch):
    monkeypatch.setattr(task_rows, "MOST_MADE", 3)
    monkeypatch.setattr(task_rows, "MOST_MADE_OF_CLIENT", 2)
    do(any_store, "add", record("no dot"), "me")
    each = ["ann.1", "ann.2", "ann.3", "bob.1", "cyd.1"]
    assert [do(any_store, "add_made", made(name), "me") for name in each] == [
        True,
        True,
        False,
        True,
        False,
    ]
    do(any_store, "write", over(made("ann.1")), "me")
    assert do(any_store, "add_made", made("anybody.1"), "me") is True
    assert do(any_store, "add_made", made("anybody.2"), "me") is False
    do(any_store, "renew", "me", -1.0)
    assert do(any_store, "add_made", made("anybody.2"), "other") is True  # their gateway is gone


def of_ann(store):
    return [one.info.id for one in do(store, "all") if one.info.id.startswith("ann.")]


def test_a_client_has_so_many_results(any_store, monkeypatch):
    monkeypatch.setattr(task_rows, "MOST_MADE_OF_CLIENT", 3)
    monkeypatch.setattr(task_rows, "MOST_RESULTS_OF_CLIENT", 120)
    for number in range(6):
        name, other = f"ann.{number}", f"bob.{number}"
        do(any_store, "add_made", made(name), "me")
        outcome = {"result": "x" * 35} if number > 3 else {"result": ""}
        do(any_store, "write", made(name).over(time.time() + number, TaskStatus.COMPLETED, outcome, None), "me")
        do(any_store, "add_made", made(other), "me")
    assert of_ann(any_store) == ["ann.3", "ann.4", "ann.5"]
    do(any_store, "add_made", made("ann.6"), "me")
    assert of_ann(any_store) == ["ann.3", "ann.4", "ann.5", "ann.6"]
    do(any_store, "write", made("ann.6").over(time.time() + 6, TaskStatus.COMPLETED, {"result": "x" * 60}, None), "me")
    assert of_ann(any_store) == ["ann.6"]


def test_results_of_one_client_that_end_together_leave_those_of_others(any_store, monkeypatch):
    monkeypatch.setattr(task_rows, "MOST_RESULTS_OF_CLIENT", 120)
    monkeypatch.setattr(task_rows, "MOST_RESULTS", 240)
    each = ["bob.1", *(f"ann.{number}" for number in range(6))]
    for name in each:
        do(any_store, "add_made", made(name), "me")
    for number, name in enumerate(each):
        one = made(name).over(time.time() + number, TaskStatus.COMPLETED, {"result": "x" * 35}, None)
        do(any_store, "write", one, "me")
    assert do(any_store, "read", "bob.1").outcome is not None
    assert of_ann(any_store) == ["ann.4", "ann.5"]


def test_a_result_is_kept_as_long_as_its_record_says(any_store):
    for name, seconds in (("a.short", -5), ("a.long", 5)):
        do(any_store, "add_made", made(name, created=time.time() - 4000), "me")
        one = made(name).over(time.time() - 3700, TaskStatus.COMPLETED, {"result": {}}, None)
        do(any_store, "write", evolve(one, info=evolve(one.info, expires=time.time() + seconds)), "me")
    assert [one.info.id for one in do(any_store, "all")] == ["a.long"]
    do(any_store, "add", record(), "me")
    assert do(any_store, "read", "a.short") is None
    assert do(any_store, "read", "a.long") is not None


def test_a_task_of_a_gateway_whose_lease_is_over_is_abandoned(any_store):
    do(any_store, "add", record(), "gone")
    for name, owner in (("a.1", "gone"), ("a.2", "me"), ("a.3", "gone")):
        do(any_store, "add_made", made(name), owner)
    do(any_store, "write", over(made("a.3")), "gone")
    assert do(any_store, "abandoned") == []
    do(any_store, "renew", "gone", -1.0)
    assert do(any_store, "abandoned") == ["a.1"]


def test_records_outlast_a_run(lasting, place):
    do(lasting, "add", record(), "me")
    lasting.close()
    with closing(place.open()) as again:
        assert [one.task for one in do(again, "all")] == [ODD]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("about", "{"),
        ("about", "[]"),
        ("about", '{"server": "lab"}'),
        ("about", "[" * 100_000),
        ("about", json.dumps({**json.loads(record().columns()[0]), "deadline": 10**400})),
        ("state", json.dumps({"status": "dreaming"})),
        ("state", "null"),
        ("outcome", "5"),
    ],
)
def test_a_row_that_is_damaged_is_lost(lasting, place, column, value):
    do(lasting, "add", record(), "me")
    do(lasting, "add", record("two"), "me")
    place.do(f"UPDATE tasks SET {column} = ? WHERE id = 'one'", value)
    assert do(lasting, "read", "one") is None
    if column != "outcome":
        assert [one.info.id for one in do(lasting, "all")] == ["two"]
    assert do(lasting, "read", "two") is not None


@pytest.mark.parametrize(
    "change",
    [
        {"status": 5},
        {"message": 5},
        {"questions": "who?"},
        {"questions": [5]},
        {"expires": "soon"},
        {"expires": True},
        {"expires": float("inf")},
        {"expires": 10**400},
        {"error": []},
        {"asked": None},
        {"answers": []},
    ],
)
def test_each_member_of_a_row_is_checked(store, change):
    do(store, "add", record(), "me")
    state = json.loads(store.tasks(lambda rows: rows.execute("SELECT state FROM {tasks}", ()).fetchone()[0]))
    changed = json.dumps({**state, **change})
    store.tasks(lambda rows: rows.execute("UPDATE {tasks} SET state = ?", (changed,)))
    assert do(store, "read", "one") is None


def test_the_columns_of_a_file_are_checked(store):
    do(store, "add", record(), "me")
    for statement in ("SET created = 'x'", "SET created = 1.0, about = x'00ff'"):
        store.tasks(lambda rows, statement=statement: rows.execute(f"UPDATE {{tasks}} {statement}", ()))
        assert do(store, "all") == []
