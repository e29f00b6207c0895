"""When a server that ended is started again, and when it is not. Times are exact: the clock is virtual."""

import os
from functools import partial

import pytest
import trio
import trio.testing
from attrs import frozen

from mcp_nursery.actors.errors import ConfigError, ServerDown
from mcp_nursery.supervisor import RestartPolicy, ServerSpec, open_supervisor
from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual
from mcp_nursery.supervisor.transports import UnusableTransport

from ...lab.specs import hang, live_events, spec, status
from .shared import ONCE, S, swallow


def starts_of(*lives: Life, until: float = 1000, **options) -> list[float]:
    """When a server that lives these lives is started, if nobody interferes."""
    server = ScriptedServer(*lives)

    async def main():
        async with open_supervisor([spec(server, **options)]):
            await trio.sleep(until)

    run_virtual(main)
    return server.starts


async def test_an_error_names_a_tool_alike_in_every_state(autojump_clock):
    """T14: by the server's own name, as it did while it waited, and not as the caller did since it had failed."""
    server = ScriptedServer(Life(dies_after=1), Life(refuses="down"), prompts={"greet": swallow})
    async with open_supervisor([spec(server, name="s4", policy=RestartPolicy(delays=(5,)))]) as supervisor:
        await supervisor.wait_connected("s4")
        calls = [
            partial(supervisor.call_tool, "mcp_s4_echo"),
            partial(supervisor.call_tool, "echo", server="s4"),
            partial(supervisor.get_prompt, "mcp_s4_greet"),
            partial(supervisor.get_prompt, "greet", server="s4"),
        ]
        for moment, state in ((3, S.WAITING), (10, S.FAILED), (20, S.STOPPED)):
            await trio.sleep_until(moment)
            if state is S.STOPPED:
                await supervisor.stop_server("s4")
            for call in calls:
                with pytest.raises(ServerDown) as down:
                    await call()
                name = "echo" if call.func == supervisor.call_tool else "greet"
                assert (down.value.state, down.value.server, down.value.tool) == (state, "s4", name)
                assert f"mcp_s4_{name}" not in str(down.value)


# -- the ladder --------------------------------------------------------------------------------------------------------


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
                    nursery.start_soon(swallow, partial(supervisor.call_tool, "mcp_lab_hang"))
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
            late = "not connected within 5 s: no answer to server/discover or initialize"
            assert status(supervisor).error.startswith(late)
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


# -- not retried -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transport",
    [
        ScriptedServer(Life(refuses="no such file: lab", usable=False)).transport,
        UnusableTransport(ConfigError("missing command (stdio)", file="f.json", server="lab", field="command")),
    ],
    ids=["command not found", "invalid entry"],
)
async def test_not_retried(autojump_clock, caplog, transport):
    """L12: what cannot work is `failed` at once: no delay consumed, nothing scheduled. K3: one server's error."""
    good = ScriptedServer()
    async with open_supervisor([ServerSpec("lab", transport), spec(good, "good")]) as supervisor:
        assert trio.current_time() == 0
        one = status(supervisor)
        assert (one.state, one.retry_in, one.attempt, one.incarnation) == (S.FAILED, None, 1, 1)
        assert one.error
        await trio.sleep(10_000)
        assert status(supervisor).state is S.FAILED
        assert status(supervisor).incarnation == 1
        assert (await supervisor.call_tool("mcp_good_echo")).full_text == "{}"


async def test_an_unusable_entry_names_file_server_and_field(autojump_clock):
    """K2, K3: the status says what is wrong where; a reconnect tries, and fails again, without starting anything."""
    error = ConfigError("missing command (stdio)", file="f.json", server="lab", field="command")
    async with open_supervisor([ServerSpec("lab", UnusableTransport(error, "stdio"))]) as supervisor:
        one = status(supervisor)
        assert one.error == "f.json: server 'lab': field 'command': missing command (stdio)"
        assert (one.transport, one.state, one.incarnation) == ("stdio", S.FAILED, 1)
        with pytest.raises(ServerDown, match="missing command"):
            await supervisor.reconnect("lab")
        with pytest.raises(ServerDown, match="missing command"):
            await supervisor.call_tool("echo", server="lab")
        assert status(supervisor).incarnation == 1


@frozen
class Whimsical:
    """A transport of the host's own, whose `connector` raises these errors, the first at its first start."""

    server: ScriptedServer
    errors: list[Exception | None]
    kind = "whimsical"

    def connector(self, *, close_grace):
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return self.server.transport.connector(close_grace=close_grace)


async def test_a_transport_may_refuse_at_a_restart(autojump_clock):
    """K3, Q4: its server is `failed` at once, as at a first start, and other servers live on."""
    server, good = ScriptedServer(Life(dies_after=1)), ScriptedServer()
    transport = Whimsical(server, [None, ConfigError("no longer works")])
    async with open_supervisor([ServerSpec("lab", transport, revive=60), spec(good, "good")]) as supervisor:
        async with live_events(supervisor) as events:
            told = []
            with trio.move_on_after(1000):
                async for event in events:
                    if isinstance(event, StateChanged):
                        told.append((event.at, event.new))
            assert told == [(1, S.WAITING), (3, S.CONNECTING), (3, S.FAILED)]
        one = status(supervisor)
        assert (one.state, one.error, one.retry_in, one.incarnation) == (S.FAILED, "no longer works", None, 2)
        assert (await supervisor.call_tool("mcp_good_echo")).full_text == "{}"
        await supervisor.reconnect("lab")
        assert (status(supervisor).state, status(supervisor).incarnation) == (S.CONNECTED, 2)


async def test_a_transport_that_raises_is_an_end_of_its_server_alone(autojump_clock, caplog):
    """Q4: at any start, as a crash later; it is tried again by the ladder."""
    server, good = ScriptedServer(Life(dies_after=1), Life()), ScriptedServer()
    crash = OSError("no such device")
    specs = [ServerSpec("lab", Whimsical(server, [crash, None, crash])), spec(good, "good")]
    async with open_supervisor(specs) as supervisor:
        one = status(supervisor)
        assert (one.state, one.error, one.retry_in) == (S.WAITING, "an unforeseen error: OSError: no such device", 2)
        await trio.sleep(1000)
        assert (server.starts, good.starts) == ([2, 23], [0])
        assert (status(supervisor).state, status(supervisor).incarnation) == (S.CONNECTED, 4)
    assert caplog.text.count("lab: an incarnation ended with an unforeseen error; please report it") == 2


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
        await swallow(partial(supervisor.call_tool, "mcp_lab_hang"))
        await trio.testing.wait_all_tasks_blocked()
        assert (trio.current_time(), status(supervisor).state) == (10, S.WAITING)


@frozen
class Local:
    """A transport that shares the places for first starts with those of commands."""

    server: ScriptedServer
    kind = "stdio"

    def connector(self, *, close_grace):
        return self.server.transport.connector(close_grace=close_grace)


async def test_a_restart_waits_for_no_place(autojump_clock):
    """L15: many first starts, none of which answers, delay no server that was connected."""
    server = ScriptedServer(Life(dies_after=1), Life())
    async with open_supervisor([ServerSpec("lab", Local(server))]) as supervisor:
        await trio.sleep_until(2.5)
        for number in range(30):
            await supervisor.add_server(ServerSpec(f"mute-{number}", Local(ScriptedServer(Life(mute=True)))))
        await trio.sleep_until(3.5)
        assert server.starts == [0, 3]
