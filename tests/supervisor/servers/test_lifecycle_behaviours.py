"""How servers start, fail and come back beside others. Times are exact: the clock is virtual and starts at 0."""

import logging
from functools import partial

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import ServerDown
from mcp_nursery.supervisor import RestartPolicy, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import hang, spec, status
from .shared import ONCE, S, swallow

# -- starting ----------------------------------------------------------------------------------------------------------


async def test_all_start_in_parallel(autojump_clock):
    """L1: elapsed is the slowest, not the sum; one failure stays with its server."""
    slow, slower = ScriptedServer(Life(connects_after=2)), ScriptedServer(Life(connects_after=3))
    bad = ScriptedServer(Life(refuses="no such luck"))
    specs = [spec(slow, "slow"), spec(bad, "bad", policy=ONCE), spec(slower, "slower")]
    async with open_supervisor(specs, gate=60) as supervisor:
        assert trio.current_time() == 3
        assert [one.state for one in supervisor.status()] == [S.CONNECTED, S.FAILED, S.CONNECTED]
        assert {one.name: one.error for one in supervisor.status()} == {
            "slow": None,
            "bad": "no such luck",
            "slower": None,
        }
        for name in ("slow", "slower"):
            assert (await supervisor.call_tool("echo", {"n": 1}, server=name)).full_text == '{"n": 1}'


async def test_connecting_shows_before_any_await(autojump_clock):
    """L2: the state is `connecting` from the first moment on, and during the whole handshake."""
    server = ScriptedServer(Life(connects_after=2))
    async with open_supervisor([spec(server)], gate=0) as supervisor:
        assert trio.current_time() == 0
        assert status(supervisor).state is S.CONNECTING
        await trio.sleep(1.5)
        assert status(supervisor).state is S.CONNECTING
        await supervisor.wait_connected("lab")
        assert trio.current_time() == 2


async def test_added_server_shows_connecting_before_its_keeper_ran(autojump_clock):
    """L2: also for a server that is added later."""
    async with open_supervisor([]) as supervisor:
        await supervisor.add_server(spec(ScriptedServer()))
        assert status(supervisor).state is S.CONNECTING
        assert status(supervisor).incarnation == 1


# -- status ------------------------------------------------------------------------------------------------------------


async def test_status_in_each_state(autojump_clock):
    """L13: the fields, state by state."""
    server = ScriptedServer(Life(connects_after=1, dies_after=4), Life(refuses="down"))
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(2,)))], gate=0) as supervisor:

        def facts() -> tuple:
            one = status(supervisor)
            return one.state, one.tool_count, one.error, one.uptime, one.incarnation, one.attempt, one.retry_in

        await trio.sleep_until(0.5)
        assert facts() == (S.CONNECTING, 0, None, None, 1, 1, None)
        assert status(supervisor).protocol_version is None
        assert status(supervisor).server_info is None
        await trio.sleep_until(3.5)
        assert facts() == (S.CONNECTED, 1, None, 2.5, 1, 1, None)
        await trio.sleep_until(5.5)
        assert facts() == (S.WAITING, 1, "exited with code 1", None, 1, 2, 1.5)
        await trio.sleep_until(8)
        assert facts() == (S.FAILED, 0, "down", None, 2, 2, None)
        await supervisor.stop_server("lab")
        assert facts() == (S.STOPPED, 0, None, None, 2, 1, None)
        assert (status(supervisor).max_attempts, status(supervisor).transport) == (2, "scripted")


async def test_uptime_is_of_this_connection(autojump_clock):
    """L13: `uptime` begins again with each connection."""
    server = ScriptedServer(Life(dies_after=10), Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep_until(9)
        assert status(supervisor).uptime == 9
        await trio.sleep_until(15)
        assert status(supervisor).uptime == 3
        assert status(supervisor).incarnation == 2


async def test_calls_in_the_status(autojump_clock):
    """L13: in flight, done, failed; an `isError` result is done."""

    async def fail(arguments):
        raise ValueError("no")

    server = ScriptedServer(Life(dies_after=10), tools={"hang": hang, "fail": fail, "nap": _nap})
    async with open_supervisor([spec(server)]) as supervisor:
        assert (await supervisor.call_tool("mcp_lab_fail")).is_error
        await supervisor.call_tool("mcp_lab_nap")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(swallow, partial(supervisor.call_tool, "mcp_lab_hang"))
            nursery.start_soon(swallow, partial(supervisor.call_tool, "mcp_lab_hang"))
            await trio.sleep(1)
            counts = status(supervisor).calls
            assert (counts.in_flight, counts.done, counts.failed) == (2, 2, 0)
        counts = status(supervisor).calls
        assert (counts.in_flight, counts.done, counts.failed) == (0, 2, 2)
        assert supervisor.statistics().calls == counts


async def test_the_order_of_the_status_is_the_configured_one(autojump_clock):
    """L13: one status a server, in the order they were given."""
    specs = [spec(ScriptedServer(Life(connects_after=n)), name) for n, name in enumerate("cab")]
    async with open_supervisor(specs, gate=10) as supervisor:
        await supervisor.add_server(spec(ScriptedServer(), "0"))
        assert [one.name for one in supervisor.status()] == ["c", "a", "b", "0"]


# -- scenarios ---------------------------------------------------------------------------------------------------------


async def test_one_mute_server_blocks_nobody(autojump_clock):
    """Q3: the others are callable at once; the status names the culprit."""
    mute, good = ScriptedServer(Life(mute=True)), ScriptedServer()
    async with open_supervisor([spec(mute, "mute"), spec(good, "good")]) as supervisor:
        assert trio.current_time() == 0.25
        assert (await supervisor.call_tool("mcp_good_echo")).duration == 0
        assert [one.name for one in supervisor.status() if one.state is not S.CONNECTED] == ["mute"]


async def test_failures_stay_with_their_servers(autojump_clock):
    """Q4: a bad command, a refusal and a kill mid-run: the others see no exception and no cancel."""
    good, killed = ScriptedServer(tools={"nap": _nap}), ScriptedServer(Life(dies_after=0.5))
    missing, refusing = ScriptedServer(Life(refuses="no such file", usable=False)), ScriptedServer(Life(refuses="401"))
    servers = {"good": good, "killed": killed, "missing": missing, "refusing": refusing}
    async with open_supervisor([spec(server, name) for name, server in servers.items()]) as supervisor:
        for _ in range(100):
            assert (await supervisor.call_tool("mcp_good_nap")).full_text == "rested"
        assert trio.current_time() == 100
        assert {one.name: one.state for one in supervisor.status()} == {
            "good": S.CONNECTED,
            "killed": S.FAILED,
            "missing": S.FAILED,
            "refusing": S.FAILED,
        }
        assert status(supervisor, "good").uptime == 100
        assert good.cancelled == []


async def test_a_timeline_does_not_depend_on_siblings(autojump_clock):
    """Q4: the starts of each are what they are alone."""
    lives = {"a": Life(dies_after=3), "b": Life(refuses="down"), "c": Life(mute=True), "d": Life(dies_after=31)}
    servers = {name: ScriptedServer(life) for name, life in lives.items()}
    async with open_supervisor([spec(server, name) for name, server in servers.items()]):
        await trio.sleep(200)
    # a: dies 3 s after each start; d: always stable, so always 2 s later
    assert servers["a"].starts == [0, 5, 13, 31]
    assert servers["b"].starts == [0, 2, 7, 22]
    assert servers["c"].starts == [0, 32, 67, 112]
    assert servers["d"].starts == [0, 33, 66, 99, 132, 165, 198]


async def test_a_dead_server_under_load(autojump_clock, caplog):
    """Q7: 100 callers hit a dead server again and again: one attempt, a bounded number of log lines."""
    caplog.set_level(logging.DEBUG, logger="mcp_nursery")
    server = ScriptedServer(Life(dies_after=1), Life(refuses="down"))
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(100,)))]) as supervisor:
        await trio.sleep(2)

        async def insist():
            for _ in range(20):
                with pytest.raises(ServerDown) as caught:
                    await supervisor.call_tool("mcp_lab_echo")
                assert caught.value.delivery == "not_sent"
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(insist)
        assert server.starts == [0]
        await trio.sleep_until(150)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(insist)
        assert server.starts == [0, 101]
        assert len(server.calls) == 0
    assert len(caplog.records) <= 10


@pytest.mark.parametrize("lazy", [True, False])
async def test_fifty_first_calls_start_one_server(autojump_clock, lazy):
    """Q9: one process, one outcome for all."""
    server = ScriptedServer(Life(connects_after=2))
    async with open_supervisor([spec(server, lazy=lazy)], gate=0) as supervisor:
        incarnations = []

        async def call():
            incarnations.append((await supervisor.call_tool("mcp_lab_echo")).incarnation)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(call)
        assert trio.current_time() == 2
        assert (server.starts, incarnations) == ([0], [1] * 50)


async def test_fifty_first_calls_share_one_failure(autojump_clock):
    """Q9: also a bad outcome: one attempt, not one a caller."""
    server = ScriptedServer(Life(mute=True))
    async with open_supervisor([spec(server, lazy=True, connect_timeout=3)], gate=0) as supervisor:

        async def call():
            with pytest.raises(ServerDown, match="waiting"):
                await supervisor.call_tool("echo", server="lab")
            assert trio.current_time() == 3

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(call)
        assert server.starts == [0]


@pytest.mark.parametrize(
    ("life", "starts", "connected"),
    [
        (Life(mute=True), [0, 10], 12),  # never answers: a timeout, then the ladder
        (Life(modern=False), [0], 0),  # refuses the probe with an error
        (Life(modern=False, dies_of_probe=True), [0, 0], 0),  # exits: one more spawn, same attempt
    ],
    ids=["silent", "error", "exits"],
)
async def test_the_era_probe(autojump_clock, life, starts, connected):
    """Q23: at most one extra spawn, and the attempt it costs is none of the ladder's."""
    server = ScriptedServer(life) if not life.mute else ScriptedServer(life, Life())
    async with open_supervisor([spec(server, connect_timeout=10)], gate=100) as supervisor:
        await supervisor.wait_connected("lab")
        assert trio.current_time() == connected
        assert server.starts == ([0, 12] if life.mute else starts)
        assert status(supervisor).attempt == (2 if life.mute else 1)


async def test_the_era_is_remembered(autojump_clock):
    """Q23: the next start does not probe again, so it costs no extra spawn; ever."""
    server = ScriptedServer(Life(modern=False, dies_of_probe=True, dies_after=31))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep_until(100)
        assert server.starts == [0, 0, 33, 66, 99]
        await supervisor.reconnect("lab")
        await supervisor.stop_server("lab")
        await supervisor.start_server("lab")
        await supervisor.wait_connected("lab")
        assert server.starts == [0, 0, 33, 66, 99, 100, 100]
        assert status(supervisor).protocol_version == "2025-11-25"


async def test_the_era_is_remembered_when_the_attempt_fails(autojump_clock):
    """Q23: a server that dies of the probe, then fails to greet, is not probed again."""
    lives = [Life(modern=False, dies_of_probe=True), Life(mute=True), Life(modern=False, dies_of_probe=True)]
    server = ScriptedServer(*lives)
    async with open_supervisor([spec(server, connect_timeout=5)], gate=100) as supervisor:
        assert trio.current_time() == 5
        assert status(supervisor).attempt == 2
        await supervisor.wait_connected("lab")
        assert server.starts == [0, 0, 7]


async def test_an_extra_spawn_waits_for_the_close(autojump_clock):
    """L7, Q23: also the spawn that an era probe costs."""
    server = ScriptedServer(Life(modern=False, dies_of_probe=True, closes_after=3))
    async with open_supervisor([spec(server)], gate=100) as supervisor:
        assert status(supervisor).state is S.CONNECTED
        assert server.starts == [0, 3]
        await supervisor.stop_server("lab")
    assert server.most_alive == 1


async def test_a_stop_during_the_extra_spawn(autojump_clock):
    """L9, Q23: a stop between a probe that killed and the start that follows holds."""
    server = ScriptedServer(Life(modern=False, dies_of_probe=True, closes_after=3))
    async with open_supervisor([spec(server)], gate=0) as supervisor:
        await trio.sleep(1)
        await supervisor.stop_server("lab")
        await trio.sleep(100)
        assert (server.starts, status(supervisor).state) == ([0], S.STOPPED)


async def _nap(arguments) -> object:
    await trio.sleep(1)
    return "rested"
