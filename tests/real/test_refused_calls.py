"""A call that its server refuses for its authorisation was not sent, whatever ends it afterwards."""

import httpx2
import pytest
import trio

from mcp_nursery.supervisor import ConnectionLost, HttpTransport, RestartPolicy, ServerSpec, SseTransport
from mcp_nursery.supervisor.errors import Delivery

from ..lab.http_peer import response, serving
from ..lab.processes import supervised


class Unlucky(httpx2.Auth):
    """Cannot reach its issuer at the first refusal, and gets no other token at the second."""

    refusals = 0

    async def async_auth_flow(self, request):
        refused = yield request
        if refused.status_code == 401:
            self.refusals += 1
            if self.refusals == 1:
                raise httpx2.ConnectError("no issuer")


@pytest.mark.parametrize("sse", [False, True], ids=["http", "sse"])
async def test_a_call_that_is_refused_twice_was_not_sent(sse):
    """R2: the first connection is lost for want of an issuer, the second for want of a token."""
    async with serving(sse=sse) as peer:

        async def refuse(asked):
            await asked.send(response(401))

        peer.on_call = refuse
        auth = Unlucky()
        transport = (SseTransport if sse else HttpTransport)(peer.url, auth=auth)
        spec = ServerSpec("peer", transport, policy=RestartPolicy(delays=[0, 0]), liveness=None)
        async with supervised(spec) as supervisor:
            with trio.fail_after(20), pytest.raises(ConnectionLost) as caught:
                await supervisor.call_tool("once", server="peer", when_down="wait")
            assert (caught.value.delivery, caught.value.incarnation) == (Delivery.NOT_SENT, 2)
        assert (len(peer.heard("tools/call")), peer.ledger) == (2, [])
