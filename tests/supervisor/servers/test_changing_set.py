"""Servers that are added and removed, and the end of all of them."""

import logging
from functools import partial

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import ConfigError, ConnectionLost, ServerDown, SupervisorClosed, UnknownServer
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.testing import Ask, Life, ScriptedServer, report_progress

from ...lab.specs import nothing, spec, status
from .shared import S


async def test_duplicate_names(autojump_clock):
    """K3: two specs of one name are a ConfigError; nothing was started."""
    first, second = ScriptedServer(), ScriptedServer()
    with pytest.raises(ConfigError, match="'lab'"):
        async with open_supervisor([spec(first), spec(second)]):
            raise AssertionError("entered")
    async with open_supervisor([spec(first)]) as supervisor:
        with pytest.raises(ConfigError, match="'lab'"):
            await supervisor.add_server(spec(second))
    assert second.starts == []


async def test_add_and_remove(autojump_clock):
    """L9: `remove_server` returns when all is closed; the name is free again, and the next one is another server."""
    old, new = ScriptedServer(Life(closes_after=3)), ScriptedServer()
    async with open_supervisor([]) as supervisor:
        await supervisor.add_server(spec(old))
        await supervisor.wait_connected("lab")
        await supervisor.remove_server("lab")
        assert (trio.current_time(), old.ends) == (3, [3])
        with pytest.raises(UnknownServer):
            await supervisor.call_tool("echo", server="lab")
        await supervisor.add_server(spec(new))
        assert (await supervisor.wait_connected("lab")).incarnation == 2
        await supervisor.call_tool("mcp_lab_echo")
        assert (len(old.starts), len(new.starts), len(new.calls)) == (1, 1, 1)


@pytest.mark.parametrize("by", ["add_server", "reload"])
async def test_a_name_that_comes_again_counts_incarnations_on(autojump_clock, by):
    """L9: calls of the old server may still be under way, and must not take the new one for it."""
    old, new = ScriptedServer(), ScriptedServer()
    async with open_supervisor([spec(old)]) as supervisor:
        await supervisor.wait_connected("lab")
        if by == "reload":
            await supervisor.reload([])
            await supervisor.reload([spec(new, lazy=True)])
        else:
            await supervisor.remove_server("lab")
            await supervisor.add_server(spec(new, lazy=True))
        await supervisor.add_server(spec(ScriptedServer(), "other"))
        assert status(supervisor).incarnation == 1
        assert (await supervisor.call_tool("echo", server="lab")).incarnation == 2
        assert (await supervisor.wait_connected("other")).incarnation == 1


async def test_only_some_names_of_removed_servers_are_remembered(autojump_clock, monkeypatch):
    """L9: a name that is not counts on from the highest number of those."""
    monkeypatch.setattr("mcp_nursery.supervisor.servers.servers._MOST_FORGOTTEN", 1)
    server = ScriptedServer()
    async with open_supervisor([spec(server), spec(ScriptedServer(), "other")]) as supervisor:
        await supervisor.wait_connected("lab")
        await supervisor.reconnect("lab")
        await supervisor.wait_connected("lab")
        await supervisor.remove_server("lab")
        await supervisor.remove_server("other")
        await supervisor.add_server(spec(ScriptedServer(), "other"))
        assert (await supervisor.wait_connected("other")).incarnation == 2
        await supervisor.add_server(spec(server))
        assert (await supervisor.wait_connected("lab")).incarnation == 3


@pytest.mark.parametrize(("tool", "reached"), [("work", 0), ("repeat", 1)])
async def test_a_call_whose_server_is_replaced_while_its_callback_runs(autojump_clock, tool, reached):
    """R2, L9: it ends, and reaches the new server only as any call that is sent again."""

    async def work(arguments):
        await report_progress(1, 2)
        await trio.sleep(3)
        return "done"

    async def slow(progress, total, message):
        await trio.sleep(10)

    hints = {"repeat": {"idempotentHint": True}}
    old, new = (ScriptedServer(tools={"work": work, "repeat": work}, annotations=hints) for _ in range(2))
    outcomes = []
    async with open_supervisor([spec(old)]) as supervisor:
        await supervisor.wait_connected("lab")

        async def call():
            try:
                result = await supervisor.call_tool(tool, {}, server="lab", on_progress=slow)
                outcomes.append(result.incarnation)
            except ConnectionLost as error:
                outcomes.append((error.incarnation, error.delivery))

        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await trio.sleep(1)
                await supervisor.remove_server("lab")
                await supervisor.add_server(spec(new))
                await supervisor.wait_connected("lab")
    assert outcomes == [2 if reached else (1, "unknown")]
    assert (len(old.calls), len(new.calls)) == (1, reached)


async def test_the_rest_of_a_call_does_not_reach_a_server_that_took_the_name(autojump_clock):
    """R9, L9: it is lost with the server that asked."""

    async def asking(arguments):
        return Ask({}, then=nothing)

    old, new = ScriptedServer(tools={"work": asking}), ScriptedServer(tools={"work": asking})
    async with open_supervisor([spec(old)]) as supervisor:
        await supervisor.wait_connected("lab")

        async def call():
            with pytest.raises(ConnectionLost):
                await supervisor.call_tool("work", {}, server="lab")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(0.01)  # it waits before it goes on, as the server asked nothing
            await supervisor.remove_server("lab")
            await supervisor.add_server(spec(new))
            await supervisor.wait_connected("lab")
        assert (len(old.calls), len(new.calls)) == (1, 0)


async def test_many_removes_at_once(autojump_clock):
    """L9: every one of them returns."""
    server = ScriptedServer(Life(closes_after=3))
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(supervisor.remove_server, "lab")
        nursery.start_soon(supervisor.stop_server, "lab")


async def test_removed_while_somebody_waits(autojump_clock):
    """L9: waiters of a server that is removed hear of it."""
    server = ScriptedServer(Life(mute=True))
    async with open_supervisor([spec(server)], gate=0) as supervisor, trio.open_nursery() as nursery:

        async def wait():
            with pytest.raises((ServerDown, UnknownServer)):
                await supervisor.wait_connected("lab")
            assert trio.current_time() == 2

        async def call():
            with pytest.raises((ServerDown, UnknownServer)):
                await supervisor.call_tool("echo", server="lab")
            assert trio.current_time() == 2

        nursery.start_soon(wait)
        nursery.start_soon(call)
        await trio.sleep(2)
        await supervisor.remove_server("lab")


async def test_everything_refuses_after_the_block(autojump_clock):
    """L9: `SupervisorClosed` after the block; what may still be read is empty or stopped."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        tool = supervisor.tool("mcp_lab_echo")
    for refused in (
        partial(supervisor.call_tool, "mcp_lab_echo"),
        partial(supervisor.call_tool, "echo", server="lab"),
        supervisor.list_tools,
        partial(supervisor.wait_connected, "lab"),
        partial(supervisor.reconnect, "lab"),
        partial(supervisor.start_server, "lab"),
        partial(supervisor.stop_server, "lab"),
        partial(supervisor.remove_server, "lab"),
        partial(supervisor.add_server, spec(ScriptedServer(), "other")),
    ):
        with pytest.raises(SupervisorClosed):
            await refused()
    assert tool.name == "mcp_lab_echo"
    assert supervisor.tools == ()
    assert [one.state for one in supervisor.status()] == [S.STOPPED]


async def test_closing_ends_all_in_parallel(autojump_clock):
    """L9: leaving the block takes as long as the slowest, and every transport is closed."""
    servers = [ScriptedServer(Life(closes_after=n)) for n in (1, 2, 3)]
    async with open_supervisor([spec(server, str(n)) for n, server in enumerate(servers)]):
        pass
    assert trio.current_time() == 3
    assert [server.ends for server in servers] == [[1], [2], [3]]


async def test_who_is_still_closing_when_the_time_is_over_is_named(autojump_clock, caplog):
    """L10: survivors are reported, and nobody else."""
    servers = {
        name: ScriptedServer(Life(closes_after=after)) for name, after in (("quick", 1), ("slow", 9), ("stuck", 8))
    }
    with caplog.at_level(logging.WARNING):
        async with open_supervisor([spec(server, name) for name, server in servers.items()], shutdown_timeout=3):
            pass
    assert [record.getMessage() for record in caplog.records] == ["still closing after 3 s: slow, stuck"]


async def test_who_closes_in_time_is_not(autojump_clock, caplog):
    with caplog.at_level(logging.WARNING):
        async with open_supervisor([spec(ScriptedServer(Life(closes_after=3)))], shutdown_timeout=3.5):
            pass
    assert caplog.records == []
