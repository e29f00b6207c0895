"""A configuration that takes another's place while something else is under way: a stop, a removal, another reload."""

from functools import partial

import pytest
import trio
import trio.testing

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError, ServerDown, SupervisorClosed
from mcp_nursery.supervisor import (
    open_supervisor,
)
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ...lab.specs import spec, states, status

S = ServerState


async def failure_of(function) -> Exception:
    try:
        await function()
    except Exception as error:
        return error
    raise AssertionError("no error")


async def test_reloads_wait_for_each_other(autojump_clock):
    """L18, L7: each leaves what it says; the last holds."""
    servers = [ScriptedServer(Life(closes_after=2)) for _ in range(4)]
    async with open_supervisor([spec(servers[0])]) as supervisor:
        answered = []

        async def reload(n):
            await supervisor.reload([spec(servers[n])])
            answered.append((n, trio.current_time()))

        async with trio.open_nursery() as nursery:
            for n in (1, 2, 3):
                nursery.start_soon(reload, n)
                await trio.testing.wait_all_tasks_blocked()
        assert answered == [(1, 2), (2, 4), (3, 6)]
        await supervisor.wait_connected("lab")
        lives = [life for one in servers for life in zip(one.starts, [*one.ends, None], strict=False)]
        assert lives == [(0, 2), (2, 4), (4, 6), (6, None)]


async def test_cancelled_while_it_waits_for_a_close(autojump_clock):
    """L18: it has been done all the same."""
    old, new = ScriptedServer(Life(closes_after=5)), ScriptedServer()
    async with open_supervisor([spec(old), spec(old, "gone")]) as supervisor:
        with trio.move_on_after(1):
            await supervisor.reload([spec(new)])
        assert trio.current_time() == 1
        assert states(supervisor) == {"lab": S.CONNECTING, "gone": S.STOPPED}
        await supervisor.wait_connected("lab")
        assert (trio.current_time(), states(supervisor)) == (5, {"lab": S.CONNECTED})


async def test_the_files_of_a_cancelled_reload_are_read_again(autojump_clock, tmp_path):
    """L18: they are the present ones from when they took effect, and not from the end of the wait."""
    old = ScriptedServer(Life(closes_after=5))
    first, second = (tmp_path / name for name in ("first.json", "second.json"))
    first.write_text('{"mcpServers": {"one": {"url": "http://localhost:9/", "disabled": true}}}')
    second.write_text('{"mcpServers": {"two": {"url": "http://localhost:9/", "disabled": true}}}')
    async with open_supervisor(first) as supervisor:
        await supervisor.add_server(spec(old))
        await supervisor.wait_connected("lab")
        with trio.move_on_after(1) as scope:
            await supervisor.reload(second)
        assert scope.cancelled_caught
        await supervisor.reload()
        assert list(states(supervisor)) == ["two"]


async def test_a_reload_that_was_cancelled_in_its_first_step_is_not_reverted(autojump_clock):
    """L18: by one without specs, even if the keeper has not read yet what the other has changed."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        for n in range(1, 30):
            with trio.CancelScope() as scope:
                await supervisor.reload(cancelling(scope, spec(server, max_in_flight=n)))
            assert scope.cancelled_caught
            assert (await supervisor.reload()).changed == ()
            assert (await supervisor.reload([spec(server, max_in_flight=n)])).changed == ()


def cancelling(scope, *specs):
    """These specs; the scope is cancelled when they are read."""
    scope.cancel()
    yield from specs


async def test_a_server_that_is_being_removed_is_configured_again(autojump_clock):
    """L7, Q11: by a reload, when it is gone; until then nothing changes. By `add_server` never."""
    old, new = ScriptedServer(Life(closes_after=3)), ScriptedServer()
    other = ScriptedServer()
    async with open_supervisor([spec(old), spec(other, "other")]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.remove_server, "lab")
        await trio.sleep(1)
        with pytest.raises(ConfigError, match="exists already"):
            await supervisor.add_server(spec(new))
        await supervisor.reload([spec(new)])
        assert (trio.current_time(), other.ends, old.ends) == (3, [3], [3])
        await supervisor.wait_connected("lab")
        assert (new.starts, status(supervisor).incarnation) == ([3], 2)
        assert states(supervisor) == {"lab": S.CONNECTED}


@pytest.mark.parametrize("order", ["stop_server", "remove_server", "start_server", "reconnect"])
async def test_orders_while_a_changed_server_is_being_closed(autojump_clock, order):
    """L9, L18: the later order holds; nothing opens before everything is closed."""
    old, new = ScriptedServer(Life(closes_after=3)), ScriptedServer()
    async with open_supervisor([spec(old)]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.reload, [spec(new)])
        await trio.sleep(1)
        await getattr(supervisor, order)("lab")
        await trio.sleep_until(4)
        expected = {"stop_server": [S.STOPPED], "remove_server": []}.get(order, [S.CONNECTED])
        assert list(states(supervisor).values()) == expected
        assert new.starts == ([3] if expected == [S.CONNECTED] else [])


@pytest.mark.parametrize("remove", [lambda one: one.remove_server("lab"), lambda one: one.reload([])])
async def test_no_order_brings_back_what_is_being_removed(autojump_clock, remove):
    """Q11: whatever is ordered while it is being closed, it is gone afterwards, and shown as stopped till then."""
    server = ScriptedServer(Life(closes_after=3))
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(remove, supervisor)
        for order in (supervisor.stop_server, supervisor.start_server, supervisor.reconnect):
            await trio.sleep(0.5)
            nursery.start_soon(failing_or_not, partial(order, "lab"))
            await trio.testing.wait_all_tasks_blocked()
            assert states(supervisor) == {"lab": S.STOPPED}
        await trio.sleep_until(4)
        assert (states(supervisor), server.starts, server.ends) == ({}, [0], [3])


async def failing_or_not(function) -> None:
    try:
        await function()
    except ServerDown:
        return


async def test_a_stop_under_way_and_a_changed_spec(autojump_clock):
    """L18: the reload is later, and the server begins as it says."""
    old, new = ScriptedServer(Life(closes_after=3)), ScriptedServer()
    async with open_supervisor([spec(old)]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.stop_server, "lab")
        await trio.sleep(1)
        await supervisor.reload([spec(new)])
        assert (trio.current_time(), states(supervisor)) == (3, {"lab": S.CONNECTING})
        await supervisor.wait_connected("lab")
        assert (old.starts, new.starts) == ([0], [3])


async def test_added_servers_are_no_part_of_a_configuration_that_does_not_name_them(autojump_clock):
    """L18."""
    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        await supervisor.add_server(spec(ScriptedServer(), "added"))
        await supervisor.reload([spec(ScriptedServer())])
        assert list(states(supervisor)) == ["lab"]


async def test_leaving_the_block_ends_a_reload(autojump_clock):
    """L9, L18: one that waits for a close, one that waits for another, and one that waits for a removal."""
    server = ScriptedServer(Life(closes_after=3))
    errors = []

    async def reload(*specs):
        errors.append(type(await failure_of(partial(supervisor.reload, specs))))

    async with trio.open_nursery() as nursery:
        async with open_supervisor([spec(server), spec(server, "gone")]) as supervisor:
            nursery.start_soon(supervisor.remove_server, "gone")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(reload, spec(server, lazy=True))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(reload, spec(server, "gone"))
            await trio.sleep(1)
        await trio.sleep(1)
        assert errors == [SupervisorClosed] * 2
        assert trio.current_time() == 4
        with pytest.raises(SupervisorClosed):
            await supervisor.reload([])
    errors.clear()
    new = ScriptedServer()
    async with trio.open_nursery() as nursery:
        async with open_supervisor([spec(server)]) as supervisor:
            nursery.start_soon(reload, spec(server, lazy=True))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(reload, spec(new, "new"))  # waits for the other, and then it is too late
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
        assert errors == [SupervisorClosed] * 2
        assert (list(states(supervisor)), new.starts) == (["lab"], [])
    errors.clear()
    async with trio.open_nursery() as nursery:
        async with open_supervisor([spec(server, "gone")]) as supervisor:
            nursery.start_soon(supervisor.remove_server, "gone")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(reload, spec(server, "gone"))
            await trio.sleep(1)
        await trio.sleep(1)
        assert errors == [SupervisorClosed]
    assert server.most_alive == 2  # of two names


@pytest.mark.slow
def test_reload_at_every_step_of_a_start():
    """L7, L18: no step of a start is too late or too early to change it."""
    for steps in range(60):
        old, new = ScriptedServer(), ScriptedServer()

        async def main(old=old, new=new, steps=steps):
            async with open_supervisor([spec(old)], gate=0) as supervisor:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await supervisor.reload([spec(new)])
                assert len(old.ends) == len(old.starts) <= 1
                assert (await supervisor.call_tool("mcp_lab_echo")).text
                assert len(new.starts) == 1
                assert len(old.starts) <= 1

        run_virtual(main)
