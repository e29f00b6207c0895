"""The life of a call that waits for its client. Virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from mcp_types import METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import BACKLOG_BYTES
from mcp_nursery.supervisor.gateway.upstream import held_calls as module
from mcp_nursery.supervisor.gateway.upstream.held_calls import TOGETHER, HeldCall, HeldCalls

from ....lab.gateway_clients import CAN

ACCEPTED = {"action": "accept", "content": {}}


class Held:
    """Calls that ask two questions, `a` and `b`, and how they ended."""

    def __init__(self, nursery, hold):
        self.nursery = nursery
        self.calls = HeldCalls(nursery, lambda server: hold)
        self.cancelled = 0
        self.answers = {}

    async def _ask(self, call, key):
        self.answers[key] = await call.ask(key, "elicitation/create", {"message": key})

    async def _make(self, call):
        whole = False
        try:
            async with trio.open_nursery() as questions:
                questions.start_soon(self._ask, call, "a")
                await trio.sleep(0.005)
                questions.start_soon(self._ask, call, "b")
            whole = True
        finally:
            self.cancelled += not whole
        return dict(self.answers)

    async def begin(self, *, can=CAN):
        return await self.calls.begin(HeldCall(self.incoming(can=can)), self._make)

    async def come_back(self, said, answers):
        return await self.calls.resume(
            self.incoming(inputResponses=answers, requestState=said["requestState"]), self._make
        )

    def incoming(self, *, can=CAN, **params):
        return ClientRequest(1, "prompts/get", {"name": "p"} | params, {}, None, None, capabilities=can)


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
        with pytest.raises(JsonRpcError, match="expired"):
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
            await held.calls.begin(slow, make)
        await trio.testing.wait_all_tasks_blocked()
        assert held.cancelled == 1


async def test_a_call_that_may_not_be_held_is_cancelled(autojump_clock, monkeypatch):
    monkeypatch.setattr(module, "MOST_HELD", 1)
    async with opened() as held:
        await held.begin()
        with pytest.raises(JsonRpcError, match="too many"):
            await held.begin()
        await trio.testing.wait_all_tasks_blocked()
        assert held.cancelled == 1


async def test_a_client_is_not_asked_what_it_cannot_answer(autojump_clock):
    async with opened() as held:
        with pytest.raises((JsonRpcError, ExceptionGroup)):
            await held.begin(can={})
        assert not held.answers


@pytest.mark.parametrize(
    ("method", "can", "code"),
    [("elicitation/create", {}, MISSING_REQUIRED_CLIENT_CAPABILITY), ("vendor/ask", CAN, METHOD_NOT_FOUND)],
)
async def test_a_server_is_refused_what_a_client_cannot_be_asked(method, can, code, autojump_clock):
    """Whatever that client has come with."""
    async with opened() as held:
        call = HeldCall(held.incoming(can=can, inputResponses={"q": ACCEPTED}))
        with pytest.raises(JsonRpcError) as refused:
            await call.ask_for_server("q", method, {})
        assert refused.value.code == code


async def test_an_answer_that_is_none_takes_nothing_from_the_others(autojump_clock):
    async with opened() as held:
        said = await held.begin()
        with pytest.raises(JsonRpcError, match="answer to b is none to elicitation/create"):
            await held.come_back(said, {"a": ACCEPTED, "b": {"action": "perhaps"}})
        assert not held.answers
        assert await held.come_back(said, {"a": ACCEPTED, "b": ACCEPTED}) == {"a": ACCEPTED, "b": ACCEPTED}


async def test_what_a_client_brings_at_first_answers_one_question(autojump_clock):
    """It may have been asked by another incarnation. A later question of that key is another one."""

    async def make(call):
        first = await call.ask_for_server("q", "elicitation/create", {"message": "your name?"})
        await call.ask("approval", "elicitation/create", {"message": "really?"})
        return {"said": [first, await call.ask_for_server("q", "elicitation/create", {"message": "delete all?"})]}

    async with opened() as held:
        said = await held.calls.begin(HeldCall(held.incoming(inputResponses={"q": ACCEPTED})), make)
        assert said["inputRequests"].keys() == {"approval"}
        said = await held.come_back(said, {"approval": ACCEPTED, "q": ACCEPTED})
        assert [each["params"]["message"] for each in said["inputRequests"].values()] == ["delete all?"]
        decline = {"action": "decline"}
        assert await held.come_back(said, dict.fromkeys(said["inputRequests"], decline)) == {
            "said": [ACCEPTED, decline]
        }


async def test_a_question_that_is_taken_back_at_once_is_not_asked(autojump_clock):
    async def make(call):
        with trio.move_on_after(TOGETHER / 2):
            await call.ask("a", "elicitation/create", {})
        await trio.sleep(1)
        return {"done": True}

    async with opened() as held:
        assert await held.calls.begin(HeldCall(held.incoming()), make) == {"done": True}


async def test_clients_that_nobody_knows_have_no_limit_of_one(autojump_clock, monkeypatch):
    monkeypatch.setattr(module, "MOST_HELD_OF_CLIENT", 1)
    async with opened() as held:
        for _ in range(2):
            assert "requestState" in await held.begin()


async def test_what_is_said_while_nobody_attends_is_bounded(autojump_clock):
    heard = []

    async def tell(method, params):
        await trio.lowlevel.checkpoint()
        heard.append(params["n"])

    async def make(call):
        await call.ask("a", "elicitation/create", {})
        for number in range(3000):
            await call.notify("notifications/vendor", {"n": number})
        await call.ask("b", "elicitation/create", {})

    async with opened() as held:
        said = await held.calls.begin(HeldCall(held.incoming()), make)
        last = held.incoming(inputResponses={"a": ACCEPTED}, requestState=said["requestState"])
        last.notify = tell
        await held.calls.resume(last, make)
        assert heard == list(range(3000 - 1024, 3000))


async def test_what_a_server_says_while_nobody_attends_its_call_is_bounded_in_bytes(autojump_clock):
    told = []

    async def tell(method, params):
        await trio.lowlevel.checkpoint()
        told.append(params["text"][0])

    async def make(call):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call.ask, "q", "elicitation/create", {})
            await trio.sleep(1)
            for letter in "abcdefgh":
                await call.notify("vendor/notice", {"text": letter * (BACKLOG_BYTES // 5)})
        return {"done": True}

    async with opened() as held:
        said = await held.calls.begin(HeldCall(held.incoming()), make)
        await trio.sleep(2)
        back = held.incoming(inputResponses={"q": ACCEPTED}, requestState=said["requestState"])
        back.notify = tell
        assert await held.calls.resume(back, make) == {"done": True}
        assert told == ["e", "f", "g", "h"]
