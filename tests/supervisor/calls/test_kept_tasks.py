"""Tasks that outlive whoever asked for them: they are recorded, and another host goes on where the last one was."""

import json
import math
import re
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.supervisor import CallTimeout, ConfigError, MemoryStore, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.calls import kept_tasks, task_outcomes
from mcp_nursery.supervisor.errors import (
    InvalidResult,
    ServerError,
    SupervisorClosed,
    TaskLost,
    UnknownTask,
    UnknownTool,
)
from mcp_nursery.supervisor.events import TaskChanged
from mcp_nursery.supervisor.security.redaction import CUT_MARGIN, Redactor
from mcp_nursery.supervisor.storage import task_rows
from mcp_nursery.supervisor.storage.store import StoreUnreadable
from mcp_nursery.supervisor.storage.task_rows import TaskRows
from mcp_nursery.supervisor.testing import Life, run_virtual

from ...lab.asking import User, form
from ...lab.tasks import SERVERS, WORKING, Place, TaskServer, done, failed, wants


@pytest.fixture
def state():
    return MemoryStore()


@asynccontextmanager
async def host(server, state, user=None, place="there", **options):
    SERVERS[place] = server
    spec = ServerSpec("lab", Place(place), policy=RestartPolicy(delays=(2,)))
    async with open_supervisor([spec], callbacks=Callbacks(elicit=user), state=state, **options) as supervisor:
        yield supervisor


def rows(state, statement, *values):
    return state.tasks(lambda rows: rows.execute(statement, values).fetchall())


def ahead(monkeypatch, seconds):
    """The clock of all hosts from now on, but not that of the state."""
    now = kept_tasks.time.time()
    monkeypatch.setattr(kept_tasks.time, "time", lambda: now + seconds)


def later(monkeypatch, seconds):
    """So many seconds later, by every clock."""
    ahead(monkeypatch, seconds)
    monkeypatch.setitem(task_rows._IN_SQLITE, "now", f"({task_rows._IN_SQLITE['now']} + {seconds})")


def run(main):
    return run_virtual(main)


# -- in one host ------------------------------------------------------------------------------------------------------


def test_a_submitted_task_is_recorded_before_there_is_a_handle(state):
    server = TaskServer({**WORKING, "statusMessage": "half done"}, done("at last"), made={"ttlMs": 60_000})

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("mcp_lab_work", {"secret": "s3cr3t"})
            (row,) = rows(state, "SELECT id, finished, about, state FROM {tasks}")
            assert (row[0], row[1], json.loads(row[2])["task"]) == (task.id, None, "t0")
            assert "s3cr3t" not in str(row)
            assert (task.server, task.tool, task.status, task.message) == ("lab", "work", "working", None)
            assert re.fullmatch("[0-9a-f]{32}", task.id), "an argument of commands never begins with a dash"
            assert task.expires == pytest.approx(task.created + 60)
            seen = [(info.status, info.message) async for info in task.changes()]
            assert seen == [("working", None), ("working", "half done"), ("completed", "half done")]
            assert (await task.result()).full_text == "at last"
            assert await supervisor.tasks() == (task.info,)
            assert task.is_over
            assert supervisor.statistics().calls.done == 1
            again = await (await supervisor.task(task.id)).result()
            return again.full_text

    assert run(main) == "at last"
    assert (len(server.calls), server.task.cancelled) == (1, [])


def test_a_server_that_answers_at_once_gives_a_task_that_is_over(state):
    async def main():
        async with host(TaskServer(done()), state) as supervisor:
            task = await supervisor.submit("plain", server="lab")
            assert (task.status, task.is_over) == ("completed", True)
            assert [info.status async for info in task.changes()] == ["completed"]
            assert await supervisor.tasks() == ()
            async with supervisor.start_task("plain", server="lab") as task:
                return (await task.result()).full_text

    assert run(main) == "at once"


def test_a_call_that_fails_before_there_is_a_task_fails_as_any_other(state):
    async def main():
        async with host(TaskServer(done()), state) as supervisor:
            with pytest.raises(UnknownTool):
                await supervisor.submit("play", server="lab")
            with pytest.raises(UnknownTask):
                await supervisor.task("t0")
            async with open_supervisor(borrow=supervisor) as borrower:
                with pytest.raises(ConfigError, match="borrows"):
                    await borrower.submit("work", server="lab")

    run(main)


def test_a_task_that_cannot_be_recorded_is_cancelled(state, monkeypatch):
    server = TaskServer(WORKING)

    def refuse(self, record, owner):
        raise StoreUnreadable("no room")

    monkeypatch.setattr(TaskRows, "add", refuse)

    async def main():
        async with host(server, state) as supervisor:
            with pytest.raises(StoreUnreadable):
                await supervisor.submit("work", server="lab")
            await trio.testing.wait_all_tasks_blocked()
            return await supervisor.tasks()

    assert run(main) == ()
    assert len(server.task.cancelled) == 1


@pytest.mark.parametrize("steps", [[WORKING], [WORKING, done()]])
def test_a_task_of_a_block_is_over_when_the_block_is(state, steps):
    server = TaskServer(*steps)

    async def main():
        async with host(server, state) as supervisor:
            async with supervisor.start_task("work", server="lab") as task:
                assert len(await supervisor.tasks()) == 1
                await trio.sleep(10)
            await trio.testing.wait_all_tasks_blocked()
            return task.is_over, await supervisor.tasks()

    assert run(main) == (True, ())
    assert server.task.cancelled == ([10.0] if steps == [WORKING] else [])


def test_a_block_that_is_left_with_its_supervisor_cancels_the_task(state):
    server = TaskServer(WORKING)

    async def main():
        with trio.move_on_after(5):
            async with host(server, state) as supervisor, supervisor.start_task("work", server="lab"):
                await trio.sleep_forever()
        return trio.current_time()

    assert run(main) == 5
    assert server.task.cancelled == [5.0]
    assert rows(state, "SELECT id FROM {tasks}") == []


@pytest.mark.parametrize("_", range(8))  # the orders in which Trio runs the tasks of one moment
def test_a_submission_that_is_cancelled_leaves_no_task(state, _):
    server = TaskServer(WORKING)
    add = TaskRows.add

    async def main():
        async with host(server, state) as supervisor:
            with trio.CancelScope() as scope:

                def late(self, record, owner):
                    add(self, record, owner)
                    scope.cancel()

                TaskRows.add = late  # type: ignore[method-assign]
                try:
                    await supervisor.submit("work", server="lab")
                finally:
                    TaskRows.add = add  # type: ignore[method-assign]
            await trio.testing.wait_all_tasks_blocked()
            return await supervisor.tasks()

    assert run(main) == ()
    assert len(server.task.cancelled) == 1


def test_a_task_that_is_cancelled(state):
    server = TaskServer({**WORKING, "statusMessage": "half done"})

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(3)
            await task.cancel()
            await task.cancel()
            with pytest.raises(TaskLost, match="it was cancelled here") as caught:
                await task.result()
            assert caught.value.delivery == "unknown"
            assert task.status == "cancelled"
            with pytest.raises(TaskLost, match="it was cancelled"):
                await (await supervisor.task(task.id)).result()

    run(main)
    assert server.task.cancelled == [3.0]


def test_whoever_waits_for_the_result_may_give_up(state):
    async def main():
        async with host(TaskServer(*[WORKING] * 5, done()), state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            with trio.move_on_after(2):
                await task.result()
            return (await task.result()).full_text

    assert run(main) == "done"


def test_the_limit_of_the_caller_holds_for_the_task_and_the_limit_of_the_server_for_its_answer(state):
    server = TaskServer(*[WORKING] * 50, done())

    async def main():
        spec = ServerSpec("lab", server.transport, call_timeout=5)
        async with open_supervisor([spec], state=state) as supervisor:
            limited = await supervisor.submit("work", server="lab", timeout=10)
            free = await supervisor.submit("work", server="lab")
            with pytest.raises(CallTimeout):
                await limited.result()
            assert trio.current_time() == 10
            assert [info.status for info in await supervisor.tasks()] == ["cancelled", "working"]
            return (await free.result()).full_text

    assert run(main) == "done"
    assert [task.cancelled for task in server.tasks.values()] == [[10.0], []]


def test_events_and_questions(state):
    server, seen = TaskServer(wants(a=form("who are you?")), done()), []

    async def main():
        async with host(server, state, User(after=5)) as supervisor, supervisor.events() as events:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(3)
            assert (task.status, task.questions) == ("input_required", ("who are you?",))
            await task.result()
            with trio.move_on_after(1):
                async for event in events:
                    if isinstance(event, TaskChanged):
                        task = event.task
                        seen.append((event.server, task.status, task.questions, task.finished is None))

    run(main)
    asking = ("lab", "input_required", ("who are you?",), True)
    assert seen == [
        ("lab", "working", (), True),
        asking,
        ("lab", "input_required", (), True),
        ("lab", "completed", (), False),
    ]


def test_a_server_that_says_much_costs_the_store_little(state, monkeypatch):
    write, written = TaskRows.write, []

    def counted(self, record, owner):
        written.append(record.info.message)
        return write(self, record, owner)

    monkeypatch.setattr(TaskRows, "write", counted)
    steps = [{**WORKING, "statusMessage": str(number)} for number in range(200)]
    server = TaskServer(*steps, *[steps[-1]] * 50, done(), made={"pollIntervalMs": 100})

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await task.result()
            return trio.current_time()

    assert len(written) <= run(main) / 2 + 3
    assert written[-2:] == ["199", "199"]


# -- from one host to the next ----------------------------------------------------------------------------------------


def test_the_next_host_goes_on_and_asks_only_what_was_not_answered(state):
    server = TaskServer(WORKING, wants(a=form("a?")), wants(b=form("b?")), done("at last"), made={"ttlMs": 3600_000})
    first, second = User(after=1), User(after=1)
    take = server.answers["tasks/update"]

    async def deaf(params):
        return {}

    async def main():
        server.answers["tasks/update"] = deaf  # an answer is on its way when the host ends
        async with host(server, state, first) as supervisor:
            task = await supervisor.submit("work", server="lab", timeout=1000)
            await trio.sleep(10)
        with pytest.raises(SupervisorClosed):
            await task.result()
        server.answers["tasks/update"] = take
        async with host(server, state, second) as supervisor:
            (info,) = await supervisor.tasks()
            assert (info.id, info.server, info.tool, info.status) == (task.id, "lab", "work", "input_required")
            same = await supervisor.task(task.id)
            assert same.expires == task.expires
            result = await same.result()
            return result.full_text, result.incarnation, supervisor.statistics().calls.done

    assert run(main) == ("at last", 1, 1)
    assert [message.params.message for message in first.asked] == ["a?"]
    assert [message.params.message for message in second.asked] == ["b?"]
    assert (len(server.calls), server.task.cancelled) == (1, [])
    assert rows(state, "SELECT count(*) FROM {tasks} WHERE state LIKE '%Ann%'") == [(0,)]


def test_a_question_that_was_open_is_asked_again(state):
    server, first, second = TaskServer(wants(a=form("a?")), done()), User(after=100), User()

    async def main():
        async with host(server, state, first) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(10)
        async with host(server, state, second) as supervisor:
            return (await (await supervisor.task(task.id)).result()).full_text

    assert run(main) == "done"
    assert (len(first.asked), first.gave_up, len(second.asked)) == (1, 1, 1)


@pytest.mark.parametrize("asked", [True, False])
def test_a_task_that_ends_while_there_is_no_host(state, asked):
    """Its result is fetched by the next one; a result that was learnt is recorded."""
    server = TaskServer(WORKING, done("at last", structuredContent={"n": 1}))

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            if asked:
                await task.result()
        server.remembers = not asked
        async with host(server, state) as supervisor:
            task = await supervisor.task(task.id)
            result = await task.result()
            assert (result.text.splitlines()[1], result.server, result.tool) == ("at last", "lab", "work")
            assert result.structured == {"n": 1}
            return task.status

    assert run(main) == "completed"


def test_a_result_that_is_too_large_to_be_recorded_is_fetched_again(state, monkeypatch):
    monkeypatch.setattr(task_outcomes, "MOST_RESULT", 1000)
    server = TaskServer(done("x" * 2000))

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await task.result()
        async with host(server, state) as supervisor:
            before = await supervisor.tasks()
            assert [info.status for info in before] == ["completed"]
            text = (await (await supervisor.task(task.id)).result()).full_text
            await (await supervisor.task(task.id)).cancel()  # it is over
            server.remembers = False
            with pytest.raises(TaskLost, match="does not know it"):
                await (await supervisor.task(task.id)).result()
            assert await supervisor.tasks() == before
            return text

    assert run(main) == "x" * 2000
    assert server.task.cancelled == []
    assert rows(state, "SELECT outcome FROM {tasks}") == [(None,)]


@pytest.mark.parametrize(
    ("step", "kind", "said"),
    [
        (failed(-32000, "rate limit"), ServerError, "error -32000: rate limit"),
        ({"status": "failed"}, InvalidResult, "with no error of JSON-RPC"),
        ({"status": "cancelled"}, TaskLost, "it was cancelled"),
    ],
)
def test_an_error_is_recorded_too(state, step, kind, said):
    async def main():
        server = TaskServer(step)
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            with pytest.raises(kind) as first:
                await task.result()
        async with host(server, state) as supervisor:
            assert said in (await supervisor.tasks())[0].error
            with pytest.raises(kind) as second:
                await (await supervisor.task(task.id)).result()
        assert (str(second.value), second.value.delivery) == (str(first.value), first.value.delivery)
        return str(second.value)

    assert said in run(main)


def test_the_clock_of_a_host_ends_no_task(state, monkeypatch):
    server = TaskServer(WORKING, done(), made={"ttlMs": 60_000})

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab", timeout=100)
        ahead(monkeypatch, 7200)
        async with host(server, state) as supervisor:
            same = await supervisor.task(task.id)
            assert same.expires - same.created == task.expires - task.created
            assert same.created == pytest.approx(kept_tasks.time.time(), abs=10)
            return (await same.result()).full_text

    assert run(main) == "done"


def test_the_words_of_a_server_are_recorded_as_far_as_a_line_has_room(state, monkeypatch):
    text, looked_at = Redactor.text, []

    def looked(self, said):
        looked_at.append(len(said))
        return text(self, said)

    monkeypatch.setattr(Redactor, "text", looked)
    long = "password=hunter22hunter22 " + "x" * 200_000
    server = TaskServer({**wants(a=form(long), b=form(long)), "statusMessage": long}, done())

    async def main():
        async with host(server, state, User(after=5)) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(3)
            ((said,),) = rows(state, "SELECT state FROM {tasks}")
            assert (len(said) < 10_000, "hunter22" in said) == (True, False)
            assert [len(each) for each in (task.message, *task.questions)] == [2001] * 3
            await task.result()

    run(main)
    assert max(looked_at) <= 2000 + CUT_MARGIN
    assert len([each for each in looked_at if each > 2000]) == 3, "once each"


@pytest.mark.parametrize(("forgets", "timeout", "status"), [(True, None, "failed"), (False, 5, "cancelled")])
def test_a_task_that_ends_without_its_servers_word_is_over_all_the_same(state, forgets, timeout, status):
    server = TaskServer(WORKING)

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab", timeout=timeout)
            server.remembers = not forgets
            with pytest.raises((TaskLost, CallTimeout)) as first:
                await task.result()
            (info,) = await supervisor.tasks()
            assert (info.status, task.status, info.finished is None) == (status, status, False)
            with pytest.raises((TaskLost, CallTimeout)) as second:
                await (await supervisor.task(task.id)).result()
            return str(first.value), str(second.value)

    first, second = run(main)
    assert first == second


def test_the_limit_of_the_caller_outlives_the_host(state, monkeypatch):
    server = TaskServer(WORKING)

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab", timeout=100)
        later(monkeypatch, 70)
        async with host(server, state) as supervisor:
            task = await supervisor.task(task.id)
            with pytest.raises(CallTimeout):
                await task.result()
        return trio.current_time()

    assert 29 <= run(main) <= 31
    assert len(server.task.cancelled) == 1


def test_a_server_is_told_of_a_task_whose_time_was_over_before_there_was_a_host(state, monkeypatch):
    server = TaskServer(WORKING)

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab", timeout=100)
        later(monkeypatch, 1000)
        async with host(server, state) as supervisor:
            with pytest.raises(CallTimeout):
                await (await supervisor.task(task.id)).result()
            await trio.sleep(1)

    run(main)
    assert len(server.task.cancelled) == 1


def test_no_other_server_is_asked(state):
    server, other = TaskServer(WORKING, done()), TaskServer(WORKING, done())

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
        async with open_supervisor([], state=state) as supervisor:
            assert len(await supervisor.tasks()) == 1
            with pytest.raises(TaskLost, match="there is no server 'lab' here"):
                await supervisor.task(task.id)
        async with host(other, state, place="elsewhere") as supervisor:
            with pytest.raises(TaskLost, match="its server is reached in another way than it was"):
                await supervisor.task(task.id)
        other.declared = {"work": {"description": "Does something else."}}
        async with host(other, state) as supervisor:
            task = await supervisor.task(task.id)
            with pytest.raises(TaskLost, match="its tool is not declared as it was") as caught:
                await task.result()
            assert not caught.value.for_good
        assert other.told == []
        async with host(server, state) as supervisor:
            return (await (await supervisor.task(task.id)).result()).full_text

    assert run(main) == "done"


def test_a_server_that_is_an_object_of_the_program_does_not_outlive_it(state):
    async def main():
        spec = ServerSpec("lab", TaskServer(WORKING).transport)
        async with open_supervisor([spec], state=state) as supervisor:
            task = await supervisor.submit("work", server="lab")
        async with open_supervisor([spec], state=state) as supervisor:
            with pytest.raises(TaskLost, match="an object of another program"):
                await supervisor.task(task.id)

    run(main)


def test_a_server_that_has_failed_may_come_back(state):
    server = TaskServer(*[WORKING] * 3, done(), lives=[Life(dies_after=2), Life(refuses="no"), Life()])

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            with pytest.raises(TaskLost) as caught:
                await task.result()
            assert not caught.value.for_good
            assert (await supervisor.tasks())[0].finished is None
            await supervisor.reconnect("lab")
            return (await (await supervisor.task(task.id)).result()).full_text

    assert run(main) == "done"
    assert (len(server.calls), server.task.cancelled) == (1, [])


def test_a_question_is_left_to_a_host_that_can_answer(state):
    server = TaskServer(wants(a=form()), done())

    async def main():
        async with host(server, state, User(after=100)) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(3)
        async with host(server, state) as supervisor:
            with pytest.raises(TaskLost, match="for which this host has no callback") as caught:
                await (await supervisor.task(task.id)).result()
            assert not caught.value.for_good
        async with host(server, state, User()) as supervisor:
            return (await (await supervisor.task(task.id)).result()).full_text

    assert run(main) == "done"
    assert server.task.cancelled == []


@pytest.mark.parametrize(
    "outcome",
    [
        '{"result": {"content": 5}}',
        '{"result": 5}',
        '{"error": 5}',
        "{}",
        json.dumps({"error": {"type": "CallTimeout", "timeout": 10**400}}),
    ],
)
def test_a_recorded_end_that_is_damaged_is_lost(state, outcome):
    async def main():
        server = TaskServer(done())
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await task.result()
            await trio.testing.wait_all_tasks_blocked()
            rows(state, "UPDATE {tasks} SET outcome = ?", outcome)
            same = await supervisor.task(task.id)
            try:
                return (await same.result()).full_text
            except TaskLost as error:
                return str(error)

    assert "its task is lost" in run(main) or "cannot be read" in run(main)


# -- several hosts ----------------------------------------------------------------------------------------------------


def test_a_task_has_one_host_and_another_sees_what_that_learns(state):
    server = TaskServer(*[WORKING] * 5, *[{**WORKING, "statusMessage": "soon"}] * 3, done("at last"))

    async def main():
        async with host(server, state) as one, host(server, state) as other:
            task = await one.submit("work", server="lab")
            seen = await other.task(task.id)
            messages = [info.message async for info in seen.changes()]
            assert "soon" in messages
            return (await seen.result()).full_text, (await task.result()).full_text

    assert run(main) == ("at last", "at last")
    assert len(server.task.looks) == 9


def test_another_host_takes_over_when_a_host_is_gone(state, monkeypatch):
    claim, renew, frozen = TaskRows.claim, TaskRows.renew, []

    def claimed(self, name, owner):
        return (self.read(name), False) if owner in frozen else claim(self, name, owner)

    def renewed(self, owner, *args, **options):
        return {} if owner in frozen else renew(self, owner, *args, **options)

    monkeypatch.setattr(TaskRows, "claim", claimed)
    monkeypatch.setattr(TaskRows, "renew", renewed)
    server, one_user, other_user = TaskServer(wants(a=form()), done()), User(after=math.inf), User()

    async def main():
        async with host(server, state, one_user) as one, host(server, state, other_user) as other:
            task = await one.submit("work", server="lab")
            seen = await other.task(task.id)
            await trio.sleep(5)
            assert (len(one_user.asked), len(other_user.asked)) == (1, 0)
            frozen.extend(owner for (owner,) in rows(state, "SELECT owner FROM {tasks}"))
            rows(state, "UPDATE {tasks} SET until = 0")
            result = await seen.result()
            assert trio.current_time() <= 5 + 10
            assert (await task.result()).full_text == result.full_text
            return one_user.gave_up

    assert run(main) == 1
    assert (len(server.calls), server.task.cancelled) == (1, [])


def test_an_answer_is_not_sent_by_a_host_that_has_lost_the_task(state):
    server = TaskServer(wants(a=form()), done())

    async def main():
        async with host(server, state, User(after=1.5)) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(2.4)  # between two renewals
            rows(state, "UPDATE {tasks} SET owner = '[\"another\"]', until = {now} + 6")
            await trio.sleep(100)
            assert not task.is_over
            assert server.task.updates == []
            rows(state, "UPDATE {tasks} SET until = 0")
            return (await task.result()).full_text

    assert run(main) == "done"


def test_a_task_is_cancelled_by_a_host_that_does_not_follow_it(state):
    server = TaskServer(WORKING)

    async def main():
        async with host(server, state) as one, host(server, state) as other:
            task = await one.submit("work", server="lab")
            await (await other.task(task.id)).cancel()
            assert len(server.task.cancelled) == 1
            with pytest.raises(TaskLost, match="it was cancelled"):
                await task.result()
            return (await other.tasks())[0].status

    assert run(main) == "cancelled"
    assert len(server.task.cancelled) == 1


def test_a_task_is_cancelled_at_a_server_that_comes_back(state):
    server = TaskServer(WORKING, lives=[Life(dies_after=2), Life(connects_after=16), Life()])

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(4)
            await task.cancel()
            assert server.task.cancelled == []
            await trio.sleep(30)

    run(main)
    assert len(server.task.cancelled) == 1


@pytest.mark.parametrize("first", ["the end", "the cancellation"])
def test_a_cancellation_beside_the_end_has_one_outcome(state, monkeypatch, first):
    server, write, made = TaskServer(done("at last")), TaskRows.write, []

    def written(self, record, owner):
        if record.info.finished is not None and made:
            made[0]._cancel(made.pop()._kept)  # while the end is recorded
        return write(self, record, owner)

    monkeypatch.setattr(TaskRows, "write", written)

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
            if first == "the end":
                made.append(task)
            else:
                await task.cancel()
            try:
                said = (await task.result()).full_text
            except TaskLost as lost:
                said = lost.status
            (info,) = await supervisor.tasks()
            assert info.status == task.status
            return said, info.status

    assert run(main) == (("at last", "completed") if first == "the end" else ("working", "cancelled"))
    assert len(server.task.cancelled) == (first != "the end")


def test_a_host_that_is_closed_leaves_its_leases(state):
    async def main():
        async with host(TaskServer(WORKING), state) as supervisor:
            await supervisor.submit("work", server="lab")
            assert rows(state, "SELECT until > {now} FROM {tasks}") == [(1,)]
        assert rows(state, "SELECT until > {now} FROM {tasks}") == [(0,)]

    run(main)


def test_a_lease_that_lasts_longer_than_any_is_no_lease(state):
    server = TaskServer(WORKING, done())

    async def main():
        async with host(server, state) as supervisor:
            task = await supervisor.submit("work", server="lab")
        rows(state, "UPDATE {tasks} SET owner = '[\"another\"]', until = 9e12")
        async with host(server, state) as supervisor:
            return (await (await supervisor.task(task.id)).result()).full_text

    assert run(main) == "done"


class CutOff(MemoryStore):
    """The way of one host to the database of several."""

    def __init__(self, state):
        super().__init__()
        self.state, self.is_cut = state, False

    def tasks(self, work):
        if self.is_cut:
            raise StoreUnreadable("no route to the database")
        return self.state.tasks(work)


def test_a_host_that_has_lost_the_database_leaves_its_tasks_to_another(state):
    mine, one_user, other_user = CutOff(state), User(after=20), User(after=20)
    server = TaskServer(*[WORKING] * 20, wants(a=form()), done())

    async def main():
        async with host(server, mine, one_user) as one, host(server, state, other_user) as other:
            task = await one.submit("work", server="lab")
            mine.is_cut = True
            seen = await other.task(task.id)
            await trio.sleep(7)
            looks = len(server.task.looks)
            await trio.sleep(7)
            assert len(server.task.looks) == looks
            rows(state, "UPDATE {tasks} SET until = 0")
            await seen.result()
            mine.is_cut = False
            return (await task.result()).full_text

    assert run(main) == "done"
    assert (len(one_user.asked), len(other_user.asked), len(server.task.updates)) == (0, 1, 1)


def test_a_task_is_cancelled_while_the_database_is_away(state):
    mine, server = CutOff(state), TaskServer(WORKING)

    async def main():
        async with host(server, mine) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(3)
            mine.is_cut = True
            await task.cancel()
            assert (server.task.cancelled, task.status) == ([3.0], "cancelled")
            await trio.sleep(20)
            mine.is_cut = False
            await trio.sleep(5)
            (info,) = await supervisor.tasks()
            return info.status, info.finished is None

    assert run(main) == ("cancelled", False)
    assert server.task.cancelled == [3.0]


def test_a_host_that_follows_learns_of_a_cancellation_once_the_other_reaches_the_database(state):
    other_way, server = CutOff(state), TaskServer(WORKING)

    async def main():
        async with host(server, state) as one, host(server, other_way) as other:
            task = await one.submit("work", server="lab")
            seen = await other.task(task.id)
            await trio.sleep(3)
            other_way.is_cut = True
            await seen.cancel()
            assert (server.task.cancelled, seen.is_over) == ([], False)
            other_way.is_cut = False
            with pytest.raises(TaskLost, match="it was cancelled"):
                await seen.result()
            with pytest.raises(TaskLost, match="it was cancelled"):
                await task.result()

    run(main)
    assert len(server.task.cancelled) == 1


@pytest.mark.parametrize("seconds", [4, 60])
def test_an_answer_that_cannot_be_recorded_is_kept_and_not_sent(state, seconds):
    mine, user, server = CutOff(state), User(after=5), TaskServer(wants(a=form()), done())

    async def main():
        async with host(server, mine, user) as supervisor:
            task = await supervisor.submit("work", server="lab")
            await trio.sleep(4.5)
            mine.is_cut = True
            await trio.sleep(seconds)
            assert (len(user.asked), server.task.updates) == (1, [])
            assert not task.is_over
            mine.is_cut = False
            return (await task.result()).full_text

    assert run(main) == "done"
    assert (len(user.asked), len(server.task.updates)) == (1, 1)


# -- with another server in its place ---------------------------------------------------------------------------------


def test_a_task_that_a_server_makes_as_it_is_replaced_is_recorded_as_its_own(state):
    async def make(params):
        await trio.sleep(3)
        return await old._make(params)

    old, new = TaskServer(WORKING, done()), TaskServer(WORKING)
    old.answers["tools/call"] = make

    async def main():
        SERVERS["new"] = new
        async with host(old, state) as supervisor, trio.open_nursery() as nursery:

            async def replace():
                await trio.sleep(1)
                await supervisor.reload([ServerSpec("lab", Place("new"))], drain=10)

            nursery.start_soon(replace)
            task = await supervisor.submit("work", server="lab")
            with pytest.raises(TaskLost, match="reached in another way"):
                await task.result()
        async with host(old, state) as supervisor:
            return (await (await supervisor.task(task.id)).result()).full_text

    assert run(main) == "done"
    assert new.requests == []


@pytest.mark.parametrize("timeout", [None, 10])
def test_a_server_that_is_replaced_while_its_task_waits_for_it_is_not_told_the_id(state, timeout):
    new = TaskServer(WORKING, lives=[Life(connects_after=20 if timeout else 0)])

    async def main():
        async with host(TaskServer(WORKING), state) as supervisor:
            task = await supervisor.submit("work", server="lab", timeout=timeout)
        SERVERS["new"] = new
        away = TaskServer(lives=[Life(connects_after=100)])
        async with host(away, state, gate=0) as supervisor:
            task = await supervisor.task(task.id)
            await trio.sleep(3)
            await supervisor.reload([ServerSpec("lab", Place("new"))])
            with pytest.raises(TaskLost, match="reached in another way"):
                await task.result()
            await trio.sleep(30)

    run(main)
    assert new.requests == []
