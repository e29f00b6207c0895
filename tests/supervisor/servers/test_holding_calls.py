"""W13: `when_down="hold"`, or seconds, holds a call while its server restarts. Times are virtual, and exact."""

from functools import partial

import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import CallTimeout, ConnectionLost, ServerDown
from mcp_nursery.supervisor import Call, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.decisions.restart_policy import HOLD
from mcp_nursery.supervisor.testing import Life, ScriptedServer, report_progress

from ...lab.specs import nothing, spec, status

S = ServerState
DOWN = Life(refuses="down")
STABLE = Life(dies_after=30)
UNSTABLE = Life(dies_after=29)


async def test_after_a_stable_connection_the_restart_begins_at_once(autojump_clock):
    server = ScriptedServer(STABLE, Life(connects_after=1))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(31)
        result = await supervisor.call_tool("mcp_lab_echo", when_down="hold")
        assert (server.starts, result.incarnation, trio.current_time()) == ([0, 31], 2, 32)


async def test_after_any_other_the_restart_begins_when_the_ladder_says(autojump_clock):
    server = ScriptedServer(UNSTABLE, Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(30)
        await supervisor.call_tool("mcp_lab_echo", when_down="hold")
        assert (server.starts, trio.current_time()) == ([0, 31], 31)


async def test_a_first_connection_that_was_never_made_is_not_stable(autojump_clock):
    server = ScriptedServer(DOWN, Life(), tools={"work": nothing})
    async with open_supervisor([spec(server, policy=RestartPolicy(stable_after=0))]) as supervisor:
        await supervisor.call_tool("work", server="lab", when_down="hold")
        assert server.starts == [0, 2]


async def test_fifty_calls_begin_one_restart(autojump_clock):
    """And when that fails, they wait together for the next one on the ladder."""
    server = ScriptedServer(STABLE, DOWN, Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(31)
        incarnations = []

        async def caller(after):
            await trio.sleep(after)
            incarnations.append((await supervisor.call_tool("mcp_lab_echo", when_down="hold")).incarnation)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(caller, number % 3)
        assert incarnations == [3] * 50
        assert server.starts == [0, 31, 36], "the failed attempt was the second: 5 s after it"


async def test_a_transport_that_fails_at_once_is_not_begun_by_each_of_many_calls(autojump_clock):
    """Their commands come together, and an attempt may be over before the second is read."""

    class Failing:
        kind = "scripted"
        asked = 0

        def connector(self, *, close_grace):
            self.asked += 1
            if 1 < self.asked < 4:
                raise RuntimeError("no connector")
            return server.transport.connector(close_grace=close_grace)

    server, transport = ScriptedServer(STABLE, Life()), Failing()
    async with open_supervisor([ServerSpec("lab", transport)]) as supervisor:
        await trio.sleep(31)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(lambda: supervisor.call_tool("mcp_lab_echo", when_down=60))
        assert (server.starts, transport.asked, trio.current_time()) == ([0, 31 + 5 + 15], 4, 51)


@pytest.mark.parametrize(("when_down", "held"), [("hold", HOLD), (HOLD, HOLD), (3, 3), (0.5, 0.5)])
async def test_a_call_is_held_no_longer_than_it_may_be(autojump_clock, when_down, held):
    server = ScriptedServer(UNSTABLE, Life(mute=True))
    async with open_supervisor([spec(server, connect_timeout=100)]) as supervisor:
        await trio.sleep(30)
        with pytest.raises(ServerDown) as caught:
            await supervisor.call_tool("mcp_lab_echo", when_down=when_down)
        assert trio.current_time() == 30 + held
        assert (caught.value.delivery, caught.value.state) == ("not_sent", S.WAITING if held < 1 else S.CONNECTING)


async def test_its_own_time_is_over_before_that(autojump_clock):
    server = ScriptedServer(UNSTABLE, Life(mute=True))
    async with open_supervisor([spec(server, call_timeout=9)]) as supervisor:
        await trio.sleep(30)
        for timeout in (4, None):
            began = trio.current_time()
            with pytest.raises(CallTimeout) as caught:
                await supervisor.call_tool("mcp_lab_echo", timeout=timeout, when_down="hold")
            assert trio.current_time() == began + (timeout or 9)
            assert caught.value.delivery == "not_sent"


@pytest.mark.parametrize("when_down", [None, 0, 0.0, "fail"])
async def test_a_call_that_is_not_held_fails_at_once(autojump_clock, when_down):
    server = ScriptedServer(STABLE, Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(31)
        with pytest.raises(ServerDown):
            await supervisor.call_tool("mcp_lab_echo", when_down=when_down)
        assert (server.starts, trio.current_time()) == ([0], 31)


async def test_a_server_that_will_not_come_back_holds_no_call(autojump_clock):
    server = ScriptedServer(UNSTABLE, DOWN)
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(2, 5)))]) as supervisor:
        await trio.sleep(30)
        with pytest.raises(ServerDown, match="failed"):
            await supervisor.call_tool("mcp_lab_echo", when_down="hold")
        assert (server.starts, trio.current_time()) == ([0, 31, 36], 36)
        with pytest.raises(ServerDown, match="failed"):
            await supervisor.call_tool("echo", server="lab", when_down="hold")


async def test_a_call_that_was_sent_is_lost_with_its_server(autojump_clock):
    """It is not held: nobody knows whether the server has acted."""

    async def dies(_arguments):
        server.crash()
        await trio.sleep_forever()

    server = ScriptedServer(Life(), tools={"work": dies})
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(40)
        with pytest.raises(ConnectionLost) as caught:
            await supervisor.call_tool("work", server="lab", when_down="hold")
        assert (caught.value.delivery, len(server.calls), trio.current_time()) == ("unknown", 1, 40)


async def test_a_server_that_dies_of_each_call_is_started_as_often_as_the_ladder_says(autojump_clock):
    """A stable connection brings one start that is not on time; the storm of calls begins no other."""

    async def dies(_arguments):
        server.crash()
        await trio.sleep_forever()

    server = ScriptedServer(Life(), tools={"work": dies})
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(40)

        async def caller(number):
            await trio.sleep(number / 4)
            with pytest.raises((ConnectionLost, ServerDown)):
                await supervisor.call_tool("work", {"n": number}, server="lab", when_down="hold")

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(caller, number)
        assert server.starts == [0, 40.25, 45.25, 60.25]
        assert status(supervisor).state is S.FAILED
        heard = [arguments["n"] for _, _, arguments in server.calls]
        assert len(set(heard)) == len(heard), "a call that was sent once is not sent again"


async def test_its_caller_is_told_of_each_attempt(autojump_clock):
    """The numbers grow, and are less than any that a server reports afterwards."""
    told = []

    async def on_progress(*progress):
        told.append((trio.current_time(), *progress))

    async def work(_arguments):
        await report_progress(0, 2, "begun")
        return "done"

    server = ScriptedServer(STABLE, DOWN, DOWN, Life(), tools={"work": work})
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(31)
        await supervisor.call_tool("work", server="lab", when_down=60, on_progress=on_progress)
        assert told == [
            (31, -3, None, "restarting, attempt 2 of 4"),
            (31, -2, None, "restarting, attempt 3 of 4"),
            (36, -1, None, "restarting, attempt 4 of 4"),
            (51, 0, 2, "begun"),
        ]


async def test_what_its_caller_is_told_never_goes_back(autojump_clock):
    """A person may begin the ladder anew meanwhile."""
    told = []

    async def on_progress(progress, _total, _message):
        told.append(progress)

    server = ScriptedServer(STABLE, DOWN, DOWN, Life())
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        await trio.sleep(31)
        nursery.start_soon(partial(supervisor.call_tool, "mcp_lab_echo", when_down="hold", on_progress=on_progress))
        await trio.sleep(1)
        with pytest.raises(ServerDown):
            await supervisor.reconnect("lab")
    assert (server.starts, told) == ([0, 31, 32, 34], [-3, -2])


@pytest.mark.parametrize(("lasts", "answered"), [(3, 3), (100, 5)])
async def test_a_slow_callback_makes_no_call_miss_the_restart(autojump_clock, lasts, answered):
    """It has no more time than the call is held for."""

    async def on_progress(*_progress):
        await trio.sleep(lasts)

    server = ScriptedServer(Life(dies_after=1), Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(2)
        result = await supervisor.call_tool("mcp_lab_echo", when_down=5, on_progress=on_progress)
        assert (result.incarnation, trio.current_time()) == (2, 2 + answered)


async def test_everything_that_is_called_is_held(autojump_clock):
    ways = (
        lambda supervisor: supervisor.call_tool("work", server="lab", when_down="hold"),
        lambda supervisor: supervisor.read_resource("note://a", when_down="hold"),
        lambda supervisor: supervisor.get_prompt("mcp_lab_greet", when_down="hold"),
        lambda supervisor: supervisor.complete(supervisor.prompts[0], "who", when_down="hold"),
        lambda supervisor: supervisor.gather([Call("mcp_lab_work", when_down="hold")]),
        lambda supervisor: supervisor.request("lab", "tools/list", when_down="hold"),
        lambda supervisor: supervisor.as_toolset().run("mcp_lab_work", when_down="hold"),
        lambda supervisor: supervisor.tool("mcp_lab_work")(when_down="hold"),
        lambda supervisor: supervisor.as_toolset().run("read_mcp_resource", {"uri": "note://a"}, when_down="hold"),
        lambda supervisor: supervisor.as_toolset(search=True).run(
            "call_tool", {"name": "mcp_lab_work"}, when_down="hold"
        ),
        lambda supervisor: supervisor.find_tool("work", server="lab", when_down="hold"),
    )

    async def note(_):
        return "text"

    async def allow(_request):
        return "allow"

    for way in ways:
        offers = {"resources": {"note://a": note}, "prompts": {"greet": note}, "completions": {"who": ["you"]}}
        server = ScriptedServer(STABLE, Life(), tools={"work": nothing}, **offers)
        async with open_supervisor([spec(server)], approve=allow) as supervisor:
            began = trio.current_time()
            await trio.sleep(31)
            result = await way(supervisor)
            assert not getattr(result, "is_error", False)
            assert not isinstance(result, list) or result[0].incarnation == 2
            assert trio.current_time() == began + 31


async def test_a_stopped_server_holds_no_call(autojump_clock):
    server = ScriptedServer(UNSTABLE, Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(29.5)
        async with trio.open_nursery() as nursery:

            async def caller():
                with pytest.raises(ServerDown, match="stopped"):
                    await supervisor.call_tool("echo", server="lab", when_down="hold")

            nursery.start_soon(caller)
            await trio.testing.wait_all_tasks_blocked()
            await supervisor.stop_server("lab")
        assert (server.starts, trio.current_time()) == ([0], 29.5)
