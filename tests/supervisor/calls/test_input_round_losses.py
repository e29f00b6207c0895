"""A server that is lost, or stopped, while it asks in the middle of a call: what the call comes to."""

import math
from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.messages import Owner, Round
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.supervisor import (
    CallError,
    ConnectionLost,
    RestartPolicy,
    ToolResult,
    open_supervisor,
)
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.calls.input_rounds import follow_up
from mcp_nursery.supervisor.testing import Ask, ScriptedServer, run_virtual

from ...lab.asking import READ_ONLY, User, asking, form, pages, refusing, run, spec
from ...lab.tool_requests import tool_request


def dying_in_a_round(annotations: dict[str, Any] | None = None) -> ScriptedServer:
    """The first incarnation dies with the second round in flight."""

    async def then(answers) -> object:
        if len(server.starts) == 1:
            server.crash(3)
            await trio.sleep_forever()
        return "done"

    server = asking(form(), then=then, annotations={"work": annotations or {}})
    return server


def test_a_loss_in_a_later_round_repeats_nothing_that_may_have_acted():
    """R2, R9, Q15."""
    error = run(server := dying_in_a_round(), elicit=User())
    assert isinstance(error, ConnectionLost)
    assert (error.delivery, error.exit_code, error.incarnation) == ("unknown", 3, 1)
    assert len(server.calls) == 2


def test_a_repeatable_call_begins_anew_after_a_loss():
    """R2, R9: from its first round: what the new incarnation asks, it asks itself."""
    user = User()
    result = run(server := dying_in_a_round(READ_ONLY), elicit=user)
    assert (result.full_text, result.incarnation) == ("done", 2)
    assert [call[0] for call in server.calls] == [1, 1, 2, 2]
    assert len(user.asked) == 2


def test_a_call_sent_again_has_all_its_rounds():
    """R2, R9: it is begun anew."""
    rounds = 0

    async def work(_) -> object:
        nonlocal rounds
        rounds += 1
        if rounds == 8:
            server.crash()
            await trio.sleep_forever()
        return "done" if rounds == 15 else Ask({}, work)

    server = ScriptedServer(tools={"work": work}, annotations={"work": READ_ONLY})
    assert run(server).full_text == "done"


async def crashing_at(server: ScriptedServer, user: User, time: float) -> tuple[object, float]:
    """What a call comes to whose server dies at that time, and when."""
    async with (
        open_supervisor([spec(server)], callbacks=Callbacks(elicit=user)) as supervisor,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(crash_at, server, time)
        try:
            outcome: object = await supervisor.call_tool("work", server="lab")
        except CallError as error:
            outcome = error
            assert supervisor.status()[0].state == "waiting"
        at = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert user.gave_up == 1
        return outcome, at


def test_a_loss_while_the_user_thinks():
    """R2, R3, R9: told at once, and the callback ends; the server may have acted before it asked."""
    error, at = run_virtual(crashing_at, server := asking(form()), User(after=5), 1.0)
    assert isinstance(error, ConnectionLost)
    assert (error.delivery, error.exit_code, at, len(server.calls)) == ("unknown", 3, 1, 1)


def test_a_repeatable_call_is_sent_again_after_a_loss_while_the_user_thinks():
    """R2, R9."""
    server = asking(form(), annotations={"work": READ_ONLY})
    result, at = run_virtual(crashing_at, server, User(after=5), 1.0)
    assert isinstance(result, ToolResult)
    assert (result.incarnation, at, [call[0] for call in server.calls]) == (2, 1 + 2 + 5, [1, 2, 2])


async def crash_at(server: ScriptedServer, time: float) -> None:
    await trio.sleep_until(time)
    server.crash(3)


def test_the_rest_of_a_call_never_reaches_another_incarnation():
    """R2, R9: a server lost and back again while a round waits knows nothing of the call."""

    async def main() -> None:
        async def work(_) -> object:
            return Ask({}, never)

        async def never(_) -> object:
            raise AssertionError

        server = ScriptedServer(tools={"work": work})
        one = spec(server, policy=RestartPolicy(delays=(0, 0, 0)))
        async with open_supervisor([one]) as supervisor, trio.open_nursery() as nursery:
            nursery.start_soon(crash_at, server, 0.02)
            with pytest.raises(ConnectionLost, match="while the server waited for input") as caught:
                await supervisor.call_tool("work", server="lab")
            assert (caught.value.incarnation, caught.value.delivery) == (1, "unknown")
            assert supervisor.status()[0].incarnation == 2
        assert len(server.calls) == 1

    run_virtual(main)


@pytest.mark.parametrize("incarnation", [None, 1, 2])
def test_a_follow_up_finds_its_incarnation_or_nobody(incarnation):
    """R9: no owner, one that is ending, another one: the slot is decided at once, and has no owner to tell."""
    owner = None if incarnation is None else Owner(incarnation, *(Mailbox[Any](math.inf) for _ in range(2)))
    if owner is not None and incarnation == 1:
        owner.control.close()
    asked, slot = ReplySlot(), ReplySlot()
    asked.route(1, Mailbox[Any](math.inf))
    slot.follow(asked)
    message = Round(tool_request("x", "work", None, {}, slot))
    follow_up(owner, message)
    assert isinstance(message.slot.outcome, Loss)
    assert message.slot.incarnation == 1
    assert owner is None or owner.control.statistics().waiting == 0


def test_a_stop_begins_no_further_round():
    """R9: what waits for the user ends with the stop, whatever the drain."""

    async def main() -> None:
        user, server = User(after=60), asking(form())
        async with (
            open_supervisor([spec(server)], callbacks=Callbacks(elicit=user)) as supervisor,
            trio.open_nursery() as nursery,
        ):

            async def stop() -> None:
                await trio.sleep(1)
                await supervisor.stop_server("lab", drain=10)
                assert trio.current_time() == 1

            nursery.start_soon(stop)
            with pytest.raises(ConnectionLost, match="stopped") as caught:
                await supervisor.call_tool("work", server="lab")
            assert (trio.current_time(), caught.value.delivery) == (1, "unknown")
        assert user.gave_up == 1

    run_virtual(main)


def test_a_callback_that_does_not_end_hides_no_loss():
    """R3, R9: callers and keeper learn of the loss at once; only the next start waits for the callback."""

    async def stubborn(message) -> object:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    async def main() -> None:
        server = asking(form())
        async with (
            open_supervisor([spec(server)], callbacks=Callbacks(elicit=stubborn), shutdown_timeout=90) as supervisor,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(crash_at, server, 1)
            with pytest.raises(ConnectionLost):
                await supervisor.call_tool("work", server="lab")
            assert (trio.current_time(), supervisor.status()[0].state) == (1, "waiting")
            await supervisor.wait_connected("lab")
            assert trio.current_time() == 60
        assert server.most_alive == 1

    run_virtual(main)


def test_a_loss_while_a_page_is_visited():
    """R2, R9."""
    error, at = run_virtual(crashing_at, refusing(pages("https://a.example")), User(after=5), 1.0)
    assert isinstance(error, ConnectionLost)
    assert (error.delivery, at) == ("unknown", 1)
