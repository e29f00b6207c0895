"""One suite over every way to reach a remote server: a call's failure is that call's, and nobody acts twice."""

import time

import pytest
import trio
import trio.testing

from mcp_nursery.actors.errors import InvalidArguments
from mcp_nursery.actors.http import limits
from mcp_nursery.supervisor import Call, CallTimeout, ConnectionLost, ServerError
from mcp_nursery.supervisor.errors import Delivery
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import eventually, outcome_of, status_of, supervised
from ..lab.remote import IN_SESSION, KINDS
from ..lab.timely import Late, in_time, timely

pytestmark = pytest.mark.slow


def remotes_but(*kinds):
    """Each kind of remote server but these in turn."""
    return pytest.mark.parametrize("remote", [kind for kind in KINDS if kind not in kinds], indirect=True)


VERSIONS = {"modern": "2026-07-28", "handshake": "2025-11-25", "json": "2025-11-25", "sse": "2025-11-25"}
CALL = {"method": "tools/call"}


async def test_it_is_listed_called_and_left(remote):
    """P7, R5: the era, the tools, progress in order before the result; R8: a session is ended on leaving."""
    steps = []

    async def on_progress(progress, total, message):
        steps.append((progress, total, message))

    async with supervised(remote.spec()) as supervisor:
        status = status_of(supervisor)
        assert (status.protocol_version, status.transport) == (VERSIONS[remote.kind], remote.transport().kind)
        assert status.server_info["name"] == "lab over HTTP"
        assert [tool.tool for tool in supervisor.tools] == ["commit", "grow", "hang", "look", "refuse", "steps"]
        result = await supervisor.call_tool("commit", {"text": "ünïcode"}, server="lab")
        assert (result.full_text, result.is_error) == ("committed ünïcode", False)
        assert (await supervisor.call_tool("refuse", server="lab")).is_error
        await supervisor.call_tool("steps", {"count": 20}, server="lab", on_progress=on_progress)
    if remote.kind != "json":  # which has no room for progress
        assert steps == [(float(n), 20.0, f"step {n}") for n in range(20)]
    assert remote.journal.count("commit") == 1
    assert remote.journal.count("DELETE") == (1 if remote.kind in IN_SESSION else 0)


@pytest.mark.parametrize("status", [400, 403, 409, 418, 429, 500, 504, 599])
async def test_a_status_is_one_calls_error(remote, status):
    """SDK-NOTES 3-4: the caller learns the status, the others and the connection notice nothing."""
    outcomes = []

    async def rest(supervisor):
        outcomes.append(await supervisor.call_tool("hang", {"seconds": 0.3}, server="lab"))

    async with supervised(remote.spec()) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(rest, supervisor)
        await eventually(lambda: remote.journal.count("hang") == 1)
        remote.faults({**CALL, "status": status})
        with pytest.raises(ServerError, match=f"HTTP {status}") as caught:
            await supervisor.call_tool("look", server="lab")
        assert (caught.value.code, caught.value.incarnation) == (status, 1)
        assert "\n" not in str(caught.value)
        assert (await supervisor.call_tool("look", server="lab")).incarnation == 1
    assert outcomes[0].full_text == "rested"


@pytest.mark.parametrize("status", [502, 503])
async def test_a_failed_gateway_is_asked_again_only_for_who_may_run_twice(remote, status):
    """R2: 502 and 503 count as losses of that call; the connection stays."""
    async with supervised(remote.spec()) as supervisor:
        remote.faults({**CALL, "status": status, "times": 2})
        with pytest.raises(ServerError, match=f"HTTP {status}") as caught:
            await supervisor.call_tool("commit", server="lab")
        assert caught.value.code == status
        result = await supervisor.call_tool("look", server="lab")
        assert (result.full_text, result.incarnation) == ("seen", 1)
        remote.faults({**CALL, "status": status, "times": 2})
        with pytest.raises(ServerError, match=f"HTTP {status}"):
            await supervisor.call_tool("look", server="lab")  # no third time
    assert remote.journal.count("POST_tools/call") == 5
    assert (remote.journal.count("commit"), remote.journal.count("look")) == (0, 1)


async def test_a_fan_out_asks_again_too(modern):
    """R2: whoever waits for many calls gets what one caller would."""
    async with supervised(modern.spec()) as supervisor:
        modern.faults({**CALL, "status": 503, "times": 1})
        async with supervisor.fan_out([Call("look", server="lab")]) as outcomes:
            texts = [outcome.result.full_text async for outcome in outcomes]
        assert texts == ["seen"]
        modern.faults({**CALL, "status": 503, "times": 1})
        async with supervisor.fan_out([Call("commit", server="lab")]) as outcomes:
            errors = [outcome.error async for outcome in outcomes]
        assert [error.code for error in errors] == [503]


@remotes_but("sse")  # answers come on the stream: its end is a loss, tested elsewhere
async def test_an_answer_that_breaks_off_is_unknown_and_sent_again_only_if_it_may_be(remote):
    """Q15, R2: the server acts, and its answer never arrives."""
    broken = {**CALL, "act": True, "status": 200, "type": "application/json", "body": "{", "cut": 100}
    async with supervised(remote.spec()) as supervisor:
        remote.faults(broken)
        with pytest.raises(ConnectionLost, match="may have acted") as caught:
            await supervisor.call_tool("commit", server="lab")
        assert (caught.value.delivery, caught.value.incarnation) == (Delivery.UNKNOWN, 1)
        remote.faults(broken)
        assert (await supervisor.call_tool("look", server="lab")).incarnation == 1
    assert (remote.journal.count("commit"), remote.journal.count("look")) == (1, 2)


async def test_a_rejection_keeps_code_words_and_data(remote):
    """SDK-NOTES 4: a JSON-RPC error under any HTTP status is the server's own."""
    async with supervised(remote.spec()) as supervisor:
        remote.faults({**CALL, "status": 400, "code": -32602, "message": "no such thing", "data": {"a": 1}})
        with pytest.raises(ServerError, match="no such thing") as caught:
            await supervisor.call_tool("commit", server="lab")
        assert caught.value.code == -32602
        if remote.kind != "sse":  # where the answer to a POST is not the answer
            assert caught.value.data == {"a": 1}
        assert (await supervisor.call_tool("look", server="lab")).incarnation == 1


async def test_a_missing_authorisation_ends_the_connection_and_is_not_retried(remote):
    """L12, P5: 401 on a call."""
    async with supervised(remote.spec()) as supervisor:
        remote.faults({**CALL, "status": 401, "times": 100})
        with pytest.raises(ConnectionLost, match="401"):
            await supervisor.call_tool("look", server="lab")
        status = status_of(supervisor)
        assert status.state in (ServerState.NEEDS_AUTH, ServerState.FAILED)
        assert (status.incarnation, status.retry_in) == (1, None)
        assert "HTTP 401 Unauthorized" in status.error
    assert remote.journal.count("DELETE") == 0
    assert remote.journal.count("POST_tools/call") == 1


async def test_one_of_five_is_cancelled(remote):
    """Q16, Q17: the server hears of it, the others finish on the same connection; so for a deadline."""
    rested = []

    async def rest(supervisor, seconds, scope):
        with scope:
            result = await supervisor.call_tool("hang", {"seconds": seconds}, server="lab")
            rested.append((result.full_text, result.incarnation))

    async with supervised(remote.spec()) as supervisor:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(rest, supervisor, 3600, scope)
            for _ in range(4):
                nursery.start_soon(rest, supervisor, 2, trio.CancelScope())
            await eventually(lambda: remote.journal.count("hang") == 5)
            scope.cancel()
            await eventually(lambda: remote.journal.count("cancelled") == 1)
        assert rested == [("rested", 1)] * 4
        for timeout in (0.3, 3, 30):
            with pytest.raises(CallTimeout):
                await supervisor.call_tool("hang", server="lab", timeout=timeout)
            if remote.journal.count("hang") > 5:  # else it was over before it came to the server
                break
        await eventually(lambda: remote.journal.count("cancelled") == 2)


async def test_twenty_calls_are_with_the_server_at_once(remote):
    """Q19: nothing is sent one after another."""
    async with supervised(remote.spec()) as supervisor, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(lambda: supervisor.call_tool("hang", server="lab"))
        await eventually(lambda: remote.journal.count("hang") == 20)
        nursery.cancel_scope.cancel()


async def test_a_server_that_holds_back_a_cancel_holds_up_nobody(remote):
    """Q19: the SDK sends notifications one after another and would wait for each."""
    async with supervised(remote.spec()) as supervisor:
        remote.faults({"method": "notifications/cancelled", "hang": 3600, "status": 202})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: supervisor.call_tool("hang", server="lab"))
            await eventually(lambda: remote.journal.count("hang") == 1)
            nursery.cancel_scope.cancel()
        with trio.fail_after(20):
            await supervisor.call_tool("look", server="lab")


@remotes_but("json")  # has no room for progress
async def test_progress_keeps_a_call_alive_and_the_hard_cap_ends_it(remote):
    """Q18, R4."""
    async with supervised(remote.spec()) as supervisor:
        steps = {"count": 12, "pause": 0.25}
        result = await supervisor.call_tool("steps", steps, server="lab", idle_timeout=2.5)
        assert result.full_text == "done"
        assert result.duration > 2.5
        with pytest.raises(CallTimeout, match="no answer within 1 s"):
            await supervisor.call_tool("steps", steps, server="lab", idle_timeout=2.5, timeout=1)


@remotes_but("modern", "handshake")  # an answer that comes as a stream begins at once
@timely
async def test_a_mute_post_ends_alone_unless_its_caller_has_set_a_limit(remote, monkeypatch):
    """P6: a POST has its own limit, the stream none; a call's own limit goes before it. R2: no resend after it."""
    remote.reset()
    monkeypatch.setattr(limits, "POST_LIMIT", 0.5)
    async with supervised(remote.spec()) as supervisor:
        if remote.kind == "json":
            with pytest.raises(ConnectionLost, match=r"did not answer within 0\.5 s") as caught:
                await supervisor.call_tool("hang", {"seconds": 3600}, server="lab", resend="always")
            assert caught.value.delivery is Delivery.UNKNOWN
            if remote.journal.count("hang") == 0:
                raise Late("the time of the POST was over before it came to the server")
            assert remote.journal.count("hang") == 1
            await eventually(lambda: remote.journal.count("cancelled") == 1)
        result = await supervisor.call_tool("hang", {"seconds": 1}, server="lab", timeout=30)
        assert (result.full_text, result.incarnation) == ("rested", 1)


async def test_a_dead_server_is_noticed_and_its_successor_found(remote):
    """Q4, Q14, Q20, L6: every pending call learns of it; the next incarnation lists anew; nothing is sent blindly."""
    lost = []

    async def wait(supervisor):
        lost.append(await outcome_of(supervisor.call_tool("hang", server="lab")))

    # A stream of changes is acknowledged after the first list of a connection, which is looked at once more then.
    listed = 2 if remote.kind == "modern" else 1
    async with supervised(remote.spec()) as supervisor:
        await eventually(lambda: remote.journal.count("POST_tools/list") == listed)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait, supervisor)
            await eventually(lambda: remote.journal.count("hang") == 3)
            remote.kill()
        for error, _ in lost:
            assert isinstance(error, ConnectionLost)
            assert (error.delivery, error.incarnation) == (Delivery.UNKNOWN, 1)
        await eventually(lambda: status_of(supervisor).state is not ServerState.CONNECTED)
        remote.start()
        result = await supervisor.call_tool("look", server="lab", when_down="wait")
        assert result.incarnation > 1
        assert status_of(supervisor).tool_count == 6
        await eventually(lambda: remote.journal.count("POST_tools/list") == 2 * listed)
    assert remote.journal.count("hang") == 3
    assert remote.journal.count("POST_tools/list") == 2 * listed
    assert remote.journal.count("DELETE") == (1 if remote.kind in IN_SESSION else 0)


@pytest.mark.parametrize(
    "shape",
    [
        {"status": 404},
        {"status": 404, "code": -32001, "message": "gone"},
        {"status": 400, "code": -32600, "message": "Bad Request: No valid session ID provided"},
        {"status": 200, "code": -32001, "message": "Session not found"},
    ],
    ids=["404", "404 with an error", "400", "200"],
)
@pytest.mark.parametrize("kind", IN_SESSION)
async def test_an_expired_session_is_replaced(remotes, kind, shape):
    """R8, Q20: one new session, tools listed anew, no blind resend, DELETE of the live session only."""
    remote = remotes(kind)
    remote.reset()
    async with supervised(remote.spec()) as supervisor:
        remote.faults({**CALL, **shape})
        with pytest.raises(ConnectionLost) as caught:
            await supervisor.call_tool("commit", server="lab")
        assert caught.value.delivery is Delivery.UNKNOWN
        result = await supervisor.call_tool("look", server="lab", when_down="wait")
        assert result.incarnation == 2
        remote.faults({**CALL, **shape})
        result = await supervisor.call_tool("look", server="lab")  # sent again, to the third session
        assert result.incarnation == 3
    assert remote.journal.count("commit") == 0
    assert remote.journal.count("POST_initialize") == remote.journal.count("POST_tools/list") == 3
    assert remote.journal.count("DELETE") == 1


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("modern", {"status": 404}),
        ("handshake", {"status": 200, "code": -32600, "message": "not so"}),
        ("handshake", {"status": 500, "code": -32001, "message": "no session, no luck"}),
        ("handshake", {"status": 200, "code": -32602, "message": "the session argument is wrong"}),
    ],
)
async def test_what_is_no_expiry(remotes, kind, shape):
    """R8: a page of HTML without a session, and errors that mean something else."""
    remote = remotes(kind)
    remote.reset()
    async with supervised(remote.spec()) as supervisor:
        remote.faults({**CALL, **shape})
        with pytest.raises(ServerError):
            await supervisor.call_tool("commit", server="lab")
        assert (await supervisor.call_tool("look", server="lab")).incarnation == 1


@timely
async def test_leaving_is_bounded_although_the_session_does_not_end(remotes):
    """L10: a server that holds back the answer to DELETE."""
    remote = remotes("handshake")
    remote.reset()
    async with supervised(remote.spec(), shutdown_timeout=2):
        remote.faults({"http": "DELETE", "method": "", "hang": 3600, "status": 200})
        began = time.monotonic()
    in_time(time.monotonic() - began, 3)
    assert remote.journal.count("DELETE") == 1


async def test_the_era_is_found_once(remotes):
    """P7: an old server is asked for its era at the first connection only."""
    remote = remotes("handshake")
    remote.reset()
    async with supervised(remote.spec()) as supervisor:
        await supervisor.reconnect("lab")
        await supervisor.reconnect("lab")
    assert remote.journal.count("POST_server/discover") == 1
    assert remote.journal.count("POST_initialize") == remote.journal.count("DELETE") == 3


async def test_what_cannot_be_written_is_that_calls_error(remote):
    """SDK-NOTES 3: half a surrogate pair passes the SDK's session, and ends its transport."""
    async with supervised(remote.spec()) as supervisor:
        with pytest.raises(InvalidArguments, match="cannot be sent as JSON"):
            await supervisor.call_tool("look", server="lab", meta={"x": "\ud800"})
        assert (await supervisor.call_tool("look", server="lab", meta={"x": 1 << 70})).incarnation == 1
