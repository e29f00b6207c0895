"""A server that is over a limit of its age is renewed once nobody uses it: no failure, and no call is lost. Times are
exact: the clock is virtual."""

import logging
from functools import partial

import pytest
import trio
import trio.testing

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError, ServerDown
from mcp_nursery.supervisor import (
    DockerTransport,
    HttpTransport,
    InProcessTransport,
    RestartPolicy,
    ServerSpec,
    SseTransport,
    StdioTransport,
    WebSocketTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.spec import DockerGatewayTransport, Limits
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ...lab.specs import lasting, spec, status

S = ServerState
MINUTE = Limits(age=60)


async def at(time: float) -> None:
    """When everything that happens at this time has happened."""
    await trio.sleep_until(time)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_server_is_renewed_when_it_is_too_old(autojump_clock, caplog):
    caplog.set_level(logging.INFO)
    server = ScriptedServer(Life(), Life(connects_after=3))
    async with (
        open_supervisor([spec(server, limits=MINUTE), spec(ScriptedServer(), "other")]) as supervisor,
        supervisor.events() as events,
    ):
        await at(59.9)
        assert server.ends == []
        await at(62.9)
        assert (server.starts, server.ends) == ([0, 60], [60])
        why = "renewed: connected for 60 s (limits.age)"
        one = status(supervisor)
        assert (one.state, one.incarnation, one.attempt, one.error, one.over_limit) == (S.CONNECTING, 2, 1, None, why)
        assert [tool.available for tool in supervisor.tools] == [False, True]
        await at(63)
        assert (status(supervisor).state, status(supervisor).over_limit) == (S.CONNECTED, None)
        await at(123)
        assert server.starts == [0, 60, 123]
        assert supervisor.statistics().by_server["lab"].restarts == 0
        seen = []
        with trio.move_on_after(1):
            async for event in events:
                if isinstance(event, StateChanged):
                    seen.append((event.server, event.at, event.new, event.incarnation, event.over_limit))
        assert seen[:2] == [("lab", 60, "connecting", 2, why), ("lab", 63, "connected", 2, None)]
        assert {name for name, *_ in seen} == {"lab"}
    assert f"lab: connected -> connecting: {why}" in caplog.messages
    assert max(record.levelno for record in caplog.records) == logging.INFO


async def test_a_server_in_use_is_renewed_afterwards(autojump_clock, caplog):
    server = ScriptedServer(tools={"long": lasting(100)})
    async with open_supervisor([spec(server, limits=MINUTE)]) as supervisor:
        await trio.sleep(50.5)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _call():
                assert (await supervisor.call_tool("mcp_lab_long")).full_text == "done"
                assert trio.current_time() == 150.5

            await at(149)
            later = "connected for 60 s (limits.age); it is renewed once nobody uses it"
            assert (status(supervisor).state, status(supervisor).over_limit) == (S.CONNECTED, later)
        assert server.ends == []
        await at(151)
        assert (server.starts, len(server.calls)) == ([0, 151], 1)
    assert caplog.messages.count(f"lab: {later}") == 1


@pytest.mark.parametrize("mode", ["permanent", "transient", "temporary"])
async def test_a_renewal_is_no_failure(autojump_clock, mode):
    server = ScriptedServer()
    async with open_supervisor([spec(server, limits=MINUTE, restart=mode, policy=RestartPolicy(delays=()))]) as block:
        await at(600)
        assert server.starts == [60 * minute for minute in range(11)]
        assert (status(block).state, status(block).attempt, status(block).breaker) == (S.CONNECTED, 1, None)


async def test_a_renewal_proves_nothing(autojump_clock):
    """The ladder goes on where it stood, and a start that fails is a failure."""
    lives = Life(refuses="no"), Life(), Life(refuses="no")
    server, policy = ScriptedServer(*lives), RestartPolicy(delays=(2, 3), stable_after=100)
    async with open_supervisor([spec(server, limits=MINUTE, policy=policy)]) as supervisor:
        await at(1000)
        assert (status(supervisor).state, status(supervisor).over_limit) == (S.FAILED, None)
        assert server.starts == [0, 2, 62, 65]


async def test_a_renewal_is_no_use(autojump_clock):
    """A server that nobody uses is stopped when it would have been."""
    server = ScriptedServer()
    async with open_supervisor([spec(server, limits=MINUTE, stop_idle_after=100)]) as supervisor:
        await at(1000)
        assert (status(supervisor).state, server.starts, server.ends) == (S.IDLE, [0, 60], [60, 100])
        await supervisor.call_tool("mcp_lab_echo")
        await at(1099)
        assert server.ends == [60, 100, 1060]


async def test_a_caller_who_waits_for_no_server_is_refused_during_a_renewal(autojump_clock):
    server = ScriptedServer(Life(), Life(connects_after=3))
    async with open_supervisor([spec(server, limits=MINUTE)]) as supervisor:
        await at(61)
        with pytest.raises(ServerDown, match="connecting"):
            await supervisor.call_tool("mcp_lab_echo", when_down="fail")
        assert (await supervisor.call_tool("mcp_lab_echo")).incarnation == 2
        assert trio.current_time() == 63


def test_a_call_at_every_step_of_a_renewal_is_executed_once():
    incarnations = set()
    for steps in (*[0] * 10, *range(1, 30)):
        server = ScriptedServer(Life(closes_after=1), Life())

        async def main(server=server, steps=steps):
            async with open_supervisor([spec(server, limits=MINUTE)]) as supervisor:
                await trio.sleep_until(60)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                result = await supervisor.call_tool("mcp_lab_echo")
                assert trio.current_time() == (60 if result.incarnation == 1 else 61)
                return result.incarnation

        incarnations.add(run_virtual(main))
        assert len(server.calls) == 1
    assert incarnations == {1, 2}


async def test_a_reload_changes_limits_without_a_restart(autojump_clock):
    server = ScriptedServer(tools={"long": lasting(20)})
    make = partial(spec, server)
    async with open_supervisor([make()]) as supervisor:
        await at(100)
        assert server.starts == [0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.call_tool, "mcp_lab_long")
            await trio.testing.wait_all_tasks_blocked()
            reloaded = await supervisor.reload([make(limits=MINUTE)])
            assert (reloaded.untouched, server.starts) == (("lab",), [0])
            await at(101)
            assert status(supervisor).over_limit is not None
            await supervisor.reload([make(limits=Limits(age=300))])
            await at(102)
            assert status(supervisor).over_limit is None
            await supervisor.reload([make(limits=MINUTE)])
            await at(103)
            assert status(supervisor).over_limit is not None
            await supervisor.reload([make()])
            await at(104)
            assert status(supervisor).over_limit is None
        await at(350)
        assert server.starts == [0]
        await supervisor.reload([make(limits=MINUTE)])
        await at(351)
        assert server.starts == [0, 350]


TRANSPORTS = [
    StdioTransport("x"),
    StdioTransport("docker", args=["run", "-i", "x"]),
    DockerTransport("x"),
    DockerGatewayTransport(),
    InProcessTransport(object()),
    HttpTransport("https://x"),
    SseTransport("https://x"),
    WebSocketTransport("wss://x"),
]


@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.kind)
def test_age_is_limited_everywhere_and_memory_where_it_is_known(transport):
    assert ServerSpec("lab", transport, limits=MINUTE).limits is MINUTE
    if transport == TRANSPORTS[0]:
        ServerSpec("lab", transport, limits=Limits(memory=1))
        return
    with pytest.raises(ConfigError, match=r"server 'lab': field 'limits\.memory': must not be given: .* memory "):
        ServerSpec("lab", transport, limits=Limits(memory=1))


def test_limits_are_limits():
    with pytest.raises(ConfigError, match="field 'limits': must be a Limits or None, not a dict"):
        ServerSpec("lab", TRANSPORTS[0], limits={"age": 60})
