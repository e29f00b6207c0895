"""How a block ends: whose exception comes out, and in what shape."""

# ruff: noqa: PT012 - what raises here is the end of a block

import subprocess
import sys
from contextlib import nullcontext

import pytest
import trio
import trio.testing

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError, ConnectionLost, NurseryError, SupervisorClosed
from mcp_nursery.actors.nurseries import open_bare_nursery, open_service_nursery, run_alongside
from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.decisions import state_machine
from mcp_nursery.supervisor.decisions.restart_policy import RestartPolicy
from mcp_nursery.supervisor.decisions.state_machine import IllegalTransition, StateMachine
from mcp_nursery.supervisor.login.vault import ServerVault
from mcp_nursery.supervisor.notices import NoticeHub
from mcp_nursery.supervisor.security.redaction import ServerSecrets
from mcp_nursery.supervisor.servers.call_counter import CallCounter
from mcp_nursery.supervisor.servers.keeper import Keeper
from mcp_nursery.supervisor.servers.settings import KeeperSettings, SupervisorSettings
from mcp_nursery.supervisor.storage.worker import StoreWorker
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.specs import hang, spec

S = ServerState


class Boom(Exception):
    """What a body raises."""


# -- the nursery --------------------------------------------------------------------------------------------------


async def test_what_a_block_raises_is_not_lost_when_it_is_cancelled_as_well(autojump_clock):
    """The tasks beside it end with `Cancelled`, which is nothing to tell."""
    with pytest.raises(Boom), trio.move_on_after(1):
        async with run_alongside(trio.sleep_forever):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise Boom from None


async def test_a_task_that_crashes_beside_a_cancelled_block(autojump_clock):
    async def crash():
        try:
            await trio.sleep_forever()
        finally:
            raise Boom

    with pytest.raises(BaseExceptionGroup) as caught, trio.move_on_after(1):
        async with run_alongside(crash):
            await trio.sleep_forever()
    assert caught.group_contains(Boom)


async def test_a_block_that_raises_cancels_its_tasks(autojump_clock):
    """As Trio's nursery does: nobody waits for what goes on without end."""
    with pytest.raises(Boom), trio.fail_after(1):
        async with open_bare_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise Boom
    assert trio.current_time() == 0


# -- the body -----------------------------------------------------------------------------------------------------


async def test_no_servers_at_all(autojump_clock):
    """Without any configuration it works: nothing to start, nothing to call."""
    async with open_supervisor([]) as supervisor:
        assert trio.current_time() == 0
        assert (supervisor.tools, supervisor.status(), await supervisor.list_tools()) == ((), (), ())
        with pytest.raises(NurseryError, match="no tool named 'x'"):
            await supervisor.call_tool("x")
        with pytest.raises(NurseryError, match="no server named 'x'"):
            await supervisor.call_tool("x", server="x")
        assert supervisor.statistics().servers == 0


@pytest.mark.parametrize("raised", [Boom("mine"), KeyboardInterrupt(), SystemExit(3), ExceptionGroup("g", [Boom()])])
async def test_the_bodys_exception_comes_out_bare(autojump_clock, raised):
    """Q4: a sole exception of the body is not wrapped, whatever it is; every server is ended."""
    server = ScriptedServer(Life(closes_after=2))
    with pytest.raises(type(raised)) as caught:
        async with open_supervisor([spec(server)]):
            raise raised
    assert caught.value is raised
    assert server.ends == [2]


async def test_the_exceptions_of_a_nursery_in_the_body(autojump_clock):
    """A group of the body's own is the body's, not a crash of the supervisor."""

    async def fail():
        await trio.sleep(1)
        raise Boom

    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_supervisor([spec(ScriptedServer())]), trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(fail)
    assert caught.group_contains(Boom, depth=1)
    assert not caught.group_contains(NurseryError)


async def test_a_cancelled_body(autojump_clock):
    """Q1, Q4: leaving by cancellation ends every server too, and is no error."""
    server = ScriptedServer(Life(closes_after=2))
    with trio.move_on_after(1) as scope:
        async with open_supervisor([spec(server)]):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert (trio.current_time(), server.ends) == (3, [3])


async def test_a_body_cancelled_inside_a_nursery(autojump_clock):
    """The same when the cancellation comes out as a group."""
    server = ScriptedServer()
    with trio.move_on_after(1) as scope:
        async with open_supervisor([spec(server)]), trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert server.ends == [1]


async def test_cancelled_at_the_gate(autojump_clock):
    """The block was never entered, and still everything is ended."""
    server = ScriptedServer(Life(mute=True, closes_after=1))
    with trio.move_on_after(2) as scope:
        async with open_supervisor([spec(server)], gate=10):
            raise AssertionError("entered")
    assert scope.cancelled_caught
    assert server.ends == [3]


PRELUDE = """
import trio, trio.testing
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import ScriptedServer

def run(main):
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
"""
CANCELLED_ALREADY = """
server = ScriptedServer()

async def main():
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_supervisor([ServerSpec("lab", server.transport)]):
            raise AssertionError("entered")
    assert scope.cancelled_caught
    assert len(server.starts) == len(server.ends)

run(main)
print("left")
"""
CANCELLED_AT_EVERY_STEP = """
for steps in range(80):
    server = ScriptedServer()

    async def host():
        async with open_supervisor([ServerSpec("lab", server.transport)]) as supervisor:
            while True:
                await supervisor.call_tool("mcp_lab_echo")
                await supervisor.reconnect("lab")

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    run(main)
    assert len(server.starts) == len(server.ends), steps
    assert server.most_alive <= 1, steps
print("left")
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [CANCELLED_ALREADY, CANCELLED_AT_EVERY_STEP], ids=["already", "every step"])
def test_cancelled_at_any_moment(code):
    """L9: a block that is cancelled, before its start already or at any step, is left with every connection closed.

    In a process of its own: a deadlock behind a shield could be ended by nothing else.
    """
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("left\n", "")


# -- crashes of our own -------------------------------------------------------------------------------------------


async def test_a_task_that_cannot_be_started_leaves_the_nursery():
    def no_coroutine():
        raise LookupError

    with pytest.raises(LookupError):
        async with run_alongside(trio.sleep_forever, no_coroutine):
            raise AssertionError("entered")
    async with trio.open_nursery():  # the nurseries of this task are in order
        await trio.lowlevel.checkpoint()


async def test_a_caller_that_recurses_without_end_has_the_error_and_nobody_else(autojump_clock):
    """Calls are handed over on the stack of their caller."""

    async def deep(supervisor, times):
        if times:
            await deep(supervisor, times - 1)
        else:
            await supervisor.call_tool("mcp_lab_echo")

    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        await supervisor.wait_connected("lab")
        await trio.testing.wait_all_tasks_blocked()
        limit = sys.getrecursionlimit()
        failed = []
        for times in range(limit - 250, limit, 2):
            try:
                await deep(supervisor, times)
            except RecursionError:
                failed.append(times)
                break
        assert failed
        result = await supervisor.call_tool("mcp_lab_echo")
        assert result.incarnation == 1


class Interrupted(dict):
    """A table in which nobody finds anything, for Ctrl-C comes."""

    def __missing__(self, key):
        raise KeyboardInterrupt


@pytest.fixture
def broken_table(monkeypatch):
    """A table of transitions that lacks the way to `connected`: the keeper crashes when a handshake succeeds."""
    table = {**state_machine.TRANSITIONS, S.CONNECTING: frozenset({S.WAITING, S.FAILED, S.STOPPED})}
    monkeypatch.setattr(state_machine, "TRANSITIONS", table)


async def test_a_crashed_keeper_ends_the_block(autojump_clock, broken_table):
    """A bug of ours is a NurseryError with its cause, and the servers are ended."""
    server, sibling = ScriptedServer(Life(connects_after=1)), ScriptedServer(Life(mute=True, closes_after=1))
    with pytest.raises(NurseryError, match="please report") as caught:
        async with open_supervisor([spec(server), spec(sibling, "mute")], gate=0):
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, IllegalTransition)
    assert (server.ends, sibling.ends) == ([1], [2])


async def test_ctrl_c_in_a_task_of_ours_is_no_fault(autojump_clock, monkeypatch):
    monkeypatch.setattr(state_machine, "TRANSITIONS", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        async with open_supervisor([spec(ScriptedServer(Life(connects_after=1)))], gate=0):
            await trio.sleep_forever()


async def test_a_crash_at_the_gate(autojump_clock, broken_table):
    with pytest.raises(NurseryError, match="please report") as caught:
        async with open_supervisor([spec(ScriptedServer(Life(connects_after=1)))], gate=10):
            raise AssertionError("entered")
    assert isinstance(caught.value.__cause__, IllegalTransition)


async def test_a_crash_while_the_body_is_in_a_nursery(autojump_clock, broken_table):
    """The body's Cancelled, grouped or not, is no failure of the body."""
    with pytest.raises(NurseryError, match="please report") as caught:
        async with (
            open_supervisor([spec(ScriptedServer(Life(connects_after=1)))], gate=0),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(trio.sleep_forever)
    assert isinstance(caught.value.__cause__, IllegalTransition)


async def test_a_crash_and_an_exception_of_the_body(autojump_clock, broken_table):
    """Both come out: neither hides the other."""
    boom = Boom()
    with pytest.raises(ExceptionGroup) as caught:
        async with open_supervisor([spec(ScriptedServer(Life(connects_after=1)))], gate=0):
            try:
                await trio.sleep_forever()
            finally:
                raise boom
    assert caught.value.exceptions[0] is boom
    assert isinstance(caught.value.exceptions[1], NurseryError)
    assert isinstance(caught.value.exceptions[1].__cause__, IllegalTransition)


WAITERS = {
    "call_tool": lambda supervisor: supervisor.call_tool("mcp_lab_echo"),
    "call_tool with when_down": lambda supervisor: supervisor.call_tool("mcp_other_echo", when_down="wait"),
    "wait_connected": lambda supervisor: supervisor.wait_connected("lab"),
    "reconnect": lambda supervisor: supervisor.reconnect("lab"),
    "list_tools": lambda supervisor: supervisor.list_tools("lab"),
}


@pytest.mark.parametrize("act", WAITERS.values(), ids=WAITERS)
async def test_waiters_of_a_crashed_supervisor(autojump_clock, monkeypatch, act):
    """Whoever waits outside the block when the keeper it waits for crashes hears of it instead of waiting for ever."""
    server = ScriptedServer(Life(connects_after=3))
    other = ScriptedServer(Life(dies_after=1), Life(mute=True))
    ended: list[float] = []

    async def outside(supervisor):
        with pytest.raises(NurseryError):
            await act(supervisor)
        ended.append(trio.current_time())

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            with pytest.raises(NurseryError, match="please report"):
                async with open_supervisor([spec(server), spec(other, "other")], gate=0) as supervisor:
                    await trio.sleep(2)
                    broken = {**state_machine.TRANSITIONS, S.CONNECTING: frozenset({S.WAITING, S.FAILED, S.STOPPED})}
                    monkeypatch.setattr(state_machine, "TRANSITIONS", broken)
                    nursery.start_soon(outside, supervisor)
                    await trio.sleep_forever()
    assert ended == [3]


async def test_a_publisher_that_raises_ends_the_keeper(autojump_clock):
    """The keeper does not swallow it, and closes what it had opened."""
    server = ScriptedServer()

    class Raising:
        notices = NoticeHub()

        def prepare_all(self, new):
            yield
            return {}

        def publish(self, new, prepared):
            if new.state is S.CONNECTED:
                raise Boom

        def trace(self, server):
            return nullcontext()

        def account(self, server):
            return Account()

    one = spec(server, connect_timeout=0)
    settings = SupervisorSettings(RestartPolicy(), "{tool}", (), 5, {}, StoreWorker(MemoryStore()))
    vault = ServerVault(settings.vault)
    settings = KeeperSettings.of(
        one, settings, number=0, secrets=ServerSecrets(), counter=CallCounter(print), tokens=vault
    )
    keeper = Keeper(StateMachine.configured(one, RestartPolicy(), trio.current_time()), settings, Raising())
    with pytest.raises(ExceptionGroup) as caught:
        await keeper.run()
    assert caught.group_contains(Boom)
    assert len(server.ends) == len(server.starts) == 1


# -- drain --------------------------------------------------------------------------------------------------------


async def nap(arguments) -> object:
    await trio.sleep(arguments["for"])
    return "rested"


@pytest.mark.parametrize("how", ["close", "stop", "remove"])
async def test_drain(autojump_clock, how):
    """Sent calls get `drain` seconds; those not sent fail at once, and say so."""
    server = ScriptedServer(tools={"nap": nap})
    outcomes: dict[int, tuple[float, str]] = {}

    async def call(supervisor, n: int, seconds: float):
        try:
            outcome = (await supervisor.call_tool("nap", {"for": seconds}, server="lab", resend="never")).full_text
        except ConnectionLost as lost:
            outcome = str(lost.delivery)
        outcomes[n] = (trio.current_time(), outcome)

    async with trio.open_nursery() as nursery:
        async with open_supervisor([spec(server, max_in_flight=2)], drain=3 if how == "close" else 0) as supervisor:
            for n, seconds in enumerate((2, 50, 1)):
                nursery.start_soon(call, supervisor, n, seconds)
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.5)
            if how == "stop":
                await supervisor.stop_server("lab", drain=3)
            elif how == "remove":
                await supervisor.remove_server("lab", drain=3)
        assert trio.current_time() == 3.5
    assert outcomes == {2: (0.5, "not_sent"), 0: (2, "rested"), 1: (3.5, "unknown")}
    assert len(server.calls) == 2


async def test_drain_is_over_when_nothing_is_in_flight(autojump_clock):
    """It is a bound, not a wait."""
    async with trio.open_nursery() as nursery:
        async with open_supervisor([spec(ScriptedServer(tools={"nap": nap}))], drain=60) as supervisor:
            nursery.start_soon(supervisor.call_tool, "mcp_lab_nap", {"for": 2})
            await trio.sleep(1)
        assert trio.current_time() == 2
    async with open_supervisor([spec(ScriptedServer())], drain=60):
        pass
    assert trio.current_time() == 2


async def test_no_drain_by_default(autojump_clock):
    """Calls in flight end at once, as lost; their outcome is unknown."""
    server = ScriptedServer(Life(closes_after=3), tools={"hang": hang})
    ended: list[tuple[float, str]] = []

    async def call(supervisor):
        with pytest.raises(ConnectionLost) as caught:
            await supervisor.call_tool("mcp_lab_hang")
        ended.append((trio.current_time(), caught.value.delivery))

    async with trio.open_nursery() as nursery, open_supervisor([spec(server)]) as supervisor:
        nursery.start_soon(call, supervisor)
        await trio.sleep(1)
    assert ended == [(1, "unknown")]
    assert trio.current_time() == 4


async def test_no_new_calls_while_closing(autojump_clock):
    """Intake stops first."""
    server = ScriptedServer(Life(closes_after=3))

    async def late(supervisor):
        await trio.sleep(2)
        with pytest.raises(SupervisorClosed):
            await supervisor.call_tool("mcp_lab_echo")

    async with trio.open_nursery() as nursery, open_supervisor([spec(server)]) as supervisor:
        nursery.start_soon(late, supervisor)
    assert server.calls == []


async def test_callers_that_wait_for_a_server_when_the_block_ends(autojump_clock):
    """They hear that the supervisor is closed, at once."""
    connecting, waiting = ScriptedServer(Life(mute=True)), ScriptedServer(Life(dies_after=0.5), Life(mute=True))
    ended: list[float] = []

    async def call(supervisor, name, **options):
        with pytest.raises(SupervisorClosed):
            await supervisor.call_tool(name, **options)
        ended.append(trio.current_time())

    specs = [spec(connecting, "a"), spec(waiting, "b")]
    async with trio.open_nursery() as nursery, open_supervisor(specs) as supervisor:
        await trio.sleep_until(1)
        nursery.start_soon(call, supervisor, "mcp_a_echo")
        nursery.start_soon(lambda: call(supervisor, "mcp_b_echo", when_down="wait"))
        await trio.sleep_until(2)
    assert ended == [2, 2]


# -- settings that cannot work ------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["{server}", "x", "{tool}{tool}", "{tool} {server}", "{other}_{tool}", ""])
async def test_a_bad_template(autojump_clock, template):
    """T2: a template that cannot name tools is a ConfigError, and nothing was started."""
    server = ScriptedServer()
    with pytest.raises(ConfigError, match="template"):
        async with open_supervisor([spec(server)], template=template):
            raise AssertionError("entered")
    assert server.starts == []


async def test_statistics(autojump_clock):
    """G12: exact."""
    specs = [
        spec(ScriptedServer(tools={"nap": nap, "hang": hang}), "a"),
        spec(ScriptedServer(), "b"),
        spec(ScriptedServer(Life(refuses="down")), "c"),
    ]
    async with open_supervisor(specs) as supervisor, trio.open_nursery() as nursery:
        await supervisor.call_tool("mcp_b_echo")
        nursery.start_soon(supervisor.call_tool, "mcp_a_hang")
        await trio.sleep(1)
        now = supervisor.statistics()
        assert (now.servers, now.connected, now.tools) == (3, 2, 3)
        assert (now.calls.in_flight, now.calls.done, now.calls.failed) == (1, 1, 0)
        assert (now.router.waiting, now.router.capacity, now.router.senders_blocked) == (0, 256, 0)
        nursery.cancel_scope.cancel()


# -- tasks that outlast their block -----------------------------------------------------------------------------------


async def serve(seen):
    """A service: it answers until it is cancelled."""
    try:
        await trio.sleep_forever()
    finally:
        seen.append("service")


async def test_what_cancels_a_service_nursery_reaches_its_block_first_and_then_its_tasks(autojump_clock):
    seen = []
    with trio.move_on_after(5) as scope:
        async with open_service_nursery() as services:
            services.start_soon(serve, seen)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(10)  # the service is still there
                    seen.append("block")
    assert scope.cancelled_caught
    assert seen == ["block", "service"]


async def test_leaving_the_block_waits_for_the_tasks_or_ends_them(autojump_clock):
    seen = []
    async with open_service_nursery() as services:
        services.start_soon(trio.sleep, 3)
    assert trio.current_time() == 3
    async with open_service_nursery() as services:
        services.start_soon(serve, seen)
        services.cancel_scope.cancel()
    assert seen == ["service"]


async def test_a_service_that_crashes_ends_the_block(autojump_clock):
    async def crash():
        await trio.sleep(1)
        raise ZeroDivisionError

    seen = []
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with open_service_nursery() as services:
            services.start_soon(serve, seen)
            services.start_soon(crash)
            await trio.sleep_forever()
    assert seen == ["service"]
    assert trio.current_time() == 1


async def test_a_block_that_raises_ends_its_services(autojump_clock):
    seen = []
    with pytest.RaisesGroup(ZeroDivisionError):
        async with open_service_nursery() as services:
            services.start_soon(serve, seen)
            await trio.sleep(1)
            raise ZeroDivisionError
    assert seen == ["service"]
