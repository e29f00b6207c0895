"""The reference server offers some tools only to clients that can be asked: behind the gateway each sees what it would
see without."""

import pytest
import trio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ElicitResult, ErrorData, ListRootsResult

from ..lab.gateways import serving
from . import installing
from .everything import REQUIREMENT

pytestmark = pytest.mark.interop


async def elicit(context, params):
    return ElicitResult(action="decline")


async def refuse(context, params):
    return ErrorData(code=-32000, message="no")


async def roots(context):
    return ListRootsResult(roots=[])


CLIENTS = {
    "nothing": {},
    "elicitation": {"elicitation_callback": elicit},
    "all": {"elicitation_callback": elicit, "sampling_callback": refuse, "list_roots_callback": roots},
}


async def tools(command, *, mode, count=None, **callbacks):
    """Their names; with `count`, once there are so many: it adds some after the handshake."""
    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with Client(stdio_client(parameters), mode=mode, **callbacks) as client:
        before = None
        while True:
            names = sorted(tool.name for tool in (await client.list_tools()).tools)
            if len(names) == count or (count is None and names == before):
                return names
            before = names
            await trio.sleep(0.5)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("asked", CLIENTS)
async def test_the_tools_are_those_without_the_gateway(asked, mode):
    with installing.needed_by_test("server-everything"):
        server = [*installing.npm_package(REQUIREMENT), "stdio"]
    with trio.fail_after(90):
        direct = await tools(server, mode=mode, **CLIENTS[asked])
        behind = await tools(serving("--", *server), mode=mode, count=len(direct), **CLIENTS[asked])
    assert behind == direct
