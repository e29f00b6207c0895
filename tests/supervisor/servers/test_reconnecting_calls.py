"""R11: `when_down="reconnect"` has the attempt that is due begun at once. Times are exact: the clock is virtual."""

from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConnectionLost, ServerDown
from mcp_nursery.supervisor import Call, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ...lab.specs import nothing, spec, status

S = ServerState
DOWN = Life(refuses="down")
DIES = Life(dies_after=1)


async def test_fifty_callers_share_one_start(autojump_clock):
    """Whoever calls while the attempt is under way takes part in it too."""
    server = ScriptedServer(DIES, Life(connects_after=3))
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(100,)))]) as supervisor:
        await trio.sleep(10)
        incarnations = []

        async def caller(after):
            await trio.sleep(after)
            result = await supervisor.call_tool("mcp_lab_echo", when_down="reconnect")
            incarnations.append((result.incarnation, trio.current_time()))

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(caller, number % 3)
        assert server.starts == [0, 10]
        assert incarnations == [(2, 13)] * 50


async def test_a_call_that_was_lost_has_the_next_attempt_begun_although_it_took_part_in_the_first(autojump_clock):
    """It may be sent once more, and that attempt is none that it has waited for."""

    async def dies(_arguments):
        await trio.lowlevel.checkpoint()
        if len(server.starts) == 1:
            server.crash()
            await trio.sleep_forever()
        return "done"

    server = ScriptedServer(Life(connects_after=3), Life(), tools={"work": dies})
    async with open_supervisor([spec(server)], gate=0) as supervisor:
        await supervisor.call_tool("work", server="lab", when_down="reconnect", resend="always")
        assert (server.starts, trio.current_time()) == ([0, 3], 3)


async def test_an_attempt_that_fails_is_the_callers_error(autojump_clock):
    """The ladder goes on from there, as if that attempt had been on time; each call has one attempt."""
    server = ScriptedServer(DIES, DOWN)
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(20, 30, 40)))]) as supervisor:
        await trio.sleep(5)

        async def caller():
            with pytest.raises(ServerDown) as caught:
                await supervisor.call_tool("mcp_lab_echo", when_down="reconnect")
            assert (caught.value.state, caught.value.retry_in, caught.value.delivery) == (S.WAITING, 30, "not_sent")

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(caller)
        assert server.starts == [0, 5]
        assert (status(supervisor).attempt, status(supervisor).retry_in) == (3, 30)
        await trio.sleep_until(15)
        with pytest.raises(ServerDown, match="waiting"):
            await supervisor.call_tool("mcp_lab_echo", when_down="reconnect")
        await trio.sleep_until(1000)
        assert server.starts == [0, 5, 15, 55], "40 s after the one at 15"
        with pytest.raises(ServerDown, match="failed"):
            await supervisor.call_tool("mcp_lab_echo", when_down="reconnect")
        assert len(server.starts) == 4, "a call does not revive what has given up"


async def test_who_comes_during_an_attempt_has_no_other_begun(autojump_clock):
    """Otherwise steady callers would go up the ladder in no time."""
    server = ScriptedServer(DIES, Life(mute=True))
    policy = RestartPolicy(delays=(20, 30, 40))
    async with open_supervisor([spec(server, policy=policy, connect_timeout=5)]) as supervisor:
        await trio.sleep(10)

        async def caller(after):
            await trio.sleep(after)
            with pytest.raises(ServerDown, match="waiting"):
                await supervisor.call_tool("mcp_lab_echo", when_down="reconnect")
            assert trio.current_time() == 15

        async with trio.open_nursery() as nursery:
            for after in range(5):
                nursery.start_soon(caller, after)
        assert server.starts == [0, 10]


async def test_it_waits_until_what_is_left_of_the_old_connection_is_closed(autojump_clock):
    server = ScriptedServer(Life(dies_after=1, closes_after=4), Life())
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(100,)))]) as supervisor:
        await trio.sleep(2)
        result = await supervisor.call_tool("mcp_lab_echo", when_down="reconnect")
        assert (server.starts, result.incarnation, server.most_alive) == ([0, 5], 2, 1)


async def test_everything_that_is_called(autojump_clock):
    tools = {"work": nothing}
    ways = (
        lambda supervisor: supervisor.call_tool("work", server="lab", when_down="reconnect"),
        lambda supervisor: supervisor.read_resource("note://a", when_down="reconnect"),
        lambda supervisor: supervisor.get_prompt("mcp_lab_greet", when_down="reconnect"),
        lambda supervisor: supervisor.complete(supervisor.prompts[0], "who", when_down="reconnect"),
        lambda supervisor: supervisor.gather([Call("mcp_lab_work", when_down="reconnect")]),
    )

    async def note(_):
        return "text"

    for way in ways:
        server = ScriptedServer(
            DIES,
            Life(),
            tools=tools,
            resources={"note://a": note},
            prompts={"greet": note},
            completions={"who": ["you"]},
        )
        async with open_supervisor([spec(server, policy=RestartPolicy(delays=(100,)))]) as supervisor:
            began = trio.current_time()
            await trio.sleep(5)
            result = await way(supervisor)
            assert not isinstance(result, list) or result[0].incarnation == 2
            assert [at - began for at in server.starts] == [0, 5]


async def test_other_calls_start_nothing(autojump_clock):
    server = ScriptedServer(DIES, Life())
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(100,)))]) as supervisor:
        await trio.sleep(5)
        for when_down in (None, "fail"):
            with pytest.raises(ServerDown):
                await supervisor.call_tool("mcp_lab_echo", when_down=when_down)
        await supervisor.call_tool("mcp_lab_echo", when_down="wait")
        assert server.starts == [0, 101]


@pytest.mark.parametrize("way", ["stop_server", "remove_server"])
async def test_who_is_stopped_meanwhile_stays_so(autojump_clock, way):
    server = ScriptedServer(Life(dies_after=1, closes_after=4), Life())
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(100,)))]) as supervisor:
        await trio.sleep(2)
        async with trio.open_nursery() as nursery:

            async def caller():
                with pytest.raises(Exception, match=r"stopped|no server"):
                    await supervisor.call_tool("echo", server="lab", when_down="reconnect")

            nursery.start_soon(caller)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(partial(getattr(supervisor, way), "lab"))
        await trio.sleep(1000)
        assert server.starts == [0]


# -- the ladder, whoever calls --------------------------------------------------------------------------------------

lives = st.sampled_from(
    [DOWN, Life(mute=True), Life(dies_after=0.5), Life(dies_after=6.5), Life(connects_after=1, dies_after=1)]
)
moments = st.integers(0, 80).map(lambda halves: halves / 2)


def stands(lives, callers):
    """The attempts of a server: which one it was, how it ended and what was due then; and the times of its starts."""
    server = ScriptedServer(*lives)
    policy = RestartPolicy(delays=(3, 5, 8), stable_after=4)
    lab = ServerSpec("lab", server.transport, policy=policy, connect_timeout=2)
    told, ended = [], []

    async def caller(supervisor, at):
        await trio.sleep_until(at + 0.25)
        before = len(server.starts)
        try:
            await supervisor.call_tool("echo", server="lab", when_down="reconnect")
        except ServerDown as error:
            ended.append((error.state, len(server.starts) - before))
        except ConnectionLost:
            pass  # the server died as it was about to be sent

    async def main():
        async with (
            open_supervisor([]) as supervisor,
            trio.open_nursery() as nursery,
            supervisor.events() as events,
        ):
            await supervisor.add_server(lab)
            for at in callers:
                nursery.start_soon(caller, supervisor, at)
            with trio.move_on_after(400):
                async for event in events:
                    if isinstance(event, StateChanged):
                        told.append(event)
            assert status(supervisor).state is not S.WAITING

    run_virtual(main)
    assert server.most_alive <= 1
    return told, server.starts, ended


@given(
    lives=st.lists(lives, min_size=1, max_size=8).map(lambda some: [*some, Life()]),
    callers=st.lists(moments, max_size=30),
    schedule=st.random_module(),
)
def test_the_ladder_is_the_same_and_only_earlier(lives, callers, schedule):
    """Each attempt has the number, and each failure the delay after it, that the ladder alone gives them; a start comes
    at its time, or when somebody called before that; and nobody has more than one started."""
    alone, starts_alone, _ = stands(lives, [])
    told, starts, ended = stands(lives, callers)

    def steps(events):
        return [(event.new, event.attempt, event.incarnation, event.retry_in) for event in events]

    assert steps(told) == steps(alone)
    assert len(starts) == len(starts_alone)
    assert all(early <= late for early, late in zip(starts, starts_alone, strict=True))
    waits = [event for event in told if event.new is S.WAITING]
    due = {0.0, *(event.at + event.retry_in for event in waits), *(at + 0.25 for at in callers)}
    due |= {event.at for event in waits if event.old is S.CONNECTED}  # a call that was about to be sent just then
    assert due.issuperset(starts)
    assert all(began <= 1 or state is S.FAILED for state, began in ended)
