"""What clients of the gateway that show pages of tools have, and others have not. In memory, virtual time."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from mcp_types import INVALID_PARAMS

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.extensions import APPS
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import MemoryStore, RestartPolicy, open_supervisor
from mcp_nursery.supervisor.approval import ApprovalRules
from mcp_nursery.supervisor.gateway import Access, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ....lab.gateway_clients import as_read
from ....lab.specs import nothing, spec

OLD, NEW = "2025-11-25", "2026-07-28"
WITH_APPS = {"extensions": {APPS: {"mimeTypes": ["text/html;profile=mcp-app"]}}}
WITHOUT = {"extensions": {"com.example/other": {}}}
PAGE = "ui://board.html"
eras = pytest.mark.parametrize("modern", [True, False], ids=["newer client", "older client"])
servers_eras = pytest.mark.parametrize("life", [Life(modern=True), Life(modern=False)], ids=["newer", "older"])


def of(*visibility):
    return {"_meta": {"ui": {"resourceUri": PAGE, "visibility": list(visibility)}}}


def board(*lives):
    """`show` and `count` are for everybody, `refresh` is for pages alone, `plan` for models alone."""
    declared = {"show": {"_meta": {"ui": {"resourceUri": PAGE}}}, "refresh": of("app"), "plan": of("model")}
    server = ScriptedServer(
        *lives, tools=dict.fromkeys(["show", "refresh", "plan", "count"], nothing), declared=declared
    )
    server.capabilities["tools"] = {"listChanged": True}
    return server


def plain():
    return ScriptedServer(tools=dict.fromkeys(["refresh", "count"], nothing))


async def unheard(method, params):
    raise AssertionError


@asynccontextmanager
async def served(servers, *, options=None, rules=None, pins="block", **how):
    """`ask(method, modern=…, apps=…, server=…, access=…, **params)` of a client."""
    specs = [spec(server, name=name, **(options or {})) for name, server in servers.items()]
    async with (
        open_supervisor(
            specs,
            gate=10,
            template="{server}_{tool}",
            callbacks=gateway_callbacks(),
            state=MemoryStore(),
            pins=pins,
            approval_rules=rules,
        ) as supervisor,
        open_gateway(supervisor, **how) as gateway,
        trio.open_nursery() as nursery,
    ):

        async def ask(method, *, apps=True, modern=True, server=None, access=None, **params):
            capabilities = WITH_APPS if apps else WITHOUT
            session = None if modern else ClientSession(print, nursery, server)
            incoming = ClientRequest(1, method, params, {}, unheard, principal="ann", session=session)
            incoming.capabilities = capabilities
            if modern:
                incoming.meta = {
                    "io.modelcontextprotocol/protocolVersion": NEW,
                    "io.modelcontextprotocol/clientCapabilities": capabilities,
                }
            view = gateway.view(server, access or Access())
            return as_read(await gateway.answer(incoming, view, NEW if modern else OLD))

        for name in servers:
            if not (options or {}).get("lazy"):
                await supervisor.wait_connected(name)
        yield supervisor, ask


async def names(ask, **how):
    return {tool["name"] for tool in (await ask("tools/list", **how))["tools"]}


async def refusal(ask, name, **how):
    with pytest.raises(JsonRpcError) as refused:
        await ask("tools/call", name=name, arguments={}, **how)
    assert refused.value.code == INVALID_PARAMS
    return refused.value.message


def called(*servers):
    return [[tool for _, tool, _ in server.calls] for server in servers]


@eras
@servers_eras
async def test_tools_for_pages_alone_are_there_for_who_shows_pages(autojump_clock, modern, life):
    a = board(life)
    async with served({"a": a, "b": plain()}) as (_, ask):
        for _ in range(2):  # the second time from pages that were written
            for apps, more in ((True, {"refresh"}), (False, set())):
                has = partial(names, ask, modern=modern, apps=apps)
                assert await has(server="a") == {"show", "plan", "count"} | more
                assert await has() == {"a_show", "a_plan", "a_count", "b_refresh", "b_count"} | {
                    f"a_{name}" for name in more
                }
                assert await has(access=Access(["a/refresh"])) == {f"a_{name}" for name in more}
        for server, name in ((None, "a_refresh"), ("a", "refresh")):
            said = await refusal(ask, name, server=server, modern=modern, apps=False)
            assert said.lower().endswith(("unknown tool: refresh", "no tool named 'a_refresh'"))
            assert called(a) == [[]]
            assert await ask("tools/call", name=name, arguments={}, server=server, modern=modern)
            a.calls.clear()


@eras
@pytest.mark.parametrize("server", [None, "a"])
async def test_nor_is_one_called_before_it_is_known_for_what_it_is(autojump_clock, modern, server):
    """The call starts the server: nothing was known of it."""
    a = board()
    async with served({"a": a}, options={"lazy": True}) as (_, ask):
        call = partial(ask, "tools/call", name="refresh" if server else "a_refresh", arguments={}, server=server)
        try:
            said = (await call(apps=False, modern=modern))["content"][0]["text"]
        except JsonRpcError as error:
            said = error.message
        assert "no tool named" in said or "has no tool" in said
        assert called(a) == [[]]
        await call(modern=modern)
        assert called(a) == [["refresh"]]


@eras
async def test_lists_of_a_server_that_is_away_are_the_same(autojump_clock, modern):
    a = board(Life(), Life(refuses="no such luck"))
    async with served({"a": a}) as (_, ask):
        a.crash()
        await trio.sleep(1)
        for server, prefix in ((None, "a_"), ("a", "")):
            has = partial(names, ask, modern=modern, server=server)
            assert await has() - await has(apps=False) == {f"{prefix}refresh"}


async def test_a_page_calls_a_tool_by_the_name_that_its_server_has_for_it(autojump_clock):
    a, b = board(), plain()
    async with served({"a": a, "b": b}) as (_, ask):
        for name in ("refresh", "show", "count"):  # `count` has no page, but its server has
            assert await ask("tools/call", name=name, arguments={})
        assert called(a, b) == [["refresh", "show", "count"], []]
        assert "no tool named 'plan'" in await refusal(ask, "plan")
        for name in ("refresh", "show", "count"):
            assert f"no tool named {name!r}" in await refusal(ask, name, apps=False)
            assert f"no tool named {name!r}" in await refusal(ask, name, access=Access(["b/*"]))
        assert called(a, b) == [["refresh", "show", "count"], []]


async def test_of_two_servers_that_may_be_meant_neither_answers(autojump_clock):
    """Nor does one because the other is away, was stopped or is held back."""
    a, b = board(), board()
    async with served({"a": a, "b": b}) as (supervisor, ask):

        async def both():
            said = await refusal(ask, "refresh")
            return "call 'a_refresh' or 'b_refresh'" in said

        assert await both()
        assert await ask("tools/call", name="refresh", arguments={}, access=Access(["b/refresh"]))
        assert called(a, b) == [[], ["refresh"]]
        b.declared = b.declared | {"refresh": of("app") | {"description": "otherwise"}}
        await supervisor.list_tools(refresh=True)
        assert await both()
        a.crash()
        await trio.sleep(0.1)
        assert await both()
        await supervisor.stop_server("a")
        assert await both()
        await supervisor.remove_server("a")
        held = await ask("tools/call", name="refresh", arguments={})
        assert "its definition has changed" in held["content"][0]["text"]
        assert called(a, b) == [[], ["refresh"]]


async def test_filters_and_rules_hold_for_what_a_page_calls(autojump_clock):
    a = board()
    denied = ApprovalRules(denied=["a/refresh"], allowed=["*"])
    async with served({"a": a, "b": plain()}, options={"deny": ["show"]}, rules=denied) as (_, ask):
        assert "no tool named 'show'" in await refusal(ask, "show")
        for name in ("refresh", "a_refresh"):
            said = await ask("tools/call", name=name, arguments={})
            assert "not approved: denied" in said["content"][0]["text"]
        assert called(a) == [[]]
        assert await ask("tools/call", name="count", arguments={})
        assert called(a) == [["count"]]


async def test_no_server_takes_over_a_name_that_another_may_give_its_tools(autojump_clock):
    """Though that one does not have such a tool, or not yet."""
    hostile = ScriptedServer(tools={"b_pay": nothing, "count": nothing}, declared={"b_pay": of("app")})
    async with served({"a": hostile, "b": plain()}) as (_, ask):
        assert "no tool named 'b_pay'" in await refusal(ask, "b_pay")
        assert await ask("tools/call", name="a_b_pay", arguments={})
        assert called(hostile) == [["b_pay"]]


@pytest.mark.parametrize("told", [{}, WITH_APPS["extensions"]])
async def test_what_a_server_is_told_makes_no_difference(autojump_clock, told):
    """An entry may say what its server is told, whoever its client is."""
    a = board()
    async with served({"a": a}, options={"extensions": told}) as (_, ask):
        for server, name in ((None, "a_refresh"), (None, "refresh"), ("a", "refresh")):
            await ask("tools/call", server=server, name=name, arguments={})
            assert await refusal(ask, name, server=server, apps=False)
        assert called(a) == [["refresh"] * 3]


@pytest.mark.parametrize("apps", [True, False])
async def test_no_search_finds_what_is_for_pages_alone(autojump_clock, apps):
    """Whoever searches is a model. A page calls its tools directly."""
    a = board()
    async with served({"a": a}, search=True) as (_, ask):
        for server, name in ((None, "a_refresh"), ("a", "refresh")):
            has = partial(ask, "tools/call", server=server, apps=apps)
            found = await has(name="find_tools", arguments={"query": "refresh show"})
            assert "show" in found["content"][0]["text"]
            assert "refresh" not in found["content"][0]["text"]
            said = await has(name="call_tool", arguments={"name": name})
            assert said["isError"]
            assert f"no tool named {name!r}" in said["content"][0]["text"] or "has no tool" in str(said)
        assert called(a) == [[]]
        if apps:
            for server, name in ((None, "a_refresh"), (None, "refresh"), ("a", "refresh")):
                await ask("tools/call", server=server, name=name, arguments={})
            assert called(a) == [["refresh"] * 3]
        else:
            assert await refusal(ask, "a_refresh", apps=False)


async def test_a_server_whose_ui_nobody_can_read_costs_no_list(autojump_clock):
    odd = {"show": {"_meta": {"ui": 7}}, "refresh": {"_meta": {"ui": {"visibility": "model"}}}}
    a = ScriptedServer(tools=dict.fromkeys(["show", "refresh"], nothing), declared=odd)
    async with served({"a": a}) as (_, ask):
        assert await names(ask, apps=False) == {"a_show"}
        assert await names(ask, apps=False, server="a") == {"show"}
        assert await names(ask) == {"a_show", "a_refresh"}
        assert "no tool named 'refresh'" in await refusal(ask, "refresh")


async def test_a_tool_that_a_user_or_a_token_leaves_out_is_no_other_server_s(autojump_clock):
    """The page of its server does not know that, and calls it all the same."""
    a, b = board(), board()
    async with served({"a": a}, options={"deny": ["refresh"]}) as (supervisor, ask):
        await supervisor.add_server(spec(b, name="b"))
        await supervisor.wait_connected("b")
        for name, access in (("refresh", Access()), ("count", Access(["a/show", "b/*"]))):
            said = await refusal(ask, name, access=access)
            assert said.endswith(f"call 'b_{name}'")
            assert f"a_{name}" not in said
        assert await ask("tools/call", name="refresh", arguments={}, access=Access(["b/*"]))
        assert called(a, b) == [[], ["refresh"]]


async def test_nor_does_a_server_answer_while_another_is_in_its_first_start(autojump_clock):
    """A session outlives a gateway: its client may show a page of a server of which nothing is known yet."""
    a, b = board(Life(connects_after=3)), board()
    async with served({"b": b}) as (supervisor, ask):
        await supervisor.add_server(spec(a, name="a"))
        assert "call 'b_refresh' or 'a_refresh'" in await refusal(ask, "refresh")
        assert called(a, b) == [[], []]


async def test_nor_does_one_answer_for_a_server_of_which_nothing_is_known(autojump_clock):
    a, b = board(Life(refuses="no such luck")), board()
    async with served({"b": b}) as (supervisor, ask):
        await supervisor.add_server(spec(a, name="a", policy=RestartPolicy(delays=[])))
        await trio.sleep(1)
        assert "call 'b_refresh'" in await refusal(ask, "refresh")
        assert called(b) == [[]]


async def test_call_tool_is_for_models_also_where_its_call_starts_the_server(autojump_clock):
    a = board()
    a.declared = {}
    options = {"lazy": "cached", "stop_idle_after": 5}
    async with served({"a": a}, search=True, options=options, pins="report") as (supervisor, ask):
        await supervisor.list_tools()
        await trio.sleep(20)
        assert supervisor.status_of("a").state is ServerState.IDLE
        a.declared = {"refresh": of("app")}
        said = await ask("tools/call", name="call_tool", arguments={"name": "a_refresh"})
        assert "has no tool" in said["content"][0]["text"] or "no tool named" in said["content"][0]["text"]
        assert called(a) == [[]]
