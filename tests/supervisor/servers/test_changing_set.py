"""Servers that are added and removed, and the end of all of them."""

import logging
from functools import partial

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import ConfigError, ServerDown, SupervisorClosed, UnknownServer
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import spec
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
        assert (await supervisor.wait_connected("lab")).incarnation == 1
        await supervisor.call_tool("mcp_lab_echo")
        assert (len(old.starts), len(new.starts), len(new.calls)) == (1, 1, 1)


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
