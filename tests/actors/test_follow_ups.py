"""One incarnation and the calls it has answered with a question: each follow-up has an outcome, however it ends."""

import pytest
import trio
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.callbacks import Callbacks, Host
from mcp_nursery.actors.messages import Question, Round
from mcp_nursery.actors.outcomes import Answered, Loss
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.supervisor.testing import ScriptedServer

from ..lab.actors import TOLD, ignore, living, sleeps
from ..lab.tool_requests import tool_request

REQUEST = ElicitRequest(params=ElicitRequestFormParams(message="?", requested_schema={}))


class User:
    """Thinks for ten seconds."""

    def __init__(self):
        self.asked = self.answered = 0

    async def elicit(self, message):
        self.asked += 1
        await trio.sleep(10)
        self.answered += 1
        return ElicitResult(action="accept")

    @property
    def host(self):
        return Host("lab", Callbacks(elicit=self.elicit))


def question(owner):
    slot = ReplySlot()
    slot.route(1, owner.control)
    return Question("echo", "q", REQUEST, slot)


def another_round(owner):
    slot = ReplySlot()
    slot.route(1, owner.control)
    return Round(tool_request("x", "echo", b"{}", {}, slot))


FOLLOW_UPS = pytest.mark.parametrize("follow_up", [question, another_round])


@FOLLOW_UPS
async def test_a_follow_up_is_served(autojump_clock, follow_up):
    user = User()
    async with living(ScriptedServer(), host=user.host) as seen:
        await seen.connected.wait()
        message = follow_up(seen.owner)
        seen.owner.control.put_nowait(message)
        assert isinstance(await message.slot.wait(no_progress), Answered)
        assert user.answered == (follow_up is question)


@FOLLOW_UPS
async def test_a_follow_up_that_was_given_up_is_not_begun(autojump_clock, follow_up):
    user, server = User(), ScriptedServer()
    async with living(server, host=user.host) as seen:
        await seen.connected.wait()
        message = follow_up(seen.owner)
        seen.owner.control.put_nowait(message)
        message.slot.cancel()
        await wait_all_tasks_blocked()
        assert (user.asked, server.calls, server.cancelled) == (0, [], [])


@FOLLOW_UPS
async def test_a_follow_up_in_the_moment_of_a_stop_is_refused(autojump_clock, follow_up):
    """Whatever the drain: it was not begun."""
    user, server = User(), ScriptedServer(tools={"echo": sleeps(5)})
    async with living(server, host=user.host) as seen:
        await seen.connected.wait()
        seen.send("in flight")
        await wait_all_tasks_blocked()
        message = follow_up(seen.owner)
        seen.owner.control.put_nowait(message)
        seen.actor.stop(drain=30)
        assert await message.slot.wait(no_progress) == TOLD
        assert trio.current_time() == 0
        await seen.ended.wait()
        assert isinstance(seen.outcomes["in flight"][1], Answered)
        assert (user.asked, len(server.calls)) == (0, 1)


@pytest.mark.parametrize("steps", range(10))
@FOLLOW_UPS
async def test_a_follow_up_at_any_step_of_a_loss_has_an_outcome(autojump_clock, follow_up, steps):
    """Left while the incarnation notices its loss, it is not forgotten."""
    user, server = User(), ScriptedServer(tools={"echo": sleeps(5)})
    async with living(server, host=user.host) as seen:
        await seen.connected.wait()
        await wait_all_tasks_blocked()
        server.crash()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        message = follow_up(seen.owner)
        try:
            seen.owner.control.put_nowait(message)
        except trio.BrokenResourceError:
            assert seen.ending.is_set()  # refused, as it should be
        else:
            assert isinstance(await message.slot.wait(no_progress), Loss)
        await seen.ended.wait()
        assert user.answered == 0
        assert trio.current_time() == 0


async def test_a_callback_that_does_not_end_after_a_stop_holds_up_nobody_else(autojump_clock):
    """What comes after the drain is refused at once."""

    async def elicit(_message):
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        return ElicitResult(action="accept")

    async with living(ScriptedServer(tools={"echo": ignore}), host=Host("lab", Callbacks(elicit=elicit))) as seen:
        await seen.connected.wait()
        asked, late = question(seen.owner), another_round(seen.owner)
        seen.owner.control.put_nowait(asked)
        seen.send("in flight")
        await wait_all_tasks_blocked()
        seen.actor.stop(drain=1)
        assert isinstance(await asked.slot.wait(no_progress), Loss)
        await trio.sleep_until(2)
        with pytest.raises(trio.BrokenResourceError):
            seen.owner.control.put_nowait(late)
        await seen.ended.wait()
        assert trio.current_time() == 10


async def test_a_question_ends_with_an_actor_that_is_cancelled(autojump_clock):
    """By whoever runs it, not by a stop."""
    user, outcomes = User(), []
    async with trio.open_nursery() as callers, trio.open_nursery() as hosts:

        async def live():
            async with living(ScriptedServer(), host=user.host) as seen:
                await seen.connected.wait()
                message = question(seen.owner)
                seen.owner.control.put_nowait(message)
                callers.start_soon(wait, message.slot)
                await trio.sleep_forever()

        async def wait(slot):
            outcomes.append(await slot.wait(no_progress))

        hosts.start_soon(live)
        await wait_all_tasks_blocked()
        assert user.asked == 1
        hosts.cancel_scope.cancel()
    (outcome,) = outcomes
    assert isinstance(outcome, Loss)
    assert (user.answered, trio.current_time()) == (0, 0)


async def no_progress(*_report):
    raise AssertionError
