"""What a person orders while a server starts, runs, waits or ends: one connection at a time, whatever crosses what."""

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import ConnectionLost, ServerDown, UnknownServer
from mcp_nursery.supervisor import RestartPolicy, Supervisor, open_supervisor
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ...lab.specs import hang, lasting, live_events, spec, status
from .shared import ONCE, S

# -- one connection at a time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("closing", "second"), [(0.0, 12), (1.5, 12), (2.0, 12), (9.0, 19)])
def test_the_old_connection_is_closed_first(closing, second):
    """L7: a start happens at max(loss noticed + delay, old connection closed)."""
    server = ScriptedServer(Life(dies_after=10, closes_after=closing), Life())

    async def main():
        async with open_supervisor([spec(server)]):
            await trio.sleep(60)

    run_virtual(main)
    assert server.starts == [0, second]
    assert server.ends[0] == 10 + closing
    assert server.most_alive == 1


async def test_the_loss_is_seen_before_the_close_is_done(autojump_clock):
    """L7: `waiting` shows at the loss; `retry_in` does not wait for the close."""
    server = ScriptedServer(Life(dies_after=10, closes_after=4))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep_until(11)
        assert status(supervisor).state is S.WAITING
        assert status(supervisor).retry_in == 1
        await trio.sleep_until(13)
        assert (status(supervisor).state, status(supervisor).retry_in) == (S.WAITING, 0)
        assert server.starts == [0]


@pytest.mark.parametrize("act", ["reconnect", "stop and start"])
async def test_a_fresh_start_waits_for_the_close(autojump_clock, act):
    """L7: a reconnect, or a stop and a start, opens nothing before the old connection is closed."""
    server = ScriptedServer(Life(closes_after=3))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(1)
        if act == "reconnect":
            await supervisor.reconnect("lab")
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.stop_server, "lab")
                await trio.sleep(1)
                await supervisor.start_server("lab")
                assert status(supervisor).state is S.CONNECTING
            await supervisor.wait_connected("lab")
        assert trio.current_time() == 4
        assert server.starts == [0, 4]
    assert server.most_alive == 1


async def test_a_failed_attempt_is_closed_before_the_next(autojump_clock):
    """L7: also an attempt that never connected."""
    server = ScriptedServer(Life(mute=True, closes_after=6), Life())
    async with open_supervisor([spec(server, connect_timeout=3)], gate=100) as supervisor:
        assert trio.current_time() == 3
        await supervisor.call_tool("echo", server="lab", when_down="wait")
        assert server.starts == [0, 9]
    assert server.most_alive == 1


# -- drain -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", ["stop", "remove", "reconnect", "reload", "leave"])
@pytest.mark.parametrize("earlier", ["stop", "reload"])
async def test_a_later_command_shortens_an_earlier_drain(autojump_clock, caplog, earlier, later):
    """L9, L18: also one that waits behind the drain of a reload that was given up."""
    server, lost = ScriptedServer(tools={"hang": hang}), []

    async def call():
        with pytest.raises(ConnectionLost):
            await supervisor.call_tool("hang", server="lab")
        lost.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        async with open_supervisor([spec(server)]) as supervisor:
            await supervisor.wait_connected("lab")
            nursery.start_soon(call)
            await trio.sleep(1)
            with trio.move_on_after(1):
                if earlier == "stop":
                    await supervisor.stop_server("lab", drain=60)
                else:
                    await supervisor.reload([spec(server, max_in_flight=2)], drain=60)
            assert lost == []
            match later:
                case "stop":
                    await supervisor.stop_server("lab")
                case "remove":
                    await supervisor.remove_server("lab")
                case "reconnect":
                    await supervisor.reconnect("lab")
                case "reload":
                    await supervisor.reload([spec(server, max_in_flight=3)])
        assert trio.current_time() == 2
    assert lost == [2]
    assert "still closing" not in caplog.text


@pytest.mark.parametrize("later", ["start", "call"])
async def test_who_only_wants_it_to_run_shortens_no_drain(autojump_clock, later):
    """L7: calls on the old connection keep the time they were given; the next one begins when they are done."""
    server, results = ScriptedServer(tools={"long": lasting(10), "echo": lasting(0)}), []

    async def call():
        results.append((await supervisor.call_tool("long", server="lab")).incarnation)

    async with open_supervisor([spec(server, lazy=later == "call")]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.sleep(1)
        with trio.move_on_after(1):
            if later == "start":
                await supervisor.stop_server("lab", drain=60)
            else:
                await supervisor.reload([spec(server, lazy=True, max_in_flight=2)], drain=60)
        if later == "start":
            await supervisor.start_server("lab")
        assert (await supervisor.call_tool("echo", server="lab", when_down="wait")).incarnation == 2
        assert (trio.current_time(), results) == (10, [1])


# -- reconnect ---------------------------------------------------------------------------------------------------------


async def test_many_reconnects_share_one_attempt(autojump_clock):
    """L8: 50 callers, one start."""
    server = ScriptedServer(Life(refuses="down"), Life(connects_after=2))
    async with open_supervisor([spec(server, policy=ONCE)]) as supervisor:
        await trio.sleep(5)
        assert status(supervisor).state is S.FAILED
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(supervisor.reconnect, "lab")
        assert trio.current_time() == 7
        assert server.starts == [0, 5]


async def test_many_reconnects_share_one_failure(autojump_clock):
    """L8: the outcome is shared too, also by those who come while the attempt is under way."""
    server = ScriptedServer(Life(), Life(mute=True))
    errors: list[ServerDown] = []

    async def ask(supervisor: Supervisor, after: float):
        await trio.sleep(after)
        with pytest.raises(ServerDown) as caught:
            await supervisor.reconnect("lab")
        errors.append(caught.value)

    async with open_supervisor([spec(server, connect_timeout=3)]) as supervisor:
        async with trio.open_nursery() as nursery:
            for n in range(50):
                nursery.start_soon(ask, supervisor, 0.5 * (n % 5))
        assert trio.current_time() == 3
        assert server.starts == [0, 0]
    late = (
        "not connected within 3 s: no answer to server/discover or initialize"
        " (connect_timeout, or connectSeconds in a file, gives it more)"
    )
    assert {(error.state, error.retry_in, error.error) for error in errors} == {(S.WAITING, 2, late)}


async def test_reconnect_of_a_connected_server_replaces_it(autojump_clock):
    """L8: a fresh start whatever it does."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        await supervisor.reconnect("lab")
        assert status(supervisor).incarnation == 2
        assert len(server.starts) == 2
    assert server.most_alive == 1


async def test_reconnect_during_the_wait_cuts_it(autojump_clock):
    """L8: a person's reconnect does not wait for the ladder, and begins it anew."""
    server = ScriptedServer(Life(refuses="down"), Life(refuses="down"), Life(dies_after=1), Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(3)
        assert status(supervisor).attempt == 3
        await supervisor.reconnect("lab")
        assert (trio.current_time(), status(supervisor).attempt) == (3, 1)
        await trio.sleep(20)
        assert server.starts == [0, 2, 3, 6]


async def test_reconnect_in_the_middle_of_an_attempt_begins_the_ladder_anew(autojump_clock):
    """L8: the attempt goes on, and is the first of a fresh start."""
    server = ScriptedServer(Life(refuses="down"), Life(mute=True), Life())
    async with open_supervisor([spec(server, connect_timeout=5)]) as supervisor:
        await trio.sleep(3)
        assert (status(supervisor).state, status(supervisor).attempt) == (S.CONNECTING, 2)
        with pytest.raises(ServerDown):
            await supervisor.reconnect("lab")
        assert trio.current_time() == 7
        await supervisor.wait_connected("lab")
        assert server.starts == [0, 2, 9]


async def test_a_call_never_shortens_the_ladder(autojump_clock):
    """L8: a person's reconnect is the only way out of `failed`, and calls do not shorten a wait."""
    server = ScriptedServer(Life(dies_after=1), Life(refuses="down"))
    async with open_supervisor([spec(server)]) as supervisor:
        for moment in range(2, 100):
            await trio.sleep_until(moment)
            with pytest.raises(ServerDown):
                await supervisor.call_tool("mcp_lab_echo", when_down="fail")
        assert server.starts == [0, 3, 8, 23]


async def test_a_cancelled_reconnect_leaves_the_attempt_to_the_others(autojump_clock):
    """L8: the attempt is the server's, not its caller's."""
    server = ScriptedServer(Life(), Life(connects_after=2))
    async with open_supervisor([spec(server)]) as supervisor:
        with trio.move_on_after(1):
            await supervisor.reconnect("lab")
        assert status(supervisor).state is S.CONNECTING
        await supervisor.reconnect("lab")
        assert trio.current_time() == 2
        assert len(server.starts) == 2


# -- stop --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [0.5, 1.5, 2.5, 3.5, 4.5, 5.5])
async def test_stopped_stays_stopped(autojump_clock, moment):
    """L9: stopped mid-handshake, connected, during backoff, mid-handshake again: never started again."""
    # 0-1 handshake, 1-2 connected, 2-4 waiting, 4-5 handshake, 5-6 connected
    server = ScriptedServer(Life(connects_after=1, dies_after=1), Life(connects_after=1))
    async with open_supervisor([spec(server)], gate=0) as supervisor, live_events(supervisor) as events:
        await trio.sleep_until(moment)
        before = len(server.starts)
        await supervisor.stop_server("lab")
        assert trio.current_time() == moment
        assert status(supervisor).state is S.STOPPED
        assert len(server.ends) == len(server.starts) == before
        states = []
        with trio.move_on_after(1000):
            async for event in events:
                assert event.at <= moment
                if isinstance(event, StateChanged):
                    states.append(event.new)
        assert states[-1] is S.STOPPED
        assert len(server.starts) == before
        assert status(supervisor).state is S.STOPPED
        assert supervisor.tools == ()


def test_stop_at_every_step_of_a_start():
    """L9: no scheduler step of a start is too late or too early to stop it."""
    for steps in range(60):
        server = ScriptedServer()

        async def main(server=server, steps=steps):
            async with open_supervisor([spec(server)], gate=0) as supervisor:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await supervisor.stop_server("lab")
                assert status(supervisor).state is S.STOPPED
                await trio.sleep(100)
                assert status(supervisor).state is S.STOPPED
                assert len(server.ends) == len(server.starts) <= 1

        run_virtual(main)


async def test_who_waits_for_a_server_that_is_removed_is_told_so(autojump_clock):
    """L9, R1, Q11: also before the next start, when the server is gone before any of them has looked again."""
    server, errors = ScriptedServer(Life(dies_after=0.5), Life()), []

    async def call():
        with pytest.raises(ServerDown) as caught:
            await supervisor.call_tool("echo", server="lab", when_down="wait")
        errors.append(caught.value.state)

    options = {"policy": RestartPolicy(delays=[1])}
    async with open_supervisor([spec(server, **options)]) as supervisor, trio.open_nursery() as nursery:
        await trio.sleep(1)
        for _ in range(30):
            nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        await supervisor.remove_server("lab")
    assert errors == [S.STOPPED] * 30


def test_remove_at_every_step_of_a_start():
    """Q11: a removed server never comes back, whenever it is removed."""
    for steps in range(60):
        server = ScriptedServer()

        async def main(server=server, steps=steps):
            async with open_supervisor([spec(server)], gate=0) as supervisor:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await supervisor.remove_server("lab")
                assert supervisor.status() == ()
                await trio.sleep(100)
                assert supervisor.status() == ()
                assert supervisor.tools == ()
                assert len(server.ends) == len(server.starts) <= 1

        run_virtual(main)


@pytest.mark.parametrize("moment", [0.5, 2.5, 4.5])
async def test_removed_stays_removed(autojump_clock, moment):
    """Q11: removed mid-handshake, during backoff, mid-handshake again."""
    server = ScriptedServer(Life(connects_after=1, dies_after=1), Life(connects_after=1))
    async with open_supervisor([spec(server)], gate=0) as supervisor:
        await trio.sleep_until(moment)
        before = len(server.starts)
        await supervisor.remove_server("lab")
        assert supervisor.status() == ()
        with pytest.raises(UnknownServer):
            await supervisor.reconnect("lab")
        await trio.sleep(1000)
        assert len(server.starts) == len(server.ends) == before


async def test_stop_mid_call(autojump_clock):
    """L9: the call ends at once and says that the server may have acted; nothing is started again."""
    server = ScriptedServer(tools={"hang": hang}, annotations={"hang": {"readOnlyHint": True}})
    async with open_supervisor([spec(server)]) as supervisor:
        ended: list[tuple[float, str]] = []

        async def call():
            with pytest.raises(Exception, match="connection lost") as caught:
                await supervisor.call_tool("mcp_lab_hang")
            ended.append((trio.current_time(), caught.value.delivery))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(5)
            await supervisor.stop_server("lab")
        assert ended == [(5, "unknown")]
        await trio.sleep(1000)
        assert len(server.starts) == 1
        assert len(server.calls) == 1


async def test_a_late_connect_does_not_resurrect(autojump_clock):
    """L9: a handshake that succeeds while the connection is being closed changes nothing."""
    server = ScriptedServer(Life(connects_after=2, closes_after=10))
    async with open_supervisor([spec(server)], gate=0) as supervisor:
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.stop_server, "lab")
            await trio.sleep(3)
            assert status(supervisor).state is S.STOPPED
        assert trio.current_time() == 11
        assert status(supervisor).state is S.STOPPED


async def test_a_crash_while_stopping_does_not_resurrect(autojump_clock):
    """L9: the death of a server that is told to stop is no failure."""
    server = ScriptedServer(Life(dies_after=2, closes_after=5))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep(1)
        await supervisor.stop_server("lab")
        await trio.sleep(100)
        assert (status(supervisor).state, status(supervisor).error) == (S.STOPPED, None)
        assert server.starts == [0]


async def test_stop_and_start_again(autojump_clock):
    """L9: a stop is ended by a start, with a whole ladder, and a stop of a stopped server is nothing."""
    server = ScriptedServer(Life(refuses="down"), Life(dies_after=5), Life())
    async with open_supervisor([spec(server)]) as supervisor:
        await supervisor.stop_server("lab")
        await supervisor.stop_server("lab")
        assert status(supervisor).attempt == 1
        await trio.sleep_until(50)
        await supervisor.start_server("lab")
        assert status(supervisor).state is S.CONNECTING
        await trio.sleep(100)
        assert server.starts == [0, 50, 57]


async def test_start_of_a_running_server_is_nothing(autojump_clock):
    """L9: `start_server` starts what neither runs nor is being started."""
    server = ScriptedServer(Life(connects_after=1))
    async with open_supervisor([spec(server)], gate=0) as supervisor:
        await supervisor.start_server("lab")
        await supervisor.wait_connected("lab")
        await supervisor.start_server("lab")
        assert status(supervisor).state is S.CONNECTED
        assert server.starts == [0]


async def test_stop_ends_a_reconnect(autojump_clock):
    """L9: whoever waits for a reconnect that is stopped hears that the server is stopped."""
    server = ScriptedServer(Life(), Life(connects_after=100))
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:

        async def ask():
            with pytest.raises(ServerDown, match="stopped"):
                await supervisor.reconnect("lab")
            assert trio.current_time() == 3

        nursery.start_soon(ask)
        await trio.sleep(3)
        await supervisor.stop_server("lab")


async def test_wait_connected(autojump_clock):
    """L9: it ends with `ServerDown` in a state nobody will leave, and outlasts the others."""
    server = ScriptedServer(Life(refuses="down"), Life(refuses="down"), Life())
    async with open_supervisor([spec(server), spec(ScriptedServer(Life(refuses="down")), "bad")]) as supervisor:
        assert (await supervisor.wait_connected("lab")).state is S.CONNECTED
        assert trio.current_time() == 7
        with pytest.raises(ServerDown, match=r"bad: the server is failed.*down"):
            await supervisor.wait_connected("bad")
        assert trio.current_time() == 22
        with pytest.raises(UnknownServer, match="did you mean 'lab'"):
            await supervisor.wait_connected("labs")
