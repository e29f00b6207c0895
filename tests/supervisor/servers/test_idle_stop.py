"""A server that nobody uses is stopped, and started again by whoever uses it next. Times are exact: the clock is
virtual."""

from functools import partial

import pytest
import trio
import trio.testing
from mcp_types import ElicitResult

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import CallTimeout, ConfigError, ServerDown
from mcp_nursery.actors.liveness import Liveness
from mcp_nursery.supervisor import Call, RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.servers.call_counter import CallCounter
from mcp_nursery.supervisor.testing import Ask, Life, ScriptedServer, run_virtual

from ...lab.specs import lasting, status

S = ServerState
LIMIT = 10


def spec(server: ScriptedServer, name: str = "lab", **options) -> ServerSpec:
    return ServerSpec(name, server.transport, **{"stop_idle_after": LIMIT, **options})


async def at(time: float) -> None:
    """When everything that happens at this time has happened."""
    await trio.sleep_until(time)
    await trio.testing.wait_all_tasks_blocked()


# -- when it is stopped -------------------------------------------------------------------------------------------


async def test_a_lazy_server_lives_for_299_s_and_not_for_300(autojump_clock):
    """G8: 300 s since the last call by default."""
    server = ScriptedServer()
    async with open_supervisor([ServerSpec("lab", server.transport, lazy=True)]) as supervisor:
        await trio.sleep(50)
        await supervisor.call_tool("mcp_lab_echo")
        await at(349.9)
        assert (status(supervisor).state, server.ends) == (S.CONNECTED, [])
        await at(350)
        assert (status(supervisor).state, server.ends) == (S.IDLE, [350])


@pytest.mark.parametrize("options", [{}, {"lazy": True, "stop_idle_after": 0}, {"stop_idle_after": 0}])
async def test_others_are_never_stopped(autojump_clock, options):
    """G8: neither one that is not lazy, nor one with the limit 0."""
    server = ScriptedServer()
    async with open_supervisor([ServerSpec("lab", server.transport, **options)]) as supervisor:
        await supervisor.list_tools()
        await at(100_000)
        assert status(supervisor).state is S.CONNECTED
        assert server.starts == [0]


async def test_a_server_that_is_never_used(autojump_clock):
    """G8: its time runs from its connection, and again from the next one; it stays where it is."""
    server = ScriptedServer(Life(connects_after=2), Life(dies_after=5), Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await at(11.9)
        assert server.ends == []
        await at(12)
        assert (server.ends, status(supervisor).state) == ([12], S.IDLE)
        await at(10_000)
        assert (server.starts, status(supervisor).state) == ([0], S.IDLE)
        await supervisor.start_server("lab")
        await at(10_017)  # lost at 10005, back at 10007
        assert (server.starts[1:], server.ends[1:]) == ([10_000, 10_007], [10_005, 10_017])


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_what_the_limit_may_be(value):
    with pytest.raises(ConfigError, match=r"lab.*stop_idle_after.*seconds"):
        spec(ScriptedServer(), stop_idle_after=value)


# -- what counts as use -------------------------------------------------------------------------------------------


async def test_every_call_resets_the_time(autojump_clock):
    """G8."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        for _ in range(7):
            await trio.sleep(9.5)
            await supervisor.call_tool("mcp_lab_echo")
        await at(76.4)
        assert server.ends == []
        await at(76.5)
        assert server.ends == [76.5]


async def test_a_call_longer_than_the_limit_is_not_cut_off(autojump_clock):
    """G8: while it is under way the server is used, and its end counts as well as its beginning."""
    server = ScriptedServer(tools={"long": lasting(400)})
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(5)
        assert (await supervisor.call_tool("mcp_lab_long")).full_text == "done"
        assert (trio.current_time(), server.ends) == (405, [])
        await at(414.9)
        assert server.ends == []
        await at(415)
        assert server.ends == [415]


async def test_calls_of_a_fan_out_count(autojump_clock):
    """G8."""
    server = ScriptedServer(tools={"long": lasting(25)})
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(5)
        assert len(await supervisor.gather([Call("mcp_lab_long")] * 3)) == 3
        await at(39.9)
        assert (server.ends, len(server.calls)) == ([], 3)
        await at(40)
        assert server.ends == [40]


async def test_a_caller_who_gives_up_uses_it_no_more(autojump_clock):
    """G8: whether the server goes on with it or not."""
    server = ScriptedServer(tools={"long": lasting(400)})
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(CallTimeout):
            await supervisor.call_tool("mcp_lab_long", timeout=25)
        with trio.move_on_after(3):
            await supervisor.call_tool("mcp_lab_long")
        await at(37.9)
        assert server.ends == []
        await at(38)
        assert server.ends == [38]


async def test_a_call_that_waits_for_the_host_is_under_way(autojump_clock):
    """G8: the server has answered with a question, and nothing is in flight while a person thinks about it."""

    async def ask(arguments):
        elicit = {"message": "why?", "requestedSchema": {"type": "object", "properties": {}}}
        return Ask({"why": {"method": "elicitation/create", "params": {**elicit, "mode": "form"}}}, lasting(0))

    async def think(message) -> ElicitResult:
        await trio.sleep(400)
        return ElicitResult(action="accept", content={})

    server = ScriptedServer(tools={"ask": ask})
    async with open_supervisor([spec(server)], callbacks=Callbacks(elicit=think)) as supervisor:
        assert (await supervisor.call_tool("mcp_lab_ask")).full_text == "done"
        assert (trio.current_time(), server.starts, server.ends) == (400, [0], [])


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("name", [None, "lab"])
async def test_every_list_resets_the_time(autojump_clock, name, refresh):
    """G8: of this server or of all; of another one not."""
    server = ScriptedServer()
    async with open_supervisor([spec(server), spec(ScriptedServer(), "other", stop_idle_after=0)]) as supervisor:
        await trio.sleep(8)
        await supervisor.list_tools(name, refresh=refresh)
        await trio.sleep_until(15)
        await supervisor.list_tools("other", refresh=refresh)
        await at(17.9)
        assert server.ends == []
        await at(18)
        assert server.ends == [18]


async def test_a_server_is_used_while_a_list_waits_for_another(autojump_clock):
    """G8, G14: it was started for the list, and is not stopped before that has come."""
    quick, slow = ScriptedServer(), ScriptedServer(Life(connects_after=25))
    specs = [spec(slow, "slow", lazy=True), spec(quick, "quick", lazy=True)]
    async with open_supervisor(specs) as supervisor:
        assert len(await supervisor.list_tools()) == 2
        assert (trio.current_time(), quick.starts, quick.ends) == (25, [0], [])
        await at(34.9)
        assert quick.ends == slow.ends == []
        await at(35)
        assert quick.ends == slow.ends == [35]


async def test_what_the_server_does_by_itself_is_no_use(autojump_clock):
    """G8: neither answers to probes, nor the news that its tools changed, nor the list that follows."""
    server = ScriptedServer(Life(modern=False))
    async with open_supervisor([spec(server, liveness=Liveness(interval=2, timeout=1))]) as supervisor:
        for _ in range(3):
            await trio.sleep(3)
            await server.notify("notifications/tools/list_changed")
        await at(9.9)
        assert (server.ends, len(server.probes) > 2) == ([], True)
        await at(10)
        assert (server.ends, status(supervisor).state) == ([10], S.IDLE)


def test_use_of_a_server_without_a_limit_is_not_noted():
    """G8: what never becomes idle costs its calls nothing."""

    async def main():
        counter = CallCounter(lambda _server: None)
        for name, limit in (("limited", 5.0), ("free", float("inf"))):
            counter.watch(name, limit)
            counter.begin_call(name)
            assert counter.idle_since(name) == float("inf")
            counter.finish_call(name, "echo", 0.1)
            with counter.in_use([name]):
                assert counter.idle_since(name) == float("inf")
        assert (counter.idle_since("limited"), counter.idle_since("free")) == (0, float("-inf"))
        counter.watch("limited", float("inf"))
        assert counter.idle_since("limited") == float("-inf")

    run_virtual(main)


# -- what is left, and how it comes back --------------------------------------------------------------------------


async def test_it_keeps_its_tools_and_starts_at_the_next_call(autojump_clock):
    """G8, G13: as a lazy server."""
    server = ScriptedServer(Life(), Life(connects_after=3))
    async with open_supervisor([spec(server)]) as supervisor, supervisor.events() as events:
        before = supervisor.tool("mcp_lab_echo")
        await at(20)
        one = status(supervisor)
        assert (one.state, one.tool_count, one.uptime, one.pid, one.error) == (S.IDLE, 1, None, None, None)
        assert (one.incarnation, one.attempt, one.retry_in) == (1, 1, None)
        tool = supervisor.tool("mcp_lab_echo")
        assert (before.available, tool.available, tool.definition) == (True, False, before.definition)
        result = await supervisor.call_tool("mcp_lab_echo")
        assert (trio.current_time(), result.incarnation, result.duration) == (23, 2, 3)
        assert len(server.calls) == 1
        await at(33)
        seen = []
        with trio.move_on_after(1):
            async for event in events:
                if isinstance(event, StateChanged):
                    seen.append((event.at, event.new, event.incarnation))
        assert seen == [
            (10, "idle", 1),
            (20, "connecting", 2),
            (23, "connected", 2),
            (33, "idle", 2),
        ]


@pytest.mark.parametrize("closing", [0, 4])
@pytest.mark.parametrize("how", ["call", "list", "refresh", "wait_connected", "reconnect", "start", "fan_out"])
async def test_everything_that_starts_a_lazy_server_starts_it(autojump_clock, how, closing):
    """G8, G14, L7: also while its connection is still being closed, and then after that."""
    server = ScriptedServer(Life(closes_after=closing), Life(connects_after=1))
    async with open_supervisor([spec(server)]) as supervisor:
        await at(10)
        assert status(supervisor).state is S.IDLE
        acts = {
            "call": partial(supervisor.call_tool, "mcp_lab_echo"),
            "list": partial(supervisor.list_tools, "lab"),
            "refresh": partial(supervisor.list_tools, refresh=True),
            "wait_connected": partial(supervisor.wait_connected, "lab"),
            "reconnect": partial(supervisor.reconnect, "lab"),
            "start": partial(supervisor.start_server, "lab"),
            "fan_out": partial(supervisor.gather, [Call("mcp_lab_echo")]),
        }
        await acts[how]()
        await supervisor.wait_connected("lab")
        assert (server.starts, trio.current_time()) == ([0, 10 + closing], 11 + closing)
        assert server.most_alive == 1
        assert [tool.available for tool in supervisor.tools] == [True]


async def test_a_refresh_that_meets_an_idle_server_starts_it(autojump_clock):
    """G8, G14: a list is what an idle server is started for, whichever order tells its keeper."""
    server = ScriptedServer(Life(), Life(connects_after=1))
    async with open_supervisor([spec(server)]) as supervisor:
        await at(10)
        await supervisor._servers.refresh_lists(["lab"])
        assert (trio.current_time(), status(supervisor).state) == (11, S.CONNECTED)


@pytest.mark.parametrize("closing", [0, 4])
async def test_stopped_while_idle(autojump_clock, closing):
    """L9: an explicit stop is one, and returns when everything is closed."""
    server = ScriptedServer(Life(closes_after=closing))
    async with open_supervisor([spec(server)]) as supervisor:
        await at(10)
        await supervisor.stop_server("lab")
        assert (trio.current_time(), status(supervisor).state) == (10 + closing, S.STOPPED)
        with pytest.raises(ServerDown, match="stopped"):
            await supervisor.call_tool("mcp_lab_echo")
        assert server.starts == [0]


async def test_removed_while_idle(autojump_clock):
    """Q11."""
    server = ScriptedServer(Life(closes_after=4))
    async with open_supervisor([spec(server)]) as supervisor:
        await at(10)
        await supervisor.remove_server("lab")
        assert (trio.current_time(), supervisor.status(), server.starts) == (14, (), [0])


async def test_the_block_is_left_while_it_is_idle_or_being_closed(autojump_clock):
    """L9."""
    for until, left in ((10, 14), (20, 20)):
        server = ScriptedServer(Life(closes_after=4))
        begun = trio.current_time()
        async with open_supervisor([spec(server)]):
            await at(begun + until)
        assert trio.current_time() - begun == left
        assert len(server.ends) == 1


async def test_who_waits_for_no_server_is_refused_and_has_it_started(autojump_clock):
    """G8: `when_down="fail"` waits for none, as for a lazy server."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        await at(10)
        with pytest.raises(ServerDown, match="idle"):
            await supervisor.call_tool("mcp_lab_echo", when_down="fail")
        await supervisor.wait_connected("lab")
        assert (await supervisor.call_tool("mcp_lab_echo", when_down="fail")).incarnation == 2


# -- no failure, and no proof of health ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["permanent", "transient", "temporary"])
async def test_it_is_no_failure(autojump_clock, mode):
    """G8: the counter stays where it is, and no restart mode has a say."""
    server = ScriptedServer()
    async with open_supervisor([spec(server, restart=mode, policy=RestartPolicy(delays=()))]) as supervisor:
        for incarnation in range(2, 6):
            await trio.sleep(50)
            assert status(supervisor).state is S.IDLE
            assert (await supervisor.call_tool("mcp_lab_echo")).incarnation == incarnation


@pytest.mark.parametrize(("limit", "attempt", "starts"), [(29.5, 2, [0, 2, 100]), (30, 1, [0, 2, 100, 102])])
async def test_the_ladder_goes_on_where_it_stood_unless_the_connection_was_stable(
    autojump_clock, limit, attempt, starts
):
    """L4: an idle stop before `stable_after` resets nothing; who waits for the start hears of it as of a first one."""
    server = ScriptedServer(Life(refuses="no"), Life(), Life(refuses="no"))
    policy = RestartPolicy(delays=(2,))
    async with open_supervisor([spec(server, stop_idle_after=limit, policy=policy)]) as supervisor:
        await at(100)
        one = status(supervisor)
        assert (one.state, one.attempt, server.ends[1]) == (S.IDLE, attempt, 2 + limit)
        with pytest.raises(ServerDown):
            await supervisor.call_tool("mcp_lab_echo")
        await at(1000)
        assert status(supervisor).state is S.FAILED
        assert server.starts == starts


async def test_a_list_waits_for_what_it_has_started_however_high_the_ladder_stands(autojump_clock):
    """G14, G8: the start is no first attempt by its number, and awaited like one."""
    server = ScriptedServer(Life(refuses="no"), Life(), Life(connects_after=4, dies_after=20), Life(connects_after=3))
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(2, 2)))]) as supervisor:
        await at(50)
        assert (status(supervisor).state, status(supervisor).attempt) == (S.IDLE, 2)
        tools = await supervisor.list_tools()
        assert (trio.current_time(), [tool.available for tool in tools]) == (54, [True])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(supervisor.call_tool, "mcp_lab_echo", server=None))
        server.crash()
        await at(57)  # restarted by the ladder at 56: nobody's first attempt
        assert (status(supervisor).state, await supervisor.list_tools()) == (S.CONNECTING, supervisor.tools)
        assert trio.current_time() == 57


async def test_lost_in_the_moment_of_the_stop(autojump_clock):
    """G8: whichever comes first, the next call has a server."""
    server = ScriptedServer(Life(dies_after=10), Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await at(10)
        assert status(supervisor).state in (S.IDLE, S.WAITING)
        assert (await supervisor.call_tool("mcp_lab_echo", when_down="wait")).incarnation == 2
        assert server.most_alive == 1


# -- a call in the very moment of the stop ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("hand_over", ["call", "fan_out", "by server"])
def test_a_call_at_every_step_of_the_stop(hand_over):
    """G8: one answer each, executed once. In the same step of the clock either may come first."""
    incarnations = set()
    for steps in (*[0] * 20, *range(1, 30)):
        server = ScriptedServer()

        async def main(server=server, steps=steps):
            async with open_supervisor([spec(server)]) as supervisor:
                await trio.sleep_until(10)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                if hand_over == "fan_out":
                    (result,) = await supervisor.gather([Call("mcp_lab_echo")])
                elif hand_over == "call":
                    result = await supervisor.call_tool("mcp_lab_echo")
                else:
                    result = await supervisor.call_tool("echo", server="lab")
                assert trio.current_time() == 10
                return result.incarnation

        incarnations.add(run_virtual(main))
        assert len(server.calls) == 1
    assert incarnations == {1, 2}
