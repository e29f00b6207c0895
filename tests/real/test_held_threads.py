"""Servers of a host whose threads all wait: for a person, for a lock, for a disk."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.approval import Approval
from mcp_nursery.supervisor.portal import open_supervisor_thread

from ..lab.processes import is_alive, lab, supervised
from ..lab.threads import all_places_taken
from ..lab.timely import in_time, timely

pytestmark = pytest.mark.slow

PLACES = 40
"""Trio's default limiter has as many."""


@timely
async def test_a_server_starts_and_ends_while_all_threads_of_the_host_wait():
    async with all_places_taken():
        async with supervised(lab()) as supervisor:
            child = int((await supervisor.call_tool("mcp_lab_spawn", {"place": "session"})).full_text)
            pid = supervisor.status()[0].pid
            left = trio.current_time()
        took = trio.current_time() - left
        assert not is_alive(child)
        assert not is_alive(pid)
    in_time(took, 5)


async def test_threads_that_call_a_lazy_server_do_not_wait_for_each_other():
    said = []

    def call():
        said.append(trio.from_thread.run(supervisor.call_tool, "mcp_lab_echo", {"text": "x"}).full_text)

    with trio.fail_after(60):
        async with open_supervisor([lab(lazy=True)]) as supervisor, trio.open_nursery() as nursery:
            for _ in range(PLACES):
                nursery.start_soon(trio.to_thread.run_sync, call)
    assert said == ["x"] * PLACES


def test_a_server_reconnects_while_persons_are_asked():
    asked, over, answers = threading.Semaphore(0), threading.Event(), []

    def approve(_request):
        asked.release()
        over.wait()
        return Approval.ALLOW

    with open_supervisor_thread([lab(), lab("other")], approve=approve) as supervisor:
        supervisor.list_tools()
        toolset = supervisor.as_toolset()
        with ThreadPoolExecutor(PLACES + 1) as threads:
            try:
                for _ in range(PLACES):
                    answers.append(threads.submit(toolset.run, "mcp_lab_echo", {"text": "x"}))
                assert all(asked.acquire(timeout=60) for _ in range(PLACES))
                threads.submit(supervisor.reconnect, "other").result(timeout=60)
                assert supervisor.call_tool("mcp_other_echo", {"text": "y"}).full_text == "y"
            finally:
                over.set()
        assert [answer.result().is_error for answer in answers] == [False] * PLACES
