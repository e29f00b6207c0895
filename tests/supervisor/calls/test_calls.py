"""One call, from its name to its outcome: who hears what, when, and whether the server may have acted."""

import gc
import json
import math
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import (
    CallError,
    CallTimeout,
    ConfigError,
    ConnectionLost,
    InvalidArguments,
    InvalidResult,
    ServerBusy,
    ServerDown,
    ServerError,
    UnknownServer,
    UnknownTool,
)
from mcp_nursery.actors.states import ServerState
from mcp_nursery.actors.transports.base import StreamConnector
from mcp_nursery.supervisor import RestartPolicy, ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.testing import Life, Refusal, ScriptedServer, run_virtual

from ...talker import Talker
from ..specs import hang, spec

S = ServerState
READ_ONLY = {"readOnlyHint": True}
IDEMPOTENT = {"idempotentHint": True}


async def nap(arguments) -> object:
    await trio.sleep(arguments.get("for", 1))
    return "rested"


class Peer(Talker, StreamConnector):
    """A server frame by frame: `handle(peer, message)` sends what it likes. Also its own transport and connector."""

    kind = "peer"

    def __init__(self, handle: Callable[["Peer", dict[str, Any]], object], *, tools: Sequence[str] = ("work",)) -> None:
        super().__init__()
        self.handle = handle
        self.tools = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
        self.received: list[dict[str, Any]] = []

    def connector(self, *, close_grace: float) -> "Peer":
        return self

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Peer", None]:
        yield self

    def send(self, **message: Any) -> None:
        self.say(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def answer(self, request: dict[str, Any], result: dict[str, Any]) -> None:
        self.send(id=request["id"], result=result)

    def take(self, message: dict[str, Any]) -> None:
        self.received.append(message)
        match message.get("method"):
            case "server/discover":
                self.send(id=message["id"], error={"code": -32601, "message": "Method not found"})
            case "initialize":
                greeting = {"capabilities": {"tools": {}}, "serverInfo": {"name": "peer", "version": "1"}}
                self.answer(message, {"protocolVersion": "2025-11-25", **greeting})
            case "tools/list":
                self.answer(message, {"tools": self.tools})
            case "tools/call" | "notifications/cancelled":
                self.handle(self, message)


TEXT = {"content": [{"type": "text", "text": "done"}]}


# -- resending ----------------------------------------------------------------------------------------------------


async def lost_call(server: ScriptedServer, tool: str = "work", *, trust_hints: bool = True, **options) -> object:
    """The text of a call, or its error, of a server that dies in its first life with the call in flight."""
    async with open_supervisor([spec(server, trust_hints=trust_hints)]) as supervisor:
        try:
            return (await supervisor.call_tool(tool, {}, server="lab", **options)).full_text
        except CallError as error:
            return error


def dying(annotations: dict[str, Any] | None = None) -> ScriptedServer:
    """Its tool commits, then the server dies; from the second life on it answers."""

    async def work(arguments) -> object:
        if len(server.starts) == 1:
            server.crash()
        return "done"

    server = ScriptedServer(tools={"work": work}, annotations={} if annotations is None else {"work": annotations})
    return server


@pytest.mark.parametrize(
    ("annotations", "options", "executions"),
    [
        (None, {}, 1),
        ({"readOnlyHint": False, "destructiveHint": False}, {}, 1),
        (READ_ONLY, {}, 2),
        (IDEMPOTENT, {}, 2),
        (READ_ONLY, {"trust_hints": False}, 1),
        (IDEMPOTENT, {"trust_hints": False}, 1),
        (READ_ONLY, {"resend": "never"}, 1),
        (None, {"resend": "always"}, 2),
        (None, {"resend": "always", "trust_hints": False}, 2),
        (READ_ONLY, {"when_down": "fail"}, 1),
    ],
)
def test_the_resend_rule(annotations, options, executions):
    """R2, Q15: the ledger on the server: a tool that must run once never runs twice."""
    server = dying(annotations)
    outcome = run_virtual(partial(lost_call, server, **options))
    assert len(server.calls) == executions
    if executions == 2:
        assert outcome == "done"
        assert server.starts == [0, 2]
    else:
        assert isinstance(outcome, ConnectionLost)
        assert (outcome.delivery, outcome.incarnation, outcome.exit_code) == ("unknown", 1, 1)


def test_at_most_one_resend():
    """R2: a call reaches a server at most twice."""

    async def work(arguments) -> object:
        server.crash(7)
        return "never"

    server = ScriptedServer(tools={"work": work}, annotations={"work": READ_ONLY})
    outcome = run_virtual(partial(lost_call, server))
    assert isinstance(outcome, ConnectionLost)
    assert (outcome.incarnation, outcome.exit_code, outcome.delivery) == (2, 7, "unknown")
    assert server.calls == [(1, "work", {}), (2, "work", {})]


def test_no_resend_after_a_timeout():
    """R2: never, whatever the tool is."""
    server = ScriptedServer(tools={"work": hang}, annotations={"work": READ_ONLY})
    outcome = run_virtual(partial(lost_call, server, timeout=3, resend="always"))
    assert isinstance(outcome, CallTimeout)
    assert len(server.calls) == 1


def test_no_resend_to_a_server_that_gave_up():
    """R2: what became of the call is told, not where the server stands now."""
    server = ScriptedServer(Life(dies_after=1), Life(refuses="down", usable=False), tools={"work": hang})
    server.annotations = {"work": READ_ONLY}
    outcome = run_virtual(partial(lost_call, server))
    assert isinstance(outcome, ConnectionLost)
    assert (outcome.delivery, outcome.incarnation) == ("unknown", 1)


def test_a_call_that_was_not_sent_is_sent_again():
    """R2: whatever the tool is; not sent means that no byte of it left."""
    server = ScriptedServer(Life(deaf_after=2, dies_after=5), Life())
    outcome = run_virtual(partial(lost_call, server, "echo", when_down="wait"))
    assert outcome == "{}"
    assert server.calls == [(2, "echo", {})]


def test_a_call_that_was_not_sent_does_not_wait_by_default():
    """R1, R2: a server that waits for its restart is not waited for; nothing was sent."""
    server = ScriptedServer(Life(deaf_after=2, dies_after=5), Life())
    outcome = run_virtual(partial(lost_call, server, "echo"))
    assert isinstance(outcome, ConnectionLost)
    assert (outcome.delivery, server.calls) == ("not_sent", [])


@pytest.mark.parametrize("end", ["lost", "timeout", "idle", "busy"])
def test_the_first_delivery_is_not_forgotten(end):
    """R2: a resend that fails before it was sent: the server may have acted on the first one."""
    second = Life(deaf_after=2, dies_after=5) if end == "lost" else Life(deaf_after=2)
    server = ScriptedServer(Life(dies_after=1), second, tools={"work": hang, "block": hang})
    server.annotations = {"work": READ_ONLY}
    options: dict[str, Any] = {"timeout": 20 if end == "timeout" else 500}
    if end == "idle":
        options["idle_timeout"] = 20

    async def main():
        one = spec(server, mailbox_size=1, max_in_flight=1, policy=RestartPolicy(delays=(2,)))
        async with open_supervisor([one]) as supervisor, trio.open_nursery() as nursery:

            async def crowd():
                await supervisor.wait_connected("lab")
                await trio.sleep_until(2)
                for _ in range(50):  # they wait for the second life, and fill it and its mailbox
                    nursery.start_soon(partial(swallow, supervisor, "block", when_down="wait"))

            if end == "busy":
                nursery.start_soon(crowd)
            outcome = await outcome_of(partial(supervisor.call_tool, "work", server="lab", **options))
            nursery.cancel_scope.cancel()
            return outcome

    outcome = run_virtual(main)
    assert isinstance(outcome, CallError)
    assert outcome.delivery == "unknown"
    assert len(server.calls) == 1


async def outcome_of(call: Callable[[], Any]) -> object:
    try:
        return await call()
    except CallError as error:
        return error


async def swallow(supervisor: Supervisor, tool: str, **options) -> None:
    await outcome_of(partial(supervisor.call_tool, tool, server="lab", **options))


# -- losses -------------------------------------------------------------------------------------------------------


async def test_every_pending_call_hears_of_the_loss_at_once(autojump_clock):
    """R3, Q14: sent, queued behind `max_in_flight`, unwritten: all of them, though the close takes its time."""
    server = ScriptedServer(Life(dies_after=5, closes_after=4), Life(), tools={"hang": hang})
    ended: list[tuple[float, str]] = []
    async with open_supervisor([spec(server, max_in_flight=3)]) as supervisor:

        async def call():
            with pytest.raises(ConnectionLost) as caught:
                await supervisor.call_tool("mcp_lab_hang")
            assert (caught.value.exit_code, caught.value.incarnation) == (1, 1)
            ended.append((trio.current_time(), caught.value.delivery))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(call)
    assert Counter(ended) == {(5, "unknown"): 3, (5, "not_sent"): 7}


async def test_a_reply_of_an_old_incarnation_answers_nobody(autojump_clock):
    """L9: calls and replies of one incarnation never cross into the next."""

    async def work(arguments) -> object:
        number = len(server.starts)
        await trio.sleep(3)
        return f"life {number}"

    server = ScriptedServer(Life(dies_after=2, closes_after=5), Life(), tools={"work": work})
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(ConnectionLost):
            await supervisor.call_tool("mcp_lab_work")
        result = await supervisor.call_tool("mcp_lab_work", when_down="wait")
        assert (result.full_text, result.incarnation) == ("life 2", 2)


# -- down ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when_down", "connecting", "waiting"),
    [(None, 2.0, ServerDown), ("wait", 2.0, 14.0), ("fail", ServerDown, ServerDown)],
)
def test_when_down(when_down, connecting, waiting):
    """R1: waits in `connecting` (and `idle`), fails in `waiting`, unless told otherwise."""

    async def main() -> list[object]:
        server = ScriptedServer(Life(), Life(connects_after=2, dies_after=5), Life(connects_after=2))
        async with open_supervisor([spec(server)]) as supervisor:
            results: list[object] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.reconnect, "lab")
                await trio.sleep(1)
                for moment in (1, 8):  # second life: connecting 0-2, connected 2-7; waiting 7-9; connecting 9-11
                    await trio.sleep_until(moment)
                    outcome = await outcome_of(partial(supervisor.call_tool, "mcp_lab_echo", when_down=when_down))
                    results.append(type(outcome) if isinstance(outcome, CallError) else trio.current_time())
            return results

    expected = [connecting, 11.0 if waiting == 14.0 else waiting]
    assert run_virtual(main) == expected


async def test_down_says_when(autojump_clock):
    """R1: state, what went wrong, when it is tried again; nothing was sent."""
    server = ScriptedServer(Life(dies_after=1), Life(refuses="down"))
    async with open_supervisor([spec(server, policy=RestartPolicy(delays=(10,)))]) as supervisor:
        await trio.sleep(3)
        with pytest.raises(ServerDown) as caught:
            await supervisor.call_tool("mcp_lab_echo")
        error = caught.value
        assert (error.server, error.tool, error.state, error.retry_in) == ("lab", "echo", S.WAITING, 8)
        assert (error.error, error.delivery, error.incarnation) == ("exited with code 1", "not_sent", None)
        assert str(error) == "lab: echo: the server is waiting, restarts in 8.0 s (exited with code 1)"
        with pytest.raises(ServerDown, match="failed; reconnect") as caught:
            await supervisor.call_tool("mcp_lab_echo", when_down="wait")
        assert (trio.current_time(), caught.value.state) == (11, S.FAILED)


async def test_a_lazy_server_starts_at_the_first_call(autojump_clock):
    """G7: no process until then; the wait counts into the duration and the timeout."""
    server = ScriptedServer(Life(connects_after=2))
    async with open_supervisor([spec(server, lazy=True)]) as supervisor:
        await trio.sleep(10)
        assert server.starts == []
        result = await supervisor.call_tool("echo", server="lab", timeout=3)
        assert (server.starts, result.duration) == ([10], 2)


async def test_unknown_names(autojump_clock):
    """G2: of a tool, of a server, of a tool on a server; with near names."""
    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        with pytest.raises(UnknownTool, match="did you mean 'mcp_lab_echo'"):
            await supervisor.call_tool("mcp_lab_ecko")
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("mcp_lab_ecko", timeout=0)  # to wait would be in vain, whatever its time
        with pytest.raises(UnknownTool, match="on server 'lab'; did you mean 'echo'"):
            await supervisor.call_tool("ecko", server="lab")
        with pytest.raises(UnknownServer, match="did you mean 'lab'"):
            await supervisor.call_tool("echo", server="lap")


def test_calls_while_their_tool_goes_away():
    """G13: whenever the tool goes, a call has an outcome: the answer, the server's refusal, or `UnknownTool`."""
    for steps in range(30):

        async def main(steps=steps):
            server = ScriptedServer(tools={"old": nothing, "kept": nothing})
            outcomes: list[str] = []
            async with open_supervisor([spec(server)]) as supervisor:
                server.tools = {"kept": nothing}

                async def call():
                    try:
                        await supervisor.call_tool("mcp_lab_old")
                        outcomes.append("answered")
                    except (UnknownTool, ServerError) as error:
                        outcomes.append(type(error).__name__)

                with trio.fail_after(60):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(partial(supervisor.list_tools, refresh=True))
                        for _ in range(steps):
                            await trio.lowlevel.checkpoint()
                        for _ in range(3):
                            nursery.start_soon(call)
                            await trio.lowlevel.checkpoint()
                assert len(outcomes) == 3
                assert trio.current_time() == 0

        run_virtual(main)


async def nothing(arguments) -> object:
    return "done"


# -- time ---------------------------------------------------------------------------------------------------------


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


async def test_bad_timeouts(autojump_clock, monkeypatch):
    """R4: a clear error, before anything is started or sent."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(ValueError, match="-1"):
            await supervisor.call_tool("mcp_lab_echo", timeout=-1)
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


def ticking(times: Sequence[float], *, end: float | None) -> Peer:
    """A peer that reports progress at these times after a call, and answers at `end`."""

    async def tick(peer: Peer, message: dict[str, Any]) -> None:
        start = trio.current_time()
        for count, moment in enumerate(times):
            await trio.sleep_until(start + moment)
            token = message["params"].get("_meta", {}).get("progressToken", "nobody's")
            peer.send(method="notifications/progress", params={"progressToken": token, "progress": count})
        if end is not None:
            await trio.sleep_until(start + end)
            peer.answer(message, dict(TEXT))

    def handle(peer: Peer, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            trio.lowlevel.spawn_system_task(tick, peer, message)

    return Peer(handle)


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


# -- progress -----------------------------------------------------------------------------------------------------


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


# -- cancelling ---------------------------------------------------------------------------------------------------


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


# -- limits -------------------------------------------------------------------------------------------------------


async def test_in_flight_and_mailbox(autojump_clock):
    """R10: so many in flight, so many waiting, then `ServerBusy`; nothing of it was sent."""
    server = ScriptedServer(tools={"hang": hang, "echo": nothing})
    async with open_supervisor([spec(server, max_in_flight=3, mailbox_size=2)]) as supervisor:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(supervisor.call_tool, "mcp_lab_hang")
                await trio.testing.wait_all_tasks_blocked()
            assert len(server.calls) == 3
            for _ in range(3):
                with pytest.raises(ServerBusy) as caught:
                    await supervisor.call_tool("mcp_lab_echo")
                assert (caught.value.delivery, caught.value.server, caught.value.tool) == ("not_sent", "lab", "echo")
            assert supervisor.status()[0].calls.in_flight == 5
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (await supervisor.call_tool("mcp_lab_echo")).full_text == "done"


async def test_the_default_limits(autojump_clock):
    """R10: 256 and 256."""
    server = ScriptedServer(tools={"hang": hang})
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        for _ in range(512):
            nursery.start_soon(supervisor.call_tool, "mcp_lab_hang")
            await trio.testing.wait_all_tasks_blocked()
        assert len(server.calls) == 256
        with pytest.raises(ServerBusy):
            await supervisor.call_tool("mcp_lab_hang")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lazy", [False, True], ids=["quiet", "lazy"])
async def test_a_thousand_callers_in_one_tick(autojump_clock, lazy):
    """R10: 1000 callers of 10 idle servers all get through; each server was started once."""
    servers = [ScriptedServer() for _ in range(10)]
    done = 0
    async with open_supervisor([spec(one, f"s{n}", lazy=lazy) for n, one in enumerate(servers)]) as supervisor:

        async def call(n: int):
            nonlocal done
            result = await supervisor.call_tool("echo", {"n": n}, server=f"s{n % 10}")
            assert json.loads(result.full_text) == {"n": n}
            done += 1

        async with trio.open_nursery() as nursery:
            for n in range(1000):
                nursery.start_soon(call, n)
        assert supervisor.statistics().calls.done == done == 1000
        assert [len(one.starts) for one in servers] == [1] * 10


async def test_a_quiet_server_takes_what_it_has_room_for_in_one_tick(autojump_clock):
    """R10: 512 callers of one quiet server in one tick fit: 256 in flight and 256 that wait."""
    outcomes: Counter[str] = Counter()
    async with open_supervisor([spec(ScriptedServer(tools={"nap": nap}))]) as supervisor:

        async def call():
            outcome = await outcome_of(partial(supervisor.call_tool, "mcp_lab_nap"))
            outcomes[type(outcome).__name__] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(512):
                nursery.start_soon(call)
    assert outcomes == {"ToolResult": 512}


async def test_a_stalled_server_stalls_nobody_else(autojump_clock):
    """R10, Q19: 1000 calls of a stalled server: what is too much is busy at once; another is as fast as before."""
    stalled, good = ScriptedServer(Life(deaf_after=2)), ScriptedServer(tools={"nap": nap})
    outcomes: Counter[tuple[float, str]] = Counter()
    async with open_supervisor([spec(stalled, "stalled"), spec(good, "good")]) as supervisor:

        async def call():
            outcome = await outcome_of(partial(supervisor.call_tool, "mcp_stalled_echo", timeout=50))
            outcomes[trio.current_time(), type(outcome).__name__] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(call)
            await trio.sleep(1)
            for _ in range(5):
                assert (await supervisor.call_tool("mcp_good_nap")).duration == 1
        assert outcomes.keys() == {(0, "ServerBusy"), (50, "CallTimeout")}
        assert outcomes[0, "ServerBusy"] >= 1000 - 512
        assert good.cancelled == []
        assert len(good.calls) == 5


async def test_no_head_of_line(autojump_clock):
    """Q19: five calls of half a second take half a second."""
    async with open_supervisor([spec(ScriptedServer(tools={"nap": nap}))]) as supervisor:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(supervisor.call_tool, "mcp_lab_nap", {"for": 0.5})
        assert trio.current_time() == 0.5


# -- what a server may answer -------------------------------------------------------------------------------------


async def test_a_json_rpc_error(autojump_clock):
    """R2: an answer, and no result: code, words and data as sent."""
    error = {"code": -32602, "message": "bad\narguments", "data": {"field": "n"}}
    peer = Peer(lambda peer, message: peer.send(id=message["id"], error=error))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        with pytest.raises(ServerError) as caught:
            await supervisor.call_tool("mcp_peer_work", {"n": 1})
        assert (caught.value.code, caught.value.message, caught.value.data) == (
            -32602,
            "bad\narguments",
            {"field": "n"},
        )
        assert (caught.value.delivery, caught.value.incarnation) == ("answered", 1)
        assert str(caught.value) == "peer: work: error -32602: bad arguments"
        assert supervisor.status()[0].calls.failed == 1


@pytest.mark.parametrize(
    "result",
    [
        {"content": "text"},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "hologram"}]},
        {"isError": "maybe", **TEXT},
    ],
)
async def test_a_result_that_is_none(autojump_clock, result):
    """R2: `InvalidResult`: the server answered, so it is never sent again."""
    peer = Peer(lambda peer, message: peer.answer(message, result))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        with pytest.raises(InvalidResult) as caught:
            await supervisor.call_tool("mcp_peer_work", resend="always")
        assert (caught.value.delivery, caught.value.server, caught.value.tool) == ("answered", "peer", "work")
        assert [message["method"] for message in peer.received].count("tools/call") == 1
        assert supervisor.status()[0].state is S.CONNECTED


@pytest.mark.parametrize(
    ("schema", "structured", "problem"),
    [
        ({"type": "object", "required": ["n"]}, {"n": 1}, None),
        ({"type": "object", "required": ["n"]}, {"m": 1}, "does not fit"),
        ({"type": "object"}, None, "returned no structured content"),
        ({"type": "object", "$ref": "http://example.com/schema"}, {"n": 1}, "does not fit|not fetched"),
        ({"type": "object", "$ref": "file:///etc/passwd"}, {"n": 1}, "does not fit|not fetched"),
    ],
)
async def test_the_output_schema(autojump_clock, schema, structured, problem):
    """T19: what the tool promises is checked; nothing is fetched for it."""
    result = dict(TEXT) if structured is None else {**TEXT, "structuredContent": structured}
    peer = Peer(lambda peer, message: peer.answer(message, result))
    peer.tools[0]["outputSchema"] = schema
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        if problem is None:
            assert (await supervisor.call_tool("mcp_peer_work")).structured == structured
        else:
            with pytest.raises(InvalidResult, match=problem):
                await supervisor.call_tool("mcp_peer_work")


async def test_what_is_sent(autojump_clock):
    """T15: arguments and `_meta` as given; none where there are none."""
    peer = Peer(lambda peer, message: peer.answer(message, dict(TEXT)))
    async with open_supervisor([ServerSpec("peer", peer)]) as supervisor:
        await supervisor.call_tool("mcp_peer_work")
        await supervisor.call_tool("mcp_peer_work", {"a": [1, None, "é", 2**70]}, meta={"mine": 1})
    first, second = (message["params"] for message in peer.received[-2:])
    assert first == {"name": "work"}
    assert (second["arguments"], second["_meta"]) == ({"a": [1, None, "é", 2**70]}, {"mine": 1})


@pytest.mark.parametrize("arguments", [[1], "text", 5, {"f": object()}, {"f": {1, 2}.__iter__}])
async def test_arguments_that_are_no_object(autojump_clock, arguments):
    """T15: a clear error before anything is sent."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        with pytest.raises(InvalidArguments, match="arguments"):
            await supervisor.call_tool("mcp_lab_echo", arguments)
        assert server.calls == []


# -- a modern server that is slow to start ------------------------------------------------------------------------


@pytest.mark.parametrize("starts_in", [5.0, 15.0])
def test_a_modern_server_that_is_slow_to_start(starts_in):
    """Q23: one that refuses `initialize` after `server/discover` (-32022) connects in its first attempt, even so."""
    modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    class Modern(Peer):
        asked = False
        awake = False
        early: list[dict[str, Any]]

        def take(self, message: dict[str, Any]) -> None:
            if not self.awake:
                self.early.append(message)
            elif message.get("method") == "server/discover":
                self.asked = True
                self.answer(message, {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **modern})
            elif message.get("method") == "initialize":
                assert self.asked
                data = {"supported": ["2026-07-28"], "requested": message["params"]["protocolVersion"]}
                self.send(id=message["id"], error={"code": -32022, "message": "unsupported version", "data": data})
            elif message.get("method") == "tools/list":
                self.answer(message, {"tools": self.tools, **modern})

        async def wake(self) -> None:
            await trio.sleep(starts_in)
            self.awake = True
            for message in self.early:
                self.take(message)

    async def main():
        peer = Modern(lambda peer, message: None)
        peer.early = []
        trio.lowlevel.spawn_system_task(peer.wake)
        async with open_supervisor([ServerSpec("peer", peer)], gate=100) as supervisor:
            one = supervisor.status()[0]
            assert (one.state, one.error) == (S.CONNECTED, None)
            assert (trio.current_time(), one.incarnation) == (starts_in, 1)

    run_virtual(main)


async def test_handshake_facts_on_a_wire(autojump_clock):
    """L16: client name and version are sent; server info and protocol version are in the status, down or not."""
    from importlib.metadata import version

    peer, modern = Peer(lambda peer, message: None), ScriptedServer()
    async with open_supervisor([ServerSpec("peer", peer), spec(modern)]) as supervisor:
        [greeting] = [message for message in peer.received if message.get("method") == "initialize"]
        assert greeting["params"]["clientInfo"] == {"name": "mcp-nursery", "version": version("mcp-nursery")}
        old, new = supervisor.status()
        assert (old.server_info, old.protocol_version) == ({"name": "peer", "version": "1"}, "2025-11-25")
        assert (new.server_info, new.protocol_version) == ({"name": "scripted", "version": "1"}, "2026-07-28")
        assert (old.instructions, old.pid) == (None, None)
        await supervisor.stop_server("peer")
        assert supervisor.status()[0].server_info == {"name": "peer", "version": "1"}


class Silent(Peer):
    """A handshake-era server that ignores the probe, and for its first `unlisted` lists `tools/list` too."""

    unlisted = 0

    def take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "server/discover":
            self.received.append(message)
        elif message.get("method") == "tools/list" and self.unlisted:
            self.received.append(message)
            self.unlisted -= 1
        else:
            super().take(message)

    def asked(self, method: str) -> int:
        return [message.get("method") for message in self.received].count(method)


async def test_a_silent_probe_costs_a_second_once(autojump_clock):
    """Q23: a server that is mute to the probe connects by `initialize` after 1 s, and at once ever after."""
    peer = Silent(lambda peer, message: None)
    async with open_supervisor([ServerSpec("peer", peer)], gate=100) as supervisor:
        assert trio.current_time() == 1
        assert (supervisor.status()[0].state, supervisor.status()[0].incarnation) == (S.CONNECTED, 1)
        await supervisor.reconnect("peer")
        assert trio.current_time() == 1
        assert (peer.asked("server/discover"), peer.asked("initialize")) == (1, 2)


async def test_what_a_probe_found_is_kept_when_the_attempt_fails(autojump_clock):
    """Q23: also when the list never came: the next start does not probe."""
    peer = Silent(lambda peer, message: None)
    peer.unlisted = 1
    async with open_supervisor([ServerSpec("peer", peer, connect_timeout=4)], gate=100) as supervisor:
        assert (trio.current_time(), supervisor.status()[0].state) == (4, S.WAITING)
        await supervisor.wait_connected("peer")
        assert trio.current_time() == 6
        assert peer.asked("server/discover") == 1


async def test_nothing_of_a_call_is_kept_by_an_idle_server():
    """Q31: what a caller has let go of is gone, however large it was: arguments, frame and result."""
    large = "x" * (8 << 20)

    def answer(peer: Peer, message: dict[str, Any]) -> None:
        peer.received.clear()
        peer.answer(message, {"content": [{"type": "text", "text": large}]})

    async with open_supervisor([ServerSpec("peer", Peer(answer))]) as supervisor:
        await supervisor.call_tool("mcp_peer_work", {"size": large}, timeout=30)
        gc.collect()
        tracemalloc.start()
        try:
            await supervisor.call_tool("mcp_peer_work", {"size": large}, timeout=30)
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("message", "data", "kept", "given"),
    [
        ("x" * 100_000, {"a": ["y" * 99_000]}, "x" * 100_000, {"a": ["y" * 99_000]}),
        ("x" * 10**6, "y" * 10**6, "x" * 90_000 + "… (1000000 characters)", "<more than 100000 characters>"),
        ("", [[]] * 10**5, "", "<more than 100000 characters>"),
        ("", {"k" * 10**5: 1}, "", "<more than 100000 characters>"),
    ],
)
async def test_an_error_without_end_is_cut(autojump_clock, message, data, kept, given):
    """T9: to look for secrets in all that a server sends would hold up everybody else."""

    async def refuse(_arguments):
        raise Refusal(-1, message, data)

    async with open_supervisor([ServerSpec("lab", ScriptedServer(tools={"t": refuse}).transport)]) as supervisor:
        with pytest.raises(ServerError) as caught:
            await supervisor.call_tool("mcp_lab_t")
    assert (caught.value.message, caught.value.data) == (kept, given)


async def test_a_secret_that_is_cut_apart_does_not_get_through(autojump_clock):
    """T9."""
    key = "ghp_Zx9Cv8Bn7Mq6We5Rt4Yu3Io2Pa1Sd0Fg9Hj8"

    async def refuse(_arguments):
        whole = f"{key} " * 1000  # what is taken out is shorter than what was there
        raise Refusal(-1, whole + " " * (100_000 - 10 - len(whole)) + key)

    async with open_supervisor([ServerSpec("lab", ScriptedServer(tools={"t": refuse}).transport)]) as supervisor:
        with pytest.raises(ServerError) as caught:
            await supervisor.call_tool("mcp_lab_t")
    assert "ghp_" not in caught.value.message
