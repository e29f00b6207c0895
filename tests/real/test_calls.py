"""Each call gets one outcome, on time, and says truly whether the server may have acted."""

import os
import signal
import time

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import CallTimeout, ConnectionLost, ServerBusy
from mcp_nursery.supervisor.errors import Delivery

from ..lab.processes import eventually, lab, outcome_of, status_of, supervised
from ..lab.timely import in_time, timely

MEGABYTES = {"text": "x" * (3 << 20)}
"""More than a pipe holds, so that its write begins and does not end."""


@pytest.mark.parametrize("held", [False, True], ids=["alone", "a grandchild holds its output"])
@timely
async def test_every_pending_call_learns_of_a_death(held):
    """Q14, R3: in less than 0.1 s, with the exit code and the last words."""
    outcomes = []

    async def call(supervisor, number):
        arguments = {"seconds": 60, "says": f"word {number}\n"}
        outcomes.append(await outcome_of(supervisor.call_tool("sleep", arguments, server="lab")))

    async with supervised(lab()) as supervisor:
        pid = status_of(supervisor).pid
        if held:
            await supervisor.call_tool("spawn", {"place": "holder"}, server="lab")
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(call, supervisor, number)
            await trio.testing.wait_all_tasks_blocked()
            await supervisor.call_tool("sleeping", {"count": 10}, server="lab")
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
        assert status_of(supervisor).calls.failed == 10
    assert len(outcomes) == 10
    for error, _ in outcomes:
        assert isinstance(error, ConnectionLost)
        assert error.exit_code == -signal.SIGKILL
        assert sorted(error.stderr_tail.split("\n")) == sorted(f"word {number}" for number in range(10))
        assert error.delivery is Delivery.UNKNOWN
        assert error.incarnation == 1
        assert "killed by SIGKILL" in str(error)
    in_time(max(at for _, at in outcomes) - killed, 0.1)


async def test_a_side_effect_happens_once(journal):
    """Q15: the server commits and dies; the caller learns that it may have acted, and nothing is sent again."""
    async with supervised(lab(journal=journal)) as supervisor:
        with pytest.raises(ConnectionLost) as caught:
            await supervisor.call_tool("commit", {"code": 7}, server="lab")
        assert caught.value.delivery is Delivery.UNKNOWN
        assert caught.value.exit_code == 7
        result = await supervisor.call_tool("echo", {"text": "next"}, server="lab", when_down="wait")
        assert (result.full_text, result.incarnation) == ("next", 2)
    assert journal.count("commit") == 1


async def test_a_lost_read_is_sent_again(journal):
    """Q15: the tool is declared read-only, by a server whose hints are trusted; one answer for two tries."""
    async with supervised(lab(journal=journal)) as supervisor:
        result = await supervisor.call_tool("fetch", server="lab")
        assert (result.full_text, result.incarnation) == ("fetched", 2)
    assert journal.count("fetch") == 2
    assert journal.count("start") == 2


@pytest.mark.parametrize(
    ("tool", "arguments", "options"),
    [("fetch", {"deaths": 9}, {}), ("commit", {"code": 7}, {"resend": "always"})],
    ids=["read", "always"],
)
async def test_nothing_is_sent_a_third_time(journal, tool, arguments, options):
    """Q15, R2: a call that kills each server it reaches, and may be sent again."""
    async with supervised(lab(journal=journal)) as supervisor:
        with pytest.raises(ConnectionLost) as caught:
            await supervisor.call_tool(tool, arguments, server="lab", **options)
        assert (caught.value.delivery, caught.value.incarnation) == (Delivery.UNKNOWN, 2)
        await supervisor.call_tool("echo", server="lab", when_down="wait")
    assert journal.count(tool) == 2


async def test_what_was_not_sent_when_the_server_died_is_sent_to_the_next(journal):
    """R2: calls that waited for room are executed once each, by the next incarnation, whatever they do."""
    results = []

    async def commit(supervisor, token):
        results.append(await supervisor.call_tool("commit", {"token": token}, server="lab", when_down="wait"))

    async with supervised(lab(journal=journal, max_in_flight=1)) as supervisor:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, supervisor.call_tool("sleep", {"seconds": 60}, server="lab"))
            await trio.testing.wait_all_tasks_blocked()
            for token in "abc":
                nursery.start_soon(commit, supervisor, token)
            await trio.testing.wait_all_tasks_blocked()
            assert journal.count("commit") == 0
            os.kill(status_of(supervisor).pid, signal.SIGKILL)
        assert {result.incarnation for result in results} == {2}
    assert sorted(journal.details("commit")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("settings", "options"), [({"trust_hints": False}, {}), ({}, {"resend": "never"})], ids=["hints", "never"]
)
async def test_a_lost_read_is_not_sent_again(journal, settings, options):
    """Q15: if nobody trusts the hint, or the caller forbids it."""
    async with supervised(lab(journal=journal, **settings)) as supervisor:
        with pytest.raises(ConnectionLost):
            await supervisor.call_tool("fetch", server="lab", **options)
        await supervisor.call_tool("echo", server="lab", when_down="wait")
    assert journal.count("fetch") == 1


async def test_the_server_hears_of_every_kind_of_cancel(journal):
    """Q16, R6: a scope that is cancelled, a scope's deadline, a timeout."""
    scopes = {}

    async def sleep(supervisor, label, **options):
        with trio.CancelScope() as scopes[label]:
            await supervisor.call_tool("sleep", {"seconds": 60, "label": label}, server="lab", **options)

    async def timed_out(supervisor):
        with pytest.raises(CallTimeout) as caught:
            await sleep(supervisor, "timeout", timeout=0.1)
        return caught.value.delivery

    async with supervised(lab(journal=journal)) as supervisor, trio.open_nursery() as nursery:
        for label in ("scope", "deadline"):
            nursery.start_soon(sleep, supervisor, label)
        await trio.testing.wait_all_tasks_blocked()
        await supervisor.call_tool("sleeping", {"count": 2}, server="lab")
        while await timed_out(supervisor) is Delivery.NOT_SENT:
            pass  # so there is nothing to hear of
        scopes["deadline"].deadline = trio.current_time() + 0.1
        scopes["scope"].cancel()
        heard = await supervisor.call_tool("cancelled", {"count": 3}, server="lab", timeout=30)
        assert sorted(heard.full_text.split()) == ["deadline", "scope", "timeout"]
    assert journal.count("cancelled") == 3


async def test_one_cancel_ends_one_call():
    """Q17, Q19, R6: 1 of 5 is cancelled, 4 finish side by side, and it is the same process."""
    results = {}

    async def sleep(supervisor, label, *, task_status=trio.TASK_STATUS_IGNORED):
        with trio.CancelScope() as scope:
            task_status.started(scope)
            arguments = {"seconds": 60, "label": label}
            results[label] = (await supervisor.call_tool("sleep", arguments, server="lab")).full_text

    async with supervised(lab()) as supervisor:
        pid = status_of(supervisor).pid
        async with trio.open_nursery() as nursery:
            scopes = [await nursery.start(sleep, supervisor, label) for label in "abcde"]
            await supervisor.call_tool("sleeping", {"count": 5}, server="lab")  # all of them at once
            scopes[2].cancel()
            assert (await supervisor.call_tool("cancelled", {"count": 1}, server="lab")).full_text == "c"
            assert results == {}
            await supervisor.call_tool("wake", server="lab")
        assert results == {label: label for label in "abde"}
        assert status_of(supervisor).pid == pid
        assert status_of(supervisor).incarnation == 1


@pytest.mark.slow
async def test_progress_keeps_a_call_alive_and_the_hard_cap_ends_it():
    """Q18, R4: reports every 0.5 s for 4 s: an idle timeout of 3 s never fires, a timeout of 1 s does."""
    reports, outcomes = [], {}

    async def note(progress, total, message):
        reports.append(progress)

    async def tick(supervisor, label, **options):
        arguments = {"steps": 8, "every": 0.5}
        outcomes[label] = await outcome_of(supervisor.call_tool("tick", arguments, server="lab", **options))

    async with supervised(lab()) as supervisor:
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: tick(supervisor, "idle", idle_timeout=3, on_progress=note))
            nursery.start_soon(lambda: tick(supervisor, "unwatched", idle_timeout=3))
            nursery.start_soon(lambda: tick(supervisor, "capped", idle_timeout=3, timeout=1))
            nursery.start_soon(lambda: tick(supervisor, "hurried", timeout=1, on_progress=note))
    results = {label: outcome for label, (outcome, _) in outcomes.items()}
    taken = {label: at - began for label, (_, at) in outcomes.items()}
    for label in ("idle", "unwatched"):
        assert results[label].full_text == "8"
        assert taken[label] >= 4
    for label in ("capped", "hurried"):
        assert isinstance(results[label], CallTimeout)
        assert str(results[label]).endswith("no answer within 1 s")
        assert taken[label] >= 1
    assert len(reports) > 8


@timely
async def test_a_server_that_falls_silent_is_idle():
    """Q18, R4: after its last report, by the idle timeout, though the hard cap is far."""
    async with supervised(lab()) as supervisor:
        began = time.monotonic()
        with pytest.raises(CallTimeout, match=r"no progress for 0\.5 s"):
            await supervisor.call_tool("sleep", {"seconds": 60}, server="lab", idle_timeout=0.5, timeout=20)
        taken = time.monotonic() - began
    assert taken >= 0.5
    in_time(taken, 1)


async def test_a_hundred_bursts_of_progress():
    """R5: read in one go, given in order and before the result."""
    async with supervised(lab()) as supervisor:
        for _ in range(100):
            seen = []

            async def note(progress, total, message, seen=seen):
                await trio.lowlevel.checkpoint()
                seen.append((progress, message))

            seen.append((await supervisor.call_tool("burst", {"steps": 20}, server="lab", on_progress=note)).full_text)
            assert seen == [*((step, f"step {step}") for step in range(20)), "done"]


@pytest.mark.slow
@timely
async def test_a_wedged_server_holds_nobody():
    """Q32, R4: the child reads no more, and every caller returns when it said it would; other servers go on."""
    outcomes = {}

    async def call(supervisor, label, arguments, **options):
        outcomes[label] = await outcome_of(supervisor.call_tool("echo", arguments, server="lab", **options))

    async def call_within(supervisor, label, seconds):
        with trio.move_on_after(seconds):
            await call(supervisor, "never", {})
        outcomes[label] = None, time.monotonic()

    async with supervised(lab(), lab("other")) as supervisor:
        await supervisor.call_tool("deaf", server="lab")
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: call(supervisor, "begun", MEGABYTES, timeout=0.5))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lambda: call(supervisor, "queued", MEGABYTES, timeout=0.5))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lambda: call(supervisor, "refused", MEGABYTES, timeout=0.5))
            nursery.start_soon(lambda: call(supervisor, "small", {"text": "y"}, timeout=0.4))
            nursery.start_soon(lambda: call_within(supervisor, "scope", 0.3))
            other = await outcome_of(supervisor.call_tool("echo", {"text": "well"}, server="other"))
        taken = {label: at - began for label, (_, at) in outcomes.items()}
        for label, seconds in {"begun": 0.5, "queued": 0.5, "small": 0.4, "scope": 0.3}.items():
            assert taken[label] >= seconds
            in_time(taken[label], seconds + 0.2)
        in_time(taken["refused"], 0.2)
        in_time(other[1] - began, 0.2)
        assert other[0].full_text == "well"
        errors = {label: error for label, (error, _) in outcomes.items()}
        assert isinstance(errors["refused"], ServerBusy)
        assert errors["refused"].delivery is Delivery.NOT_SENT
        deliveries = {"begun": Delivery.UNKNOWN, "queued": Delivery.NOT_SENT, "small": Delivery.NOT_SENT}
        for label, delivery in deliveries.items():
            assert isinstance(errors[label], CallTimeout)
            assert errors[label].delivery is delivery
        assert status_of(supervisor, "other").calls.done == 1
        left = time.monotonic()
    in_time(time.monotonic() - left, 5.0)


@pytest.mark.slow
async def test_a_stalled_server_is_busy_and_others_are_as_fast_as_before():
    """Q19, R10: 1000 calls of it: 512 wait, 488 are told at once; five calls of another still run side by side."""
    outcomes = []

    async def call(supervisor):
        outcomes.append(await outcome_of(supervisor.call_tool("echo", {}, server="stalled")))

    async with supervised(lab("stalled"), lab("other")) as supervisor:
        await supervisor.call_tool("deaf", server="stalled")
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(call, supervisor)
            await trio.testing.wait_all_tasks_blocked()
            assert len(outcomes) == 488
            async with trio.open_nursery() as others:
                for _ in range(5):
                    others.start_soon(lambda: supervisor.call_tool("sleep", {"seconds": 60}, server="other"))
                await trio.testing.wait_all_tasks_blocked()
                await supervisor.call_tool("sleeping", {"count": 5}, server="other")
                await supervisor.call_tool("wake", server="other")
            assert len(outcomes) == 488
            nursery.cancel_scope.cancel()
    assert all(isinstance(outcome, ServerBusy) for outcome, _ in outcomes)
    assert {outcome.delivery for outcome, _ in outcomes} == {Delivery.NOT_SENT}


async def test_a_full_mailbox_refuses():
    """Q32, R10: two calls are with the server, three wait, the rest is told at once; the next finds room again."""
    outcomes = []

    async def call(supervisor, tool, arguments):
        outcomes.append((await outcome_of(supervisor.call_tool(tool, arguments, server="lab")))[0])

    async with supervised(lab(max_in_flight=2, mailbox_size=3)) as supervisor:
        async with trio.open_nursery() as callers, trio.open_nursery() as held:
            for _ in range(2):
                held.start_soon(call, supervisor, "sleep", {"seconds": 60})
            await trio.testing.wait_all_tasks_blocked()
            for number in range(8):
                callers.start_soon(call, supervisor, "echo", {"text": str(number)})
            await trio.testing.wait_all_tasks_blocked()
            assert [type(outcome) for outcome in outcomes] == [ServerBusy] * 5
            held.cancel_scope.cancel()
        assert [outcome.is_error for outcome in outcomes[5:]] == [False] * 3
        assert (await supervisor.call_tool("echo", {"text": "room"}, server="lab")).full_text == "room"


@pytest.mark.slow
@timely
async def test_a_wedged_server_is_stopped_in_bounded_time():
    """Q32: with megabytes waiting for it; its callers learn of the end at once."""
    outcomes = []

    async def call(supervisor, arguments):
        outcomes.append(await outcome_of(supervisor.call_tool("echo", arguments, server="lab", resend="never")))

    async with supervised(lab()) as supervisor:
        pid = status_of(supervisor).pid
        await supervisor.call_tool("deaf", server="lab")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, supervisor, MEGABYTES)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(call, supervisor, {})
            await trio.testing.wait_all_tasks_blocked()
            began = time.monotonic()
            await supervisor.stop_server("lab")
        stopped = time.monotonic()
        assert all(isinstance(outcome, ConnectionLost) for outcome, _ in outcomes)
        assert {outcome.delivery for outcome, _ in outcomes} == {Delivery.UNKNOWN, Delivery.NOT_SENT}
        await eventually(lambda: not os.path.exists(f"/proc/{pid}"))
        in_time(max(at for _, at in outcomes) - began, 0.1)
        in_time(stopped - began, 4.5)
