"""Words of a server that quotes what it was given: its clients get them as they came, and what is told of it has none.
Virtual time."""

import logging

import pytest
import trio

from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import ServerError, ServerSpec, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.testing import Life, Refusal, ScriptedServer

from ...lab.specs import WithEnvironment

SECRET = "hunter2-hunter2"
PLAIN = "development"
INSTRUCTIONS = f"For {PLAIN}, with {SECRET}."
DATA = {"why": [SECRET, {"password": PLAIN}], SECRET: 1}
MESSAGE = f"{SECRET} is for {PLAIN}"


async def refuses(arguments):
    await trio.lowlevel.checkpoint()
    raise Refusal(-32000, MESSAGE, DATA)


async def unheard(method, params):
    raise AssertionError


def quoting(modern):
    server = ScriptedServer(Life(modern=modern), tools={"refuse": refuses})
    server.instructions, server.info = INSTRUCTIONS, {"name": SECRET, "version": "1"}
    return ServerSpec("lab", WithEnvironment(server, {"TOKEN": SECRET, "NODE_ENV": PLAIN}))


async def asked(gateway, nursery, method, params, *, modern, view=None):
    envelope = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in envelope.items()} if modern else {}
    session = None if modern else ClientSession(print, nursery, view)
    incoming = ClientRequest(1, method, params, meta, unheard, principal="ann", session=session)
    return await gateway.answer(incoming, gateway.view(view), "2026-07-28" if modern else "2025-11-25")


@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize("client", [True, False], ids=["newer client", "older client"])
@pytest.mark.parametrize("server", [True, False], ids=["newer server", "older server"])
async def test_what_a_server_says_to_its_clients(autojump_clock, caplog, server, client, mark):
    """L16: name, instructions, and message and data of errors; for each server and for all as one."""
    caplog.set_level(logging.DEBUG)
    method, params = "server/discover", {}
    if not client:
        method = "initialize"
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    async with (
        open_supervisor([quoting(server)], callbacks=gateway_callbacks(), template="{tool}") as supervisor,
        open_gateway(supervisor, mark=mark) as gateway,
        trio.open_nursery() as nursery,
    ):
        for view in (None, "lab"):
            hello = await asked(gateway, nursery, method, params, modern=client, view=view)
            assert INSTRUCTIONS in hello["instructions"]
            if view is not None:
                info = hello["_meta"]["io.modelcontextprotocol/serverInfo"] if client else hello["serverInfo"]
                assert info["name"] == SECRET
            if not mark:
                with pytest.raises(JsonRpcError) as caught:
                    await asked(gateway, nursery, "tools/call", {"name": "refuse"}, modern=client, view=view)
                assert (caught.value.message, caught.value.data) == (MESSAGE, DATA | {"delivery": "answered"})
        told = repr((supervisor.status(), supervisor.tools))
        nursery.cancel_scope.cancel()
    assert SECRET not in told + caplog.text
    assert PLAIN in told


async def test_what_a_host_is_told_of_it(autojump_clock):
    """T9: of its own call no secret, and each plain word; what it asks for a client it is told as it came, and no text
    of the error shows it."""
    async with open_supervisor([quoting(modern=True)]) as supervisor:
        (status,) = supervisor.status()
        assert status.instructions == f"For {PLAIN}, with [REDACTED:config]."
        assert status.server_info["name"] == "[REDACTED:config]"
        with pytest.raises(ServerError) as own:
            await supervisor.call_tool("refuse", server="lab")
        assert own.value.message == f"[REDACTED:config] is for {PLAIN}"
        assert SECRET not in f"{own.value!r}{vars(own.value)}"
        assert own.value.raw is None
        with pytest.raises(ServerError) as relayed:
            await supervisor.request("lab", "tools/call", {"name": "refuse"})
        assert (relayed.value.raw.message, relayed.value.raw.data) == (MESSAGE, DATA)
        assert SECRET not in f"{relayed.value!r}{relayed.value}{vars(relayed.value)}"
