"""A thread that cannot begin, that ends before it has begun, or whose end crosses what is asked of it."""

import asyncio
import signal
import threading
import time

import anyio
import pytest
import trio

from mcp_nursery.supervisor import portal
from mcp_nursery.supervisor.errors import SupervisorClosed
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.portal.signals import GRACE, ThreadSignal
from mcp_nursery.supervisor.portal.thread_request import ThreadRequest
from mcp_nursery.supervisor.portal.trio_thread import TrioThread
from mcp_nursery.supervisor.testing import ScriptedServer

from ...lab.specs import hang, spec


def threads():
    return [each for each in threading.enumerate() if each.name == "mcp-nursery"]


def refuse(_thread):
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_be_started_says_why_in_plain_code(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"), open_supervisor_thread([]):
        raise AssertionError("it was entered")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_cannot_be_started_says_why_in_a_loop(backend, monkeypatch):
    async def main():
        with anyio.fail_after(60), monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            async with open_supervisor_thread([]):
                raise AssertionError("it was entered")

    with pytest.raises(RuntimeError, match="can't start new thread"):
        anyio.run(main, backend=backend)


def test_ctrl_c_before_the_loop_has_begun_leaves_nothing(monkeypatch):
    """Ctrl-C comes while the main thread waits; then the thread may go on."""
    go, run, wait = threading.Event(), TrioThread._run, ThreadSignal.wait

    def late(thread):
        go.wait(60)
        run(thread)

    def interrupted(signal, seconds=-1):
        monkeypatch.setattr(ThreadSignal, "wait", wait)
        threading.Timer(0, go.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(TrioThread, "_run", late)
    monkeypatch.setattr(ThreadSignal, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), open_supervisor_thread([spec(ScriptedServer())]):
        raise AssertionError("it was entered")
    assert threads() == []


def test_ctrl_c_while_the_thread_is_started_comes_once_it_can_be_ended(monkeypatch):
    start = threading.Thread.start

    def interrupted(thread):
        signal.raise_signal(signal.SIGINT)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), open_supervisor_thread([spec(ScriptedServer())]):
        raise AssertionError("it was entered")
    assert threads() == []


def test_a_loop_that_fails_at_once_says_why(monkeypatch):
    def fails(*_):
        raise OSError("no loop")

    monkeypatch.setattr(portal.trio_thread.trio, "run", fails)
    with pytest.raises(OSError, match="no loop"), open_supervisor_thread([]):
        raise AssertionError("it was entered")
    assert threads() == []


def fails():
    raise ZeroDivisionError


def test_calls_under_way_in_a_loop_that_breaks_have_their_outcome():
    begun = threading.Event()

    async def tool(arguments):
        begun.set()
        await hang(arguments)

    async def main():
        with anyio.fail_after(60):
            async with open_supervisor_thread([spec(ScriptedServer(tools={"hang": tool}))]) as supervisor:
                call = asyncio.create_task(supervisor.call_tool("mcp_lab_hang", timeout=None))
                await anyio.to_thread.run_sync(begun.wait)
                supervisor._thread.begin(fails)
                with pytest.raises(SupervisorClosed):
                    await call

    with pytest.raises(trio.TrioInternalError):
        anyio.run(main)
    assert threads() == []


def interrupting(thread, monkeypatch, *, begun):
    """Ctrl-C comes while the next request is on its way to the thread."""
    begin = thread.begin

    def interrupted(function):
        monkeypatch.setattr(thread, "begin", begin)
        if begun:
            begin(function)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "begin", interrupted)


@pytest.mark.parametrize("begun", [True, False])
def test_ctrl_c_while_a_call_is_on_its_way_leaves_no_call_in_plain_code(begun, monkeypatch):
    with open_supervisor_thread([spec(ScriptedServer(tools={"hang": hang}))]) as supervisor:
        supervisor.list_tools()
        for ask in (lambda: supervisor.call_tool("mcp_lab_hang", timeout=None), supervisor.events().__enter__):
            interrupting(supervisor._thread, monkeypatch, begun=begun)
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                ask()
            assert time.monotonic() - began < GRACE / 2
            assert supervisor.status()[0].calls.in_flight == 0


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_while_a_call_is_on_its_way_leaves_no_call_in_a_loop(begun, backend, monkeypatch):
    async def main():
        async with open_supervisor_thread([spec(ScriptedServer(tools={"hang": hang}))]) as supervisor:
            await supervisor.list_tools()
            for ask in (lambda: supervisor.call_tool("mcp_lab_hang", timeout=None), supervisor.events().__aenter__):
                interrupting(supervisor._thread, monkeypatch, begun=begun)
                with anyio.fail_after(GRACE / 2), pytest.raises(KeyboardInterrupt):
                    await ask()
                assert supervisor.status()[0].calls.in_flight == 0

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("seen", [True, False])
def test_what_crosses_the_end_of_a_loop_that_breaks_is_refused(seen, monkeypatch):
    """It could not say that it would end: `seen` by a caller that asks, or else by the thread as it ends."""
    with open_supervisor_thread([spec(ScriptedServer())]) as supervisor:
        supervisor.list_tools()
    thread = supervisor._thread

    def accepts(_function):
        thread.has_ended = seen
        if not seen:
            threading.Timer(0, thread._finish).start()
        return True

    monkeypatch.setattr(thread, "begin", accepts)
    for ask in (supervisor.status, supervisor.list_tools):
        thread.has_ended = False
        with pytest.raises(SupervisorClosed):
            ask()


def test_all_that_were_never_left_end_at_the_same_time(monkeypatch):
    """One that is stuck takes the others no time at the exit of the interpreter."""
    order = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def end(self):
            order.append(("end", self.name))

        def join(self, seconds):
            order.append(("join", seconds <= portal.trio_thread.AT_EXIT))

    fakes = [Fake(number) for number in range(3)]
    monkeypatch.setattr(portal.trio_thread, "_RUNNING", fakes)
    monkeypatch.setattr(portal.trio_thread, "AT_EXIT", 0.5)
    portal.trio_thread._end_all()
    assert order == [("end", 0), ("end", 1), ("end", 2)] + [("join", True)] * 3


def test_the_scope_of_anyio_does_not_spin_while_a_cancelled_task_waits_for_its_request(monkeypatch):
    """On asyncio a scope of anyio cancels again in each turn of the loop; the request takes its time to end."""
    waits, begun, ends = [], threading.Event(), threading.Event()
    wait = asyncio.Event.wait

    async def counted(event):
        waits.append(event)
        await wait(event)

    monkeypatch.setattr(asyncio.Event, "wait", counted)

    async def slow_to_end():
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(ends.wait)

    async def main():
        loop = asyncio.get_running_loop()
        async with open_supervisor_thread([]) as supervisor:
            thread = supervisor._thread

            async def ask():
                await portal.async_supervisor._ask(thread, slow_to_end)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await anyio.to_thread.run_sync(begun.wait)
                del waits[:]
                tasks.cancel_scope.cancel()
                loop.call_later(0.2, ends.set)
        assert len(waits) < 10

    anyio.run(main)


def test_a_request_of_a_thread_that_never_began_is_refused():
    thread = TrioThread(lambda: None)
    request = ThreadRequest(trio.sleep_forever, ThreadSignal())
    thread.post(request)
    with pytest.raises(SupervisorClosed):
        request.unwrap()
