"""What becomes of a call whose server is lost or down: whether it may have acted, and whether it is sent again."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import (
    CallError,
    CallTimeout,
    ConnectionLost,
    ServerDown,
    ServerError,
    UnknownServer,
    UnknownTool,
)
from mcp_nursery.supervisor import RestartPolicy, Supervisor, open_supervisor
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ...lab.callers import S, nothing, outcome_of
from ...lab.specs import hang, lasting, spec

READ_ONLY = {"readOnlyHint": True}

IDEMPOTENT = {"idempotentHint": True}

# -- resending ---------------------------------------------------------------------------------------------------------


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


DESTRUCTIVE = {"destructiveHint": True}


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize("when", ["before the loss", "by the restart"])
@pytest.mark.parametrize(
    ("first", "then", "executions"),
    [
        (READ_ONLY, READ_ONLY, 2),
        (READ_ONLY, DESTRUCTIVE, 1),
        (IDEMPOTENT, DESTRUCTIVE, 1),
        (DESTRUCTIVE, READ_ONLY, 1),
        (DESTRUCTIVE, DESTRUCTIVE, 1),
    ],
)
def test_both_definitions_allow_a_resend(first, then, when, executions, relayed):
    """R2, Q15: that of the tool that the call was sent to, and that of the tool that it would be sent to again."""

    async def main() -> None:
        server = ScriptedServer(Life(modern=False), tools={"work": lasting(5)}, annotations={"work": first})
        server.capabilities["tools"] = {"listChanged": True}
        outcomes: list[object] = []
        async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
            await supervisor.wait_connected("lab")

            async def call() -> None:
                try:
                    if relayed:
                        await supervisor.request("lab", "tools/call", {"name": "work", "arguments": {}})
                    else:
                        await supervisor.call_tool("work", {}, server="lab")
                    outcomes.append("done")
                except ConnectionLost as error:
                    outcomes.append((error.delivery, error.incarnation))

            nursery.start_soon(call)
            await trio.sleep(1)
            server.annotations["work"] = then
            if when == "before the loss":
                await server.notify("notifications/tools/list_changed")
                await trio.sleep(1)
            server.crash()
        assert outcomes == ["done" if executions == 2 else ("unknown", 1)]
        assert len(server.calls) == executions

    run_virtual(main)


def test_a_caller_may_have_a_call_sent_again_whatever_the_definitions_say():
    """R2: with `resend="always"` its word counts, not the hints."""

    async def work(arguments) -> object:
        if len(server.starts) == 1:
            server.annotations["work"] = DESTRUCTIVE
            server.crash()
        return "done"

    server = ScriptedServer(tools={"work": work}, annotations={"work": READ_ONLY})
    assert run_virtual(partial(lost_call, server, resend="always")) == "done"
    assert len(server.calls) == 2


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


async def swallow(supervisor: Supervisor, tool: str, **options) -> None:
    await outcome_of(partial(supervisor.call_tool, tool, server="lab", **options))


# -- losses ------------------------------------------------------------------------------------------------------------


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


async def test_who_tries_again_at_once_holds_up_nobody(autojump_clock):
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, trio.open_nursery() as nursery:
        await supervisor.stop_server("lab")
        turns = []

        async def other():
            while True:
                turns.append(None)
                await trio.lowlevel.checkpoint()

        nursery.start_soon(other)
        for _ in range(10):
            assert isinstance(await outcome_of(partial(supervisor.call_tool, "echo", server="lab")), ServerDown)
        assert len(turns) >= 9  # of two that are ready either may come first
        nursery.cancel_scope.cancel()


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


# -- down --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when_down", "connecting", "waiting"),
    [(None, 2.0, ServerDown), ("wait", 2.0, 11.0), ("fail", ServerDown, ServerDown), ("reconnect", 2.0, 10.0)],
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

    assert run_virtual(main) == [connecting, waiting]


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
        with pytest.raises(ServerDown, match=r"failed \(down\); reconnect") as caught:
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


async def test_what_can_be_a_tool_of_one_server_alone_is_down_with_it(autojump_clock):
    """G2: nobody knows its tools yet; but a name that begins with another server's is that server's."""
    down = ScriptedServer(Life(refuses="no such host"))
    async with open_supervisor([spec(down, "far"), spec(ScriptedServer(), "near")], gate=1) as supervisor:
        with pytest.raises(ServerDown) as caught:
            await supervisor.call_tool("mcp_far_look")
        assert (caught.value.server, caught.value.state) == ("far", S.WAITING)
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("mcp_near_look")


def test_calls_while_their_tool_goes_away():
    """G13: whenever the tool goes, a call has an outcome: the answer, the server's refusal, or `UnknownTool`."""
    for steps in range(30):

        async def main(steps=steps):
            server = ScriptedServer(tools={"old": nothing, "kept": nothing})
            server.fresh_for["tools/list"] = 60
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
