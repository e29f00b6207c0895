"""A supervisor of another thread, in plain code: it waits, from any thread, and its callbacks are plain functions."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from mcp_nursery.supervisor import Approval, Call, CallTimeout, ConfigError, Supervisor, UnknownTool
from mcp_nursery.supervisor.errors import SupervisorClosed, TaskLost
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.processes import lab
from ...lab.specs import hang, spec
from ...lab.tasks import WORKING, TaskServer, done


def allow(_request):
    return Approval.ALLOW


def threads():
    return [each for each in threading.enumerate() if each.name == "mcp-nursery"]


def test_a_call_that_becomes_a_task():
    """R12."""
    server = TaskServer(WORKING, done("at last"), made={"pollIntervalMs": 100})
    with open_supervisor_thread([spec(server)]) as supervisor:
        assert supervisor.call_tool("mcp_lab_work", timeout=20).full_text == "at last"


def test_tasks_that_outlive_their_callers():
    server = TaskServer({**WORKING, "statusMessage": "half done"}, done("at last"), made={"pollIntervalMs": 100})
    other = TaskServer(WORKING, made={"pollIntervalMs": 100})
    with open_supervisor_thread([spec(server), spec(other, "other")]) as supervisor:
        task = supervisor.submit("mcp_lab_work", timeout=20)
        assert [info.message for info in task.changes()][-1] == "half done"
        assert task.result().full_text == supervisor.task(task.id).result().full_text == "at last"
        with supervisor.start_task("mcp_other_work") as short:
            assert supervisor.tasks() == (task.info, short.info)
        given_up = supervisor.submit("mcp_other_work")
        given_up.cancel()
        with pytest.raises(TaskLost, match="cancelled"):
            given_up.result()
    assert all(each.cancelled for each in other.tasks.values())
    assert task.is_over


def test_calls_lists_and_streams():
    async def content(_arguments):
        return "content"

    server = ScriptedServer(Life(), resources={"file:///a": content}, prompts={"greet": content}, tools={"hang": hang})
    with open_supervisor_thread([spec(server), lab("other")], approve=allow) as supervisor:
        assert supervisor.wait_connected("other").state == "connected"
        assert supervisor.call_tool("mcp_other_echo", {"text": "hello"}, timeout=5).full_text == "hello"
        assert "mcp_lab_hang" in [tool.name for tool in supervisor.list_tools()]
        assert {tool.name for tool in supervisor.tools} >= {"mcp_lab_hang", "mcp_other_echo"}
        assert supervisor.find_tool("echo", server="other").name == supervisor.tool("mcp_other_echo").name
        for tool in (*supervisor.list_tools(), *supervisor.find_tools("echo"), supervisor.find_tool("mcp_other_echo")):
            with pytest.raises(TypeError, match="description only"):  # plain code cannot await it
                tool().send(None)
        assert [each.full_text for each in supervisor.gather([Call("mcp_other_echo", {"text": "a"})])] == ["a"]
        calls = [Call("mcp_other_echo", {"text": text}) for text in "abc"]
        with supervisor.fan_out(calls) as outcomes:
            assert {outcome.result.full_text for outcome in outcomes} == set("abc")
        with supervisor.fan_out([Call("mcp_other_echo"), Call("mcp_lab_hang", timeout=None)]) as outcomes:
            assert next(outcomes).index == 0
        assert supervisor.status()[0].calls.in_flight == 0
        assert supervisor.read_resource("file:///a").contents[0].text == "content"
        with pytest.raises(CallTimeout):
            supervisor.call_tool("mcp_lab_hang", timeout=0.05)
        with pytest.raises(UnknownTool):
            supervisor.call_tool("nothing")
        with supervisor.broadcast("nothing") as outcomes:
            assert list(outcomes) == []
        with supervisor.stderr("other") as lines:
            supervisor.call_tool("sleep", {"seconds": 0, "says": "a word\n"}, server="other")
            assert next(lines) == "a word"
        with supervisor.events() as events:
            supervisor.stop_server("other")
            assert any(getattr(event, "new", None) == "stopped" for event in events)
        toolset = supervisor.as_toolset()
        assert "mcp_lab_hang" in [tool.name for tool in toolset.tools]
        assert toolset.run("mcp_lab_nothing", {}).is_error
    assert threads() == []


def test_many_threads_call_at_once(mcp_supervisor):
    with mcp_supervisor({"lab": lab().transport}) as supervisor, ThreadPoolExecutor(8) as pool:
        texts = [str(number) for number in range(200)]
        answers = pool.map(
            lambda text: supervisor.call_tool("mcp_lab_echo", {"text": text}, timeout=30).full_text, texts
        )
        assert list(answers) == texts


def test_callbacks_are_plain_functions_that_may_wait():
    seen = []

    def approve(request):
        seen.append(threading.current_thread().name)
        assert supervisor.status()[0].state == "connected"  # it may ask in turn
        assert supervisor.call_tool("mcp_lab_echo", {"text": "inner"}).full_text == "inner"
        return Approval.ALLOW

    def on_progress(progress, total, message):
        seen.append(message)

    with open_supervisor_thread([lab()], approve=approve) as supervisor:
        toolset = supervisor.as_toolset()
        supervisor.list_tools()
        assert not toolset.run("mcp_lab_tick", {"steps": 2, "every": 0}, on_progress=on_progress).is_error
    assert "mcp-nursery" not in seen
    assert seen[-2:] == ["step 0", "step 1"]


def test_a_coroutine_callback_runs_on_trio_and_cannot_wait_for_its_own_thread():
    async def approve(_request):
        assert supervisor.status()[0].state == "connected"
        with pytest.raises(RuntimeError, match="would wait for itself"):
            supervisor.call_tool("mcp_lab_echo")
        return Approval.ALLOW

    with open_supervisor_thread([spec(ScriptedServer())], approve=approve) as supervisor:
        supervisor.list_tools()
        assert not supervisor.as_toolset().run("mcp_lab_echo", {}).is_error


def test_what_a_callback_raises_is_raised_where_it_was_asked():
    def approve(_request):
        raise ZeroDivisionError

    with open_supervisor_thread([spec(ScriptedServer())], approve=approve) as supervisor:
        supervisor.list_tools()
        with pytest.raises(ZeroDivisionError):
            supervisor.as_toolset().run("mcp_lab_echo", {})


def test_what_cannot_be_opened_says_why_and_leaves_nothing():
    with pytest.raises(ConfigError), open_supervisor_thread("/nowhere/servers.json"):
        raise AssertionError("it was entered")
    assert threads() == []


def test_after_the_block_there_is_no_supervisor():
    with open_supervisor_thread([spec(ScriptedServer())]) as supervisor:
        supervisor.list_tools()
    with pytest.raises(SupervisorClosed):
        supervisor.call_tool("mcp_lab_echo")
    with pytest.raises(SupervisorClosed):
        supervisor.status()


def test_a_call_of_another_thread_that_is_under_way_when_the_block_is_left_has_its_outcome():
    begun = threading.Event()

    async def tool(arguments):
        begun.set()
        await hang(arguments)

    with ThreadPoolExecutor(1) as pool:
        with open_supervisor_thread([spec(ScriptedServer(tools={"hang": tool}))]) as supervisor:
            call = pool.submit(supervisor.call_tool, "mcp_lab_hang", timeout=None)
            begun.wait(60)
        with pytest.raises(Exception, match=r"closed|lab") as failure:
            call.result(60)
        assert failure.type.__module__ == "mcp_nursery.actors.errors"


def test_in_a_child_of_fork_it_is_closed_and_the_servers_are_the_parents():
    with open_supervisor_thread([lab()]) as supervisor:
        pid = supervisor.call_tool("mcp_lab_pid").full_text
        child = os.fork()
        if not child:  # a failure here would go on as a second pytest
            try:
                supervisor.status()
            except SupervisorClosed:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert supervisor.call_tool("mcp_lab_pid").full_text == pid


def test_servers_are_killed_hang_and_talk_nonsense(mcp_supervisor, mcp_server, mcp_faults):
    scripted = mcp_server()
    with mcp_supervisor([spec(scripted), lab("real")]) as supervisor:
        supervisor.wait_connected("real")
        for name in ("lab", "real"):
            with supervisor.events() as events:
                mcp_faults.kill(supervisor, name)
                assert any(
                    (getattr(each, "server", ""), getattr(each, "new", "")) == (name, "waiting") for each in events
                )
            supervisor.wait_connected(name)
            if name == "lab":
                mcp_faults.garbage(supervisor, name)
            assert supervisor.call_tool("echo", server=name, timeout=30).server == name
            mcp_faults.hang(supervisor, name)
            with pytest.raises(CallTimeout):
                supervisor.call_tool("echo", server=name, timeout=0.2)
        with pytest.raises(ValueError, match="scripted"):
            mcp_faults.garbage(supervisor, "real")


async def test_on_trio_the_fixture_is_a_supervisor_of_this_loop(mcp_supervisor, mcp_server, mcp_faults):
    async with mcp_supervisor({"lab": mcp_server()}) as supervisor:
        assert isinstance(supervisor, Supervisor)
        mcp_faults.kill(supervisor, "lab")
        await supervisor.wait_connected("lab")


def test_virtual_time(mcp_virtual):
    async def main():
        await trio.sleep(1_000)
        return trio.current_time()

    assert mcp_virtual(main) == 1_000


def test_a_supervisor_that_a_test_has_not_left_is_ended(mcp_supervisor):
    block = mcp_supervisor([])
    supervisor = block.__enter__()
    block.__exit__(None, None, None)
    block.__exit__(None, None, None)  # as the fixture does
    with pytest.raises(SupervisorClosed):
        supervisor.status()
