"""Lists of what all servers have: written once, as long as nothing of them changes. Virtual time."""

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from mcp.server.mcpserver import MCPServer

from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.supervisor import InProcessTransport, MemoryStore, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.auth.principal import Access
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.gateway.views import all as all_servers
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ....lab.gateway_clients import OLD
from ....lab.specs import nothing, spec


async def unheard(method, params):
    raise AssertionError


@asynccontextmanager
async def served(servers):
    async with (
        open_supervisor(
            [spec(server, name) for name, server in servers.items()],
            template="{server}_{tool}",
            callbacks=gateway_callbacks(),
            state=MemoryStore(),
        ) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        for name in servers:
            await supervisor.wait_connected(name)

        async def listed(*allow, method="tools/list"):
            incoming = ClientRequest(1, method, {}, {}, unheard, principal="ann", session=ClientSession(print, nursery))
            return await gateway.answer(incoming, gateway.view(None, Access(allow or None)), OLD)

        yield supervisor, listed


def scripted(*tools, after=0.0):
    server = ScriptedServer(Life(connects_after=after), tools=dict.fromkeys(tools, nothing))
    server.capabilities |= {"tools": {"listChanged": True}}
    return server


def names(result):
    return [tool["name"] for tool in json.loads(codec.encode(result))["tools"]]


async def test_a_list_is_written_once_for_all_who_see_the_same_until_it_changes(autojump_clock):
    server = scripted("read", "write")
    async with served({"a": server, "b": scripted("read")}) as (_, listed):
        before = (await listed())["tools"]
        assert (await listed())["tools"] is before
        assert names(await listed("a/*")) == ["a_read", "a_write"]
        assert names(await listed("*/read")) == ["a_read", "b_read"]
        assert names(await listed()) == ["a_read", "a_write", "b_read"]
        assert (await listed("a/*"))["tools"] is (await listed("a/*"))["tools"]
        server.tools["new"] = nothing
        await server.notify("notifications/tools/list_changed")
        await trio.sleep(1)
        assert names(await listed("a/*")) == ["a_new", "a_read", "a_write"]
        assert names(await listed()) == ["a_new", "a_read", "a_write", "b_read"]


async def test_of_large_lists_fewer_are_kept_for_those_who_see_different_parts(autojump_clock, monkeypatch):
    async with served({"a": scripted("read", "write"), "b": scripted("read")}) as (_, listed):
        large, small = (await listed())["tools"], (await listed("b/*"))["tools"]
        assert (await listed())["tools"] is large
        monkeypatch.setattr(all_servers, "MOST_CACHED_BYTES", len(large.json))
        again = (await listed("*/read"))["tools"]
        assert (await listed("*/read"))["tools"] is again
        assert (await listed("b/*"))["tools"] is not small
        assert (await listed())["tools"] is not large


async def test_a_list_does_not_depend_on_who_was_connected_first(autojump_clock):
    said = []
    for delays in ((0, 5), (5, 0)):
        servers = {name: scripted("x", "y", after=after) for name, after in zip("ab", delays, strict=True)}
        async with served(servers) as (_, listed):
            said.append(codec.result(1, await listed()))
    assert said[0] == said[1]


async def test_a_request_with_an_id_beyond_64_bits_gets_its_list(autojump_clock):
    async with served({"a": scripted("read")}) as (_, listed):
        said = json.loads(codec.result(1 << 70, await listed()))
        assert (said["id"], said["result"]["tools"][0]["name"]) == (1 << 70, "a_read")


async def test_requests_at_once_make_one_list(autojump_clock):
    async with served({"a": scripted(*map(str, range(500)))}) as (_, listed):
        made = []

        async def ask():
            made.append((await listed())["tools"])

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert len(set(map(id, made))) == 1


def described(who):
    """A server of the SDK whose resource and template say whose they are."""
    server = MCPServer(who)
    server.resource("x://1", name="x", description=who)(lambda: "")
    server.resource("t://{v}", name="t", description=who)(lambda v: "")
    return SimpleNamespace(transport=InProcessTransport(server))


@pytest.mark.parametrize("method", ["resources/list", "resources/templates/list"])
async def test_what_several_servers_have_is_listed_for_each_as_the_same_whatever_else_is_configured(method):
    async with served({"b": described("b"), "a": described("a")}) as (supervisor, listed):

        async def whose():
            [listing] = json.loads(codec.encode(await listed(method=method))).values()
            return {each["description"]: each.get("uri") or each["uriTemplate"] for each in listing}

        shown = await whose()
        assert [uri.split("/")[2] for uri in shown.values()] == ["a", "b"]
        await supervisor.remove_server("a")
        assert await whose() == {"b": shown["b"]}
