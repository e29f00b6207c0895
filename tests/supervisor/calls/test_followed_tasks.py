"""R12: a call that its server makes a task of has one result, and what ends it otherwise says so."""

import itertools
import math
from functools import partial
from typing import Any

import pytest
import trio
from mcp_types import ErrorData

from mcp_nursery.actors.outcomes import Dropped
from mcp_nursery.supervisor import (
    Approval,
    Call,
    CallTimeout,
    InvalidResult,
    RestartPolicy,
    ServerError,
    ServerSpec,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.calls.followed_task import TaskRequest
from mcp_nursery.supervisor.errors import TaskLost
from mcp_nursery.supervisor.testing import Life, Refusal, run_virtual

from ...lab.asking import User, form
from ...lab.tasks import TASKS, WORKING, OldTaskServer, TaskServer, done, failed, wants


def spec(server: TaskServer, **options: Any) -> ServerSpec:
    return ServerSpec("lab", server.transport, **{"policy": RestartPolicy(delays=(2,) * 5), **options})


async def called(server: TaskServer, callbacks: Callbacks, options: dict[str, Any], of: dict[str, Any]) -> Any:
    async with open_supervisor([spec(server, **of)], callbacks=callbacks) as supervisor:
        try:
            return await supervisor.call_tool("work", {"n": 1}, server="lab", **options)
        except Exception as error:
            return error
        finally:
            counts = supervisor.status()[0].calls
            assert (counts.in_flight, counts.done + counts.failed) == (0, 1)


def run(server: TaskServer, of: dict[str, Any] | None = None, callbacks: Any = None, **options: Any) -> Any:
    return run_virtual(partial(called, server, Callbacks(**(callbacks or {})), options, of or {}))


# -- its result -------------------------------------------------------------------------------------------------------


def test_the_result_comes_whatever_form_the_server_chose():
    server = TaskServer(WORKING, WORKING, done("at last"))
    result = run(server)
    assert (result.full_text, result.is_error, result.server, result.tool) == ("at last", False, "lab", "work")
    assert result.duration == pytest.approx(3.0, abs=0.4)
    assert [len(server.calls), len(server.task.looks), server.task.cancelled] == [1, 3, []]
    assert all(told["extensions"] == {TASKS: {}} for told in server.told)


@pytest.mark.parametrize(("wanted", "waits"), [(0, 0.1), (50, 0.1), (7000, 7.0), (10**12, 60.0), (None, 1.0)])
def test_it_is_asked_about_as_often_as_its_server_wants_within_bounds(wanted, waits):
    server = TaskServer(WORKING, WORKING, done(), made={"pollIntervalMs": wanted})
    run(server)
    first, second, third = server.task.looks
    for between in (first, second - first, third - second):
        assert waits <= between <= waits * 1.1


def test_a_result_that_says_that_the_tool_failed_is_a_result():
    result = run(TaskServer(done("no", isError=True)))
    assert result.is_error


def test_the_output_schema_holds_for_the_result_of_a_task():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    declared = {"work": {"outputSchema": schema}}
    assert run(TaskServer(done(structuredContent={"n": 5}), declared=declared)).structured == {"n": 5}
    error = run(TaskServer(done(structuredContent={"n": "x"}), declared=declared))
    assert isinstance(error, InvalidResult)


def test_the_limit_of_characters_holds_for_the_result_of_a_task():
    assert "output truncated at 1000 chars" in run(TaskServer(done("x" * 5000)), of={"max_result_chars": 1000}).text


def test_an_error_of_the_call_is_the_servers_error():
    error = run(TaskServer(WORKING, failed(-32000, "rate limit")))
    assert isinstance(error, ServerError)
    assert (error.code, error.message, error.delivery) == (-32000, "rate limit", "answered")


def test_a_task_that_is_completed_from_the_beginning_is_asked_for_its_result():
    result = run(TaskServer(done(), made={"status": "completed", "pollIntervalMs": 60_000}))
    assert (result.full_text, result.duration) == ("done", 0.0)


def test_a_page_that_has_to_be_visited_calls_nothing_again():
    """The call has begun: it may not run twice."""
    server = TaskServer(failed(-32042, "log in"))
    assert isinstance(run(server, callbacks={"elicit": User()}), ServerError)
    assert len(server.calls) == 1


# -- who is told of the extension -------------------------------------------------------------------------------------


def test_the_spec_has_the_last_word():
    server = TaskServer(done())
    assert run(server, of={"extensions": {}}).full_text == "at once"
    assert all(TASKS not in told.get("extensions", {}) for told in server.told)


def test_a_task_that_was_not_offered_is_no_answer():
    server = TaskServer(done())
    make = server.answers["tools/call"]

    async def all_the_same(params):
        return {**await make(params), "resultType": "task", "taskId": "x", "status": "working", "ttlMs": None}

    server.answers["tools/call"] = all_the_same
    error = run(server, of={"extensions": {}})
    assert isinstance(error, InvalidResult)
    assert "unknown resultType 'task'" in str(error)


def test_a_server_of_the_handshake_era_is_not_told():
    server = TaskServer(done(), lives=[Life(modern=False)])
    assert run(server).full_text == "at once"
    assert server.told == [None]


def test_a_host_sees_that_both_sides_have_the_extension():
    async def main():
        modern, old = TaskServer(done()), TaskServer(done(), lives=[Life(modern=False)])
        async with open_supervisor([ServerSpec("a", modern.transport), ServerSpec("b", old.transport)]) as supervisor:
            return [status.extensions for status in supervisor.status()]

    assert run_virtual(main) == [(TASKS,), ()]


# -- questions --------------------------------------------------------------------------------------------------------


def test_questions_go_to_the_host_once_each():
    server, user = TaskServer(wants(a=form("a?"), b=form("b?")), WORKING, wants(c=form("c?")), done()), User(after=3)
    assert run(server, callbacks={"elicit": user}).full_text == "done"
    assert [message.params.message for message in user.asked] == ["a?", "b?", "c?"]
    assert [sorted(told) for told in server.task.updates] == [["a", "b"], ["c"]]
    assert {message.tool for message in user.asked} == {"work"}
    assert server.task.answers == {key: {"action": "accept", "content": {"name": "Ann"}} for key in "abc"}


def test_a_question_that_its_server_still_shows_is_not_asked_again():
    """An answer takes effect when the server likes; it may be told again."""
    server, user = TaskServer(wants(a=form()), done()), User()
    take = server.answers["tasks/update"]
    late = iter([False, False])

    async def forgetful(params):
        return await take(params) if next(late, True) else {}

    server.answers["tasks/update"] = forgetful
    assert run(server, callbacks={"elicit": user}).full_text == "done"
    assert len(user.asked) == 1


def test_a_host_that_refuses_to_answer_ends_the_call():
    async def refuse(message):
        return ErrorData(code=-5, message="not now")

    server = TaskServer(wants(a=form()), done())
    error = run(server, callbacks={"elicit": refuse})
    assert isinstance(error, ServerError)
    assert "the server asked for input: not now" in str(error)
    assert len(server.task.cancelled) == 1


@pytest.mark.parametrize("kind", [TaskServer, OldTaskServer])
@pytest.mark.parametrize("late", ["the call is cancelled", "its time is over", "a plain answer"])
def test_a_task_that_is_made_after_its_caller_gave_up_is_cancelled(kind, late):
    """Nobody else knows of it, and its server would work on."""
    server = kind(WORKING)
    make = server.answers["tools/call"]

    async def answer(params):
        made = await make(params)
        with trio.CancelScope(shield=True):  # it is told, and answers all the same
            await trio.sleep(1)
        return made if late != "a plain answer" else {"content": []}

    server.answers["tools/call"] = answer

    async def main():
        async with open_supervisor([spec(server)]) as supervisor:
            if late == "its time is over":
                with pytest.raises(CallTimeout):
                    await supervisor.call_tool("work", server="lab", timeout=0.5)
            else:
                with trio.move_on_after(0.5):
                    await supervisor.call_tool("work", server="lab")
            await trio.sleep(1)
            assert len(server.cancelled) == 1, "the call"
            assert server.task.cancelled == ([] if late == "a plain answer" else [pytest.approx(1.0, abs=0.1)])
            assert supervisor.status()[0].calls.in_flight == 0

    run_virtual(main)


def test_the_time_of_a_person_is_not_the_servers():
    server = TaskServer(wants(a=form()), done())
    assert run(server, of={"call_timeout": 10}, callbacks={"elicit": User(after=60)}).full_text == "done"


def test_a_server_that_refuses_an_answer_twice_ends_its_call():
    server = TaskServer(wants(a=form()), done())

    async def refuse(params):
        raise Refusal(-32602, "not one of mine")

    server.answers["tasks/update"] = refuse
    error = run(server, callbacks={"elicit": User()})
    assert isinstance(error, ServerError)
    assert "not one of mine" in str(error)


# -- giving up --------------------------------------------------------------------------------------------------------


def test_the_callers_deadline_ends_the_call_at_once_and_cancels_the_task():
    server = TaskServer(WORKING)

    async def main():
        async with open_supervisor([spec(server)]) as supervisor:
            with pytest.raises(CallTimeout) as caught:
                await supervisor.call_tool("work", server="lab", timeout=10)
            at = trio.current_time()
            await trio.testing.wait_all_tasks_blocked()
            return at, caught.value.delivery

    assert run_virtual(main) == (10.0, "unknown")
    assert server.task.cancelled == [10.0]


def test_a_call_that_ends_after_an_answer_of_ours_may_have_acted():
    error = run(TaskServer(wants(a=form()), WORKING), callbacks={"elicit": User()}, timeout=1.2)
    assert (type(error), error.delivery) == (CallTimeout, "unknown")


@pytest.mark.parametrize("when", [0.5, 1.05, 5.0])
def test_the_callers_cancellation_returns_at_once_and_cancels_the_task(when):
    server = TaskServer(WORKING)

    async def main():
        async with open_supervisor([spec(server)]) as supervisor:
            with trio.move_on_after(when):
                await supervisor.call_tool("work", server="lab")
            at = trio.current_time()
            await trio.testing.wait_all_tasks_blocked()
            return at, supervisor.statistics().calls.in_flight

    assert run_virtual(main) == (when, 0)
    assert server.task.cancelled == [when]


def test_a_caller_that_gives_up_while_somebody_is_asked_takes_the_question_back():
    server, user = TaskServer(wants(a=form())), User(after=100)

    async def main():
        async with open_supervisor([spec(server)], callbacks=Callbacks(elicit=user)) as supervisor:
            with trio.move_on_after(5):
                await supervisor.call_tool("work", server="lab")
            await trio.testing.wait_all_tasks_blocked()

    run_virtual(main)
    assert (user.gave_up, server.task.cancelled) == (1, [5.0])


def test_nobody_waits_for_a_server_that_does_not_answer_a_cancellation():
    server = TaskServer(WORKING)

    async def silence(params):
        await trio.sleep_forever()

    server.answers["tasks/cancel"] = silence

    async def main():
        async with open_supervisor([spec(server)]) as supervisor:
            with trio.move_on_after(2):
                await supervisor.call_tool("work", server="lab")
            assert trio.current_time() == 2
            await trio.sleep(11)
            return await supervisor.call_tool("plain", server="lab")

    assert run_virtual(main).full_text == "at once"
    assert len(server.cancelled) == 1  # the request, in the end


@pytest.mark.parametrize(("away", "told"), [(20, 1), (100, 0)])
def test_a_server_that_is_away_is_told_when_it_is_back(away, told):
    server = TaskServer(WORKING, lives=[Life(dies_after=3), Life(connects_after=away)])

    async def main():
        async with open_supervisor([spec(server, connect_timeout=300)]) as supervisor:
            with trio.move_on_after(6):
                await supervisor.call_tool("work", server="lab")
            assert trio.current_time() == 6
            await supervisor.wait_connected("lab")
            await trio.testing.wait_all_tasks_blocked()

    run_virtual(main)
    assert len(server.task.cancelled) == told


# -- progress ---------------------------------------------------------------------------------------------------------


def test_the_callers_progress_is_the_servers_message():
    said: list[Any] = []

    async def note(progress, total, message):
        said.append((progress, message))

    steps = ({**WORKING, "statusMessage": text} for text in ("one", "one", "two"))
    run(TaskServer(*steps, done()), on_progress=note)
    assert said == [(1, None), (2, "one"), (3, "two"), (4, None)]


def test_a_caller_hears_of_a_task_that_is_seldom_asked_about():
    """It may end a call that is silent for long."""
    times: list[float] = []

    async def note(progress, total, message):
        times.append(trio.current_time())

    run(TaskServer(WORKING, done(), made={"pollIntervalMs": 45_000}), on_progress=note)
    assert all(after - before <= 10 for before, after in itertools.pairwise(times))
    assert times[-1] >= 80


def test_the_time_of_a_person_is_no_time_without_progress():
    server = TaskServer(wants(a=form()), done())
    assert run(server, callbacks={"elicit": User(after=60)}, idle_timeout=5).full_text == "done"


def test_a_task_that_says_nothing_new_has_no_progress():
    changes = [{**WORKING, "lastUpdatedAt": str(n)} for n in range(8)]
    error = run(TaskServer(*changes, WORKING, WORKING, WORKING, WORKING, done()), idle_timeout=2.5)
    assert isinstance(error, CallTimeout)
    assert error.timeout == 2.5


# -- its server is lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0.5, 1.5, 4.0])
def test_the_loss_of_its_connection_is_a_pause(at):
    server = TaskServer(*[WORKING] * 5, done(), lives=[Life(dies_after=at), Life()])
    result = run(server)
    assert (result.full_text, len(server.calls), len(server.starts)) == ("done", 1, 2)


def test_the_ladder_is_a_pause():
    lives = [Life(dies_after=1.5), Life(refuses="not yet"), Life(refuses="not yet"), Life()]
    server = TaskServer(*[WORKING] * 3, done(), lives=lives)
    assert run(server).full_text == "done"
    assert len(server.calls) == 1


def test_a_question_is_asked_again_only_if_it_was_cut_off():
    server = TaskServer(wants(a=form()), WORKING, done(), lives=[Life(dies_after=3), Life(dies_after=10), Life()])
    user = User(after=4)
    assert run(server, callbacks={"elicit": user}).full_text == "done"
    assert (len(user.asked), user.gave_up) == (2, 1)


def test_what_was_agreed_to_holds_for_the_whole_life_of_a_task():
    """The call has begun: a definition that changes meanwhile is no other call."""
    server = TaskServer(*[WORKING] * 4, done(), lives=[Life(dies_after=2.5), Life()])

    async def main():
        specs = [spec(server)]
        async with open_supervisor(specs, approve=allow, pins="block") as supervisor, trio.open_nursery() as nursery:
            await supervisor.wait_connected("lab")

            async def change():
                await trio.sleep(2)
                server.declared = {"work": {"description": "something else"}}

            nursery.start_soon(change)
            return await supervisor.tool("mcp_lab_work")({})

    assert run_virtual(main).full_text == "done"
    assert len(server.starts) == 2


def test_a_reconnect_is_a_pause():
    server = TaskServer(*[WORKING] * 5, done())

    async def main():
        async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
            results: list[Any] = []

            async def call():
                results.append(await supervisor.call_tool("work", server="lab"))

            nursery.start_soon(call)
            await trio.sleep(2)
            await supervisor.reconnect("lab")
            await trio.sleep(20)
            return results

    (result,) = run_virtual(main)
    assert (result.full_text, result.incarnation, len(server.calls)) == ("done", 2, 1)


def test_a_server_that_does_not_know_the_task_any_more():
    server = TaskServer(*[{**WORKING, "statusMessage": "half done"}] * 5, lives=[Life(dies_after=3), Life()])

    async def main():
        async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:

            async def forget():
                await trio.sleep(3)
                server.remembers = False

            nursery.start_soon(forget)
            with pytest.raises(TaskLost) as caught:
                await supervisor.call_tool("work", server="lab")
            return caught.value

    error = run_virtual(main)
    assert (error.task_id, error.status, error.delivery) == ("t0", "working", "unknown")
    assert "lab: work: its task is lost: its server does not know it" in str(error)
    assert "half done" in str(error)
    assert len(server.calls) == 1


def test_a_server_in_whose_place_there_is_another_is_not_told_the_id():
    old, new = TaskServer(WORKING), TaskServer(WORKING)

    async def main():
        async with open_supervisor([spec(old)]) as supervisor, trio.open_nursery() as nursery:

            async def replace():
                await trio.sleep(3)
                await supervisor.reload([spec(new)])

            nursery.start_soon(replace)
            with pytest.raises(TaskLost, match="its server is reached in another way now"):
                await supervisor.call_tool("work", server="lab")
            await trio.testing.wait_all_tasks_blocked()

    run_virtual(main)
    assert new.requests == []


def test_a_server_in_whose_place_there_is_another_is_not_told_of_a_caller_that_gives_up():
    old, new = TaskServer(WORKING, made={"pollIntervalMs": 10_000}), TaskServer(WORKING)

    async def main():
        async with open_supervisor([spec(old)]) as supervisor, trio.open_nursery() as nursery:

            async def replace():
                await trio.sleep(3)
                await supervisor.reload([spec(new)])

            nursery.start_soon(replace)
            with trio.move_on_after(5):
                await supervisor.call_tool("work", server="lab")
            await trio.testing.wait_all_tasks_blocked()

    run_virtual(main)
    assert new.requests == []


def test_a_task_that_a_server_makes_as_it_is_replaced_is_not_the_next_servers():
    async def make(params):
        await trio.sleep(3)
        return await old._make(params)

    old, new = TaskServer(WORKING), TaskServer(WORKING)
    old.answers["tools/call"] = make

    async def main():
        async with open_supervisor([spec(old)]) as supervisor, trio.open_nursery() as nursery:

            async def replace():
                await trio.sleep(1)
                await supervisor.reload([spec(new)], drain=10)

            nursery.start_soon(replace)
            with pytest.raises(TaskLost, match="its server is reached in another way now"):
                await supervisor.call_tool("work", server="lab")
            await trio.testing.wait_all_tasks_blocked()

    run_virtual(main)
    assert (len(old.tasks), new.requests) == (1, [])


def test_losses_in_the_middle_of_looks_are_no_failures_of_a_server_that_is_there():
    async def look(task):
        if len(server.starts) < 9:
            await trio.sleep_forever()
        return server.as_answer(task, done())

    server = TaskServer(look, lives=[Life(dies_after=2)] * 8 + [Life()])
    assert run(server, of={"policy": RestartPolicy(delays=(0.1,) * 20)}).full_text == "done"


def test_a_reload_that_does_not_change_the_server_is_a_pause():
    server = TaskServer(*[WORKING] * 4, done())

    async def main():
        async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:

            async def change():
                await trio.sleep(2.5)
                await supervisor.reload([spec(server, max_in_flight=3)])

            nursery.start_soon(change)
            return await supervisor.call_tool("work", server="lab")

    assert run_virtual(main).full_text == "done"


def test_a_server_that_has_failed_for_good():
    server = TaskServer(WORKING, lives=[Life(dies_after=3), Life(refuses="gone")])
    error = run(server, of={"policy": RestartPolicy(delays=(2,))})
    assert isinstance(error, TaskLost)
    assert "the server is failed" in str(error)


def test_a_server_that_is_stopped_by_a_person():
    server = TaskServer(WORKING)

    async def main():
        async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:

            async def stop():
                await trio.sleep(3)
                await supervisor.stop_server("lab")

            nursery.start_soon(stop)
            with pytest.raises(TaskLost):
                await supervisor.call_tool("work", server="lab")

    run_virtual(main)


def test_a_task_whose_time_is_over():
    server = TaskServer(WORKING, made={"ttlMs": 5000})
    error = run(server)
    assert isinstance(error, TaskLost)
    assert "its time is over" in str(error)
    assert server.task.looks[-1] == 5.0


def test_a_task_whose_time_is_over_while_its_server_is_away():
    server = TaskServer(WORKING, made={"ttlMs": 5000}, lives=[Life(dies_after=2), Life(connects_after=20)])

    async def main():
        async with open_supervisor([spec(server)]) as supervisor:
            with pytest.raises(TaskLost):
                await supervisor.call_tool("work", server="lab")
            return trio.current_time()

    assert 5 <= run_virtual(main) <= 15


def test_a_time_that_is_extended_counts():
    longer = {**WORKING, "ttlMs": 20_000}
    assert run(TaskServer(*[longer] * 9, done(), made={"ttlMs": 5000})).full_text == "done"


def test_a_task_that_its_server_has_cancelled():
    error = run(TaskServer(WORKING, {"status": "cancelled", "statusMessage": "by an operator"}))
    assert isinstance(error, TaskLost)
    assert (error.status, error.delivery) == ("cancelled", "unknown")
    assert "by an operator" in str(error)


def test_a_server_with_a_task_is_not_idle():
    server = TaskServer(*[WORKING] * 3, done(), made={"pollIntervalMs": 10_000})
    assert run(server, of={"lazy": True, "stop_idle_after": 2}).full_text == "done"
    assert len(server.starts) == 1


# -- whatever a server says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ({"taskId": ""}, "the id ''"),
        ({"taskId": 5}, "the id 5"),
        ({"taskId": "x" * 2000}, "the id 'xxx"),
        ({"status": "dreaming"}, "unknown status 'dreaming'"),
        ({"status": ["working"]}, "unknown status"),
        ({"ttlMs": "long"}, "the ttlMs of its task is 'long'"),
        ({"ttlMs": True}, "the ttlMs of its task is True"),
        ({"pollIntervalMs": -1}, "the pollIntervalMs of its task is -1"),
        ({"pollIntervalMs": math.nan}, "the pollIntervalMs of its task is nan"),
        ({"statusMessage": {}}, "the statusMessage of its task is no text"),
    ],
)
def test_a_task_that_cannot_be_read(made, problem):
    error = run(TaskServer(done(), made=made))
    assert isinstance(error, InvalidResult)
    assert problem in str(error)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({**WORKING, "taskId": "another"}, "asked about its task t0, it answers about 'another'"),
        ({"status": "completed"}, "is completed, and has no result"),
        ({"status": "completed", "result": {"resultType": "task"}}, "has the resultType 'task'"),
        ({"status": "completed", "result": {"resultType": "input_required"}}, "has the resultType 'input_required'"),
        ({"status": "failed"}, "with no error of JSON-RPC"),
        ({"status": "failed", "error": {"code": "x", "message": "y"}}, "with no error of JSON-RPC"),
        ({"status": "input_required"}, "requires input, and asks nothing"),
        (wants(**{str(n): form() for n in range(10_000)}), "asks more than 100 questions"),
        (wants(**{"x" * 1025: form()}), "has more than 1024 characters"),
        (wants(a={"method": "fly"}), "a question of its task cannot be read"),
        (wants(a=5), "a question of its task cannot be read"),
        (wants(a=[0] * 20_000), "asks a question with more than 5000 JSON values"),
    ],
)
def test_a_state_that_cannot_be_true_ends_its_own_call(step, problem):
    server = TaskServer(step)
    error = run(server, callbacks={"elicit": User()})
    assert isinstance(error, InvalidResult)
    assert problem in str(error)
    assert len(server.task.cancelled) == 1


def test_answers_that_a_proxy_refuses_are_sent_again(monkeypatch):
    """An HTTP status without an answer of JSON-RPC, which may be a proxy's: the task is well."""
    submit, refused = TaskRequest.submit, []

    async def through_a_proxy(self, *args, **options):
        if self.method != "tasks/update" or len(refused) == 2:
            return await submit(self, *args, **options)
        refused.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        return Dropped("503 Service Unavailable", status=503, retry_in=5.0)

    monkeypatch.setattr(TaskRequest, "submit", through_a_proxy)
    user, server = User(), TaskServer(wants(pay=form()), done())
    assert run(server, callbacks={"elicit": user}).full_text == "done"
    assert (len(user.asked), len(server.task.updates), server.task.cancelled) == (1, 1, [])
    assert refused[1] - refused[0] >= 5


def test_no_error_shows_the_id_of_a_task():
    """It is a server's word, and may hold anything."""
    server = TaskServer(WORKING, made={"taskId": "ghp_" + "a1B2" * 9 + "\x1b[2J"})
    server.remembers = False
    error = run(server)
    assert isinstance(error, TaskLost)
    assert error.task_id.startswith("ghp_")
    assert "ghp_" not in str(error)


def test_a_status_that_goes_backwards():
    error = run(TaskServer(WORKING, made={"status": "completed"}))
    assert isinstance(error, InvalidResult)
    assert "its task went from completed back to working" in str(error)


def test_a_server_that_does_not_answer_about_its_task():
    async def silence(task):
        await trio.sleep_forever()

    server = TaskServer(silence)
    error = run(server, of={"breaker": None, "liveness": None})
    assert isinstance(error, TaskLost)
    assert "6 times in a row its server did not say how it is" in str(error)


def test_errors_that_pass_are_waited_for():
    bad = Refusal(-32603, "a hiccup")
    server = TaskServer(bad, bad, bad, bad, bad, WORKING, done())
    assert run(server).full_text == "done"


# -- all ways to call -------------------------------------------------------------------------------------------------


def test_a_fan_out_has_the_results_of_tasks():
    server = TaskServer(WORKING, done())

    async def main():
        async with open_supervisor([spec(server)]) as supervisor:
            calls = [Call("work", server="lab"), Call("plain", server="lab"), Call("work", server="lab")]
            async with supervisor.fan_out(calls) as outcomes:
                return {outcome.index: outcome.result.full_text async for outcome in outcomes}

    assert run_virtual(main) == {0: "done", 1: "at once", 2: "done"}


async def allow(request):
    return Approval.ALLOW


def test_a_gather_and_a_toolset_have_the_results_of_tasks():
    server = TaskServer(WORKING, done())

    async def main():
        async with open_supervisor([spec(server)], approve=allow) as supervisor:
            (result,) = await supervisor.gather([Call("work", server="lab")])
            outcome = await supervisor.as_toolset().run("mcp_lab_work", "{}")
            return result.full_text, outcome.text.splitlines()[1]

    assert run_virtual(main) == ("done", "done")


def test_a_relayed_call_is_followed_unless_its_client_speaks_for_itself():
    async def main():
        server = TaskServer(wants(a=form()), done())
        told = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
        asked: list[Any] = []

        async def answer(key, method, params):
            asked.append((key, method, params["message"]))
            return {"action": "accept", "content": {"name": "Bob"}}

        async with open_supervisor([spec(server)]) as supervisor:
            request = partial(supervisor.request, "lab", "tools/call", {"name": "work", "arguments": {}})
            followed = await request(on_question=answer)
            raw = await request(meta=told)
            other = {"io.modelcontextprotocol/clientCapabilities": {}}
            for_client = await request(meta=other, follow_tasks=True, on_question=answer)
        assert followed.result == {"resultType": "complete", **done()["result"]}
        assert (raw.result["resultType"], raw.result["taskId"]) == ("task", "t1")
        assert for_client.result == followed.result
        assert asked == [("a", "elicitation/create", "who?")] * 2

    run_virtual(main)


@pytest.mark.parametrize("question", [5, {}, {"method": 5}, {"method": "elicitation/create", "params": 5}])
def test_a_question_that_no_client_could_read(question):
    async def main():
        asked: list[Any] = []

        async def answer(key, method, params):
            asked.append(method)
            return {}

        async with open_supervisor([spec(TaskServer(wants(a=question)))]) as supervisor:
            with pytest.raises(InvalidResult, match="a question of its task cannot be read"):
                await supervisor.request("lab", "tools/call", {"name": "work"}, on_question=answer)
        assert asked == []

    run_virtual(main)


def test_a_relayed_call_whose_client_cannot_be_asked():
    async def main():
        server = TaskServer(wants(a=form()), done())
        async with open_supervisor([spec(server)]) as supervisor:
            with pytest.raises(ServerError, match="the client of this call cannot be asked"):
                await supervisor.request("lab", "tools/call", {"name": "work"})

    run_virtual(main)


# -- the tasks of 2025-11-25 ------------------------------------------------------------------------------------------


def test_a_tool_of_2025_that_needs_a_task_is_called_as_one():
    server = OldTaskServer({**WORKING, "statusMessage": "half"}, WORKING, done("at last"))
    result = run(server)
    assert (result.full_text, result.is_error, server.results) == ("at last", False, 1)
    assert result.duration == pytest.approx(3.0, abs=0.4)
    assert server.told == [None] * 5


def test_only_a_tool_that_needs_a_task_is_called_as_one():
    async def main():
        async with open_supervisor([spec(OldTaskServer(done()))]) as supervisor:
            return await supervisor.call_tool("plain", server="lab")

    assert run_virtual(main).full_text == "at once"


def test_an_error_of_a_task_of_2025_is_the_servers_error():
    error = run(OldTaskServer(failed(-32000, "rate limit")))
    assert isinstance(error, ServerError)
    assert (error.code, error.message, error.delivery) == (-32000, "rate limit", "answered")


def test_a_task_of_2025_outlives_its_connection_and_is_cancelled_with_its_call():
    server = OldTaskServer(*[WORKING] * 4, done(), lives=[Life(modern=False, dies_after=2.5), Life(modern=False)])
    assert run(server).full_text == "done"
    assert len(server.calls) == 1
    given_up = OldTaskServer(WORKING)
    assert isinstance(run(given_up, timeout=5), CallTimeout)
    assert given_up.task.cancelled == [5.0]


def test_a_relayed_call_of_a_tool_of_2025_is_followed_unless_its_client_makes_the_task():
    async def main():
        server = OldTaskServer(done())
        async with open_supervisor([spec(server)]) as supervisor:
            call = {"name": "work", "arguments": {}}
            followed = await supervisor.request("lab", "tools/call", call)
            own = await supervisor.request("lab", "tools/call", {**call, "task": {"ttl": 1000}}, follow_tasks=True)
            neither = await supervisor.request("lab", "tools/call", call, follow_tasks=False)
        assert followed.result == done()["result"]
        assert own.result["task"]["taskId"] == "t1"
        assert neither.result["isError"]

    run_virtual(main)
