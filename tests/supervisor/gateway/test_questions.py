"""Questions of a newer server that its client cannot be asked. Virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.testing import Ask, ScriptedServer

from ...lab.specs import nothing, spec

FORM = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {"type": "object"}}}


async def insist(arguments):
    """Whatever its client can be asked."""
    await trio.lowlevel.checkpoint()
    return Ask({"one": FORM, "two": FORM}, nothing)


async def unheard(method, params):
    raise AssertionError


@asynccontextmanager
async def served():
    async with (
        open_supervisor(
            [spec(ScriptedServer(tools={"insist": insist}))], gate=10, callbacks=gateway_callbacks()
        ) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        yield gateway, nursery


async def test_a_question_that_fails_ends_the_others(autojump_clock):
    """Its user is asked nothing whose answer nobody needs."""
    async with served() as (gateway, nursery):
        session, asked = ClientSession(print, nursery, "lab"), []

        async def ask(method, params):
            asked.append(method)
            if len(asked) == 1:
                await trio.sleep_forever()
            raise JsonRpcError(-1, "no screen")

        incoming = ClientRequest(1, "tools/call", {"name": "insist"}, {}, unheard, "ann", session, ask)
        incoming.capabilities = {"elicitation": {}}
        with trio.fail_after(5), pytest.raises(JsonRpcError, match="no screen"):
            await gateway.answer(incoming, gateway.view("lab"), "2025-11-25")
        assert len(asked) == 2


async def test_what_an_older_client_cannot_be_asked_is_an_error_of_its_own(autojump_clock):
    async with served() as (gateway, nursery):
        session = ClientSession(print, nursery, "lab")
        incoming = ClientRequest(1, "tools/call", {"name": "insist"}, {}, unheard, principal="ann", session=session)
        with pytest.raises(JsonRpcError) as refused:
            await gateway.answer(incoming, gateway.view("lab"), "2025-11-25")
        assert refused.value.code == -32021
