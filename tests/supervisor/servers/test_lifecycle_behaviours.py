"""How servers start, fail, come back and end. Times are exact: the clock is virtual and starts at 0."""

import logging
import os
from functools import partial

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import ConfigError, ServerDown, SupervisorClosed, UnknownServer
from mcp_nursery.actors.states import ServerState
from mcp_nursery.supervisor import RestartPolicy, ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual
from mcp_nursery.supervisor.transports import UnusableTransport

from ..specs import hang, spec, status

S = ServerState
ONCE = RestartPolicy(delays=())


def starts_of(*lives: Life, until: float = 1000, **options) -> list[float]:
    """When a server that lives these lives is started, if nobody interferes."""
    server = ScriptedServer(*lives)

    async def main():
        async with open_supervisor([spec(server, **options)]):
            await trio.sleep(until)

    run_virtual(main)
    return server.starts


# -- starting -----------------------------------------------------------------------------------------------------


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
        assert status(supervisor).incarnation == 0


# -- the ladder ---------------------------------------------------------------------------------------------------


def test_default_ladder():
    """L3: tried at 0, 2, 7, 22, then never again."""
    assert starts_of(Life(refuses="no such luck"), until=100_000) == [0, 2, 7, 22]


async def test_default_ladder_in_the_status(autojump_clock):
    """L3: each step shows; L13: attempt n of m, and when the next one is due."""
    server = ScriptedServer(Life(refuses="no such luck"))
    async with open_supervisor([spec(server)]) as supervisor:
        seen = []
        for moment in (1, 6, 21, 23, 10_000):
            await trio.sleep_until(moment)
            one = status(supervisor)
            seen.append((one.state, one.attempt, one.max_attempts, one.retry_in, one.error))
        assert seen == [
            (S.WAITING, 2, 4, 1, "no such luck"),
            (S.WAITING, 3, 4, 1, "no such luck"),
            (S.WAITING, 4, 4, 1, "no such luck"),
            (S.FAILED, 4, 4, None, "no such luck"),
            (S.FAILED, 4, 4, None, "no such luck"),
        ]


async def test_failed_until_a_manual_reconnect(autojump_clock):
    """L3: `failed` ends by a manual reconnect, which is a fresh start with a whole ladder."""
    server = ScriptedServer(*[Life(refuses="down")] * 4, Life(dies_after=1), Life(refuses="down"))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep_until(500)
        await supervisor.reconnect("lab")
        assert trio.current_time() == 500
        assert (status(supervisor).state, status(supervisor).attempt) == (S.CONNECTED, 1)
        await trio.sleep_until(5000)
        assert server.starts == [0, 2, 7, 22, 500, 503, 508, 523]


@pytest.mark.parametrize(
    ("connected_for", "starts"),
    [
        (29.5, [0, 31.5, 66, 110.5]),  # the ladder goes on: 2, 5, 15
        (30, [0, 32, 64, 96]),  # it begins anew: 2, 2, 2
        (30.5, [0, 32.5, 65, 97.5]),
    ],
)
def test_stability_resets_the_ladder(connected_for, starts):
    """L4: back to zero after 30 s of unbroken `connected`, not before."""
    assert starts_of(Life(dies_after=connected_for), until=120) == starts


def test_the_counter_survives_retries():
    """L4: a connection that lasts less than `stable_after` does not reset what failed connects have counted."""
    lives = [Life(refuses="down"), Life(dies_after=29), Life(refuses="down"), Life(dies_after=29)]
    assert starts_of(*lives, until=10_000) == [0, 2, 36, 51]


def test_greeting_and_dying_resets_nothing():
    """L4, Q6: a server that greets and dies is started four times, then left alone."""
    assert starts_of(Life(dies_after=0), until=100_000) == [0, 2, 7, 22]


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        (RestartPolicy(delays=(0.5, 1, 2, 4)), [0, 0.5, 1.5, 3.5, 7.5]),
        (RestartPolicy.exponential(first=1, factor=2, cap=30, attempts=3), [0, 1, 3, 7]),
        (RestartPolicy.exponential(first=16, factor=2, cap=30, attempts=3), [0, 16, 46, 76]),
        (RestartPolicy(delays=()), [0]),
        (RestartPolicy(delays=(0, 0)), [0, 0, 0]),
    ],
)
def test_other_ladders(policy, starts):
    """L5: other ladders are other values."""
    assert starts_of(Life(refuses="down"), policy=policy) == starts


def test_the_supervisors_policy_is_for_servers_without_one():
    """L5: a server's own policy goes before the supervisor's."""
    own, other = ScriptedServer(Life(refuses="down")), ScriptedServer(Life(refuses="down"))

    async def main():
        specs = [spec(own, "own", policy=RestartPolicy(delays=(1,))), spec(other, "other")]
        async with open_supervisor(specs, policy=RestartPolicy(delays=(3,))):
            await trio.sleep(100)

    run_virtual(main)
    assert (own.starts, other.starts) == ([0, 1], [0, 3])


def test_error_and_close_count_once():
    """L5: a death seen as a failed call, a failed list and a closed connection is one step of the ladder."""
    server = ScriptedServer(Life(dies_after=10), Life(), tools={"hang": hang})

    async def main():
        async with open_supervisor([spec(server)]) as supervisor:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(_swallow, partial(supervisor.call_tool, "mcp_lab_hang"))
            assert trio.current_time() == 10
            await trio.testing.wait_all_tasks_blocked()
            assert status(supervisor).attempt == 2
            await trio.sleep(50)

    run_virtual(main)
    assert server.starts == [0, 12]


def test_connect_timeout_enters_the_ladder():
    """Q10: a connect timeout is a failure like a crash, counted from the moment it is noticed."""
    assert starts_of(Life(mute=True), until=10_000, connect_timeout=4) == [0, 6, 15, 34]


def test_default_connect_timeout():
    """L14: 30 s; the next start comes 2 s after."""
    assert starts_of(Life(mute=True), Life()) == [0, 32]


def test_a_mute_server_recovers_after_a_timeout():
    """Q10: a startup timeout is retried and may succeed."""
    server = ScriptedServer(Life(mute=True), Life())

    async def main():
        async with open_supervisor([spec(server, connect_timeout=5)]) as supervisor:
            await trio.sleep(6)
            assert status(supervisor).error == "not connected within 5 s"
            assert status(supervisor).state is S.WAITING
            await trio.sleep_until(7.5)
            assert status(supervisor).state is S.CONNECTED

    run_virtual(main)


@pytest.mark.parametrize(
    ("environment", "own", "noticed"),
    [("1500", None, 1.5), ("1500", 10.0, 1.5), (None, 10.0, 10), (None, None, 30), ("", 10.0, 10), ("2500", 0.0, 2.5)],
)
def test_connect_timeout_from_the_environment(monkeypatch, environment, own, noticed):
    """L14: `MCP_TIMEOUT` in milliseconds goes before the server's own, which goes before 30."""
    monkeypatch.delenv("MCP_TIMEOUT", raising=False)
    if environment is not None:
        monkeypatch.setenv("MCP_TIMEOUT", environment)
    server = ScriptedServer(Life(mute=True))

    async def main():
        async with open_supervisor([spec(server, policy=ONCE, connect_timeout=own)], gate=1000) as supervisor:
            assert trio.current_time() == noticed
            assert status(supervisor).state is S.FAILED

    run_virtual(main)


@pytest.mark.parametrize(("environment", "own"), [("0", 5.0), (None, 0.0)])
def test_no_connect_timeout(monkeypatch, environment, own):
    """L14: 0 is no limit."""
    monkeypatch.delenv("MCP_TIMEOUT", raising=False)
    if environment is not None:
        monkeypatch.setenv("MCP_TIMEOUT", environment)

    async def main():
        server = ScriptedServer(Life(connects_after=5000, modern=False))
        async with open_supervisor([spec(server, connect_timeout=own)], gate=10_000) as supervisor:
            assert trio.current_time() == 5000
            assert status(supervisor).state is S.CONNECTED

    run_virtual(main)


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", "1e3"])
def test_a_bad_connect_timeout_in_the_environment(monkeypatch, value):
    """L14: a bad value is a clear error, and nothing was started."""
    monkeypatch.setenv("MCP_TIMEOUT", value)
    server = ScriptedServer()

    async def main():
        async with open_supervisor([spec(server)]):
            raise AssertionError("entered")

    with pytest.raises(ConfigError, match="MCP_TIMEOUT"):
        run_virtual(main)
    assert server.starts == []


def test_the_environment_is_read_when_the_supervisor_opens(monkeypatch):
    """L14: a change of the environment afterwards changes nothing."""
    monkeypatch.setenv("MCP_TIMEOUT", "2000")

    async def main():
        async with open_supervisor([spec(ScriptedServer(Life(mute=True)), policy=ONCE)], gate=0) as supervisor:
            os.environ["MCP_TIMEOUT"] = "9000"
            with pytest.raises(ServerDown):
                await supervisor.wait_connected("lab")
            assert trio.current_time() == 2

    run_virtual(main)


# -- one connection at a time -------------------------------------------------------------------------------------


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


# -- reconnect ----------------------------------------------------------------------------------------------------


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
    assert {(error.state, error.retry_in, error.error) for error in errors} == {
        (S.WAITING, 2, "not connected within 3 s")
    }


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


# -- stop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [0.5, 1.5, 2.5, 3.5, 4.5, 5.5])
async def test_stopped_stays_stopped(autojump_clock, moment):
    """L9: stopped mid-handshake, connected, during backoff, mid-handshake again: never started again."""
    # 0-1 handshake, 1-2 connected, 2-4 waiting, 4-5 handshake, 5-6 connected
    server = ScriptedServer(Life(connects_after=1, dies_after=1), Life(connects_after=1))
    async with open_supervisor([spec(server)], gate=0) as supervisor, supervisor.events() as events:
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


# -- not retried --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "started"),
    [
        (ScriptedServer(Life(refuses="no such file: lab", usable=False)).transport, True),
        (
            UnusableTransport(ConfigError("missing command (stdio)", file="f.json", server="lab", field="command")),
            False,
        ),
    ],
    ids=["command not found", "invalid entry"],
)
async def test_not_retried(autojump_clock, caplog, transport, started):
    """L12: what cannot work is `failed` at once: no delay consumed, nothing scheduled. K3: one server's error."""
    good = ScriptedServer()
    async with open_supervisor([ServerSpec("lab", transport), spec(good, "good")]) as supervisor:
        assert trio.current_time() == 0
        one = status(supervisor)
        assert (one.state, one.retry_in, one.attempt, one.incarnation) == (S.FAILED, None, 1, int(started))
        assert one.error
        await trio.sleep(10_000)
        assert status(supervisor).state is S.FAILED
        assert status(supervisor).incarnation == int(started)
        assert (await supervisor.call_tool("mcp_good_echo")).full_text == "{}"


async def test_an_unusable_entry_names_file_server_and_field(autojump_clock):
    """K2, K3: the status says what is wrong where; a reconnect tries, and fails again, without starting anything."""
    error = ConfigError("missing command (stdio)", file="f.json", server="lab", field="command")
    async with open_supervisor([ServerSpec("lab", UnusableTransport(error, "stdio"))]) as supervisor:
        one = status(supervisor)
        assert one.error == "f.json: server 'lab': field 'command': missing command (stdio)"
        assert (one.transport, one.state, one.incarnation) == ("stdio", S.FAILED, 0)
        with pytest.raises(ServerDown, match="missing command"):
            await supervisor.reconnect("lab")
        with pytest.raises(ServerDown, match="missing command"):
            await supervisor.call_tool("echo", server="lab")
        assert status(supervisor).incarnation == 0


async def test_the_explicit_stop_is_not_retried(autojump_clock):
    """L12: nothing is scheduled after it."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        await supervisor.stop_server("lab")
        await trio.sleep(10_000)
        assert (server.starts, status(supervisor).retry_in) == ([0], None)


async def test_disabled_is_never_started(autojump_clock):
    """L12: until somebody starts it."""
    server = ScriptedServer()
    async with open_supervisor([spec(server, enabled=False)]) as supervisor:
        await trio.sleep(100)
        await supervisor.list_tools()
        assert (status(supervisor).state, server.starts) == (S.DISABLED, [])
        with pytest.raises(ServerDown, match="disabled"):
            await supervisor.wait_connected("lab")
        await supervisor.start_server("lab")
        await supervisor.wait_connected("lab")
        assert server.starts == [100]


@pytest.mark.parametrize(
    ("mode", "exit_code", "state"),
    [
        ("permanent", 0, S.WAITING),
        ("permanent", 1, S.WAITING),
        ("transient", 0, S.STOPPED),
        ("transient", 1, S.WAITING),
        ("temporary", 0, S.STOPPED),
        ("temporary", 1, S.FAILED),
    ],
)
async def test_restart_modes(autojump_clock, mode, exit_code, state):
    """L12: `transient` restarts what did not end cleanly, `temporary` nothing."""
    server = ScriptedServer(Life(dies_after=10, exit_code=exit_code))
    async with open_supervisor([spec(server, restart=mode)]) as supervisor:
        await trio.sleep(11)
        assert status(supervisor).state is state


async def test_a_clean_exit_with_a_call_pending_is_none(autojump_clock):
    """L12: exit code 0 with a call in flight is a failure in `transient`."""
    server = ScriptedServer(Life(dies_after=10, exit_code=0), tools={"hang": hang})
    async with open_supervisor([spec(server, restart="transient")]) as supervisor:
        await _swallow(partial(supervisor.call_tool, "mcp_lab_hang"))
        await trio.testing.wait_all_tasks_blocked()
        assert (trio.current_time(), status(supervisor).state) == (10, S.WAITING)


# -- status -------------------------------------------------------------------------------------------------------


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
            nursery.start_soon(_swallow, partial(supervisor.call_tool, "mcp_lab_hang"))
            nursery.start_soon(_swallow, partial(supervisor.call_tool, "mcp_lab_hang"))
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


# -- scenarios ----------------------------------------------------------------------------------------------------


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


# -- a set that changes -------------------------------------------------------------------------------------------


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


# -- what tools do ------------------------------------------------------------------------------------------------


async def _nap(arguments) -> object:
    await trio.sleep(1)
    return "rested"


async def _swallow(function) -> None:
    with pytest.raises(Exception, match="connection lost"):
        await function()
