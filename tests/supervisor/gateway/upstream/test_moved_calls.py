"""Held calls whose clients come back to another gateway, with a key in common. In memory, virtual time."""

import time
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.limits import HUMAN_TIMEOUT
from mcp_nursery.actors.protocol import INTERNAL_ERROR, INVALID_PARAMS, JsonRpcError
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.gateway import Access, Principal, SessionKeys, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.upstream import held_calls, server_requests
from mcp_nursery.supervisor.gateway.upstream.held_calls import HeldCall, HeldCalls

from ....lab.specs import spec
from .test_ask_client import NEW, OLD, YES, Opened, eras, newer, opened, server

ANN = Principal("Ann", key="1" * 64)
KEY = b"k" * 32
UNKNOWN = "unknown or expired requestState"


def push(given=None, *, principal=ANN, **more):
    return newer("push", given, principal=principal, **more)


@asynccontextmanager
async def two(life=NEW, keys=(KEY, KEY)):
    """Two gateways, each with a server of its own."""
    first, second = (None if key is None else SessionKeys([key]) for key in keys)
    async with opened(life, session_keys=first) as one, opened(life, session_keys=second) as other:
        yield one, other


async def asked_at(one, **more):
    """A state, and the answers of a user who allows the call."""
    first = await one.answer(push(**more))
    assert first["resultType"] == "input_required"
    return {"requestState": first["requestState"], "inputResponses": dict.fromkeys(first["inputRequests"], YES)}


@eras
@pytest.mark.parametrize("principal", [None, ANN], ids=["nobody in particular", "Ann"])
async def test_a_call_that_waits_for_an_approval_goes_on_at_another_gateway(autojump_clock, life, principal):
    """It was not sent: there it is made, once, and asked about no more."""
    async with two(life) as (one, other):
        back = await asked_at(one, principal=principal)
        assert await other.text(push(principal=principal, **back)) == (False, '{"to": "main"}')
        assert (one.calls, other.calls) == ([], [("push", {"to": "main"})])


@eras
async def test_what_its_user_refuses_is_made_nowhere(autojump_clock, life):
    async with two(life) as (one, other):
        back = await asked_at(one)
        back["inputResponses"] = {"approval": {"action": "decline"}}
        failed, text = await other.text(push(**back))
        assert failed
        assert "the user of its client has not allowed it" in text
        assert (one.calls, other.calls) == ([], [])


@eras
async def test_without_an_answer_it_is_asked_about_there(autojump_clock, life):
    async with two(life) as (one, other):
        back = await asked_at(one)
        again = await other.answer(push(requestState=back["requestState"], inputResponses={}))
        assert again["inputRequests"].keys() == {"approval"}
        back = {"requestState": again["requestState"], "inputResponses": {"approval": YES}}
        assert await other.text(push(**back)) == (False, '{"to": "main"}')
        assert len(other.calls) == 1


@pytest.mark.parametrize("at", ["the other gateway", "its own"])
async def test_a_state_is_good_for_one_call_at_each_gateway(autojump_clock, at):
    async with two(OLD) as (one, other):
        lab = other if at == "the other gateway" else one
        back = await asked_at(one)
        assert await lab.text(push(**back)) == (False, '{"to": "main"}')
        with pytest.raises(JsonRpcError, match=UNKNOWN):
            await lab.answer(push(**back))
        assert len(lab.calls) == 1


@pytest.mark.parametrize(
    "differs",
    [
        {"given": {"to": "production"}},
        {"principal": None},
        {"principal": Principal("Bob", key=ANN.key)},
        {"principal": Principal("Ann", key="2" * 64)},
        {"principal": Principal("Ann", Access(["lab/*"]), ANN.key)},
    ],
    ids=["arguments", "nobody", "name", "key", "grant"],
)
async def test_it_goes_on_for_the_same_request_of_the_same_client_alone(autojump_clock, differs):
    async with two(OLD) as (one, other):
        back = await asked_at(one)
        with pytest.raises(JsonRpcError, match=UNKNOWN):
            await other.answer(push(**differs, **back))
        assert other.calls == []
        assert await other.text(push(**back)) == (False, '{"to": "main"}')


async def test_it_goes_on_for_the_same_server_alone(autojump_clock):
    """The approval of a call of one server is none for another that has a tool of that name."""
    scripts = [server(OLD) for _ in range(4)]

    @asynccontextmanager
    async def both(*of):
        specs = [spec(script, name=name) for script, name in zip(of, ("test", "live"), strict=True)]
        rules = ApprovalRules(always_ask=["*/push"])
        async with (
            open_supervisor(specs, gate=10, approval_rules=rules, callbacks=gateway_callbacks()) as supervisor,
            open_gateway(supervisor, session_keys=SessionKeys([KEY])) as gateway,
        ):
            yield Opened(scripts[0], supervisor, gateway)

    async with both(*scripts[:2]) as one, both(*scripts[2:]) as other:
        first = await one.answer(push(), "test")
        back = {"requestState": first["requestState"], "inputResponses": {"approval": YES}}
        for lab in (one, other):
            with pytest.raises(JsonRpcError, match=UNKNOWN):
                await lab.answer(push(**back), "live")
        assert [script.calls for script in scripts] == [[], [], [], []]
        assert await other.text(push(**back), "test") == (False, '{"to": "main"}')


@eras
async def test_the_state_of_a_gateway_behind_this_one_is_not_taken_for_a_replicas(autojump_clock, life, monkeypatch):
    """Both have the key of their user; but each reaches the server in a way of its own."""
    reached = iter(["by its command", "over HTTP", "over HTTP"])
    monkeypatch.setattr(server_requests, "spec_digest", lambda _: next(reached))
    async with two(life) as (behind, front):
        back = push(**await asked_at(behind))
        if life is OLD:
            with pytest.raises(JsonRpcError, match=UNKNOWN):
                await front.answer(back)
        else:
            again = await front.answer(back)
            assert again["inputRequests"].keys() == {"approval"}, "asked about like a call of its own"
        assert front.calls == []


async def test_what_was_answered_elsewhere_is_no_answer_to_a_question_of_the_server(autojump_clock):
    """Before a server had the call nothing but the approval was asked."""

    async def make(call):
        call.approved = True
        return {"said": await call.ask_for_server("approval", "elicitation/create", {"message": "delete all?"})}

    async with trio.open_nursery() as nursery:
        one, other = (HeldCalls(nursery, lambda server: HUMAN_TIMEOUT, SessionKeys([KEY])) for _ in range(2))

        async def first(call):
            return {"said": await call.ask("approval", "elicitation/create", {"message": "may it be called?"})}

        asked = await one.begin(HeldCall(push()), first)
        back = push(requestState=asked["requestState"], inputResponses={"approval": YES})
        again = await other.resume(back, make)
        assert again["inputRequests"]["approval"]["params"] == {"message": "delete all?"}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("key", [None, b"o" * 32], ids=["no key", "another key"])
async def test_without_the_key_nothing_goes_on(autojump_clock, key):
    async with two(OLD, (KEY, key)) as (one, other):
        with pytest.raises(JsonRpcError, match=UNKNOWN):
            await other.answer(push(**await asked_at(one)))
        assert other.calls == []


async def test_it_goes_on_no_longer_than_it_would_be_held(autojump_clock, monkeypatch):
    async with two(OLD) as (one, other):
        back, now = await asked_at(one), time.time()
        monkeypatch.setattr(held_calls.time, "time", lambda: now + HUMAN_TIMEOUT + 1)
        with pytest.raises(JsonRpcError, match=UNKNOWN):
            await other.answer(push(**back))
        assert other.calls == []


async def test_a_call_that_a_server_may_have_is_not_made_again(autojump_clock):
    """Its client is told that it may have acted, in place of an answer."""
    made = []

    async def make(call):
        made.append(call)
        call.approved = True
        return {"said": await call.ask("0", "elicitation/create", {"message": "your name?"})}

    async with trio.open_nursery() as nursery:
        one, other = (HeldCalls(nursery, lambda server: HUMAN_TIMEOUT, SessionKeys([KEY])) for _ in range(2))
        asked = await one.begin(HeldCall(push()), make)
        back = push(requestState=asked["requestState"], inputResponses={"0": YES})
        assert other.has(back, "")
        for _ in range(2):
            with pytest.raises(JsonRpcError, match=r"at another gateway.*it may have acted") as refused:
                await other.resume(back, make)
            assert (refused.value.code, back.delivery) == (INTERNAL_ERROR, Delivery.UNKNOWN)
        assert len(made) == 1
        assert await one.resume(back, make) == {"said": YES}, "where it is held it goes on"
        nursery.cancel_scope.cancel()


async def test_too_many_are_refused_and_none_is_made_twice(autojump_clock, monkeypatch):
    monkeypatch.setattr(held_calls, "MOST_ADOPTED", 1)
    async with two(OLD) as (one, other):
        first, second = await asked_at(one), await asked_at(one)
        await other.answer(push(**first))
        for back in (second, first):
            with pytest.raises(JsonRpcError, match=UNKNOWN):
                await other.answer(push(**back))
        now = time.time()
        monkeypatch.setattr(held_calls.time, "time", lambda: now + HUMAN_TIMEOUT - 1)
        with pytest.raises(JsonRpcError, match=UNKNOWN):
            await other.answer(push(**second))
        third = await asked_at(one)
        monkeypatch.setattr(held_calls.time, "time", lambda: now + HUMAN_TIMEOUT + 1)
        assert await other.text(push(**third)) == (False, '{"to": "main"}')
        assert len(other.calls) == 2


async def test_a_request_that_is_too_large_for_that_goes_on_where_it_is_held(autojump_clock, monkeypatch):
    monkeypatch.setattr(held_calls, "MOST_BOUND", 10)
    async with two(OLD) as (one, other):
        back = await asked_at(one)
        with pytest.raises(JsonRpcError, match=UNKNOWN) as refused:
            await other.answer(push(**back))
        assert refused.value.code == INVALID_PARAMS
        assert await one.text(push(**back)) == (False, '{"to": "main"}')
