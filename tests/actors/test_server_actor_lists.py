"""The lists of one incarnation, fetched again. Servers are scripted, time is virtual, and every time is exact."""

import itertools

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.messages import Connected, Ended, Ending, Opened, Refreshed
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.actors import ignore, living, sleeps


async def test_the_tools_are_fetched_again_when_told(autojump_clock):
    server = ScriptedServer(tools={"a": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        await trio.sleep(1)
        server.tools = {"a": ignore, "b": sleeps(0)}
        seen.actor.refresh("again")
        await wait_all_tasks_blocked()
        at, report = seen.reports[-1]
        assert (at, [tool.name for tool in report.definitions.tools], report.error) == (1, ["a", "b"], None)
        assert report.incarnation == 3
        seen.send("new", "b")
        await wait_all_tasks_blocked()
        assert isinstance(seen.outcomes["new"][1], Answered)


def running(task=None):
    """The names of all functions that run as a task of their own."""
    task = task or trio.lowlevel.current_root_task()
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return {task.coro.__qualname__}.union(*map(running, children))


async def test_a_server_that_is_only_connected_has_no_task_for_what_it_may_never_do(autojump_clock):
    """A hundred idle servers: each task that waits for nothing costs 4 KB."""
    server = ScriptedServer()
    rare = {"ListRefresh._list_all", "Endpoint._deliver", "Outbox.run"}
    async with living(server) as seen:
        await seen.connected.wait()
        await trio.sleep(1)
        assert not rare & running()
        await server.notify("notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        assert rare & running() == {"ListRefresh._list_all", "Endpoint._deliver"}
        await trio.sleep(1)
        assert rare & running() == {"Endpoint._deliver"}


async def test_requests_to_list_again_that_wait_are_one(autojump_clock):
    async with living(ScriptedServer()) as seen:
        await seen.connected.wait()
        await wait_all_tasks_blocked()
        for _ in range(10):
            seen.actor.refresh("again")
        await wait_all_tasks_blocked()
        relisted = [kind for _, kind in seen.story].count(Refreshed)
        assert 1 <= relisted <= 2


async def test_each_request_to_list_again_is_answered_once(autojump_clock):
    async with living(ScriptedServer()) as seen:
        await seen.connected.wait()
        for name in ("first", "second"):
            seen.actor.refresh(name)
            await wait_all_tasks_blocked()
        assert [one.answers for _, one in seen.reports if isinstance(one, Refreshed)] == [("first",), ("second",)]


async def test_a_request_to_list_again_before_it_is_connected_is_kept(autojump_clock):
    async with living(ScriptedServer(Life(connects_after=5))) as seen:
        seen.actor.refresh("again")
        await trio.sleep(6)
        assert [kind for _, kind in seen.story] == [Opened, Connected, Refreshed]


async def test_a_request_to_list_again_after_the_end_is_passed_over(autojump_clock):
    """R7: whoever asks has not heard of the end yet; and the end may take its time."""
    server = ScriptedServer(Life(closes_after=2))
    async with living(server) as seen:
        await seen.connected.wait()
        server.crash()
        await trio.sleep(1)
        seen.actor.refresh("again")
        await seen.ended.wait()
        assert [kind for _, kind in seen.story] == [Opened, Connected, Ending, Ended]


async def test_listing_again_in_vain_is_told_and_is_not_the_end(autojump_clock):
    server = ScriptedServer(Life(deaf_after=2), tools={"ignore": ignore})
    async with living(server, connect_timeout=7) as seen:
        await seen.connected.wait()
        seen.actor.refresh("again")
        await trio.sleep(20)
        why = "tools/list got no answer within 7 s (connect_timeout, or connectSeconds in a file, gives it more)"
        assert seen.reports[-1] == (7, Refreshed(3, error=why, timed_out=True, answers=("again",)))
        assert Ending not in [kind for _, kind in seen.story]


async def test_lists_that_came_beside_tools_that_did_not_are_taken(autojump_clock):
    server = ScriptedServer(tools={"a": ignore}, prompts={"old": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        server.declared, server.prompts = {"a": {"inputSchema": "none"}}, {"new": ignore}
        seen.actor.refresh("again")
        await wait_all_tasks_blocked()
        _, report = seen.reports[-1]
        assert report.error.startswith("tools/list failed: an answer that is not valid MCP")
        assert [tool.name for tool in report.definitions.tools] == ["a"]
        assert [prompt.name for prompt in report.definitions.prompts] == ["new"]


async def test_calls_go_on_while_it_lists_again(autojump_clock):
    server = ScriptedServer(tools={"two": sleeps(2)})
    async with living(server) as seen:
        await seen.connected.wait()
        seen.send("early", "two")
        seen.actor.refresh("again")
        seen.send("late", "two")
        await trio.sleep(3)
        assert [type(outcome) for _, outcome, _ in seen.outcomes.values()] == [Answered, Answered]


async def test_a_burst_of_changes_is_one_listing(autojump_clock):
    """P2, Q24: a tenth of a second after the first word of it; what comes later is another."""
    server = ScriptedServer(tools={"a": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        for at in (1, 1.5):
            await trio.sleep_until(seen.reports[1][0] + at)
            for _ in range(10):
                await server.notify("notifications/tools/list_changed")
                await trio.sleep(0.0078125)
        server.tools = {"b": ignore}
        await trio.sleep(10)
        relisted = [(at, [tool.name for tool in report.definitions.tools]) for at, report in seen.reports[2:]]
        assert relisted == [(pytest.approx(1.1), ["a"]), (pytest.approx(1.6), ["b"])]


async def test_changes_without_end_are_listed_ever_more_rarely(autojump_clock):
    """9,999 tools and list_changed without end: the loop did nothing but list them."""
    server = ScriptedServer(tools={"a": ignore})
    async with living(server) as seen:
        await seen.connected.wait()
        began = seen.reports[1][0]
        while trio.current_time() < began + 120:
            await server.notify("notifications/tools/list_changed")
            await trio.sleep(0.0625)
        at_rest = [at - began for at, _ in seen.reports[2:]]
        pauses = [later - earlier for earlier, later in itertools.pairwise(at_rest)]
        assert len(at_rest) < 20
        assert 30 < max(pauses) < 30.2
        # The host does not wait for that, and after a rest all is as before.
        count, now = len(seen.reports), trio.current_time()
        await server.notify("notifications/tools/list_changed")
        seen.actor.refresh("again")
        await trio.sleep(0.5)
        assert len(seen.reports) > count
        await trio.sleep(100)
        count, now = len(seen.reports), trio.current_time()
        await server.notify("notifications/tools/list_changed")
        await trio.sleep(1)
        assert seen.reports[count][0] == pytest.approx(now + 0.1)
