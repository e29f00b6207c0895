"""A supervisor of another thread, in asyncio and on another Trio loop: as in Trio itself."""

import asyncio
import contextvars
import inspect
import threading
from functools import partial

import anyio
import anyio.lowlevel
import pytest
import trio
from mcp_types import ElicitResult

from mcp_nursery.supervisor import Approval, Call, CallTimeout, ConfigError, Supervisor, UnknownTool
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.calls.task_handles import Task
from mcp_nursery.supervisor.errors import NurseryError, SupervisorClosed, TaskLost, UnknownResource
from mcp_nursery.supervisor.portal import BlockingSupervisor, ThreadSupervisor, open_supervisor_thread
from mcp_nursery.supervisor.portal.async_supervisor import ThreadTask
from mcp_nursery.supervisor.portal.blocking_supervisor import BlockingTask
from mcp_nursery.supervisor.portal.callbacks import loop_callback
from mcp_nursery.supervisor.portal.signals import GRACE
from mcp_nursery.supervisor.portal.stream import MOST_UNREAD
from mcp_nursery.supervisor.testing import Life, ScriptedServer
from mcp_nursery.supervisor.toolset import Toolset

from ...lab.asking import asking, form
from ...lab.processes import lab
from ...lab.specs import hang, lasting, spec
from ...lab.tasks import WORKING, TaskServer, done

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
LEFT_OUT = {"request", "notify", "notices", "session_notes", "open_instance", "made_tasks"}
"""The part of a supervisor that gateways need."""


def play(main, backend="asyncio"):
    """Run an asynchronous function in a loop, for a minute at most."""

    async def bounded():
        with anyio.fail_after(60):
            await main()

    anyio.run(bounded, backend=backend)


class Started:
    """A tool that never ends, and what waits until it has begun, in any loop."""

    def __init__(self):
        self.begun = threading.Event()

    async def tool(self, arguments):
        self.begun.set()
        await trio.sleep_forever()

    async def wait(self):
        await anyio.to_thread.run_sync(self.begun.wait)


@pytest.mark.parametrize("kind", [ThreadSupervisor, BlockingSupervisor])
def test_it_has_the_methods_of_a_supervisor(kind):
    public = {name for name in dir(Supervisor) if not name.startswith("_")} - LEFT_OUT
    assert public == {name for name in dir(kind) if not name.startswith("_")} - {"awaitable"}
    for name in public:
        there, here = inspect.getattr_static(Supervisor, name), inspect.getattr_static(kind, name)
        if not isinstance(there, property):
            assert list(inspect.signature(there).parameters) == list(inspect.signature(here).parameters), name


@pytest.mark.parametrize("kind", [ThreadTask, BlockingTask])
def test_a_task_has_the_methods_of_one_in_trio(kind):
    assert [name for name in dir(Task) if name[0] != "_"] == [name for name in dir(kind) if name[0] != "_"]


@BACKENDS
def test_tasks_that_outlive_their_callers(backend):
    server = TaskServer({**WORKING, "statusMessage": "half done"}, done("at last"), made={"pollIntervalMs": 100})
    other = TaskServer(WORKING, made={"pollIntervalMs": 100})

    async def main():
        async with open_supervisor_thread([spec(server), spec(other, "other")]) as supervisor:
            task = await supervisor.submit("mcp_lab_work", timeout=20)
            assert [info.message async for info in task.changes()][-1] == "half done"
            assert (await task.result()).full_text == "at last"
            assert (task.status, task.is_over, task.server) == ("completed", True, "lab")
            assert [info.id for info in await supervisor.tasks()] == [task.id]
            assert (await (await supervisor.task(task.id)).result()).full_text == "at last"
            async with supervisor.start_task("mcp_other_work") as short:
                assert [info.id for info in await supervisor.tasks()] == [task.id, short.id]
            with anyio.move_on_after(0):
                async with supervisor.start_task("mcp_other_work"):
                    pytest.fail("it was cancelled before")
            given_up = await supervisor.submit("mcp_other_work")
            await given_up.cancel()
            with pytest.raises(TaskLost, match="cancelled"):
                await given_up.result()
        assert task.status == "completed"
        left, *_, cancelled = other.tasks.values()
        assert left.cancelled
        assert cancelled.cancelled

    play(main, backend)


@BACKENDS
def test_calls_lists_and_figures_are_those_of_a_supervisor(backend):
    async def resource(_arguments):
        return "content"

    server = ScriptedServer(resources={"file:///a": resource}, prompts={"greet": resource})

    async def approve(_request):
        return Approval.ALLOW

    async def main():
        servers = [spec(server), spec(ScriptedServer(), "other")]
        async with open_supervisor_thread(servers, approve=approve) as supervisor:
            result = await supervisor.call_tool("mcp_lab_echo", {"a": 1}, timeout=5)
            assert result.server == "lab"
            assert [tool.name for tool in await supervisor.list_tools()] == ["mcp_lab_echo", "mcp_other_echo"]
            tool = await supervisor.find_tool("echo", server="lab")
            assert tool == supervisor.tool("mcp_lab_echo")
            assert [each.tool for each in await supervisor.find_tools("echo")] == ["echo", "echo"]
            assert (await tool({"a": 2}, timeout=5)).server == "lab"
            calls = [Call("echo", server=name) for name in ("lab", "other", "lab")]
            assert [each.server for each in await supervisor.gather(calls)] == ["lab", "other", "lab"]
            async with supervisor.fan_out(calls) as outcomes:
                assert {outcome.index async for outcome in outcomes} == {0, 1, 2}
            assert [each.uri for each in await supervisor.list_resources()] == ["file:///a"]
            assert (await supervisor.read_resource("file:///a")).contents[0].text == "content"
            assert [each.name for each in await supervisor.list_prompts()] == ["mcp_lab_greet"]
            assert supervisor.resources
            assert supervisor.prompts
            assert supervisor.resource_templates == supervisor.definition_changes == supervisor.unlisted == ()
            assert [each.state for each in supervisor.status()] == ["connected", "connected"]
            assert supervisor.statistics().by_server["lab"].calls.done == 7
            assert supervisor.recent_calls("lab")[0].tool == "echo"
            await supervisor.stop_server("lab")
            assert supervisor.status()[0].state == "stopped"
            with pytest.raises(UnknownTool):
                await supervisor.call_tool("nothing")
            with pytest.raises(UnknownTool):
                supervisor.tool("nothing")

    play(main, backend)


@BACKENDS
def test_events_and_standard_error_come_as_they_happen(backend):
    async def main():
        async with open_supervisor_thread([lab()]) as supervisor, supervisor.events() as events:
            await supervisor.wait_connected("lab")
            async with supervisor.stderr("lab") as lines:
                await supervisor.call_tool("sleep", {"seconds": 0, "says": "a word\n"}, server="lab")
                assert await anext(lines) == "a word"
            await supervisor.stop_server("lab")
            async for event in events:
                if getattr(event, "new", None) == "stopped":
                    break

    play(main, backend)


@BACKENDS
def test_a_toolset_does_what_a_model_asks_for(backend):
    asked = []

    async def approve(request):
        asked.append(request.tool.name)
        return Approval.ALLOW

    async def main():
        async with open_supervisor_thread([spec(ScriptedServer())], approve=approve) as supervisor:
            await supervisor.list_tools()
            toolset = supervisor.as_toolset()
            assert [tool.name for tool in toolset.tools] == ["mcp_lab_echo"]
            assert toolset.as_anthropic()[0]["name"] == toolset.as_openai()[0]["function"]["name"] == "mcp_lab_echo"
            assert "mcp_lab_echo" in str(toolset.as_langchain())
            assert "mcp_lab_echo" in str(toolset.as_gemini())
            assert isinstance(toolset.preamble(), str)
            assert "lab" in await toolset.call("mcp_lab_echo", {})
            outcome = await toolset.run("mcp_lab_echo", {})
            assert not outcome.is_error
            assert asked == ["mcp_lab_echo"] * 2

    play(main, backend)


def test_a_toolset_has_the_methods_of_a_toolset():
    public = {name for name in dir(Toolset) if not name.startswith("_")}
    for kind in (ThreadSupervisor.as_toolset, BlockingSupervisor.as_toolset):
        made = inspect.signature(kind, eval_str=True).return_annotation
        assert {name for name in dir(made) if not name.startswith("_")} == public


# -- cancellation and deadlines ---------------------------------------------------------------------------------------


@BACKENDS
def test_a_cancelled_call_is_cancelled_at_its_server_before_the_caller_goes_on(backend):
    started = Started()
    server = ScriptedServer(tools={"hang": started.tool})

    async def main():
        async with open_supervisor_thread([spec(server)]) as supervisor:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(supervisor.call_tool, "mcp_lab_hang", timeout=None))
                await started.wait()
                tasks.cancel_scope.cancel()
            assert len(supervisor.recent_calls("lab")) == 1
            assert supervisor.status()[0].calls.in_flight == 0
        assert len(server.cancelled) == 1

    play(main, backend)


def test_a_task_that_is_cancelled_again_and_again_still_waits_for_its_request():
    started = Started()
    server = ScriptedServer(tools={"hang": started.tool})

    async def main():
        async with open_supervisor_thread([spec(server)]) as supervisor:
            task = asyncio.create_task(supervisor.call_tool("mcp_lab_hang", timeout=None))
            await started.wait()
            for _ in range(5):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert supervisor.status()[0].calls.in_flight == 0

    play(main)


def test_a_timeout_of_asyncio_is_one():
    server = ScriptedServer(tools={"hang": hang})

    async def main():
        async with open_supervisor_thread([spec(server)]) as supervisor:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await supervisor.call_tool("mcp_lab_hang", timeout=None)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), asyncio.timeout(30):
                    await supervisor.call_tool("mcp_lab_hang", timeout=None)
            with pytest.raises(CallTimeout):
                await supervisor.call_tool("mcp_lab_hang", timeout=0.1)

    play(main)


@BACKENDS
def test_a_stream_that_is_left_ends_there(backend):
    server = ScriptedServer(tools={"hang": hang})

    async def main():
        async with open_supervisor_thread([spec(server)]) as supervisor:
            async with supervisor.fan_out([Call("mcp_lab_echo"), Call("mcp_lab_hang", timeout=None)]) as outcomes:
                assert (await anext(outcomes)).index == 0
            assert supervisor.status()[0].calls.in_flight == 0
            with pytest.raises(UnknownResource):
                async with supervisor.subscribe("file:///nothing"):
                    pass

    play(main, backend)


def test_a_reader_that_falls_behind_holds_back_what_comes():
    made = 0

    class Numbers:
        async def __aenter__(self):
            return self.numbers()

        async def __aexit__(self, *_):
            pass

        async def numbers(self):
            nonlocal made
            for number in range(MOST_UNREAD * 3):
                made += 1
                yield number

    async def main():
        async with open_supervisor_thread([]) as supervisor:
            stream = type(supervisor.events())(supervisor._thread, Numbers)
            async with stream as numbers:
                assert await anext(numbers) == 0
                supervisor.status()
                assert made <= MOST_UNREAD + 2
                assert [number async for number in numbers] == list(range(1, MOST_UNREAD * 3))

    play(main)


# -- callbacks --------------------------------------------------------------------------------------------------------


@BACKENDS
def test_callbacks_run_in_the_loop_and_in_the_context_of_their_caller(backend):
    trace = contextvars.ContextVar("trace", default="none")
    here, seen = threading.get_ident(), []

    async def approve(_request):
        await anyio.lowlevel.checkpoint()
        seen.append(("approve", threading.get_ident() == here, trace.get()))
        return Approval.ALLOW

    def on_progress(progress, total, message):
        seen.append(("progress", threading.get_ident() == here, trace.get()))

    async def progress(*args):
        on_progress(*args)

    async def main():
        async with open_supervisor_thread([lab()], approve=approve) as supervisor:
            trace.set("mine")
            tool = await supervisor.find_tool("tick", server="lab")
            await tool({"steps": 2, "every": 0}, on_progress=progress, timeout=30)
        assert {name for name, *_ in seen} == {"approve", "progress"}
        assert {tuple(rest) for _, *rest in seen} == {(True, "mine")}

    play(main, backend)


@BACKENDS
def test_progress_of_many_calls_comes_before_each_result_whatever_its_callback_raises(backend):
    here, seen = threading.get_ident(), []

    async def on_progress(progress, total, message):
        seen.append((progress, threading.get_ident() == here))
        if progress == 1:
            raise ZeroDivisionError

    async def main():
        async with open_supervisor_thread([lab()]) as supervisor:
            calls = [
                Call("tick", {"steps": 3, "every": 0}, server="lab", on_progress=on_progress, timeout=30)
                for _ in range(4)
            ]
            assert [each.server for each in await supervisor.gather(calls)] == ["lab"] * 4
            assert sorted(seen) == [(step, True) for step in (0, 1, 2) for _ in calls]
            async with supervisor.fan_out(calls) as outcomes:
                assert [outcome.ok async for outcome in outcomes] == [True] * 4
            assert len(seen) == 24

    play(main, backend)


@BACKENDS
def test_what_a_callback_raises_is_raised_where_it_was_asked(backend):
    class Odd(Exception):
        pass

    async def approve(_request):
        raise Odd("no idea")

    async def main():
        async with open_supervisor_thread([spec(ScriptedServer())], approve=approve) as supervisor:
            tool = await supervisor.find_tool("echo", server="lab")
            with pytest.raises(Odd, match="no idea"):
                await tool({})
            assert (await supervisor.call_tool("mcp_lab_echo", timeout=5)).server == "lab"

    play(main, backend)


@BACKENDS
def test_a_callback_of_a_call_that_is_cancelled_is_cancelled_in_its_loop(backend):
    asked, ended = threading.Event(), []

    async def approve(_request):
        asked.set()
        try:
            await anyio.sleep(1_000)
        finally:
            ended.append("cancelled")

    async def main():
        async with open_supervisor_thread([spec(ScriptedServer())], approve=approve) as supervisor:
            tool = await supervisor.find_tool("echo", server="lab")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tool, {})
                await anyio.to_thread.run_sync(asked.wait)
                tasks.cancel_scope.cancel()
            assert ended == ["cancelled"]

    play(main, backend)


def test_a_callback_that_is_cancelled_by_its_own_loop_is_an_error_here():
    async def approve(_request):
        raise asyncio.CancelledError

    async def main():
        async with open_supervisor_thread([spec(ScriptedServer())], approve=approve) as supervisor:
            tool = await supervisor.find_tool("echo", server="lab")
            with pytest.raises(RuntimeError, match="cancelled in its own loop"):
                await tool({})

    play(main)


def test_a_server_asks_and_is_answered_in_the_loop_of_the_program():
    loops = []

    async def elicit(message):
        loops.append(asyncio.get_running_loop())
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def main():
        callbacks = Callbacks(elicit=elicit)
        async with open_supervisor_thread([spec(asking(form()))], callbacks=callbacks) as supervisor:
            result = await supervisor.call_tool("work", {}, server="lab", timeout=30)
            assert "Ada" in result.full_text
        assert loops == [asyncio.get_running_loop()]

    play(main)


def test_roots_are_those_that_a_coroutine_of_the_program_names():
    """Those that it was opened with, and those that it is given later."""
    loops = []

    def naming(*folders):
        async def roots(_message):
            await asyncio.sleep(0)
            loops.append(asyncio.get_running_loop())
            return folders

        return roots

    async def main():
        server = asking({"method": "roots/list", "params": {}})
        async with open_supervisor_thread([spec(server)], callbacks=Callbacks(roots=naming("/one"))) as supervisor:
            for folder in ("/one", "/two", "/three"):
                if folder == "/two":
                    await supervisor.set_roots(naming(folder))
                if folder == "/three":
                    await supervisor.set_roots(roots=naming(folder))
                result = await supervisor.call_tool("work", {}, server="lab", timeout=30)
                assert f"file://{folder}" in result.full_text
        assert loops == [asyncio.get_running_loop()] * 3

    play(main)


@BACKENDS
def test_a_callback_whose_loop_has_ended_holds_up_nobody(backend, monkeypatch):
    """Its supervisor goes on in another thread, and waits for nothing that cannot come. A loop of Trio cancels what it
    has begun; here it ends before that."""
    begun, made = threading.Event(), []
    monkeypatch.setattr(trio.lowlevel, "spawn_system_task", lambda *_, **__: begun.set())

    async def never():
        begun.set()
        await anyio.sleep(1_000)

    async def make():
        made.append(loop_callback(never))
        if backend == "asyncio":
            made.append(asyncio.get_running_loop())

    async def ask():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made[0])
            await trio.to_thread.run_sync(begun.wait)
            ended.wait(60)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        return trio.current_time() - began

    ended, seconds = threading.Event(), []
    if backend == "trio":

        async def home():
            await make()
            asking_thread.start()
            await trio.to_thread.run_sync(begun.wait)

        asking_thread = threading.Thread(target=lambda: seconds.append(trio.run(ask)))
        trio.run(home)
    else:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(make())
        asking_thread = threading.Thread(target=lambda: seconds.append(trio.run(ask)))
        asking_thread.start()
        loop.run_until_complete(loop.run_in_executor(None, begun.wait))
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop.close()
    ended.set()
    asking_thread.join(60)
    assert seconds[0] < GRACE / 2


# -- opening and leaving ----------------------------------------------------------------------------------------------


@BACKENDS
def test_what_cannot_be_opened_says_why_and_leaves_nothing(backend):
    threads = threading.active_count()

    async def main():
        with pytest.raises(ConfigError):
            async with open_supervisor_thread("/nowhere/servers.json"):
                raise AssertionError("it was entered")
        with pytest.raises(ConfigError, match="borrow"):
            open_supervisor_thread([], borrow=object())
        with pytest.raises(ConfigError, match="callbacks"):
            async with open_supervisor_thread([], callbacks=3):
                raise AssertionError("it was entered")

    play(main, backend)
    assert not [each for each in threading.enumerate() if each.name == "mcp-nursery"]
    assert threading.active_count() <= threads + 2  # of the loops


@BACKENDS
def test_after_the_block_there_is_no_supervisor(backend):
    async def main():
        block = open_supervisor_thread([spec(ScriptedServer())])
        async with block as supervisor:
            pass
        for ask in (supervisor.list_tools(), supervisor.call_tool("mcp_lab_echo")):
            with pytest.raises(SupervisorClosed):
                await ask
        with pytest.raises(SupervisorClosed):
            supervisor.status()
        with pytest.raises(SupervisorClosed):
            async with supervisor.events():
                pass
        with pytest.raises(RuntimeError, match="entered before"):
            async with block:
                pass

    play(main, backend)


@BACKENDS
def test_calls_that_are_under_way_when_the_block_is_left_have_their_outcome(backend):
    started, outcomes = Started(), []
    server = ScriptedServer(tools={"hang": started.tool})

    async def call(supervisor):
        try:
            await supervisor.call_tool("mcp_lab_hang", timeout=None)
        except NurseryError as error:
            outcomes.append(error)

    async def main():
        async with anyio.create_task_group() as tasks, open_supervisor_thread([spec(server)]) as supervisor:
            for _ in range(3):
                tasks.start_soon(call, supervisor)
            await started.wait()
        assert len(outcomes) == 3

    play(main, backend)


@BACKENDS
def test_a_program_that_fails_fails_with_its_own_error(backend):
    async def main():
        async with open_supervisor_thread([lab()]) as supervisor:
            await supervisor.wait_connected("lab")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(main, backend)
    assert not [each for each in threading.enumerate() if each.name == "mcp-nursery"]


@BACKENDS
def test_a_program_that_is_cancelled_while_it_opens_leaves_nothing(backend):
    server = ScriptedServer(Life(connects_after=1_000))

    async def main():
        with anyio.move_on_after(0.2) as late:
            async with open_supervisor_thread([spec(server)], gate=1_000) as supervisor:
                await supervisor.wait_connected("lab")
        assert late.cancelled_caught

    play(main, backend)
    assert not [each for each in threading.enumerate() if each.name == "mcp-nursery"]


def test_a_program_that_is_closed_in_the_middle_ends_its_servers():
    """Its coroutine is closed: there is no loop that could wait."""
    server = ScriptedServer(tools={"slow": lasting(0.01)})

    async def main():
        async with open_supervisor_thread([spec(server)]) as supervisor:
            await supervisor.call_tool("mcp_lab_slow")
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    coroutine = main()
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.wait([task], timeout=1))
    coroutine.close()
    assert not [each for each in threading.enumerate() if each.name == "mcp-nursery"]
    task._log_destroy_pending = False
    loop.close()


def test_where_nothing_runs_it_says_so():
    block = open_supervisor_thread([])
    with pytest.raises(RuntimeError, match="use `with` in plain code"):
        block.__aenter__().send(None)
