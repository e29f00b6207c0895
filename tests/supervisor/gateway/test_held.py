"""The life of a call that waits for its client. Virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from mcp.shared.exceptions import MCPError

from mcp_nursery.supervisor.gateway import held as module
from mcp_nursery.supervisor.gateway.downstream import Incoming
from mcp_nursery.supervisor.gateway.held import HeldCall, HeldCalls

from .asking import CAN

ACCEPTED = {"action": "accept", "content": {}}


class Held:
    """Calls that ask two questions, `a` and `b`, and how they ended."""

    def __init__(self, nursery, hold):
        self.nursery = nursery
        self.calls = HeldCalls(nursery, hold)
        self.cancelled = 0
        self.answers = {}

    async def _ask(self, call, key):
        self.answers[key] = await call.ask(key, "elicitation/create", {"message": key})

    async def _make(self, call):
        whole = False
        try:
            async with trio.open_nursery() as questions:
                questions.start_soon(self._ask, call, "a")
                questions.start_soon(self._ask, call, "b")
            whole = True
        finally:
            self.cancelled += not whole
        return dict(self.answers)

    async def begin(self, *, can=CAN):
        return await self.calls.make(HeldCall(self.incoming(can=can)), self._make)

    async def come_back(self, said, answers):
        return await self.calls.go_on(self.incoming(inputResponses=answers, requestState=said["requestState"]))

    def incoming(self, *, can=CAN, **params):
        return Incoming(1, "prompts/get", {"name": "p"} | params, {}, None, None, capabilities=can)


@asynccontextmanager
async def opened(hold=300):
    async with trio.open_nursery() as nursery:
        yield Held(nursery, hold)
        nursery.cancel_scope.cancel()


async def test_what_a_client_leaves_out_is_asked_again(autojump_clock):
    async with opened() as held:
        said = await held.begin()
        assert said["inputRequests"].keys() == {"a", "b"}
        said = await held.come_back(said, {"a": ACCEPTED})
        assert said["inputRequests"].keys() == {"b"}
        assert await held.come_back(said, {"b": ACCEPTED}) == {"a": ACCEPTED, "b": ACCEPTED}
        await trio.testing.wait_all_tasks_blocked()
        assert not held.nursery.child_tasks  # nobody waits for a client that has come


async def test_a_call_whose_client_does_not_come_back_is_cancelled(autojump_clock):
    async with opened(hold=60) as held:
        said = await held.begin()
        await trio.sleep(59)
        assert held.cancelled == 0
        await trio.sleep(2)
        assert held.cancelled == 1
        with pytest.raises(MCPError, match="expired"):
            await held.come_back(said, {"a": ACCEPTED})


async def test_a_call_whose_client_has_gone_is_cancelled(autojump_clock):
    async with opened() as held:
        said = await held.begin()
        await held.come_back(said, {"a": {"action": "decline"}})
        slow = HeldCall(held.incoming())

        async def make(call):
            try:
                await trio.sleep_forever()
            finally:
                held.cancelled += 1

        with trio.move_on_after(1):
            await held.calls.make(slow, make)
        await trio.testing.wait_all_tasks_blocked()
        assert held.cancelled == 1


async def test_a_call_that_may_not_be_held_is_cancelled(autojump_clock, monkeypatch):
    monkeypatch.setattr(module, "MOST_HELD", 1)
    async with opened() as held:
        await held.begin()
        with pytest.raises(MCPError, match="too many"):
            await held.begin()
        await trio.testing.wait_all_tasks_blocked()
        assert held.cancelled == 1


async def test_a_client_is_not_asked_what_it_cannot_answer(autojump_clock):
    async with opened() as held:
        with pytest.raises((MCPError, ExceptionGroup)):
            await held.begin(can={})
        assert not held.answers
