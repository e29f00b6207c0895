"""A redirect of a call is one more attempt: under the caller's rule, and counted."""

import pytest

from mcp_nursery.supervisor import CallError, HttpTransport, RestartPolicy, ServerSpec, SseTransport, open_supervisor
from mcp_nursery.supervisor.errors import Delivery

from ..lab.http_peer import MODERN, response, serving

ONCE = RestartPolicy(delays=[])
wires = pytest.mark.parametrize("sse", [False, True], ids=["http", "sse"])


def moved(to=b"/moved", *, last=False):
    return response(307, more=b"location: %s\r\n" % to, last=last)


async def called(peer, tool, **more):
    make = SseTransport if peer.sse else HttpTransport
    async with open_supervisor([ServerSpec("peer", make(peer.url), policy=ONCE, liveness=None)]) as supervisor:
        await supervisor.wait_connected("peer")
        try:
            return await supervisor.call_tool(tool, server="peer", **more)
        except CallError as error:
            return error


@wires
@pytest.mark.parametrize("resend", ["safe", "never"])
@pytest.mark.parametrize("tool", ["once", "read"])
async def test_executed_then_redirected_then_refused(sse, resend, tool):
    """Q36: carried out once, and said to be unknown."""
    async with serving(MODERN, sse=sse) as peer:

        async def act_and_go(asked):
            asked.execute()
            peer.listening.cancel()
            await peer.listener.aclose()
            await asked.send(moved(last=True))
            await asked.stream.aclose()

        peer.on_call = act_and_go
        outcome = await called(peer, tool, resend=resend)
        assert outcome.delivery is Delivery.UNKNOWN
        assert peer.ledger == [tool]


@wires
@pytest.mark.parametrize(
    ("tool", "resend", "times"),
    [("once", "safe", 1), ("once", "never", 1), ("read", "safe", 2), ("read", "never", 1), ("once", "always", 2)],
)
async def test_round_and_round(sse, tool, resend, times):
    """It acts and redirects each time: as often as the rule allows, and no more."""
    async with serving(MODERN, sse=sse) as peer:

        async def act_and_redirect(asked):
            asked.execute()
            await asked.send(moved())

        peer.on_call = act_and_redirect
        outcome = await called(peer, tool, resend=resend)
        assert outcome.delivery is Delivery.UNKNOWN
        assert f"HTTP 307 redirect to {peer.origin}" in str(outcome)
        assert peer.ledger == [tool] * times


@wires
async def test_what_may_run_twice_goes_where_it_was_sent(sse):
    async with serving(MODERN, sse=sse) as peer:

        async def redirect(asked):
            if asked.path == b"/moved":
                await peer.answer(asked)
            else:
                await asked.send(moved())

        peer.on_call = redirect
        assert (await called(peer, "read")).full_text == "done"
        assert peer.ledger == ["read"]


@wires
@pytest.mark.parametrize("status", [502, 504])
async def test_a_gateway_cannot_know(sse, status):
    """What the server behind it has done is unknown; and 504 is a time limit, after which nothing is sent again."""
    async with serving(MODERN, sse=sse) as peer:

        async def act_and_fail(asked):
            asked.execute()
            await asked.send(response(status))

        peer.on_call = act_and_fail
        error = await called(peer, "once")
        assert (error.code, error.delivery) == (status, Delivery.UNKNOWN)
        assert "the server may have acted" in str(error)
        assert peer.ledger == ["once"]
        error = await called(peer, "read")
        assert (error.code, error.delivery) == (status, Delivery.UNKNOWN)
        assert peer.ledger == ["once", *["read"] * (2 if status == 502 else 1)]


@wires
async def test_who_is_not_authorised_has_sent_nothing(sse):
    """R2: 401 says that the call was refused before anything was done; nobody sends it again but a person."""
    async with serving(MODERN, sse=sse) as peer:

        async def refuse(asked):
            await asked.send(response(401))

        peer.on_call = refuse
        error = await called(peer, "read", timeout=5)
        assert error.delivery is Delivery.NOT_SENT
        assert "HTTP 401 Unauthorized; the server has not acted" in str(error)
        assert len(peer.heard("tools/call")) == 1
