"""Streams of another thread: who reads them, who leaves them, and where garbage collection ends them."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
import trio

from mcp_nursery.supervisor import Approval, Call
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.errors import NurseryError, SupervisorClosed
from mcp_nursery.supervisor.opening import open_supervisor
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.portal.opening import SupervisorThread
from mcp_nursery.supervisor.portal.signals import ThreadSignal
from mcp_nursery.supervisor.testing import ScriptedServer

from ...lab.specs import spec

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def play(main, backend="asyncio"):
    async def bounded():
        with anyio.fail_after(60):
            await main()

    anyio.run(bounded, backend=backend)


def opened(**options):
    return open_supervisor_thread([spec(ScriptedServer())], **options)


def is_stopped(event):
    return getattr(event, "new", None) == "stopped"


class Gate:
    """A server whose tool waits until it may go on, and the calls of a fan-out to it, which has no item before that."""

    def __init__(self):
        self.go_on = threading.Event()

    async def _wait(self, _arguments):
        await trio.to_thread.run_sync(self.go_on.wait, abandon_on_cancel=True)
        return "went on"

    def opened(self):
        return open_supervisor_thread([spec(ScriptedServer(tools={"wait": self._wait}))])

    calls = (Call("mcp_lab_wait", timeout=None),)


def in_the_thread(function):
    """Run something in the thread of a supervisor, as garbage collection may at any time."""

    async def approve(_request):
        function()
        return Approval.ALLOW

    with ThreadPoolExecutor(1) as pool, opened(approve=approve) as supervisor:
        supervisor.list_tools()
        call = pool.submit(supervisor.as_toolset().run, "mcp_lab_echo", {}, timeout=20)
        assert not call.result(30).is_error


# -- plain code ------------------------------------------------------------------------------------------------------


def test_a_stream_that_is_ended_in_its_own_thread_does_not_wait_for_it():
    def reading():
        with supervisor.events() as events:
            yield from events

    async def approve(_request):
        events.close()
        return Approval.ALLOW

    with ThreadPoolExecutor(1) as pool, opened(approve=approve) as supervisor:
        supervisor.list_tools()
        events = reading()
        next(events)
        call = pool.submit(supervisor.as_toolset().run, "mcp_lab_echo", {}, timeout=20)
        assert not call.result(30).is_error


def test_a_block_that_is_ended_in_the_thread_of_a_supervisor_ends_by_itself():
    def lent():
        with opened() as supervisor:
            yield supervisor

    block = lent()
    ended = next(block)._thread
    in_the_thread(block.close)
    assert ended.join(20)


def test_in_the_thread_of_a_supervisor_nothing_is_waited_for():
    def read():
        for ask in (lambda: next(outcomes), other.list_tools, other.events().__enter__):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                ask()

    with Gate().opened() as other, other.fan_out(Gate.calls) as outcomes:
        in_the_thread(read)


def test_all_threads_that_read_a_stream_end_when_its_block_is_left():
    with opened() as supervisor, ThreadPoolExecutor(3) as pool:
        with supervisor.events() as events:
            readers = [pool.submit(list, events) for _ in range(3)]
            while len(events._feed._readers) < 3:
                time.sleep(0)
        read = [event for reader in readers for event in reader.result(20)]
        assert len(read) == len({id(event) for event in read})


def test_threads_that_read_one_stream_get_each_item_once():
    with opened() as supervisor, ThreadPoolExecutor(4) as pool:
        with supervisor.stderr("lab") as lines:
            feed = lines._feed
            readers = [pool.submit(list, lines) for _ in range(4)]
            for number in range(1000):
                supervisor._thread.do(lambda number=number: feed._items.append(number))
                feed._wake_readers()
            while feed._items:
                time.sleep(0)
        assert sorted(number for reader in readers for number in reader.result(20)) == list(range(1000))


def test_a_stream_is_read_in_its_block_and_opened_once_at_a_time():
    with opened() as supervisor:
        events = supervisor.events()
        with pytest.raises(RuntimeError, match="not open"):
            next(events)
        for end in (supervisor.stop_server, supervisor.start_server):
            with events as again:
                with pytest.raises(RuntimeError, match="is open"):
                    events.__enter__()
                end("lab")
                assert next(again) is not None
            for _ in again:  # what has crossed is still there, and no more comes
                pass


def test_ctrl_c_while_an_item_is_waited_for_leaves_the_stream_open(monkeypatch):
    def interrupted(_signal, _seconds=None):
        monkeypatch.undo()
        raise KeyboardInterrupt

    gate = Gate()
    with gate.opened() as supervisor, supervisor.fan_out(Gate.calls) as outcomes:
        monkeypatch.setattr(ThreadSignal, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(outcomes)
        gate.go_on.set()
        assert next(outcomes).result.full_text == "went on"


# -- a loop ----------------------------------------------------------------------------------------------------------


@BACKENDS
def test_an_item_that_is_late_leaves_the_stream_open(backend):
    async def main():
        gate = Gate()
        async with gate.opened() as supervisor, supervisor.fan_out(Gate.calls) as outcomes:
            with anyio.move_on_after(0.01) as late:
                await anext(outcomes)
            assert late.cancelled_caught
            gate.go_on.set()
            assert (await anext(outcomes)).result.full_text == "went on"

    play(main, backend)


@BACKENDS
def test_all_tasks_that_read_a_stream_end_when_its_block_is_left(backend):
    async def main():
        async with opened() as supervisor, anyio.create_task_group() as tasks, supervisor.events() as events:

            async def read():
                async for _ in events:
                    pass

            for _ in range(3):
                tasks.start_soon(read)
            while len(events._feed._readers) < 3:
                await anyio.lowlevel.checkpoint()

    play(main, backend)


@BACKENDS
def test_a_stream_of_a_loop_is_read_in_its_block_and_opened_once_at_a_time(backend):
    async def main():
        async with opened() as supervisor:
            events = supervisor.events()
            with pytest.raises(RuntimeError, match="not open"):
                await anext(events)
            for end in (supervisor.stop_server, supervisor.start_server):
                async with events as again:
                    with pytest.raises(RuntimeError, match="is open"):
                        await events.__aenter__()
                    await end("lab")
                    assert await anext(again) is not None
                async for _ in again:  # what has crossed is still there, and no more comes
                    pass

    play(main, backend)


def test_a_coroutine_that_is_closed_inside_a_stream_awaits_nothing():
    async def program():
        async with opened() as supervisor, supervisor.events():
            threads.append(supervisor._thread)
            inside.set()
            await asyncio.sleep(3600)

    async def run():
        task = asyncio.ensure_future(coroutine)
        await inside.wait()
        task._log_destroy_pending = False

    threads, inside, coroutine = [], asyncio.Event(), program()
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(run())
        threads[0].begin(lambda: time.sleep(0.1))  # it is busy for a moment, as with a large message
        coroutine.close()
        assert threads[0].join(20)
    finally:
        loop.close()


def test_a_block_that_is_closed_in_its_living_loop_does_not_stop_the_loop():
    """The servers end beside it."""
    released = threading.Event()

    @asynccontextmanager
    async def slow_to_close():
        async with open_supervisor([]) as supervisor:
            yield supervisor
            await trio.to_thread.run_sync(released.wait)

    async def lent():
        async with SupervisorThread(slow_to_close, {}) as supervisor:
            yield supervisor

    async def main():
        block = lent()
        thread = (await anext(block))._thread
        await block.aclose()
        assert not thread.has_ended
        released.set()
        await asyncio.to_thread(thread.join)

    threading.Timer(8, released.set).start()
    play(main)


async def own_tools(supervisor):
    """What each tool of a toolset that is of no server answers to a query."""
    tools = supervisor.as_toolset(search=True).tools
    return [(await tool({"query": "echo"})).text for tool in tools if tool.name == "find_tools"]


@BACKENDS
def test_the_tools_of_a_toolset_can_be_called_here(backend):
    async def main():
        async with opened(approval_rules=ApprovalRules(allowed=["*"])) as supervisor:
            await supervisor.list_tools()
            (found,) = await own_tools(supervisor)
            assert "mcp_lab_echo" in found
            for tool in await supervisor.as_toolset().changed(()):
                assert (await tool({})).server == "lab"

    play(main, backend)


def test_a_changed_toolset_of_plain_code_has_descriptions():
    with opened() as supervisor:
        supervisor.list_tools()
        for tool in supervisor.as_toolset().changed(()):
            with pytest.raises(TypeError, match="description only"):
                tool().send(None)


def test_in_a_guest_of_asyncio_a_task_of_trio_is_one_of_trio():
    async def approve(_request):
        await trio.lowlevel.checkpoint()
        return Approval.ALLOW

    async def guest():
        async with opened(approve=approve) as supervisor:
            await supervisor.list_tools()
            return (await supervisor.tool("mcp_lab_echo")({})).server

    async def main():
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result
        )
        assert (await done).unwrap() == "lab"

    play(main)


# -- a supervisor that fails -----------------------------------------------------------------------------------------


class Broken(Exception):
    pass


@asynccontextmanager
async def breaking():
    """A supervisor that fails while its block is left."""
    async with open_supervisor([]) as supervisor:
        yield supervisor
        raise Broken


@pytest.mark.parametrize(("raised", "seen"), [(SupervisorClosed, Broken), (ZeroDivisionError, ZeroDivisionError)])
def test_the_reason_of_a_failed_supervisor_is_not_lost(raised, seen, caplog):
    async def main():
        async with SupervisorThread(breaking, {}):
            raise raised

    def plain():
        with SupervisorThread(breaking, {}):
            raise raised

    for run in (lambda: asyncio.run(main()), plain):
        caplog.clear()
        with pytest.raises(seen) as ended:
            run()
        assert isinstance(ended.value.__cause__, NurseryError) == (seen is Broken)
        assert ("a supervisor in a thread has failed" in caplog.text) == (seen is not Broken)
    with suppress(Broken), SupervisorThread(breaking, {}):
        pass
