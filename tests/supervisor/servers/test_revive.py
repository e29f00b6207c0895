"""What ends `failed` besides a person: nothing, a call, or time. Times are exact: the clock is virtual."""

import math
from functools import partial

import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import CallTimeout, ConfigError, ConnectionLost, ServerDown, UnknownServer, UnknownTool
from mcp_nursery.supervisor import Call, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual
from mcp_nursery.supervisor.transports import UnusableTransport

from ...lab.specs import hang, nothing, status

S = ServerState
ONCE = RestartPolicy(delays=())


def spec(server: ScriptedServer, name: str = "lab", **options) -> ServerSpec:
    return ServerSpec(name, server.transport, **{"policy": ONCE, **options})


DOWN = Life(refuses="down")
DIES = Life(dies_after=1)


@pytest.mark.parametrize(
    "value",
    [0, -1, math.inf, math.nan, True, "always", "5", [5], ("on_call", 0), ("on_call",), (5, "on_call"), ["never", 5]],
)
def test_what_revive_may_be(value):
    with pytest.raises(ConfigError, match=r"lab.*revive.*on_call"):
        spec(ScriptedServer(), revive=value)


async def test_by_default_only_a_person_ends_failed(autojump_clock):
    """L3, L8."""
    server = ScriptedServer(DIES, Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(10)
        for when_down in (None, "wait", "fail"):
            with pytest.raises(ServerDown, match="failed"):
                await supervisor.call_tool("mcp_lab_echo", when_down=when_down)
        await trio.sleep(10_000)
        assert server.starts == [0]


# -- by time ------------------------------------------------------------------------------------------------------


def test_revived_by_time_with_a_whole_ladder():
    """Q5: so long after it failed it is started afresh, again and again."""
    server = ScriptedServer(DOWN)

    async def main():
        async with open_supervisor([spec(server, revive=100, policy=RestartPolicy(delays=(2, 5)))]):
            await trio.sleep(250)

    run_virtual(main)
    assert server.starts == [0, 2, 7, 107, 109, 114, 214, 216, 221]


async def test_an_outage_of_a_minute_heals_without_the_host(autojump_clock):
    """Q5: with the default ladder it gives up after 22 s; `revive` brings it back when the outage is over."""
    server = ScriptedServer(Life(dies_after=1000), *[DOWN] * 5, Life())
    async with open_supervisor([ServerSpec("lab", server.transport, revive=15)]) as supervisor:
        await trio.sleep_until(1030)
        assert (status(supervisor).state, status(supervisor).retry_in) == (S.FAILED, 7)
        await supervisor.wait_connected("lab")
        # stable, so the ladder began anew: 2, 5, 15 after 1000; then 15 after it failed, and its ladder again
        assert server.starts[1:] == [1002, 1007, 1022, 1037, 1039, 1044]
        assert (await supervisor.call_tool("mcp_lab_echo")).incarnation == 7


def test_five_blips_a_day_never_give_up():
    """Q5: five blips in a row, every day for a week, each longer than the ladder."""
    blip = [Life(dies_after=3600), *[DOWN] * 4]
    server = ScriptedServer(*blip * 35, Life())

    async def main():
        async with open_supervisor([ServerSpec("lab", server.transport, revive=60)]) as supervisor:
            await trio.sleep(7 * 24 * 3600)
            assert status(supervisor).state is S.CONNECTED

    run_virtual(main)
    assert len(server.starts) == 35 * 5 + 1


async def test_what_is_shown_while_it_waits_to_be_revived(autojump_clock):
    """L13, G13: `failed`, with its last known tools, and when the next start is due; a fresh start is attempt 1."""
    server = ScriptedServer(Life(dies_after=10), Life(connects_after=3))
    async with open_supervisor([spec(server, revive=60)]) as supervisor, supervisor.events() as events:
        await trio.sleep_until(30)
        one = status(supervisor)
        assert (one.state, one.retry_in, one.error, one.tool_count) == (S.FAILED, 40, "exited with code 1", 1)
        assert not supervisor.tool("mcp_lab_echo").available
        with pytest.raises(ServerDown) as caught:
            await supervisor.call_tool("mcp_lab_echo")
        assert (caught.value.state, caught.value.retry_in) == (S.FAILED, 40)
        with pytest.raises(ServerDown, match=r"failed, restarts in 40.0 s"):
            await supervisor.list_tools("lab")
        await trio.sleep_until(71)
        one = status(supervisor)
        assert (one.state, one.retry_in, one.attempt, one.tool_count) == (S.CONNECTING, None, 1, 1)
        await trio.sleep_until(80)
        told = []
        with trio.move_on_after(1):
            async for event in events:
                if isinstance(event, StateChanged):
                    told.append((event.at, event.new, event.retry_in))
        assert told == [(10, "failed", 60), (70, "connecting", None), (73, "connected", None)]


async def test_who_waits_is_served_when_it_is_revived(autojump_clock):
    """R1: somebody will bring it back: `wait_connected` and a call that asked to wait do wait."""
    server = ScriptedServer(DIES, Life())
    async with open_supervisor([spec(server, revive=60)]) as supervisor, trio.open_nursery() as nursery:
        await trio.sleep(10)
        nursery.start_soon(supervisor.wait_connected, "lab")
        result = await supervisor.call_tool("mcp_lab_echo", when_down="wait")
        assert (trio.current_time(), result.incarnation) == (61, 2)


async def test_a_lost_read_does_not_wait_for_a_revival(autojump_clock):
    """R2: it may be long; the caller learns at once that the call was lost."""
    server = ScriptedServer(DIES, Life(), tools={"hang": hang}, annotations={"hang": {"readOnlyHint": True}})
    async with open_supervisor([spec(server, revive=60)]) as supervisor:
        with pytest.raises(ConnectionLost):
            await supervisor.call_tool("mcp_lab_hang")
        assert trio.current_time() == 1


@pytest.mark.parametrize("closing", [4, 90])
def test_a_revival_waits_for_the_close(closing):
    """L7."""
    server = ScriptedServer(Life(dies_after=10, closes_after=closing), Life())

    async def main():
        async with open_supervisor([spec(server, revive=60)]):
            await trio.sleep(200)

    run_virtual(main)
    assert server.starts == [0, max(70, 10 + closing)]
    assert server.most_alive == 1


@pytest.mark.parametrize("moment", [5, 59, 62])
@pytest.mark.parametrize("how", ["stop_server", "remove_server"])
async def test_stopped_is_never_revived(autojump_clock, moment, how):
    """L9, Q11: stopped while it waits to be revived, and in the middle of the revival."""
    server = ScriptedServer(DOWN, Life(connects_after=5))
    async with open_supervisor([spec(server, revive=60)]) as supervisor:
        await trio.sleep(moment)
        before = len(server.starts)
        await getattr(supervisor, how)("lab")
        await trio.sleep(10_000)
        assert len(server.starts) == len(server.ends) == before
        assert [one.state for one in supervisor.status()] == ([S.STOPPED] if how == "stop_server" else [])
        assert [one.retry_in for one in supervisor.status()] == ([None] if how == "stop_server" else [])


async def test_a_person_comes_before_time(autojump_clock):
    """L8: fifty reconnects before it is due share one attempt, and the revival that was due is none."""
    server = ScriptedServer(DOWN, Life(connects_after=2))
    async with open_supervisor([spec(server, revive=60)]) as supervisor:
        await trio.sleep(30)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(supervisor.reconnect, "lab")
        assert trio.current_time() == 32
        await trio.sleep(1000)
        assert server.starts == [0, 30]


@pytest.mark.parametrize("revive", [60, "on_call", ("on_call", 60)])
async def test_an_entry_that_cannot_work_is_never_revived(autojump_clock, revive):
    """L12: neither by time nor by calls."""
    problem = ConfigError("missing command (stdio)", server="lab", field="command")
    async with open_supervisor([ServerSpec("lab", UnusableTransport(problem, "stdio"), revive=revive)]) as supervisor:
        for _ in range(3):
            await trio.sleep(100)
            with pytest.raises(ServerDown, match="failed"):
                await supervisor.call_tool("echo", server="lab", when_down="wait")
            with pytest.raises(ServerDown, match="failed"):
                await supervisor.wait_connected("lab")
        assert (status(supervisor).state, status(supervisor).retry_in) == (S.FAILED, None)


async def test_a_command_that_is_not_there_may_come(autojump_clock):
    """It is never retried by the ladder; a program that is being upgraded is gone for a moment."""
    missing = Life(refuses="no such file", usable=False)
    server = ScriptedServer(Life(dies_after=1), missing, missing, Life())
    async with open_supervisor([ServerSpec("lab", server.transport, revive=60)]) as supervisor:
        await trio.sleep(100)
        assert (server.starts, status(supervisor).error) == ([0, 3, 63], "no such file")
        assert [tool.available for tool in supervisor.tools] == [False]
        await supervisor.wait_connected("lab")
        assert server.starts == [0, 3, 63, 123]


# -- by a call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["public name", "server"])
async def test_a_call_revives(autojump_clock, by):
    """G3, R1: one fresh start, then the call; with a public name too."""
    server = ScriptedServer(DIES, Life(connects_after=2))
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor:
        await trio.sleep(10)
        assert (status(supervisor).state, [tool.available for tool in supervisor.tools]) == (S.FAILED, [False])
        name, server_name = ("mcp_lab_echo", None) if by == "public name" else ("echo", "lab")
        result = await supervisor.call_tool(name, server=server_name)
        assert (trio.current_time(), result.incarnation) == (12, 2)
        assert server.starts == [0, 10]


async def test_only_calls_revive(autojump_clock):
    """R1: neither a list nor who waits for it, nor a call that does not wait, nor one of a tool it never had."""
    server = ScriptedServer(DIES, Life())
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor:
        await trio.sleep(10)
        await supervisor.list_tools(refresh=True)
        for refused in (
            partial(supervisor.list_tools, "lab"),
            partial(supervisor.wait_connected, "lab"),
            partial(supervisor.call_tool, "mcp_lab_echo", when_down="fail"),
        ):
            with pytest.raises(ServerDown, match="failed"):
                await refused()
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("mcp_lab_nope")
        await trio.sleep(1000)
        assert server.starts == [0]


@pytest.mark.parametrize("when_down", [None, "wait"])
@pytest.mark.parametrize("life", [DOWN, Life(mute=True)], ids=["at once", "late"])
async def test_a_hundred_callers_of_a_dead_server_share_one_attempt(autojump_clock, caplog, when_down, life):
    """Q7, L8: all of them learn how it went, and nobody asks for a second one."""
    server = ScriptedServer(DIES, life)
    async with open_supervisor([spec(server, revive="on_call", connect_timeout=5)]) as supervisor:
        await trio.sleep(10)

        async def call():
            with pytest.raises(ServerDown, match="failed"):
                await supervisor.call_tool("mcp_lab_echo", when_down=when_down)
            assert trio.current_time() == (10 if life is DOWN else 15)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(call)
        assert server.starts == [0, 10]
        assert len(caplog.records) <= 3
        with pytest.raises(ServerDown, match="failed"):
            await supervisor.call_tool("mcp_lab_echo")
        assert len(server.starts) == 3, "the next call has its own attempt"


async def test_the_ladder_of_a_revival_is_not_shortened(autojump_clock):
    """R1: a fresh start that fails is restarted by the ladder. Calls fail meanwhile, or wait if they were asked to."""
    server = ScriptedServer(DIES, *[DOWN] * 4, Life())
    async with open_supervisor([spec(server, revive="on_call", policy=RestartPolicy(delays=(4,)))]) as supervisor:
        await trio.sleep(20)
        assert server.starts == [0, 5]
        with pytest.raises(ServerDown) as caught:
            await supervisor.call_tool("mcp_lab_echo")
        assert (caught.value.state, caught.value.retry_in) == (S.WAITING, 4)
        result = await supervisor.call_tool("mcp_lab_echo", when_down="wait")
        # it waited for the restart that was due, and when that failed had its own fresh start, and its ladder
        assert server.starts == [0, 5, 20, 24, 24, 28]
        assert (trio.current_time(), result.incarnation) == (28, 6)


async def test_a_call_that_is_lost_revives_once(autojump_clock):
    """R2: a lost read of a server that fails at once is sent again by one fresh start; lost again, it is lost."""
    server = ScriptedServer(DIES, DIES, Life(), tools={"hang": hang}, annotations={"hang": {"readOnlyHint": True}})
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor:
        with pytest.raises(ConnectionLost):
            await supervisor.call_tool("mcp_lab_hang")
        assert (trio.current_time(), server.starts) == (2, [0, 1])
        assert [incarnation for incarnation, *_ in server.calls] == [1, 2]


async def test_a_call_that_must_run_once_revives_nothing_after_it_was_lost(autojump_clock):
    """R2, Q15."""
    server = ScriptedServer(DIES, Life(), tools={"hang": hang})
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor:
        with pytest.raises(ConnectionLost):
            await supervisor.call_tool("mcp_lab_hang")
        await trio.sleep(100)
        assert (server.starts, len(server.calls)) == ([0], 1)


async def test_a_call_while_the_dead_connection_is_being_closed(autojump_clock):
    """L7, R1: it has failed already, and its transport is not closed yet: the fresh start comes right after."""
    server = ScriptedServer(Life(dies_after=1, closes_after=5), Life())
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor:
        await trio.sleep(2)
        result = await supervisor.call_tool("mcp_lab_echo")
        assert (trio.current_time(), result.incarnation) == (6, 2)
        assert (server.starts, server.most_alive) == ([0, 6], 1)


@pytest.mark.parametrize("how", ["stop_server", "remove_server"])
async def test_a_call_does_not_resurrect(autojump_clock, how):
    """L9: stopped in the middle of the start that a call asked for; and a stopped server is no failed one."""
    server = ScriptedServer(DIES, Life(connects_after=5))
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor, trio.open_nursery() as nursery:
        await trio.sleep(10)

        async def call():
            with pytest.raises((ServerDown, UnknownTool)):
                await supervisor.call_tool("mcp_lab_echo")
            assert trio.current_time() == 12

        nursery.start_soon(call)
        await trio.sleep(2)
        await getattr(supervisor, how)("lab")
        with pytest.raises((ServerDown, UnknownTool)):
            await supervisor.call_tool("mcp_lab_echo")
        await trio.sleep(1000)
        assert server.starts == [0, 10]


async def test_the_callers_deadline_holds_in_a_revival(autojump_clock):
    """R4."""
    server = ScriptedServer(DIES, Life(mute=True))
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor:
        await trio.sleep(10)
        with trio.move_on_after(3) as scope:
            await supervisor.call_tool("mcp_lab_echo")
        assert scope.cancelled_caught
        assert trio.current_time() == 13
        assert status(supervisor).state is S.CONNECTING, "the attempt is the server's"


async def test_a_fan_out_revives(autojump_clock):
    """Q7: its calls share the attempt too."""
    server = ScriptedServer(DIES, Life(connects_after=1))
    async with open_supervisor([spec(server, revive="on_call")]) as supervisor:
        await trio.sleep(10)
        results = await supervisor.gather([Call("mcp_lab_echo"), Call("echo", server="lab")] * 10)
        assert {result.incarnation for result in results} == {2}
        assert server.starts == [0, 10]


@pytest.mark.parametrize("state", ["idle", "failed"])
@pytest.mark.parametrize("how", ["stop_server", "remove_server"])
def test_a_call_and_a_stop_in_the_same_tick(how, state):
    """L9, Q11: whichever comes first, it ends stopped: a start that was asked for before the stop is none after it."""

    async def once():
        server = ScriptedServer(Life(dies_after=1, connects_after=1))
        options = {"lazy": True} if state == "idle" else {"revive": "on_call"}
        async with open_supervisor([spec(server, **options)]) as supervisor, trio.open_nursery() as nursery:
            await trio.sleep(10)
            assert status(supervisor).state == state
            before = len(server.starts)

            async def call():
                with pytest.raises((ServerDown, UnknownTool, UnknownServer)):
                    await supervisor.call_tool("echo", server="lab")

            nursery.start_soon(getattr(supervisor, how), "lab")
            nursery.start_soon(call)
            await trio.sleep(100)
            assert len(server.starts) == len(server.ends) <= before + 1
            assert [one.state for one in supervisor.status()] == ([S.STOPPED] if how == "stop_server" else [])

    for _ in range(10):
        run_virtual(once)


# -- by whichever comes first ---------------------------------------------------------------------------------------


BOTH = ("on_call", 60)


async def test_a_call_comes_before_time(autojump_clock):
    """And time begins anew when that start fails too; the two share no attempt."""
    server = ScriptedServer(DIES, DOWN, DOWN, Life())
    async with open_supervisor([spec(server, revive=list(BOTH))]) as supervisor:
        assert supervisor.spec("lab").revive == BOTH
        await trio.sleep(31)
        with pytest.raises(ServerDown, match=r"failed, restarts in 60\.0 s \(down\)"):
            await supervisor.call_tool("mcp_lab_echo")
        await trio.sleep_until(92)
        assert server.starts == [0, 31, 91]
        assert (status(supervisor).state, status(supervisor).retry_in) == (S.FAILED, 59)
        assert (await supervisor.call_tool("mcp_lab_echo")).incarnation == 4
        await trio.sleep(1000)
        assert server.starts == [0, 31, 91, 92]


async def test_a_call_and_the_time_at_once_share_an_attempt(autojump_clock):
    server = ScriptedServer(DIES, Life(connects_after=2))
    async with open_supervisor([spec(server, revive=BOTH)]) as supervisor, trio.open_nursery() as nursery:
        for when in (60, 61, 61, 62):
            await trio.sleep_until(when)
            nursery.start_soon(supervisor.call_tool, "mcp_lab_echo")
        await trio.sleep(1000)
        assert server.starts == [0, 60]


async def test_the_callers_timeout_is_all_that_a_call_of_a_failed_server_takes(autojump_clock):
    server = ScriptedServer(DIES, Life(mute=True))
    async with open_supervisor([spec(server, revive=BOTH)]) as supervisor:
        await trio.sleep(10)
        with pytest.raises(CallTimeout):
            await supervisor.call_tool("mcp_lab_echo", timeout=3)
        assert trio.current_time() == 13


async def test_who_waits_with_patience_does_not_wait_for_a_revival_beyond_it(autojump_clock):
    server = ScriptedServer(DOWN)
    async with open_supervisor([spec(server, revive=BOTH)]) as supervisor:
        await trio.sleep(10)
        with pytest.raises(ServerDown, match="failed, restarts in 50"):
            await supervisor.wait_connected("lab", patience=5)
        assert trio.current_time() == 10
        await trio.sleep_until(57)
        with pytest.raises(ServerDown, match="failed, restarts in 60"):
            await supervisor.wait_connected("lab", patience=5)
        assert trio.current_time() == 60


async def test_never_is_as_nothing(autojump_clock):
    server = ScriptedServer(DIES, Life())
    async with open_supervisor([spec(server, revive="never")]) as supervisor:
        await trio.sleep(1000)
        with pytest.raises(
            ServerDown, match="reconnect starts it again, `revive` in its entry brings it back by itself"
        ):
            await supervisor.call_tool("mcp_lab_echo")
        assert (server.starts, supervisor.tools) == ([0], ())


async def test_what_else_a_revived_server_offers_stays_visible(autojump_clock):
    """And is asked for as its tools are: a read starts it."""
    server = ScriptedServer(DIES, Life(), resources={"note://1": nothing}, prompts={"hint": nothing})
    async with open_supervisor([spec(server, revive=BOTH)]) as supervisor:
        await trio.sleep(10)
        assert status(supervisor).state is S.FAILED
        assert [one.available for one in (*supervisor.resources, *supervisor.prompts)] == [False, False]
        assert (await supervisor.read_resource("note://1")).server == "lab"
        assert server.starts == [0, 10]
