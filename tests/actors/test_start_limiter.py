"""L15: how many first starts are under way at once."""

from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing
from attrs import evolve

from mcp_nursery.actors.start_limiter import PLACE_TIMEOUT, StartLimiter, Turn
from mcp_nursery.supervisor import DockerTransport, ServerSpec, StdioTransport, Supervisor, open_supervisor
from mcp_nursery.supervisor.servers import settings
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.testing import Life, ScriptedServer


class Local:
    """A scripted server that takes the places of a stdio one."""

    kind = "stdio"

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server

    def connector(self, *, close_grace: float):
        return self.server.transport.connector(close_grace=close_grace)


class Remote(Local):
    """One that takes the places of a remote one."""

    def __init__(self, server: ScriptedServer, kind: str) -> None:
        super().__init__(server)
        self.kind = kind


def local(name: str, server: ScriptedServer, **options) -> ServerSpec:
    return ServerSpec(name, Local(server), **options)


async def test_a_place_is_free_when_it_is_left(autojump_clock):
    limiter, entered = StartLimiter(2), []

    async def start(number: int) -> None:
        place = await limiter.enter()
        entered.append((number, trio.current_time()))
        await trio.sleep(1)
        limiter.leave(place)
        limiter.leave(place)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(start, number)
    assert sorted(time for _, time in entered) == [0, 0, 1, 1, 2]


async def test_a_place_is_free_after_its_time(autojump_clock):
    limiter = StartLimiter(1)
    hung = await limiter.enter()
    await limiter.enter()
    assert trio.current_time() == PLACE_TIMEOUT
    limiter.leave(hung)
    with trio.move_on_after(1) as waiting:
        await limiter.enter()
    assert waiting.cancelled_caught


async def test_who_stops_waiting_takes_no_place(autojump_clock):
    limiter = StartLimiter(1)
    place = await limiter.enter()
    with trio.move_on_after(1):
        await limiter.enter()
    limiter.leave(place)
    await limiter.enter()
    assert trio.current_time() == 1


@pytest.mark.slow
async def test_fifty_servers_all_connect_three_at_a_time(autojump_clock):
    """L15, Q8: a start takes 1.5 s; the wait for a place does not count against the connect timeout of 2 s."""
    servers = [ScriptedServer(Life(connects_after=1.5, modern=False)) for _ in range(50)]
    specs = [local(f"s{number}", server, connect_timeout=2) for number, server in enumerate(servers)]
    async with open_supervisor(specs, gate=100) as supervisor:
        assert all(status.state is ServerState.CONNECTED for status in supervisor.status())
        assert all(status.attempt == 1 for status in supervisor.status())
    began = sorted(server.starts[0] for server in servers)
    assert began == [1.5 * (number // 3) for number in range(50)]


async def test_three_hung_servers_delay_the_others_by_two_seconds(autojump_clock):
    """L15, Q3."""
    hung = [local(f"hung{number}", ScriptedServer(Life(mute=True))) for number in range(3)]
    fine = ScriptedServer()
    async with open_supervisor(hung, gate=1) as supervisor:
        await supervisor.add_server(local("fine", fine))
        await supervisor.wait_connected("fine")
        assert trio.current_time() == fine.starts[0] == PLACE_TIMEOUT


async def test_a_restart_never_waits(autojump_clock):
    """L15: nor does it take anybody's place."""
    lab = ScriptedServer(Life(dies_after=0), Life())
    late = [local(f"late{number}", ScriptedServer(Life(mute=True)), enabled=False) for number in range(3)]
    async with open_supervisor([local("lab", lab), *late]) as supervisor:
        await trio.sleep(1)
        for spec in late:
            await supervisor.start_server(spec.name)
        await supervisor.wait_connected("lab")
        assert lab.starts == [0, 2]


async def test_a_server_can_be_stopped_while_it_waits_for_a_place(autojump_clock):
    """L9: it is never started then."""
    hung = [local(f"hung{number}", ScriptedServer(Life(mute=True))) for number in range(3)]
    waiting = ScriptedServer()
    async with open_supervisor(hung, gate=1) as supervisor:
        await supervisor.add_server(local("waiting", waiting))
        await supervisor.stop_server("waiting")
        assert trio.current_time() == 1
        await trio.sleep(10)
    assert waiting.starts == []


async def test_stdio_servers_wait_and_others_do_not(autojump_clock):
    """L15: a server object of this process costs no start."""
    hung = [local(f"hung{number}", ScriptedServer(Life(mute=True))) for number in range(3)]
    inner = ScriptedServer()
    async with open_supervisor(hung, gate=1) as supervisor:
        await supervisor.add_server(ServerSpec("inner", inner.transport))
        await supervisor.wait_connected("inner")
        assert trio.current_time() == 1
    assert StdioTransport("x").kind == Local.kind


async def test_containers_take_the_places_of_local_servers(autojump_clock):
    """L15, K2."""
    servers = [ScriptedServer(Life(connects_after=1.5, modern=False)) for _ in range(6)]
    kinds = (Local.kind, DockerTransport("x").kind)
    specs = [ServerSpec(f"s{n}", Remote(server, kinds[n % 2])) for n, server in enumerate(servers)]
    async with open_supervisor(specs, gate=100):
        pass
    assert sorted(server.starts[0] for server in servers) == [0, 0, 0, 1.5, 1.5, 1.5]


async def test_remote_servers_start_twenty_at_a_time(autojump_clock):
    """L15: over whatever transport, and not behind the local ones."""
    servers = [ScriptedServer(Life(connects_after=1.5, modern=False)) for _ in range(50)]
    specs = [ServerSpec(f"s{n}", Remote(server, ("http", "sse", "ws")[n % 3])) for n, server in enumerate(servers)]
    hung = [local(f"hung{number}", ScriptedServer(Life(mute=True))) for number in range(3)]
    async with open_supervisor([*hung, *specs], gate=10) as supervisor:
        for spec in specs:
            await supervisor.wait_connected(spec.name)
    assert sorted(server.starts[0] for server in servers) == [1.5 * (number // 20) for number in range(50)]


async def test_those_in_line_sleep_until_it_is_their_turn(autojump_clock):
    """Each woke whenever a place was free, or could be: a thousand in line, a thousand times."""
    limiter, steps = StartLimiter(1), 0

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal steps
            steps += task.name == "in line"

    trio.lowlevel.add_instrument(instrument := Steps())
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(limiter.enter, name="in line")
    finally:
        trio.lowlevel.remove_instrument(instrument)
    assert trio.current_time() == 99 * PLACE_TIMEOUT
    assert steps < 10 * 100


async def test_starts_that_are_put_first_go_before_the_others(autojump_clock):
    """Whoever is first put first; also before it is in line, and although the next in line has its timer set."""
    limiter, turns, entered = StartLimiter(1), [Turn() for _ in range(6)], []

    async def start(number: int) -> None:
        with await limiter.enter(turns[number]):
            entered.append((number, trio.current_time()))
            await trio.sleep(1)

    limiter.prioritise(turns[5], 0)
    async with trio.open_nursery() as nursery:
        for number in range(6):
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(start, number)
        await trio.sleep(0.5)
        for awaited, number in enumerate((4, 2, 4), 1):
            limiter.prioritise(turns[number], awaited)
    assert entered == [(number, time) for time, number in enumerate((0, 5, 4, 2, 1, 3))]


async def test_one_that_was_put_first_and_stops_waiting_holds_up_nobody(autojump_clock):
    limiter, turn = StartLimiter(1), Turn()
    limiter.prioritise(turn, 0)
    with await limiter.enter():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.enter)
            with trio.move_on_after(1):
                await limiter.enter(turn)
    assert trio.current_time() == PLACE_TIMEOUT


async def _called(supervisor: Supervisor, server: str) -> None:
    assert not (await supervisor.call_tool("echo", {}, server=server)).is_error


async def _listed(supervisor: Supervisor, server: str) -> None:
    assert await supervisor.list_tools(server)


async def _awaited(supervisor: Supervisor, server: str) -> None:
    await supervisor.wait_connected(server)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("use", [_called, _listed, _awaited])
@pytest.mark.parametrize("borrows", [False, True])
async def test_a_server_that_somebody_waits_for_goes_first(autojump_clock, monkeypatch, lazy, use, borrows):
    """L15: after the start that is under way, and not after all that are in line."""
    monkeypatch.setattr(settings, "LOCAL_STARTS", 1)
    servers = [ScriptedServer(Life(connects_after=1.5, modern=False)) for _ in range(10)]
    *specs, last = [local(f"s{number}", server) for number, server in enumerate(servers)]
    async with open_supervisor(specs, gate=0.5) as supervisor, AsyncExitStack() as stack:
        await supervisor.add_server(evolve(last, lazy=lazy))
        borrower = open_supervisor(borrow=supervisor, gate=0)
        await use(await stack.enter_async_context(borrower) if borrows else supervisor, "s9")
        assert trio.current_time() == 3
        await supervisor.list_tools()
    assert servers[9].starts == [1.5]
    assert sorted(server.starts[0] for server in servers) == [1.5 * number for number in range(10)]


async def test_a_list_of_everything_puts_no_server_first(autojump_clock, monkeypatch):
    """One that is started for it waits like the others."""
    monkeypatch.setattr(settings, "LOCAL_STARTS", 1)
    servers = [ScriptedServer(Life(connects_after=1.5, modern=False)) for _ in range(6)]
    *specs, lazy, last = [local(f"s{number}", server) for number, server in enumerate(servers)]
    async with open_supervisor(specs, gate=0.5) as supervisor, trio.open_nursery() as nursery:
        await supervisor.add_server(evolve(lazy, lazy=True))
        nursery.start_soon(supervisor.list_tools)
        await trio.testing.wait_all_tasks_blocked()
        await supervisor.add_server(last)
        await _called(supervisor, "s5")
    assert (servers[5].starts, servers[4].starts) == ([1.5], [7.5])


async def test_first_starts_go_in_the_order_of_the_file(autojump_clock):
    """Trio runs the tasks of one turn of its loop in an order that it draws."""
    for _ in range(5):
        servers = [ScriptedServer(Life(connects_after=1.5, modern=False)) for _ in range(9)]
        specs = [local(f"s{number}", server) for number, server in enumerate(servers)]
        began = trio.current_time()
        async with open_supervisor(specs, gate=100):
            assert [server.starts[0] - began for server in servers] == [0, 0, 0, 1.5, 1.5, 1.5, 3, 3, 3]


async def test_those_that_somebody_waits_for_go_in_the_order_in_which_they_were_asked_for(autojump_clock, monkeypatch):
    monkeypatch.setattr(settings, "LOCAL_STARTS", 1)
    wanted = (6, 3, 8, 1, 4)
    for lazy in (False, True):
        servers = [ScriptedServer(Life(connects_after=1.5, modern=False)) for _ in range(9)]
        specs = [local(f"s{n}", server, lazy=lazy and n in wanted) for n, server in enumerate(servers)]
        began = trio.current_time()
        async with open_supervisor(specs, gate=0.5) as supervisor, trio.open_nursery() as nursery:
            for number in wanted:
                nursery.start_soon(_called, supervisor, f"s{number}")
                await trio.testing.wait_all_tasks_blocked(0.01)
            await supervisor.list_tools()
        order = sorted(range(9), key=lambda number: servers[number].starts)
        assert order == [0, *wanted, 2, 5, 7], lazy
        assert servers[7].starts[0] - began == 12
