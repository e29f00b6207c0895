"""A server that dies is noticed, ended whole and started again, as often as its policy says and no more."""

import os
import signal
import sys
import time

import psutil
import pytest
import trio
from attrs import evolve

from mcp_nursery.supervisor import (
    ConnectionLost,
    RestartPolicy,
    ServerDown,
    ServerSpec,
    StdioTransport,
    open_supervisor,
)
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import AT_ONCE, lab, next_state, status_of, supervised
from ..lab.timely import in_time, timely


def zombies():
    return [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def open_files():
    """What this process holds, by kind: `pipe`, `anon_inode`, a path."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(link).split(":")[0] for link in links if os.path.lexists(link))


@pytest.mark.slow
@timely
async def test_a_loss_while_idle_is_noticed_and_mended(journal):
    """L6: within 0.5 s; started again 2 s after that; the next call works."""
    async with supervised(lab(journal=journal, policy=RestartPolicy())) as supervisor, supervisor.events() as events:
        pid = status_of(supervisor).pid
        killed, killed_at = time.monotonic(), trio.current_time()
        os.kill(pid, signal.SIGKILL)
        lost = await next_state(events, ServerState.WAITING)
        assert lost.error == "killed by SIGKILL"
        restarted = await next_state(events, ServerState.CONNECTING)
        # The 2 s begin with the loss; `at` is when it was told, a moment later, and `retry_in` counts from there.
        due_at = lost.at + lost.retry_in
        assert lost.retry_in <= 2 <= due_at - killed_at
        assert restarted.at - due_at > -1e-6
        await next_state(events, ServerState.CONNECTED)
        assert journal.times("start")[-1] - killed >= 2
        in_time(lost.at - killed_at, 0.5)
        in_time(restarted.at - due_at, 0.1)
        in_time(journal.times("start")[-1] - killed, 2.5)
        result = await supervisor.call_tool("echo", {"text": "back"}, server="lab")
        assert (result.full_text, result.incarnation) == ("back", 2)
        assert status_of(supervisor).pid not in (pid, None)


@pytest.mark.parametrize(
    ("said", "later", "error"),
    [
        ("listening on stdio", 2.5, "killed by SIGKILL"),
        ("listening on stdio", 0, "killed by SIGKILL: listening on stdio"),
        ("error: no disk", 10, "killed by SIGKILL: error: no disk"),
    ],
)
async def test_a_loss_names_what_the_process_said_when_it_ended(said, later, error, mock_clock):
    """L6: or what looks like an error. What it once said at its start is not why."""
    command = ["-c", 'echo "$0" >&2; exec "$@"', said, *lab().transport.argv]
    spec = evolve(lab(), transport=StdioTransport("sh", command))
    async with supervised(spec) as supervisor, supervisor.events() as events:
        mock_clock.jump(later)
        os.kill(status_of(supervisor).pid, signal.SIGKILL)
        assert (await next_state(events, ServerState.WAITING)).error == error


@timely
async def test_a_loss_is_noticed_although_somebody_holds_the_pipe():
    """L6: the process's exit counts, not only the end of its output."""
    async with supervised(lab()) as supervisor, supervisor.events() as events:
        await supervisor.call_tool("spawn", {"place": "holder"}, server="lab")
        killed_at = trio.current_time()
        os.kill(status_of(supervisor).pid, signal.SIGKILL)
        lost = await next_state(events, ServerState.WAITING)
        assert (await next_state(events, ServerState.CONNECTED)).incarnation == 2
        in_time(lost.at - killed_at, 0.5)


@pytest.mark.slow
async def test_a_server_that_always_fails_is_tried_four_times(journal):
    """L3: by a ladder of the default's shape, a twentieth of its height, then never again."""
    delays = [0.1, 0.25, 0.75]
    spec = lab(journal=journal, flags={"exit": 1}, policy=RestartPolicy(delays=delays), lazy=True)
    with trio.fail_after(60):
        async with open_supervisor([spec]) as supervisor, supervisor.events() as events:
            began = trio.current_time()
            await supervisor.start_server("lab")
            for delay in delays:
                lost = await next_state(events, ServerState.WAITING)
                restarted = await next_state(events, ServerState.CONNECTING)
                due_at = lost.at + lost.retry_in
                assert lost.retry_in <= delay <= due_at - began
                assert due_at <= restarted.at + 1e-6
                began = restarted.at
            await next_state(events, ServerState.FAILED)
            with pytest.raises(ServerDown) as caught:
                await supervisor.wait_connected("lab")
            assert caught.value.state is ServerState.FAILED
            assert status_of(supervisor).retry_in is None
            with trio.move_on_after(1):
                raise AssertionError((await events.receive(), "after it was given up"))
    assert journal.count("start") == 4


@pytest.mark.parametrize("flags", [{"exit": "1"}, {"greet": "1"}], ids=["exits", "greets and exits"])
async def test_no_start_beyond_the_ladder(journal, flags):
    """Q6, L3: whether it greets before it exits or not."""
    spec = lab(journal=journal, flags=flags, policy=RestartPolicy(delays=[0.05] * 3))
    with trio.fail_after(60):
        async with open_supervisor([spec]) as supervisor, supervisor.events() as events:
            if status_of(supervisor).state is not ServerState.FAILED:
                await next_state(events, ServerState.FAILED)
    assert journal.count("start") == 4


async def test_a_program_that_exits_at_once_is_started_once_an_attempt(journal):
    """L3, Q23: it never read the era probe, so it did not die of it, and no extra start is due."""
    script = 'echo "start 0" >> "$1"; exit 1'
    transport = StdioTransport("/bin/sh", ["-c", script, "sh", str(journal.path)])
    policy = RestartPolicy(delays=[])
    specs = [ServerSpec(f"s{number}", transport, policy=policy) for number in range(5)]
    with trio.fail_after(60):
        for spec in specs:  # one by one: it is a race
            async with open_supervisor([spec], gate=60) as supervisor:
                assert status_of(supervisor, spec.name).state is ServerState.FAILED
    assert journal.count("start") == len(specs)


@pytest.mark.slow
async def test_many_crashes_leave_nothing_behind(journal):
    """Q2: 50 cycles; no zombie, no second process, and as many open files as before."""
    others = {child.pid for child in psutil.Process().children()}  # servers of other tests
    async with supervised(lab(journal=journal), within=120) as supervisor, supervisor.events() as events:
        for cycle in range(50):
            with pytest.raises(ConnectionLost):
                await supervisor.call_tool("crash", server="lab")
            if cycle == 2:
                files = open_files()
            connected = await next_state(events, ServerState.CONNECTED)
            assert connected.incarnation == cycle + 2
            assert not zombies()
        with pytest.raises(ConnectionLost):
            await supervisor.call_tool("crash", server="lab")
        assert open_files() == files
        await next_state(events, ServerState.CONNECTED)
        assert {child.pid for child in psutil.Process().children()} - others == {status_of(supervisor).pid}
    assert journal.count("start") == 52


async def test_the_failures_of_some_are_nothing_to_the_others(tmp_path):
    """Q4: a program that does not exist, one that is no server, and one killed in its work."""
    transports = {
        "missing": StdioTransport("/nowhere/to/be/found"),
        "no_server": StdioTransport(sys.executable, ["-I", "-S", "-c", "raise SystemExit(3)"]),
        "no_place": StdioTransport(sys.executable, cwd=tmp_path / "gone"),
    }
    bad = [ServerSpec(name, transport, policy=AT_ONCE) for name, transport in transports.items()]
    others = [lab("a"), lab("b")]
    results = {}

    async def work(supervisor, server):
        """Before, while and after the failures, and nothing is caught here."""
        for step in range(20):
            result = await supervisor.call_tool("sleep", {"seconds": 0.02, "label": str(step)}, server=server)
            results[server, step] = (result.full_text, result.incarnation)

    with trio.fail_after(60):
        async with open_supervisor([*bad, *others, lab()]) as supervisor:
            for name in ("a", "b", "lab"):
                await supervisor.wait_connected(name)
            pids = {status.name: status.pid for status in supervisor.status()}
            async with supervisor.events() as events, trio.open_nursery() as nursery:
                for spec in others:
                    nursery.start_soon(work, supervisor, spec.name)
                for incarnation in range(2, 5):
                    os.kill(status_of(supervisor).pid, signal.SIGKILL)
                    assert (await next_state(events, ServerState.CONNECTED)).incarnation == incarnation
            for spec in others:
                assert status_of(supervisor, spec.name).pid == pids[spec.name]
            assert status_of(supervisor, "missing").state is ServerState.FAILED
            assert status_of(supervisor, "missing").incarnation == 1
            assert "does not exist" in status_of(supervisor, "missing").error
            assert "does not exist" in status_of(supervisor, "no_place").error
            assert "exited with code 3" in status_of(supervisor, "no_server").error
    assert results == {(spec.name, step): (str(step), 1) for spec in others for step in range(20)}


async def test_whoever_got_a_loss_sees_it_everywhere():
    """Q22: a server is not shown as connected to a caller who was just told that it is not."""
    async with supervised(lab()) as supervisor:
        for incarnation in range(1, 6):
            with pytest.raises(ConnectionLost) as caught:
                await supervisor.call_tool("crash", server="lab")
            assert caught.value.incarnation == incarnation
            assert status_of(supervisor).state is not ServerState.CONNECTED
            assert (await supervisor.wait_connected("lab")).incarnation == incarnation + 1
