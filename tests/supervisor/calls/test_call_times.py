"""Timeouts, progress and cancelling of one call. Times are exact: the clock is virtual."""

import math
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import CallTimeout, ConfigError
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer, report_progress, run_virtual

from ...lab.callers import TEXT, Peer, S, nap, outcome_of, ticking
from ...lab.specs import hang, spec

# -- time --------------------------------------------------------------------------------------------------------------


async def test_no_timeout_by_default(autojump_clock):
    """R4: deliberately."""
    async with open_supervisor([spec(ScriptedServer(tools={"nap": nap}))]) as supervisor:
        assert (await supervisor.call_tool("mcp_lab_nap", {"for": 100_000})).duration == 100_000


@pytest.mark.parametrize(
    ("environment", "server", "call", "elapsed"),
    [
        ("5000", None, None, 5),
        ("5000", 3.0, None, 3),
        ("5000", 3.0, 7, 7),
        (None, 3.0, None, 3),
        (None, 3.0, math.inf, 100),
        ("0", None, None, 100),
        ("5000", 0.0, None, 100),
        ("5000", None, 0, 0),
    ],
)
def test_whose_timeout(monkeypatch, environment, server, call, elapsed):
    """R4: the call's own, then the server's, then `MCP_TOOL_TIMEOUT` (ms), then none."""
    monkeypatch.delenv("MCP_TOOL_TIMEOUT", raising=False)
    if environment is not None:
        monkeypatch.setenv("MCP_TOOL_TIMEOUT", environment)

    async def main():
        one = spec(ScriptedServer(tools={"nap": nap}), call_timeout=server)
        async with open_supervisor([one]) as supervisor:
            outcome = await outcome_of(partial(supervisor.call_tool, "mcp_lab_nap", {"for": 100}, timeout=call))
            assert trio.current_time() == elapsed
            if elapsed < 100:
                assert isinstance(outcome, CallTimeout)
                assert outcome.timeout == elapsed
                assert outcome.delivery == ("unknown" if elapsed else "not_sent")

    run_virtual(main)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("name", "server", "elapsed"), [("nap", "lab", 5), ("mcp_lab_nap", None, 6)])
async def test_the_server_s_timeout_bounds_the_wait_for_it(autojump_clock, name, server, elapsed, lazy):
    """R4: from the start if the server is named; if not, a call is not sent whose time was over when it was found."""
    one = ScriptedServer(Life(connects_after=6), tools={"nap": nap})
    async with open_supervisor([spec(one, lazy=lazy, call_timeout=5)], gate=0) as supervisor:
        with pytest.raises(CallTimeout, match="within 5 s") as caught:
            await supervisor.call_tool(name, {}, server=server)
        assert (trio.current_time(), caught.value.delivery) == (elapsed, "not_sent")
        await trio.sleep(5)
        assert one.calls == []


async def test_the_timeout_bounds_a_callback_for_notices(autojump_clock):
    """R4: as it does one for progress; the server gets to know that the call was given up."""

    async def reporting(arguments):
        await report_progress(1, 2)
        await trio.sleep_forever()

    async def slow(method, params):
        await trio.sleep(100)

    server = ScriptedServer(tools={"work": reporting})
    async with open_supervisor([spec(server)]) as supervisor:
        params, meta = {"name": "work", "arguments": {}}, {"progressToken": 1}
        with pytest.raises(CallTimeout) as caught:
            await supervisor.request("lab", "tools/call", params, meta=meta, timeout=1, on_notice=slow)
        assert (trio.current_time(), caught.value.delivery) == (1, "unknown")
        await trio.sleep(1)
        assert len(server.cancelled) == 1


async def test_bad_timeouts(autojump_clock, monkeypatch):
    """R4: a clear error, before anything is started or sent."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        for timeout in (-1, math.nan, -math.inf):
            with pytest.raises(ValueError, match=str(timeout)):
                await supervisor.call_tool("mcp_lab_echo", timeout=timeout)
        for timeout in (10**400, 10**5000):
            refused = f"must be seconds within the range of a float, not an integer of {timeout.bit_length()} bits$"
            for given in ({"timeout": timeout}, {"idle_timeout": timeout}):
                with pytest.raises(ValueError, match=f"^{next(iter(given))} {refused}"):
                    await supervisor.call_tool("mcp_lab_echo", **given)
            with pytest.raises(ValueError, match=f"^drain {refused}"):
                await supervisor.stop_server("lab", drain=timeout)
        assert server.calls == []
    monkeypatch.setenv("MCP_TOOL_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="MCP_TOOL_TIMEOUT"):
        async with open_supervisor([spec(server)]):
            raise AssertionError("entered")
    assert len(server.starts) == 1


async def test_the_timeout_bounds_the_write(autojump_clock):
    """R4, Q32: a server that reads no more holds no caller; the frame that never left is withdrawn."""
    server = ScriptedServer(Life(deaf_after=2))
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(CallTimeout, match="no answer within 2 s") as caught:
            await supervisor.call_tool("mcp_lab_echo", timeout=2)
        assert (trio.current_time(), caught.value.delivery, caught.value.incarnation) == (2, "not_sent", 1)
        with trio.move_on_after(1) as scope:
            await supervisor.call_tool("mcp_lab_echo")
        assert (scope.cancelled_caught, trio.current_time()) == (True, 3)


async def test_the_timeout_includes_the_wait(autojump_clock):
    """R4: seconds for all of it."""
    server = ScriptedServer(Life(connects_after=3), tools={"nap": nap})
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(CallTimeout) as caught:
            await supervisor.call_tool("mcp_lab_nap", {"for": 10}, timeout=5)
        assert (trio.current_time(), caught.value.delivery) == (5.25, "unknown")


@pytest.mark.parametrize(
    ("times", "end", "options", "elapsed", "error"),
    [
        ([], None, {"idle_timeout": 3}, 3, "no progress for 3 s"),
        ([2, 4, 6], 8, {"idle_timeout": 3}, 8, None),
        ([2, 4, 6], None, {"idle_timeout": 3}, 9, "no progress for 3 s"),
        ([2, 4, 6], 8, {"idle_timeout": 3, "timeout": 7}, 7, "no answer within 7 s"),
        ([2, 4, 6], 8, {"timeout": 3}, 3, "no answer within 3 s"),
    ],
)
def test_idle_timeout(times, end, options, elapsed, error):
    """R4, Q18: progress resets the idle timeout, not the hard cap; without a callback too."""

    async def main():
        async with open_supervisor([ServerSpec("peer", ticking(times, end=end))]) as supervisor:
            outcome = await outcome_of(partial(supervisor.call_tool, "mcp_peer_work", **options))
            assert trio.current_time() == elapsed
            if error is None:
                assert outcome.full_text == "done"
            else:
                assert isinstance(outcome, CallTimeout)
                assert error in str(outcome)
                assert outcome.delivery == "unknown"

    run_virtual(main)


async def test_a_slow_callback_is_not_an_idle_server(autojump_clock):
    """R4: progress that arrived while the host was busy with the last one has arrived."""

    async def slowly(progress, total, message) -> None:
        await trio.sleep(2.5)

    async with open_supervisor([ServerSpec("peer", ticking([1, 2, 3, 4], end=5))]) as supervisor:
        result = await supervisor.call_tool("mcp_peer_work", idle_timeout=2, on_progress=slowly)
        assert result.full_text == "done"


# -- progress ----------------------------------------------------------------------------------------------------------


def test_progress_in_order_before_the_result():
    """R5: 100 bursts, none out of order, all before the result."""

    def handle(peer: Peer, message: dict[str, Any]) -> None:
        token = message["params"]["_meta"]["progressToken"]
        for count in range(10):
            params = {"progressToken": token, "progress": count, "total": 10, "message": f"step {count}"}
            peer.send(method="notifications/progress", params=params)
        peer.answer(message, dict(TEXT))

    async def main():
        async with open_supervisor([ServerSpec("peer", Peer(handle))]) as supervisor:
            for _ in range(100):
                seen: list[object] = []

                async def note(*report, seen=seen) -> None:
                    await trio.lowlevel.checkpoint()
                    seen.append(report)

                seen.append((await supervisor.call_tool("mcp_peer_work", on_progress=note)).full_text)
                assert seen == [*((count, 10, f"step {count}") for count in range(10)), "done"]

    run_virtual(main)


async def test_progress_goes_to_its_own_call(autojump_clock):
    """R5: interleaved calls, foreign tokens, late reports, malformed ones."""
    waiting: list[dict[str, Any]] = []

    def handle(peer: Peer, message: dict[str, Any]) -> None:
        waiting.append(message)
        if len(waiting) < 3:
            return
        tokens = [one["params"]["_meta"]["progressToken"] for one in waiting]
        for token in (tokens[2], tokens[0], 999, None, tokens[1], tokens[2]):
            peer.send(method="notifications/progress", params={"progressToken": token, "progress": token or 0})
        peer.send(method="notifications/progress", params={"progressToken": tokens[0], "progress": "much"})
        peer.send(method="notifications/progress")
        for one in waiting:
            peer.answer(one, dict(TEXT))
        peer.send(method="notifications/progress", params={"progressToken": tokens[0], "progress": 5})

    seen: dict[int, list[float]] = {0: [], 1: [], 2: []}
    async with open_supervisor([ServerSpec("peer", Peer(handle))]) as supervisor, trio.open_nursery() as nursery:
        for own in seen.values():

            async def note(progress, total, message, own=own) -> None:
                assert (total, message) == (None, None)
                own.append(progress)

            nursery.start_soon(partial(supervisor.call_tool, "mcp_peer_work", on_progress=note))
            await trio.testing.wait_all_tasks_blocked()
    tokens = [message["params"]["_meta"]["progressToken"] for message in waiting]
    assert seen == {0: [tokens[0]], 1: [tokens[1]], 2: [tokens[2], tokens[2]]}


async def test_a_callback_that_raises(autojump_clock, caplog):
    """R5: it is logged, and the call goes on."""

    async def bad(progress, total, message) -> None:
        raise ValueError("oops")

    async with open_supervisor([ServerSpec("peer", ticking([1, 2], end=3))]) as supervisor:
        assert (await supervisor.call_tool("mcp_peer_work", on_progress=bad)).full_text == "done"
    assert [record.message for record in caplog.records] == ["a progress callback raised; the call goes on"] * 2


async def test_progress_is_not_asked_for_without_need(autojump_clock):
    """R5: without a callback or an idle timeout there is no token."""
    peer = Peer(lambda peer, message: peer.answer(message, dict(TEXT)))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        await supervisor.call_tool("mcp_peer_work")
    assert "progressToken" not in peer.received[-1]["params"].get("_meta", {})


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["scope", "deadline", "timeout"])
async def test_the_server_hears_of_a_cancel(autojump_clock, how):
    """R6, Q16: a cancelled scope, a deadline and the call's timeout all reach it, with the request's id."""
    peer = Peer(lambda peer, message: None)
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        if how == "timeout":
            with pytest.raises(CallTimeout):
                await supervisor.call_tool("mcp_peer_work", timeout=2)
        else:
            with trio.CancelScope() as scope:
                if how == "deadline":
                    scope.deadline = 2
                    await supervisor.call_tool("mcp_peer_work")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(supervisor.call_tool, "mcp_peer_work")
                    await trio.sleep(2)
                    scope.cancel()
            assert scope.cancelled_caught
        assert trio.current_time() == 2
        await trio.testing.wait_all_tasks_blocked()
        call, cancel = peer.received[-2:]
        assert (call["method"], cancel["method"]) == ("tools/call", "notifications/cancelled")
        assert cancel["params"]["requestId"] == call["id"]
        assert supervisor.status()[0].state is S.CONNECTED


async def test_one_of_five_cancelled(autojump_clock):
    """R6, Q17: four finish, on the same incarnation; the late answer is nobody's."""
    calls: list[dict[str, Any]] = []

    def handle(peer: Peer, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            calls.append(message)
        else:
            for call in calls:  # the cancelled one too: too late to stop it
                peer.answer(call, {"content": [{"type": "text", "text": str(call["params"]["arguments"]["n"])}]})

    texts: dict[int, str] = {}
    scopes = [trio.CancelScope() for _ in range(5)]
    async with open_supervisor([ServerSpec("peer", Peer(handle))]) as supervisor:

        async def call(n: int):
            with scopes[n]:
                result = await supervisor.call_tool("mcp_peer_work", {"n": n})
                texts[n] = result.full_text
                assert result.incarnation == 1

        async with trio.open_nursery() as nursery:
            for n in range(5):
                nursery.start_soon(call, n)
            await trio.sleep(1)
            scopes[2].cancel()
        assert texts == {0: "0", 1: "1", 3: "3", 4: "4"}
        assert [scope.cancelled_caught for scope in scopes] == [False, False, True, False, False]
        assert supervisor.status()[0].incarnation == 1


async def test_a_cancelled_call_that_was_not_sent(autojump_clock):
    """R6: it is taken back: the server never reads it, and hears of no cancel."""
    server = ScriptedServer(tools={"nap": nap})
    async with open_supervisor([spec(server, max_in_flight=1)]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.call_tool, "mcp_lab_nap", {"for": 3})
        await trio.sleep(1)
        with trio.move_on_after(1):
            await supervisor.call_tool("mcp_lab_nap", {"for": 99})
        await trio.sleep(5)
        assert (len(server.calls), server.cancelled) == (1, [])


async def test_a_cancelled_call_makes_room(autojump_clock):
    """R6: for the next one, at once."""
    server = ScriptedServer(tools={"hang": hang, "nap": nap})
    async with open_supervisor([spec(server, max_in_flight=1)]) as supervisor, trio.open_nursery() as nursery:

        async def give_up():
            with trio.move_on_after(2):
                await supervisor.call_tool("mcp_lab_hang")

        nursery.start_soon(give_up)
        await trio.sleep(1)
        assert (await supervisor.call_tool("mcp_lab_nap")).duration == 2
        assert len(server.cancelled) == 1
