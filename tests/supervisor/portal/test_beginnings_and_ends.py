"""A thread that cannot begin, that ends before it has begun, or whose end crosses what is asked of it."""

import asyncio
import threading
import time

import anyio
import pytest
import trio

from mcp_nursery.supervisor import portal
from mcp_nursery.supervisor.errors import SupervisorClosed
from mcp_nursery.supervisor.portal import open_supervisor_thread
from mcp_nursery.supervisor.portal.signals import GRACE, AsyncioSignal, ThreadSignal
from mcp_nursery.supervisor.portal.trio_thread import TrioThread
from mcp_nursery.supervisor.portal.workers import ThreadRequest
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


class Interrupted(threading.Event().__class__):
    """Ctrl-C comes while the main thread waits; then the thread may go on."""

    def __init__(self, go):
        super().__init__()
        self.go = go

    def wait(self, timeout=None):
        threading.Timer(0, self.go.set).start()
        raise KeyboardInterrupt


def test_ctrl_c_before_the_loop_has_begun_leaves_nothing(monkeypatch):
    go, begins, opened = threading.Event(), TrioThread.start, []
    run = TrioThread._run

    def late(thread):
        go.wait(60)
        run(thread)

    def start(thread, watcher):
        thread._has_begun = Interrupted(go)
        begins(thread, watcher)

    monkeypatch.setattr(TrioThread, "_run", late)
    monkeypatch.setattr(TrioThread, "start", start)
    ended = threading.Event()

    def watch():
        if not ended.wait(60):  # the test would wait forever
            for each in threads():
                opened.append(each)
            raise SystemExit

    watchdog = threading.Thread(target=watch, daemon=True)
    watchdog.start()
    with pytest.raises(KeyboardInterrupt), open_supervisor_thread([spec(ScriptedServer())]):
        raise AssertionError("it was entered")
    ended.set()
    watchdog.join()
    assert opened == threads() == []


def test_a_loop_that_fails_at_once_says_why(monkeypatch):
    def fails(*_):
        raise OSError("no loop")

    monkeypatch.setattr(portal.trio_thread.trio, "run", fails)
    with pytest.raises(OSError, match="no loop"), open_supervisor_thread([]):
        raise AssertionError("it was entered")
    assert threads() == []


def fails():
    raise ZeroDivisionError


def breaks_the_loop():
    trio.lowlevel.current_trio_token().run_sync_soon(fails)


@pytest.mark.parametrize("breaks", [fails, breaks_the_loop])
def test_calls_under_way_in_a_loop_that_breaks_have_their_outcome(breaks):
    begun = threading.Event()

    async def tool(arguments):
        begun.set()
        await hang(arguments)

    async def main():
        with anyio.fail_after(60):
            async with open_supervisor_thread([spec(ScriptedServer(tools={"hang": tool}))]) as supervisor:
                call = asyncio.create_task(supervisor.call_tool("mcp_lab_hang", timeout=None))
                await anyio.to_thread.run_sync(begun.wait)
                supervisor._thread.begin(breaks)
                with pytest.raises(SupervisorClosed):
                    await call

    with pytest.RaisesGroup(ZeroDivisionError) if breaks is fails else pytest.raises(trio.TrioInternalError):
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


class Late:
    """A thread whose loop has ended, at the moment before it is marked as ended."""

    def __init__(self, supervisor):
        self.thread = supervisor._thread
        self.woken = threading.Event()
        self.thread.has_ended = False
        self.thread._deliveries._is_woken = False
        self.thread._deliveries._wake = lambda _run: self.woken.set()

    def mark(self):
        """As the thread does it, once somebody has asked for something."""
        assert self.woken.wait(60)
        self.thread.has_ended = True
        self.thread._deliveries.run()


@pytest.mark.parametrize("is_ending", [True, False])
def test_what_crosses_the_end_is_refused(is_ending):
    """Also where the loop has broken, and could not say that it would end."""
    with open_supervisor_thread([spec(ScriptedServer())]) as supervisor:
        supervisor.list_tools()
    for ask in (supervisor.status, supervisor.list_tools):
        late = Late(supervisor)
        late.thread._is_ending = is_ending
        marking = threading.Thread(target=late.mark)
        marking.start()
        with pytest.raises(SupervisorClosed):
            ask()
        marking.join()


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
    wait = AsyncioSignal.wait

    async def counted(signal):
        waits.append(signal)
        await wait(signal)

    monkeypatch.setattr(AsyncioSignal, "wait", counted)

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
        request.outcome.unwrap()
