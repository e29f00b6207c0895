"""Every process ends with the supervisor, in bounded time, however the block is left and whatever a server does."""

import json
import os
import time

import pytest
import trio

from mcp_nursery.actors.process.command import is_about_network
from mcp_nursery.supervisor import CallTimeout, ConnectionLost, open_supervisor
from mcp_nursery.supervisor.errors import Delivery, SupervisorClosed
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import Tree, eventually, is_alive, lab, next_state, status_of, supervised
from ..lab.timely import in_time, timely

pytestmark = pytest.mark.slow

STUBBORN = {"ignore": "eof,term"}


class HostFailed(Exception):
    pass


async def close(supervisor, scope):
    pass


async def cancel(supervisor, scope):
    scope.cancel()
    await trio.sleep_forever()


async def fail(supervisor, scope):
    raise HostFailed


async def stop(supervisor, scope):
    await supervisor.stop_server("lab")


async def reconnect_in_vain(supervisor):
    with pytest.raises(SupervisorClosed):
        await supervisor.reconnect("lab")


async def spawn_relatives(supervisor):
    """The server's process tree, and the pids of three grandchildren that are each found in another way."""
    tree = Tree(status_of(supervisor).pid)
    pids = [
        int((await supervisor.call_tool("spawn", {"place": place}, server="lab")).full_text)
        for place in ("group", "session", "holder")
    ]
    assert tree.living() == {tree.pid, *pids}
    return tree, pids


@pytest.mark.parametrize("leave", [close, cancel, fail, stop])
@timely
async def test_nobody_of_a_server_outlives_it(leave):
    """Q1, L11: neither of its process group nor of those who carry its marker, a grandchild that called setsid."""
    with trio.fail_after(60), trio.CancelScope() as scope:
        try:
            async with supervised(lab()) as supervisor:
                tree, pids = await spawn_relatives(supervisor)
                began = time.monotonic()
                await leave(supervisor, scope)
        except HostFailed:
            assert leave is fail
    taken = time.monotonic() - began
    assert scope.cancelled_caught == (leave is cancel)
    assert not tree.living()
    assert not any(map(is_alive, (tree.pid, *pids)))
    in_time(taken, 1.5)  # none of them was so stubborn that it had to be killed


@pytest.mark.parametrize("specs", [[], [lab()]], ids=["without servers", "with one"])
async def test_a_group_of_the_hosts_own_is_nobodys_crash(specs):
    """Q1: what fails in a nursery of the block comes out as that nursery raised it."""

    async def work():
        raise HostFailed

    with pytest.raises(ExceptionGroup) as caught:
        async with open_supervisor(specs), trio.open_nursery() as nursery:
            nursery.start_soon(work)
    assert [type(error) for error in caught.value.exceptions] == [HostFailed]


async def test_grandchildren_end_when_their_server_died_first(journal):
    """Q1, L11: before the next incarnation starts."""
    async with supervised(lab(journal=journal)) as supervisor:
        tree, pids = await spawn_relatives(supervisor)
        with pytest.raises(ConnectionLost):
            await supervisor.call_tool("crash", server="lab")
        await supervisor.call_tool("echo", server="lab", when_down="wait")
        assert journal.count("start") == 2
        assert not tree.living()
        assert not any(map(is_alive, pids))


@timely
async def test_a_polite_server_ends_at_the_end_of_its_input(journal):
    """L11: no signal is sent to a server that needs none."""
    journal.clear()
    async with supervised(lab(journal=journal)):
        left = time.monotonic()
    in_time(time.monotonic() - left, 0.5)
    assert (journal.count("eof"), journal.count("term")) == (1, 0)


@timely
async def test_the_steps_of_closing(journal):
    """L11: the end of stdin, 2 s, SIGTERM, 2 s, SIGKILL."""
    journal.clear()
    async with supervised(lab(journal=journal, flags=STUBBORN)) as supervisor:
        pid = status_of(supervisor).pid
        left = time.monotonic()
    taken = time.monotonic() - left
    assert taken >= 4
    assert not is_alive(pid)
    in_time(taken, 4.5)
    (eof,), (term,) = journal.times("eof"), journal.times("term")
    assert term - left >= 2
    in_time(eof - left, 0.3)
    in_time(term - left, 2.3)


@timely
async def test_twenty_stubborn_servers_close_in_one_grace_period(caplog):
    """Q13, L10: side by side, within the 5 s that a user is promised."""
    caplog.clear()
    specs = [lab(f"s{number}", flags=STUBBORN) for number in range(20)]
    async with supervised(*specs) as supervisor:
        trees = [Tree(status.pid) for status in supervisor.status()]
        left = time.monotonic()
    taken = time.monotonic() - left
    assert taken >= 4
    assert not any(is_alive(tree.pid) for tree in trees)
    in_time(taken, 5.0)
    assert not caplog.records  # nobody was left behind


@timely
async def test_leaving_while_servers_start_and_never_answer():
    """L10: the same bound in the middle of a handshake."""
    specs = [lab(f"m{number}", flags={"mute": "yes", **STUBBORN}) for number in range(5)]
    with trio.fail_after(60):
        async with open_supervisor(specs) as supervisor:
            await eventually(lambda: all(status.pid is not None for status in supervisor.status()))
            pids = [status.pid for status in supervisor.status()]
            left = time.monotonic()
        taken = time.monotonic() - left
    assert not any(map(is_alive, pids))
    in_time(taken, 5.0)


@timely
async def test_a_caller_does_not_wait_for_a_teardown(nursery):
    """Q13: the old incarnation takes 4 s to close; calls that wait for the next one have 1 s."""
    ended = {}

    async def with_timeout():
        with pytest.raises(CallTimeout) as caught:
            await supervisor.call_tool("echo", server="lab", timeout=1)
        ended["timeout"] = time.monotonic()
        assert caught.value.delivery is Delivery.NOT_SENT

    async def with_deadline():
        with trio.move_on_after(1):
            await supervisor.call_tool("echo", server="lab")
        ended["deadline"] = time.monotonic()

    async with supervised(lab(flags=STUBBORN)) as supervisor:
        asked = time.monotonic()
        async with supervisor.events() as events:
            nursery.start_soon(reconnect_in_vain, supervisor)
            await next_state(events, ServerState.CONNECTING)
        began = time.monotonic()
        async with trio.open_nursery() as callers:
            callers.start_soon(with_timeout)
            callers.start_soon(with_deadline)
        for way in ("timeout", "deadline"):
            assert ended[way] - began >= 1
            in_time(ended[way] - began, 1.1)
        assert status_of(supervisor).state is ServerState.CONNECTING
    assert time.monotonic() - asked >= 4
    in_time(time.monotonic() - asked, 5.0)


@timely
async def test_who_waits_for_a_stop_may_give_up():
    """Q13: the stop goes on without its caller."""
    async with supervised(lab(flags=STUBBORN)) as supervisor:
        pid = status_of(supervisor).pid
        began = time.monotonic()
        with trio.move_on_after(1) as caller:
            await supervisor.stop_server("lab")
        assert caller.cancelled_caught
        returned = time.monotonic()
        assert status_of(supervisor).state is ServerState.STOPPED
        await eventually(lambda: not is_alive(pid))
    in_time(returned - began, 1.2)


@timely
async def test_a_stop_of_a_stubborn_server_that_never_answers(journal):
    """L10, L11: the steps of closing are the same in the middle of a handshake."""
    journal.clear()
    with trio.fail_after(60):
        async with open_supervisor([lab(journal=journal, flags={"mute": "yes", **STUBBORN})], gate=0) as supervisor:
            await eventually(lambda: journal.count("start"))
            pid = status_of(supervisor).pid
            began = time.monotonic()
            await supervisor.stop_server("lab")
            taken = time.monotonic() - began
            assert not is_alive(pid)
    (term,) = journal.times("term")
    assert taken >= 4
    assert term - began >= 2
    in_time(taken, 4.5)
    in_time(term - began, 2.3)


async def test_a_child_gets_a_small_environment(monkeypatch):
    """K6: ten of the host's variables and those about the network, the server's own, and the marker."""
    monkeypatch.setenv("PLANTED_TOKEN", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    inherited = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP"]
    async with supervised(lab(env={"OWN": "value", "TERM": "dumb"})) as supervisor:
        result = await supervisor.call_tool("environment", server="lab")
    environment = json.loads(result.full_text)
    assert "PLANTED_TOKEN" not in environment
    assert "secret" not in result.full_text
    assert environment["OWN"] == "value"
    assert environment["TERM"] == "dumb"
    assert environment["LC_ALL"] == "C.UTF-8"
    of_the_network = {name for name in os.environ if is_about_network(name)}
    assert environment.keys() <= {*inherited, *of_the_network, "OWN", "MCP_NURSERY_INCARNATION"}
