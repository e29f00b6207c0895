"""Random exchanges: whatever a peer does, every call has one outcome, its own, and nothing is left over.

About 2,000 calls in the quick profile. Every frame carries a token that no other call has.
"""

import math
from random import Random

import pytest
import trio
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.jsonrpc.endpoint import ConnectionClosed, Endpoint, RequestTimedOut
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.outcomes import Answered, Busy, Loss, Rejected
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.reply import ReplySlot

from ...lab.wire_peer import Peer, error, notice, post, result

CALLS = 40


class Moody(Peer):
    """Takes few frames or many, tears some; answers late, out of order, twice, to nobody, or never."""

    def __init__(self, dice, nursery, *, lives):
        super().__init__(room=dice.choice([0, 1, 5, math.inf, math.inf]))
        self.dice, self.nursery, self.lives = dice, nursery, lives
        self.on_message = self.react

    def write_nowait(self, frames):
        self.torn = self.dice.random() < 0.2
        return super().write_nowait(frames)

    def react(self, message):
        if "id" in message:
            self.nursery.start_soon(self.answer, message)

    async def answer(self, message):
        dice, token = self.dice, message["params"]["token"]
        await trio.sleep(dice.choice([0, 0, 0.5, 1, 2, 8]))
        answer = result(message["id"] if dice.random() < 0.8 else str(message["id"]), {"token": token})
        if dice.random() < 0.2:
            answer = error(message["id"], -1, token)
        progress_token = message["params"].get("_meta", {}).get("progressToken", 10_000)
        steps = [
            notice("notifications/progress", {"progressToken": progress_token, "progress": step, "message": token})
            for step in range(dice.choice([0, 0, 3, 8]))
        ]
        match dice.choice(["once", "once", "once", "twice", "late", "never", "muddled"]):
            case "once":
                self.say(*steps, answer)
            case "twice":
                self.say(*steps, answer, answer)
            case "late":
                self.say(*steps)
                await trio.sleep(20)
                self.say(answer)
            case "never":
                self.say(*steps)
            case "muddled":
                self.say(b"rubbish", *steps, result(9_999), result(None), answer, *steps)

    async def live(self):
        while trio.current_time() < self.lives:
            await trio.sleep(self.dice.choice([0.25, 0.5, 1]))
            self.take(self.dice.choice([0, 1, 3, 7, math.inf, math.inf]))
        if self.dice.random() < 0.5:
            self.close_its_ears()
            await trio.sleep(1)
        self.end()


@define
class Exchange:
    dice: Random
    endpoint: Endpoint
    peer: Moody
    cancels: Mailbox = field(factory=lambda: Mailbox(math.inf))
    outcomes: dict = field(factory=dict)
    sent: dict = field(factory=dict)

    def settle(self, token, outcome):
        assert token not in self.outcomes, "two outcomes"
        self.outcomes[token] = outcome

    async def heed_cancels(self):
        while True:
            for slot in await self.cancels.take():
                self.endpoint.cancel([slot])

    def progress_for(self, token, seen):
        async def on_progress(progress, _total, message):
            assert message == token, "progress of another call"
            assert token not in self.outcomes, "progress after the result"
            seen.append(progress)
            if self.dice.random() < 0.3:
                await trio.sleep(0.5)

        return on_progress

    async def call(self, token):
        """As a caller with a server actor between it and the wire."""
        dice, seen = self.dice, []
        await trio.sleep(dice.choice([0, 0, 1, 2]))
        wants = dice.random() < 0.5
        slot = ReplySlot(wants_progress=wants)
        slot.route(1, self.cancels)
        outcome = "gave up"
        patience = dice.choice([0.5, 3, 10, 100])
        self.endpoint.post([post(slot, token=token)])
        with trio.move_on_after(patience):
            outcome = await slot.wait(self.progress_for(token, seen))
        self.settle(token, outcome)
        self.sent[token] = slot
        assert seen == sorted(seen), "progress out of order"

    async def ask(self, token):
        """As the SDK's session."""
        dice, seen = self.dice, []
        await trio.sleep(dice.choice([0, 0, 1, 2]))
        opts = {"timeout": dice.choice([0.5, 3, 10, 50]), "cancel_on_abandon": dice.random() < 0.7}
        if dice.random() < 0.5:
            opts["on_progress"] = self.progress_for(token, seen)
        if dice.random() < 0.3:
            opts["request_id"] = token
        outcome = "gave up"
        with trio.move_on_after(dice.choice([1, 5, 100])):
            try:
                outcome = Answered(await self.endpoint.send_raw_request("m", {"token": token}, opts))
            except ConnectionClosed:
                outcome = self.endpoint.loss
            except RequestTimedOut:
                outcome = "timed out"
            except JsonRpcError as refused:
                outcome = Rejected(refused.code, refused.message, refused.data)
        self.settle(token, outcome)
        assert seen == sorted(seen), "progress out of order"


async def ignore(*_notice):
    pass


async def exchange(seed):
    dice = Random(seed)
    tokens = [f"token-{number}" for number in range(CALLS)]
    async with trio.open_nursery() as world:
        peer = Moody(dice, world, lives=dice.choice([2, 5, 200, 200, 200, 200]))
        endpoint = Endpoint(StreamCarrier(peer))
        this = Exchange(dice, endpoint, peer)
        await world.start(endpoint.run, ignore, ignore, None)
        world.start_soon(this.heed_cancels)
        world.start_soon(peer.live)
        async with trio.open_nursery() as callers:
            for token in tokens:
                callers.start_soon(dice.choice([this.call, this.call, this.ask]), token)
        await wait_all_tasks_blocked()  # the last cancels are heeded
        if not endpoint.lost.is_set():
            assert len(endpoint._table) == 0, "a request nobody waits for"
        await endpoint.lost.wait()
        assert trio.current_time() <= 220
        world.cancel_scope.cancel()
    check(this, tokens)


def check(this, tokens):
    endpoint, peer = this.endpoint, this.peer
    assert set(this.outcomes) == set(tokens)
    for token, outcome in this.outcomes.items():
        match outcome:
            case Answered(result=raw):
                assert raw == {"token": token}, "another call's answer"
            case Rejected(code=code, message=message):
                assert (code, message) == (-1, token), "another call's error"
            case Loss():
                assert outcome == endpoint.loss
            case _:
                assert outcome in ("gave up", "timed out", Busy())
    asked = [message for message in peer.heard if "id" in message]
    heard = {message["params"]["token"] for message in asked}
    assert len(asked) == len(heard) == len({message["id"] for message in asked}), "a request that left twice"
    for token, slot in this.sent.items():
        assert slot.sent is (token in heard), "`sent` is not true"
        assert (slot.delivery is Delivery.NOT_SENT) is (token not in heard)
    told = [message["params"]["requestId"] for message in peer.heard_of("notifications/cancelled")]
    assert len(told) == len(set(told)), "cancelled twice"
    assert set(told) <= {message["id"] for message in asked}, "a cancel of what was never asked"
    answered = {token for token, outcome in this.outcomes.items() if isinstance(outcome, (Answered, Rejected))}
    assert not answered & {m["params"]["token"] for m in asked if m["id"] in told}, "an answered call was cancelled"
    assert (len(endpoint._table), endpoint.in_flight, len(endpoint._requests)) == (0, 0, 0)
    queued = endpoint._carrier.outbox._queue
    assert not any(isinstance(key, ReplySlot) and key.cancelled for key in queued)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.random_module())
def test_every_call_has_one_outcome_of_its_own_and_nothing_is_left_over(seed, schedule):
    trio.run(exchange, seed, clock=MockClock(autojump_threshold=0))
