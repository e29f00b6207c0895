"""The past of servers: incarnations with why they ended, events, and calls. In virtual time."""

from functools import partial

import trio

from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.cli.lives import SAMPLE
from mcp_nursery.supervisor.cli.web.history import History
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ....lab.specs import spec
from ....lab.tasks import WORKING, TaskServer, done


async def test_incarnations_say_why_they_ended_and_what_followed(autojump_clock):
    server = ScriptedServer(Life(dies_after=60, exit_code=7), Life(dies_after=10), Life())
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        history = History(supervisor)
        nursery.start_soon(history.run)
        await trio.sleep(61)
        [first] = history.of("lab").incarnations
        assert (first.number, first.why, first.then) == (1, "exited with code 7", "waiting")
        assert first.ended is not None
        assert first.connected is not None
        assert round(first.ended - first.connected) == 60
        assert first.next_at is not None
        assert round(first.next_at - first.ended) == 2
        await trio.sleep(60)
        numbers = [(each.number, each.attempt, each.ended is None) for each in history.of("lab").incarnations]
        assert numbers == [(1, 1, False), (2, 2, False), (3, 3, True)]
        assert any("exited with code 7" in record.line for record in history.of("lab").events)
        nursery.cancel_scope.cancel()


async def test_a_first_attempt_that_is_under_way_is_an_incarnation(autojump_clock):
    server = ScriptedServer(Life(connects_after=5))
    async with open_supervisor([spec(server)], gate=0) as supervisor, trio.open_nursery() as nursery:
        history = History(supervisor)
        nursery.start_soon(history.run)
        await supervisor.wait_connected("lab")
        await trio.testing.wait_all_tasks_blocked()
        [only] = history.of("lab").incarnations
        assert only.connected is not None
        assert round(only.connected - only.began) == 5
        nursery.cancel_scope.cancel()


async def test_a_failure_from_before_is_an_incarnation_too(autojump_clock):
    server = ScriptedServer(Life(refuses="no database here"), Life())
    async with open_supervisor([spec(server)], gate=0) as supervisor, trio.open_nursery() as nursery:
        await trio.sleep(1)
        history = History(supervisor)
        nursery.start_soon(history.run)
        await trio.testing.wait_all_tasks_blocked()
        [first] = history.of("lab").incarnations
        assert (first.number, first.attempt, first.why, first.then) == (1, 1, "no database here", "waiting")
        await trio.sleep(5)
        assert [each.number for each in history.of("lab").incarnations] == [1, 2]
        nursery.cancel_scope.cancel()


async def test_calls_are_kept_by_their_time(autojump_clock):
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        history = History(supervisor)
        nursery.start_soon(history.run)
        await trio.sleep(1)
        for _ in range(3):
            await supervisor.call_tool("mcp_lab_echo")
        await trio.sleep(SAMPLE)
        assert [(each.done, each.failed) for each in history.of("lab").load] == [(3, 0)]
        await trio.sleep(SAMPLE * 10)
        assert len(history.of("lab").load) == 1
        nursery.cancel_scope.cancel()


async def test_calls_that_a_server_was_waited_for_with_are_counted_when_it_is_back(autojump_clock):
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        history = History(supervisor)
        nursery.start_soon(history.run)
        await supervisor.wait_connected("lab")
        supervisor.spec("lab").transport.server.crash()
        await trio.sleep(1)
        async with trio.open_nursery() as calls:
            for _ in range(2):
                calls.start_soon(partial(supervisor.call_tool, "mcp_lab_echo", when_down="hold"))
        assert [each.held for each in history.of("lab").incarnations] == [0, 2]
        nursery.cancel_scope.cancel()


async def test_a_task_lasts_until_its_end_is_known(autojump_clock):
    server = TaskServer(WORKING, done("at last"))
    async with open_supervisor([spec(server)], state=MemoryStore()) as supervisor, trio.open_nursery() as nursery:
        history = History(supervisor)
        nursery.start_soon(history.run)
        task = await supervisor.submit("mcp_lab_work", {})
        await trio.testing.wait_all_tasks_blocked()
        [span] = history.of("lab").tasks
        assert (span.id, span.tool, span.ended) == (task.id, "work", None)
        await task.result()
        await trio.testing.wait_all_tasks_blocked()
        [over] = history.of("lab").tasks
        assert over.ended is not None
        assert over.ended > over.began == span.began
        nursery.cancel_scope.cancel()


async def test_a_removed_server_is_forgotten(autojump_clock):
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        history = History(supervisor)
        nursery.start_soon(history.run)
        await trio.sleep(1)
        await supervisor.remove_server("lab")
        await trio.sleep(SAMPLE * 2)
        assert history.servers == {}
        assert "removed" in history.events[-1].line
        nursery.cancel_scope.cancel()
