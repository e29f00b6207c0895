"""Tasks of servers that notify of changes: they are asked about when they have changed, and hardly ever otherwise."""

from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing
from mcp_types import ElicitResult

from mcp_nursery.supervisor import (
    MemoryStore,
    RestartPolicy,
    ServerSpec,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.calls import followed_task
from mcp_nursery.supervisor.errors import SupervisorClosed, TaskLost
from mcp_nursery.supervisor.servers import task_news
from mcp_nursery.supervisor.testing import Life, Refusal, run_virtual

from ...lab.tasks import WORKING, OldTaskServer, TaskServer, done, wants

CHANGED = "notifications/tasks"
LISTEN = "subscriptions/listen"


def notifying(*steps, **options):
    """A server whose stream has all the tasks that are wanted."""
    server = TaskServer(*(steps or (WORKING,)), **options)
    server.capabilities["resources"] = {"subscribe": True}
    return server


def streams(server):
    """The tasks of each stream."""
    asked = [params["notifications"] for _, method, params in server.requests if method == LISTEN]
    return [each["taskIds"] for each in asked if "taskIds" in each]


def looks(server):
    return {task: len(each.looks) for task, each in server.tasks.items()}


def slow(server, method, seconds):
    """Has the server take its time for requests of this method. Counts those under way."""
    counts, answer = Counter(), server.answers[method]

    async def late(params):
        counts["now"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        try:
            await trio.sleep(seconds)
            return await answer(params)
        finally:
            counts["now"] -= 1

    server.answers[method] = late
    return counts


@asynccontextmanager
async def calling(server, calls=1):
    """Calls under way, and their results by and by."""
    results: list[str] = []

    async def call():
        results.append((await supervisor.call_tool("work", server="lab")).full_text)

    spec = ServerSpec("lab", server.transport, policy=RestartPolicy(delays=(2,) * 5))
    async with open_supervisor([spec], state=MemoryStore()) as supervisor, trio.open_nursery() as nursery:
        for _ in range(calls):
            nursery.start_soon(call)
        server.supervisor = supervisor
        yield nursery, results, call
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def calling_in_two_lots(server):
    """800 calls under way: at once they would not fit into the mailbox. Gives their results by and by."""
    async with calling(server, calls=400) as (nursery, results, call):
        await trio.sleep(0.1)
        for _ in range(400):
            nursery.start_soon(call)
        yield results


async def acknowledge(server, tasks):
    """Agree to a stream whose request is being answered."""
    stamp = {"io.modelcontextprotocol/subscriptionId": next(reversed(server._current._running))}
    await server.notify(
        "notifications/subscriptions/acknowledged", {"notifications": {"taskIds": tasks}, "_meta": stamp}
    )


async def end(server, task, text="at last"):
    server.tasks[task].left = [done(text)]
    await server.notify(CHANGED, {"taskId": task})


def test_it_is_asked_about_when_it_has_changed():
    server = notifying()

    async def main():
        async with calling(server) as (_, results, _call):
            await trio.sleep(500)
            assert streams(server) == [["t0"]]
            polled = len(server.task.looks)
            assert 9 <= polled <= 13, "before the stream, and once when it began"
            await trio.sleep(3000)
            assert len(server.task.looks) - polled <= 5, "a lost notification costs time alone"
            await end(server, "t0")
            await trio.sleep(0.2)
            assert results == ["at last"]
            assert len(server.cancelled) == 1, "nobody listens any more"

    run_virtual(main)


def test_one_that_is_soon_over_is_not_listened_to():
    server = notifying(WORKING, done())

    async def main():
        async with calling(server) as (_, results, _call):
            await trio.sleep(60)
            assert (results, streams(server)) == (["done"], [])

    run_virtual(main)


def test_all_tasks_of_a_server_have_one_stream():
    server = notifying()

    async def main():
        async with calling(server, calls=3) as (nursery, results, call):
            await trio.sleep(60)
            nursery.start_soon(call)
            await trio.sleep(60)
            first, second = streams(server)
            assert (sorted(first), sorted(second)) == (["t0", "t1", "t2"], ["t0", "t1", "t2", "t3"])
            assert len(server.cancelled) == 1, "the first stream"
            before = looks(server)
            await end(server, "t1", "one")
            await trio.sleep(1)
            assert results == ["one"]
            assert [count - before[task] for task, count in sorted(looks(server).items())] == [0, 1, 0, 0]

    run_virtual(main)


def test_many_tasks_have_several_streams_and_few_have_one_again(monkeypatch):
    monkeypatch.setattr(task_news, "MOST_IN_STREAM", 3)
    server = notifying()

    async def main():
        async with calling(server, calls=7) as (nursery, results, call):
            await trio.sleep(60)
            assert [len(each) for each in streams(server)] == [3, 3, 1]
            assert sorted(task for each in streams(server) for task in each) == sorted(server.tasks)
            assert server.cancelled == []
            for task in [*streams(server)[0], *streams(server)[1][1:]]:
                await end(server, task)
            await trio.sleep(1)
            assert len(results) == 5
            before = looks(server)
            nursery.start_soon(call)
            await trio.sleep(60)
            assert sorted(streams(server)[-1]) == sorted({"t7", streams(server)[1][0], *streams(server)[2]})
            assert len(server.cancelled) == 3
            del (after := looks(server))["t7"]
            assert after == before, "nothing can have been missed between two streams"

    run_virtual(main)


def test_tasks_for_which_there_is_no_stream_are_asked_about_as_before(monkeypatch):
    monkeypatch.setattr(task_news, "MOST_IN_STREAM", 2)
    monkeypatch.setattr(task_news, "MOST_NEWS_STREAMS", 2)
    server = notifying()

    async def main():
        async with calling(server, calls=5):
            await trio.sleep(100)
            assert [len(each) for each in streams(server)] == [2, 2]
            before = looks(server)
            await trio.sleep(100)
            assert sorted(count - before[task] > 50 for task, count in looks(server).items()) == [False] * 4 + [True]

    run_virtual(main)


def test_a_stream_that_is_lost_has_only_its_own_tasks_asked_about(monkeypatch):
    monkeypatch.setattr(task_news, "MOST_IN_STREAM", 2)
    server, endings = TaskServer(WORKING), []

    async def listen(params):
        await acknowledge(server, params["notifications"]["taskIds"])
        endings.append((params["notifications"]["taskIds"], over := trio.Event()))
        await over.wait()
        return {}

    server.answers[LISTEN] = listen

    async def main():
        async with calling(server, calls=4):
            await trio.sleep(100)
            (lost, over), (kept, _) = endings
            before = looks(server)
            over.set()
            await trio.sleep(20)
            assert [sorted(tasks) for tasks, _ in endings] == [sorted(lost), sorted(kept), sorted(lost)]
            assert {task for task, count in looks(server).items() if count > before[task]} == set(lost)

    run_virtual(main)


def test_streams_that_are_lost_together_are_opened_again_soon(monkeypatch):
    """Each loss of a young stream doubled the pause, and at a loss of the connection all were taken for young."""
    monkeypatch.setattr(task_news, "MOST_IN_STREAM", 1)
    server = notifying(lives=[Life(dies_after=41), Life()])

    async def main():
        async with calling(server, calls=6):
            await trio.sleep(40.5)
            assert len(streams(server)) == 6
            await trio.sleep(60)
            assert len(streams(server)) == 12

    run_virtual(main)


def test_an_acknowledgement_that_comes_late_is_taken():
    server = TaskServer(WORKING)

    async def listen(params):
        await trio.sleep(30)
        await acknowledge(server, params["notifications"]["taskIds"])
        await trio.sleep_forever()

    server.answers[LISTEN] = listen

    async def main():
        async with calling(server):
            await trio.sleep(60)
            before = len(server.task.looks)
            await trio.sleep(300)
            assert len(server.task.looks) == before

    run_virtual(main)


def test_a_call_for_a_task_that_is_listened_to_listens_too():
    server = notifying(made={"taskId": "t0"})

    async def main():
        async with calling(server) as (nursery, _, call):
            await trio.sleep(60)
            before = len(server.task.looks)
            nursery.start_soon(call)
            await trio.sleep(300)
            assert len(server.tasks) == 2
            assert len(server.tasks["t0"].looks) - before <= 3

    run_virtual(main)


def test_a_stream_that_is_lost_is_replaced_and_its_tasks_are_asked_about_meanwhile():
    server = notifying(lives=[Life(dies_after=100), Life(), Life()])

    async def main():
        async with calling(server) as (_, results, _call):
            await trio.sleep(99)
            before = len(server.task.looks)
            await trio.sleep(20)
            assert streams(server) == [["t0"], ["t0"]]
            assert 1 <= len(server.task.looks) - before <= 5
            await end(server, "t0")
            await trio.sleep(1)
            assert results == ["at last"]

    run_virtual(main)


def test_a_change_that_cannot_be_looked_at_is_not_forgotten():
    server = notifying(WORKING)

    async def main():
        async with calling(server) as (_, results, _call):
            await trio.sleep(60)
            server.task.left = [Refusal(-32000, "not now"), done("at last")]
            await server.notify(CHANGED, {"taskId": "t0"})
            await trio.sleep(3)
            assert results == ["at last"]

    run_virtual(main)


@pytest.mark.parametrize("answer", ["refuses", "agrees to nothing", "is silent"])
def test_a_server_that_does_not_notify_is_asked_as_before(answer):
    server, asked = TaskServer(WORKING), []

    async def listen(params):
        asked.append(params["notifications"]["taskIds"])
        if answer == "refuses":
            raise Refusal(-32601, "no such method")
        if answer == "agrees to nothing":
            await acknowledge(server, ["t7", 5])
        await trio.sleep_forever()

    server.answers[LISTEN] = listen

    async def main():
        async with calling(server):
            await trio.sleep(300)
            assert asked == [["t0"]]
            assert len(server.task.looks) > 250

    run_virtual(main)


def test_a_server_that_ends_each_stream_is_asked_less_and_less(monkeypatch):
    monkeypatch.setattr(task_news, "LONGEST_STREAM_PAUSE", 40.0)
    server, times = TaskServer(WORKING), []

    async def listen(params):
        times.append(trio.current_time())
        await acknowledge(server, params["notifications"]["taskIds"])
        await trio.sleep(1)
        return {}

    server.answers[LISTEN] = listen

    async def main():
        async with calling(server):
            await trio.sleep(300)
            pauses = [later - sooner for sooner, later in pairwise(times)]
            assert all(pause >= 9 for pause in pauses)
            assert all(pause >= 39 for pause in pauses[3:])
            assert len(server.task.looks) > 200

    run_virtual(main)


def test_many_tasks_cost_less_than_a_request_a_second():
    server = notifying(made={"pollIntervalMs": 5000})

    async def main():
        async with calling(server, calls=400):
            await trio.sleep(100)
            before = sum(len(task.looks) for task in server.tasks.values())
            await trio.sleep(4000)
            assert sum(len(task.looks) for task in server.tasks.values()) - before < 4000

    run_virtual(main)


def test_many_tasks_leave_room_for_calls():
    """The requests about them filled the mailbox, and calls were refused."""
    server = TaskServer(WORKING)
    counts = slow(server, "tasks/get", 2)

    async def main():
        async with calling_in_two_lots(server):
            for _ in range(50):
                await trio.sleep(1)
                assert (await server.supervisor.call_tool("plain", server="lab")).full_text == "at once"
            assert counts["most"] == task_news.ASKED_AT_ONCE

    run_virtual(main)


@pytest.mark.parametrize("notifies", [True, False])
def test_all_that_wait_learn_that_the_supervisor_is_closed(notifies):
    """They are woken: the timer that would wake them is gone by then."""
    server = notifying() if notifies else TaskServer(WORKING)
    outcomes = []

    async def call(supervisor):
        with pytest.raises(SupervisorClosed):
            await supervisor.call_tool("work", server="lab")
        outcomes.append(trio.current_time())

    async def main():
        async with trio.open_nursery() as nursery:
            spec = ServerSpec("lab", server.transport)
            async with open_supervisor([spec], state=MemoryStore()) as supervisor:
                for _ in range(3):
                    nursery.start_soon(call, supervisor)
                await trio.sleep(60)
                left_at = trio.current_time()
        assert outcomes == [pytest.approx(left_at, abs=1)] * 3

    run_virtual(main)


def test_a_task_that_waits_for_its_turn_is_told_of_and_over_in_time(monkeypatch):
    """Its turn came long after its server had forgotten it, and its caller heard nothing meanwhile."""
    monkeypatch.setattr(task_news, "ASKED_AT_ONCE", 4)
    server = TaskServer(WORKING, made={"ttlMs": 60_000})
    slow(server, "tasks/get", 8)
    told, ended = [], []

    async def hear(*_):
        await trio.lowlevel.checkpoint()
        told.append(trio.current_time())

    async def call(supervisor, **options):
        with pytest.raises(TaskLost, match="its time is over"):
            await supervisor.call_tool("work", server="lab", **options)
        ended.append(trio.current_time())

    async def main():
        spec = ServerSpec("lab", server.transport)
        async with open_supervisor([spec], state=MemoryStore()) as supervisor, trio.open_nursery() as nursery:
            began = trio.current_time()
            for _ in range(40):
                nursery.start_soon(call, supervisor)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(partial(call, supervisor, on_progress=hear))
        assert max(ended) < began + 60 + followed_task.LAST_ANSWER_WITHIN + 9
        assert max(later - sooner for sooner, later in pairwise(told)) <= followed_task.TOLD_EVERY + 9

    run_virtual(main)


def test_a_task_whose_time_is_over_goes_before_others(monkeypatch):
    """Its server may forget it, and others can wait."""
    monkeypatch.setattr(task_news, "ASKED_AT_ONCE", 1)
    server = TaskServer(WORKING)
    slow(server, "tasks/get", 3)

    async def main():
        async with calling(server, calls=20) as (_, _results, _call):
            await trio.sleep(5)
            lasting, began = server.made, trio.current_time()
            server.made = {**lasting, "ttlMs": 10_000}
            with trio.fail_after(100):
                call = partial(server.supervisor.call_tool, "work", server="lab")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call)
                    await trio.sleep(0.5)
                    server.made = lasting
                    server.tasks["t20"].left = [done()]
            assert trio.current_time() < began + 10 + 3 + 3

    run_virtual(main)


def test_a_caller_that_takes_its_time_is_in_nobodys_turn(monkeypatch):
    monkeypatch.setattr(task_news, "ASKED_AT_ONCE", 1)
    server = TaskServer(WORKING)
    slow(server, "tasks/get", 3)

    told = []

    async def hang(*_):
        told.append(trio.current_time())
        await trio.sleep(1000 if len(told) > 1 else 0)

    async def main():
        async with calling(server, calls=5) as (nursery, _, _call):
            call = partial(server.supervisor.call_tool, "work", server="lab", on_progress=hang)
            nursery.start_soon(call)
            await trio.sleep(500)
            assert len(told) == 2
            assert sum(len(task.looks) for task in server.tasks.values()) > 150

    run_virtual(main)


def test_answers_of_many_leave_room_for_calls():
    server = TaskServer(wants(q={"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}))
    counts = slow(server, "tasks/update", 2)

    async def elicit(_message):
        await trio.sleep(5)
        return ElicitResult(action="decline")

    async def main():
        spec = ServerSpec("lab", server.transport)
        callbacks = Callbacks(elicit=elicit)
        async with (
            open_supervisor([spec], state=MemoryStore(), callbacks=callbacks) as supervisor,
            trio.open_nursery() as nursery,
        ):
            for _ in range(2):
                for _ in range(300):
                    nursery.start_soon(partial(supervisor.call_tool, "work", server="lab"))
                await trio.sleep(0.5)
            for _ in range(40):
                await trio.sleep(0.5)
                assert (await supervisor.call_tool("plain", server="lab")).full_text == "at once"
            assert counts["most"] == task_news.ASKED_AT_ONCE
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_results_of_many_tasks_of_2025_leave_room_for_calls():
    """They come by a request of their own."""
    server = OldTaskServer(WORKING, done())
    counts = slow(server, "tasks/result", 2)

    async def main():
        async with calling_in_two_lots(server) as results:
            while len(results) < 800:
                await trio.sleep(1)
                assert (await server.supervisor.call_tool("plain", server="lab")).full_text == "at once"
            assert counts["most"] == task_news.ASKED_AT_ONCE

    run_virtual(main)


def test_a_small_mailbox_has_room_for_calls_too():
    server = TaskServer(WORKING)
    counts = slow(server, "tasks/get", 2)

    async def main():
        spec = ServerSpec("lab", server.transport, max_in_flight=8, mailbox_size=32)
        async with open_supervisor([spec], state=MemoryStore()) as supervisor, trio.open_nursery() as nursery:
            for _ in range(5):
                for _ in range(20):
                    nursery.start_soon(partial(supervisor.call_tool, "work", server="lab"))
                await trio.sleep(0.5)
            for _ in range(20):
                await trio.sleep(0.5)
                assert (await supervisor.call_tool("plain", server="lab")).full_text == "at once"
            assert counts["most"] == 2
            nursery.cancel_scope.cancel()

    run_virtual(main)


def test_a_stream_has_only_as_many_tasks_as_its_acknowledgement_may_name(monkeypatch):
    """In JSON that is escaped an id takes up to twelve bytes a character."""
    monkeypatch.setattr(task_news, "LARGEST_STREAM", 30)
    server = notifying()

    async def main():
        async with calling(server, calls=10):
            await trio.sleep(60)
            assert [len(each) for each in streams(server)] == [6, 4]

    run_virtual(main)


def test_a_server_that_never_acknowledges_is_given_up():
    server, asked = TaskServer(WORKING), []

    async def listen(params):
        asked.append(params)
        await trio.sleep_forever()

    server.answers[LISTEN] = listen

    async def main():
        async with calling(server):
            await trio.sleep(300)
            assert (len(asked), len(server.cancelled)) == (1, 1)

    run_virtual(main)


def test_a_change_that_a_replaced_stream_still_tells_is_heard():
    """Over HTTP it may come after the acknowledgement of the next stream."""
    server, streamed, second = TaskServer(WORKING), [], trio.Event()

    async def listen(params):
        stamp = {"io.modelcontextprotocol/subscriptionId": next(reversed(server._current._running))}
        streamed.append(stamp)
        await acknowledge(server, params["notifications"]["taskIds"])
        if len(streamed) == 2:
            second.set()
        await trio.sleep_forever()

    server.answers[LISTEN] = listen

    async def main():
        async with calling(server) as (nursery, results, call):
            await trio.sleep(60)
            nursery.start_soon(call)
            await second.wait()
            await trio.sleep(0.1)
            server.tasks["t0"].left = [done("at last")]
            await server.notify(CHANGED, {"taskId": "t0", "_meta": streamed[0]})
            await trio.sleep(1)
            assert results == ["at last"]
            await trio.sleep(5)
            assert len(server.cancelled) == 1, "the first stream"

    run_virtual(main)
