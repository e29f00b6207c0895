"""A server that floods takes turns like everybody else."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from .peer import Passes, Peer, no_request, notice, running

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
