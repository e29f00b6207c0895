"""All servers as one, for who may use all of them and for who may use one. In memory, virtual time."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from mcp_nursery.actors.extensions import SKILLS
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.supervisor import MemoryStore, RestartPolicy, ServerDown, ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.calls.search_tools import NOTHING
from mcp_nursery.supervisor.gateway import Access, gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.client_request import ClientRequest
from mcp_nursery.supervisor.gateway.clients import ClientSession
from mcp_nursery.supervisor.gateway.views.all import INSTRUCTIONS, All, _join_instructions
from mcp_nursery.supervisor.gateway.views.shown_uris import qualify
from mcp_nursery.supervisor.gateway.views.view import RequestRoute
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ....lab.gateway_clients import as_read
from ....lab.specs import SERVERS, Named, spec

OLD, NEW = "2025-11-25", "2026-07-28"
SOME = Access(["b/*"])
ONE_TOOL = Access(["b/look", "b/drap"])


def says(who):
    async def say(arguments):
        await trio.lowlevel.checkpoint()
        return f"{who}: {arguments.get('topic') or arguments.get('uri') or 'look'}"

    return say


def script(name):
    """Both have `note://both`, and templates that it may come of."""
    say = says(name)
    more = {"file://own": say} if name == "a" else {}
    return ScriptedServer(
        tools={"look": say, "drop": say},
        resources={"note://both": say, f"note://{name}": say, "file://{path}": say, f"{name}://{{path}}": say} | more,
        prompts={"hint": say},
        completions={"topic": [f"{name} one", f"{name} two"]},
    )


async def unheard(method, params):
    raise AssertionError


@asynccontextmanager
async def served(*, servers=None, **how):
    """`ask(method, access=…, **params)` of a client, without a session by default."""
    servers = servers or {"b": script("b"), "a": script("a")}
    specs = [spec(server, name=name) for name, server in servers.items()]
    options = {"gate": 10, "template": "{server}_{tool}", "callbacks": gateway_callbacks()}
    async with (
        open_supervisor(specs, **options) as supervisor,
        open_gateway(supervisor, **how) as gateway,
        trio.open_nursery() as nursery,
    ):

        async def ask(method, *, access=None, server=None, modern=True, **params):
            view = gateway.view(server, access or Access())
            session = None if modern else ClientSession(print, nursery, server)
            meta = {"io.modelcontextprotocol/protocolVersion": NEW} if modern else {}
            meta |= {"io.modelcontextprotocol/clientCapabilities": {}} if modern else {}
            incoming = ClientRequest(1, method, params, meta, unheard, principal="ann", session=session)
            return as_read(await gateway.answer(incoming, view, NEW if modern else OLD))

        for name in servers:
            if servers[name].lives[0].refuses is None:
                await supervisor.wait_connected(name)
        yield supervisor, ask


async def refusal(ask, *args, **params):
    with pytest.raises(JsonRpcError) as refused:
        await ask(*args, **params)
    return refused.value.code, refused.value.message


async def test_lists_are_of_all_and_sorted(autojump_clock):
    async with served() as (_, ask):

        async def names(kind, key="name", **how):
            result = await ask(f"{kind}/list", **how)
            return [each[key] for each in next(value for name, value in result.items() if isinstance(value, list))]

        assert await names("tools") == ["a_drop", "a_look", "b_drop", "b_look"]
        assert await names("prompts") == ["a_hint", "b_hint"]
        both = [qualify(name, "note://both") for name in "ab"]
        own = [qualify("a", "file://own"), qualify("a", "note://a"), qualify("b", "note://b"), *both]
        assert await names("resources", "uri") == own
        templates = [("a", "a://{path}"), ("b", "b://{path}"), ("a", "file://{path}"), ("b", "file://{path}")]
        assert await names("resources/templates", "uriTemplate") == [qualify(*each) for each in templates]
        assert await names("tools", access=ONE_TOOL) == ["b_look"]
        assert await names("prompts", access=ONE_TOOL) == ["b_hint"]
        assert await names("resources", "uri", access=ONE_TOOL) == own[2:3] + both[1:]
        assert len(await names("resources/templates", "uriTemplate", access=ONE_TOOL)) == 2
        assert await names("tools", access=ONE_TOOL, server="b") == ["look"]
        listed = await ask("tools/list")
        assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == ("complete", 0, "private")
        assert "resultType" not in await ask("tools/list", modern=False)


async def test_each_request_goes_to_who_has_what_it_names(autojump_clock):
    """What several have is read from the one that is named."""
    scripts = {"b": script("b"), "a": script("a")}
    async with served(servers=scripts) as (_, ask):

        async def text(method, key, **params):
            result = await ask(method, **params)
            found = result[key][0]
            return found.get("text") or found["content"]["text"]

        assert await text("tools/call", "content", name="a_look", arguments={}) == "a: look"
        assert await text("prompts/get", "messages", name="a_hint", arguments={"topic": "x"}) == "a: x"
        read = partial(text, "resources/read", "contents")
        assert await read(uri="note://a") == "a: note://a"
        assert await read(uri="a://x") == "a: a://x"
        for uri in ("note://both", "file://x", "file://own"):
            for name in "ab":
                assert await read(uri=qualify(name, uri)) == f"{name}: {uri}"
            code, said = await refusal(ask, "resources/read", uri=uri)
            assert code == INVALID_PARAMS
            assert f"read '{qualify('b', uri)}' or '{qualify('a', uri)}'" in said
        about = {"argument": {"name": "topic", "value": ""}}
        a_s_own = [{"type": "ref/resource", "uri": uri} for uri in ("a://{path}", qualify("a", "file://{path}"))]
        for ref in ({"type": "ref/prompt", "name": "a_hint"}, *a_s_own):
            said = await ask("completion/complete", ref=ref, **about)
            assert said["completion"]["values"] == ["a one", "a two"]
        refs = [params["ref"] for _, method, params in scripts["a"].requests if method == "completion/complete"]
        assert [ref.get("name", ref.get("uri")) for ref in refs] == ["hint", "a://{path}", "file://{path}"]
        both = {"type": "ref/resource", "uri": "file://{path}"}
        assert (await refusal(ask, "completion/complete", ref=both, **about))[0] == INVALID_PARAMS


async def test_a_web_address_is_read_by_the_server_that_it_names_alone(autojump_clock):
    """Results show it as it is, since hosts open it by themselves: whoever lists it too must not answer for it."""
    lister = ScriptedServer(resources={"https://example.com/": says("a")})
    async with served(servers={"a": lister, "b": script("b")}) as (_, ask):
        shown = (await ask("resources/list"))["resources"][0]["uri"]
        assert (await ask("resources/read", uri=shown))["contents"][0]["uri"] == shown
        code, said = await refusal(ask, "resources/read", uri="https://example.com/")
        assert (code, f"read {shown!r}" in said) == (INVALID_PARAMS, True)


@pytest.mark.parametrize(
    "uri",
    [
        "mcp-server://a/note://a",  # of a client that may use `b` alone
        "mcp-server://gone/note://b",
        "mcp-server:///note://b",
        "mcp-server://b",
        "MCP-SERVER://b/note://b",
        "mcp-server://%62/note://b",
        "mcp-server://B/note://b",
        "mcp-server://%ff/note://b",
        "ui://gone+view.html",
        "ui://%62+view.html",
        "ui://b%2Bview.html",
        "UI://b+view.html",
    ],
)
async def test_a_uri_that_has_the_form_of_one_that_names_a_server_is_looked_for_nowhere_else(uri, autojump_clock):
    hostile = ScriptedServer(resources={uri: says("b"), "{+any}": says("b")})
    async with served(servers={"b": hostile, "a": script("a")}) as (_, ask):
        for method in ("resources/read", "resources/subscribe"):
            refused = await refusal(ask, method, uri=uri, access=SOME, modern=method == "resources/read")
            assert refused[0] == INVALID_PARAMS
        assert hostile.requests == []


async def test_what_nobody_has_is_refused(autojump_clock):
    async with served() as (_, ask):
        code, said = await refusal(ask, "tools/call", name="c_look")
        assert (code, said.startswith("no tool named 'c_look'")) == (INVALID_PARAMS, True)
        code, said = await refusal(ask, "prompts/get", name="hint")
        assert (code, said) == (INVALID_PARAMS, "no server offers a prompt named 'hint'")
        code, said = await refusal(ask, "resources/read", uri="other://x")
        assert (code, "other://x" in said) == (INVALID_PARAMS, True)
        assert (await refusal(ask, "vendor/method"))[0] == METHOD_NOT_FOUND


async def test_what_somebody_may_not_use_does_not_exist_for_him(autojump_clock):
    scripts = {"b": script("b"), "a": script("a")}
    async with served(servers=scripts) as (_, ask):
        mine = partial(ask, access=ONE_TOOL)
        for name in ("a_look", "b_drop", "b_drap"):
            code, said = await refusal(mine, "tools/call", name=name)
            assert (code, said) == (INVALID_PARAMS, f"no tool named {name!r}")  # without the names of others
        assert (await mine("tools/call", name="b_look", arguments={}))["content"][0]["text"] == "b: look"
        assert (await refusal(mine, "prompts/get", name="a_hint"))[0] == INVALID_PARAMS
        for uri in ("note://a", "a://x", qualify("a", "note://a")):
            assert (await refusal(mine, "resources/read", uri=uri))[0] == INVALID_PARAMS
        assert (await mine("resources/read", uri="note://both"))["contents"][0]["text"] == "b: note://both"
        own = partial(mine, server="b")
        for name in ("drop", "nothing"):
            assert (await refusal(own, "tools/call", name=name))[0] == INVALID_PARAMS
        with pytest.raises(JsonRpcError) as refused:
            await own("vendor/method")
        assert (refused.value.code, refused.value.data["about"]) == (
            METHOD_NOT_FOUND,
            "vendor/method",
        )  # the gateway's word
        assert [tool for one in scripts.values() for _, tool, _ in one.calls] == ["look"]


async def test_search_finds_what_there_is_for_somebody(autojump_clock):
    """And says what may be found later, but not what nobody can have."""
    down = ScriptedServer(Life(refuses="no such luck"))
    servers = {"b": script("b"), "a": script("a"), "down": down}
    async with served(servers=servers, search=True) as (_, ask):

        async def find(query="look", **how):
            found = await ask("tools/call", name="find_tools", arguments={"query": query}, **how)
            return {
                line.split('"')[3] if line.startswith("{") else line for line in found["content"][0]["text"].split("\n")
            }

        assert {"a_look", "b_look"} <= await find()
        assert [line for line in await find() if line.startswith("not connected: down (")]
        assert await find(server="b") >= {"look"}
        assert (await ask("tools/list", server="b"))["tools"][1]["description"].endswith("The servers: b")
        found = await ask("tools/call", server="b", name="find_tools", arguments={"query": "look"})
        assert found["content"][0]["text"].count('"look"') == 1
        assert await find(access=ONE_TOOL) == {"b_look"}
        assert await find(access=ONE_TOOL, query="drop") == {NOTHING}
        assert {each["name"] for each in (await ask("tools/list", access=ONE_TOOL))["tools"]} == {
            "find_tools",
            "call_tool",
        }
        for server, name in ((None, "b_drop"), (None, "a_look"), ("b", "drop"), ("b", "drap")):
            finder = (await ask("tools/list", access=ONE_TOOL, server=server))["tools"][1]
            assert finder["description"].endswith("The servers: b")
            arguments = {"name": name}
            refused = await ask("tools/call", access=ONE_TOOL, server=server, name="call_tool", arguments=arguments)
            assert refused["isError"]
            assert "did you mean" not in refused["content"][0]["text"]
        assert [one.calls for one in servers.values()] == [[]] * 3
        assert (await refusal(ask, "resources/read", uri="other://x"))[0] == INVALID_PARAMS
        assert (await ask("prompts/list", access=ONE_TOOL))["prompts"][0]["name"] == "b_hint"


async def test_a_client_of_all_is_told_what_all_of_them_want_a_model_to_know(autojump_clock):
    async with served() as (supervisor, ask):
        names = [one.name for one in supervisor.status()]
        said = {name: f"Ask {name}." for name in names}
        assert _join_instructions(said) == "# b\nAsk b.\n\n# a\nAsk a."
        said = {f"{name}{number}": name * 40_000 for number in range(5) for name in names}
        assert len(_join_instructions(said)) == INSTRUCTIONS
        assert "# a0" in _join_instructions(said)  # one that talks without end leaves room for others
        about = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}, "protocolVersion": OLD}
        said = await ask("initialize", modern=False, **about)
        assert "instructions" not in said
        await supervisor.add_server(ServerSpec("d", StdioTransport("/nonesuch"), policy=RestartPolicy(delays=())))
        with pytest.raises(ServerDown):
            await supervisor.wait_connected("d")
        told = (await ask("initialize", modern=False, **about))["instructions"]
        assert told == "Not available now: d (failed). Tell the user if their tools are needed."
        assert "instructions" not in await ask("initialize", modern=False, access=ONE_TOOL, **about)
        assert said["capabilities"]["resources"] == {"listChanged": True, "subscribe": True}
        assert said["capabilities"].keys() == {"tools", "prompts", "resources", "completions", "logging"}


async def test_who_names_what_a_slow_server_has_waits_for_that(autojump_clock):
    slow = script("a")
    slow = ScriptedServer(Life(connects_after=3), tools=slow.tools, resources=slow.resources, prompts=slow.prompts)
    one = {"name": "a_look", "arguments": {}, "access": Access(["a/look"])}
    async with served(servers={"b": script("b")}) as (supervisor, ask):
        for method, params in (
            ("prompts/get", {"name": "a_hint"}),
            ("resources/read", {"uri": "note://a"}),
            ("tools/call", one),
        ):
            await supervisor.add_server(spec(slow, name="a"))
            assert await ask(method, **params)
            await supervisor.remove_server("a")


async def test_a_gateway_declares_the_extensions_that_servers_declared_last(autojump_clock):
    """The introduction comes from the cache, while the server has yet to answer."""
    SERVERS["known"] = ScriptedServer()
    SERVERS["known"].capabilities["extensions"] = {SKILLS: {"directoryRead": True}}
    known, state = ServerSpec("known", Named("known")), MemoryStore()
    async with open_supervisor([known], callbacks=gateway_callbacks(), state=state) as supervisor:
        await supervisor.wait_connected("known")
    SERVERS["known"] = ScriptedServer(Life(mute=True))
    async with open_supervisor([known], callbacks=gateway_callbacks(), state=state) as supervisor:
        view = All(supervisor)
        hello = await view.hello()
        assert hello["capabilities"]["extensions"] == {SKILLS: {"directoryRead": True}}
        asked = {"uri": qualify("known", "skill://x")}
        incoming = ClientRequest(1, "resources/directory/read", asked, {}, unheard, principal="ann")
        assert await view.route(incoming) == RequestRoute("known", {"uri": "skill://x"})


async def test_a_client_has_the_extensions_of_the_servers_that_it_may_use(autojump_clock):
    """Requests of which no standard is known are for those that may use all of a server."""
    scripts = {"b": script("b"), "a": script("a")}
    for name, server in scripts.items():
        server.capabilities["extensions"] = {SKILLS: {}, f"com.example/{name}": {}}
    async with served(servers=scripts) as (_, ask):

        async def declared(**how):
            return (await ask("server/discover", **how))["capabilities"]["extensions"]

        assert await declared() == {SKILLS: {}, "com.example/a": {}, "com.example/b": {}}
        assert await declared(access=SOME) == await declared(access=ONE_TOOL) == {SKILLS: {}, "com.example/b": {}}
        code, why = await refusal(ask, "com.example/do")
        assert (code, "com.example/do names no server, and several may have it: " in why) == (INVALID_PARAMS, True)
        of_server = (METHOD_NOT_FOUND, "Method not found")
        assert await refusal(ask, "com.example/do", access=SOME) == of_server
        assert await refusal(ask, "com.example/do", access=ONE_TOOL) == of_server
        for method, access in (("com.example/do", SOME), ("skills/get", ONE_TOOL)):
            assert await refusal(ask, method, access=access, server="b") == of_server


async def test_no_server_is_asked_for_a_skill_because_it_lists_its_uri(autojump_clock):
    """A URI that names no server goes to the only one with the extension, or to none."""
    scripts = {"b": script("b"), "a": script("a")}
    asked = {"uri": "note://a"}
    scripts["b"].capabilities["extensions"] = {SKILLS: {}}
    async with served(servers=scripts) as (supervisor, _):
        incoming = ClientRequest(1, "skills/get", asked, {}, unheard, principal="ann")
        assert await All(supervisor).route(incoming) == RequestRoute("b", asked)
    scripts["a"].capabilities["extensions"] = {SKILLS: {}}
    async with served(servers=scripts) as (_, ask):
        code, why = await refusal(ask, "skills/get", **asked)
        assert (code, qualify("a", "note://a") in why, qualify("b", "note://a") in why) == (INVALID_PARAMS, True, True)


UNKNOWN = {
    "starting": {"life": Life(mute=True)},
    "failed": {"life": Life(refuses="no such luck"), "policy": RestartPolicy(delays=[])},
    "waiting": {"life": Life(refuses="not yet"), "policy": RestartPolicy(delays=[1000])},
    "lazy": {"life": Life(mute=True), "lazy": True},
}
"""Servers of which nothing is known."""


@asynccontextmanager
async def beside_an_unknown(how, *, life=None, **settings):
    """`b`, which declares extensions, and `a`, of which nothing is known."""
    b, a = script("b"), ScriptedServer(life or Life())
    b.capabilities["extensions"] = {SKILLS: {"directoryRead": True}, "com.example/other": {}}
    b.answers.update(dict.fromkeys(["skills/get", "resources/directory/read", "com.example/do"], unheard))
    async with served(servers={"b": b}) as (supervisor, ask):
        await supervisor.add_server(spec(a, name="a", **settings))
        if how in ("failed", "waiting"):
            await trio.sleep(1)
        yield supervisor, ask


@pytest.mark.parametrize("how", UNKNOWN)
async def test_a_server_of_which_nothing_is_known_may_have_any_extension(how, autojump_clock):
    async with beside_an_unknown(how, **UNKNOWN[how]) as (supervisor, ask):
        for method, params in (
            ("com.example/do", {"secret": 1}),
            ("com.example/do", {"uri": "note://b"}),
            ("skills/get", {"uri": "note://b"}),
            ("resources/directory/read", {"uri": "note://b"}),
        ):
            began = trio.current_time()
            code, why = await refusal(ask, method, **params)
            names = [qualify(name, "note://b") for name in "ba"] if "uri" in params else ["b, a"]
            assert (code, [name in why for name in names]) == (INVALID_PARAMS, [True] * len(names))
            assert trio.current_time() - began <= 5
        named = {"uri": qualify("a", "skill://x")}
        incoming = ClientRequest(1, "skills/get", named, {}, unheard, principal="ann")
        assert await All(supervisor).route(incoming) == RequestRoute("a", {"uri": "skill://x"})


async def test_a_server_in_its_first_start_may_have_any_uri(autojump_clock):
    async with beside_an_unknown("starting", life=Life(mute=True)) as (_, ask):
        about = {"argument": {"name": "topic", "value": ""}}
        for method, params in (
            ("resources/read", {"uri": "note://b"}),
            ("completion/complete", {"ref": {"type": "ref/resource", "uri": "b://{path}"}, **about}),
        ):
            began = trio.current_time()
            code, why = await refusal(ask, method, **params)
            assert (code, "does not show which server is meant" in why) == (INVALID_PARAMS, True)
            assert trio.current_time() - began <= 5
        own = {"access": Access(["b/*"]), "uri": "note://b"}
        assert (await ask("resources/read", **own))["contents"][0]["text"] == "b: note://b"


@pytest.mark.parametrize("how", ["failed", "waiting", "lazy"])
async def test_a_server_that_is_not_being_started_keeps_no_other_from_its_uris(how, autojump_clock):
    """One that nobody is logged in to, or whose command is missing, would make an error of every URI without server."""
    async with beside_an_unknown(how, **UNKNOWN[how]) as (_, ask):
        assert (await ask("resources/read", uri="note://b"))["contents"][0]["text"] == "b: note://b"


async def test_a_disabled_server_has_nothing(autojump_clock):
    async with beside_an_unknown("disabled", enabled=False) as (supervisor, ask):
        assert (await ask("resources/read", uri="note://b"))["contents"][0]["text"] == "b: note://b"
        incoming = ClientRequest(1, "com.example/do", {}, {}, unheard, principal="ann")
        assert await All(supervisor).route(incoming) == RequestRoute("b", {})


async def test_a_server_of_which_a_client_may_use_a_part_may_have_an_extension_too(
    autojump_clock,
):
    scripts = {"b": script("b"), "a": script("a")}
    for name, server in scripts.items():
        server.capabilities["extensions"] = {f"com.example/{name}": {}}
    async with served(servers=scripts) as (_, ask):
        code, why = await refusal(ask, "com.example/do", access=Access(["b/*", "a/look"]))
        assert (code, "several may have it: b, a" in why) == (INVALID_PARAMS, True)


@pytest.mark.parametrize("key", ["ui", "ui/resourceUri", "openai/outputTemplate"])
async def test_the_page_of_a_tool_is_its_servers_though_it_lists_none(key, autojump_clock):
    page = "ui://view.html"
    a, b = script("a"), script("b")
    a.declared = {"look": {"_meta": {key: {"resourceUri": page} if key == "ui" else page}}}
    b.resources[page] = says("b")
    async with served(servers={"b": b, "a": a}) as (supervisor, ask):
        code, why = await refusal(ask, "resources/read", uri=page)
        assert (code, "'ui://b+view.html' or 'ui://a+view.html'" in why) == (INVALID_PARAMS, True)
        await supervisor.stop_server("a")
        assert (await refusal(ask, "resources/read", uri=page))[0] == INVALID_PARAMS
    del b.resources[page]
    async with served(servers={"b": b, "a": a}) as (supervisor, _):
        assert await All(supervisor).resource_of(page) == ("a", page)


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "handshake"])
async def test_what_is_declared_as_no_extension_costs_nothing_else(modern, autojump_clock):
    bad = ScriptedServer(Life(modern=modern), tools={"look": says("bad")})
    identifiers = {key: {} for key in ("", "a\nb", "../x")}
    for extensions in ({"com.example/x": None, SKILLS: {}, "com.example/y": 3, **identifiers}, []):
        bad.capabilities["extensions"] = extensions
        async with served(servers={"b": bad}) as (supervisor, ask):
            assert await ask("tools/call", name="b_look", arguments={})
            shown = (await ask("server/discover"))["capabilities"].get("extensions")
            assert shown == ({SKILLS: {}} if extensions else None)
            assert (await refusal(ask, "com.example/do"))[0] == METHOD_NOT_FOUND
            assert supervisor.status_of("b").capabilities.get("extensions") == shown
