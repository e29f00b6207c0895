"""A server that floods takes turns like everybody else."""

import json
import tracemalloc

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ...lab.wire_peer import Passes, Peer, no_request, notice, running

LOG = notice("notifications/message", {"level": "info", "data": "blah"})
LAST = notice("notifications/last")


@pytest.mark.parametrize(
    "message", [LOG, b"noise", {"jsonrpc": "2.0", "id": 7, "result": {}}], ids=["log", "noise", "late"]
)
async def test_a_long_batch_lets_others_run_in_between(message):
    """Q19: a thousand frames of one read are taken sixteen at a time."""
    last, others, peer = trio.Event(), Passes(), Peer()

    def intercept(method, params):
        if method == "notifications/last":
            last.set()
        return True

    async with running(peer, intercept=intercept), trio.open_nursery() as nursery:
        nursery.start_soon(others.run)
        peer.say(*[message] * 1000, LAST)
        await last.wait()
        nursery.cancel_scope.cancel()
    assert others.count >= 1000 // 16


async def test_handling_notifications_lets_others_run_in_between():
    """Q19: nor do a thousand of them hold up anybody on their way to the session, which is slow to start with."""
    opened, last, others, peer = trio.Event(), trio.Event(), Passes(), Peer()

    async def handle(context, method, params):
        if not opened.is_set():
            await opened.wait()
        if method == "notifications/last":
            last.set()

    async with running(peer, no_request, handle), trio.open_nursery() as nursery:
        peer.say(*[LOG] * 1000, LAST)
        await wait_all_tasks_blocked()
        nursery.start_soon(others.run)
        opened.set()
        await last.wait()
        nursery.cancel_scope.cancel()
    assert others.count >= 1000 // 16


@pytest.mark.parametrize("message", [LOG, {"jsonrpc": "2.0", "id": "none", "result": {}}], ids=["logs", "answers"])
async def test_many_messages_in_one_frame_cost_what_as_many_frames_cost(message):
    """Q19: each is read in its turn. Nothing is made of all of them at once, which would be a turn of its own."""
    last, others, peer = trio.Event(), Passes(), Peer()

    def intercept(method, params):
        if method == "notifications/last":
            last.set()
        return True

    frame = json.dumps([*[message] * 20_000, LAST]).encode()
    async with running(peer, intercept=intercept), trio.open_nursery() as nursery:
        await wait_all_tasks_blocked()
        nursery.start_soon(others.run)
        tracemalloc.start()
        try:
            peer.say(frame)
            await last.wait()
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        nursery.cancel_scope.cancel()
    assert others.count >= 20_000 // 16
    assert most < 4 * len(frame)
