"""What is remembered of a server, and of its names, when a configuration takes another's place."""

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ServerDown, UnknownTool
from mcp_nursery.supervisor import (
    MemoryStore,
    RestartPolicy,
    ServerSpec,
    open_supervisor,
)
from mcp_nursery.supervisor.security.redaction import Redactor
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ...lab.specs import SERVERS, Named, WithEnvironment, lasting, spec, status

S = ServerState


async def test_tools_are_known_as_before_if_it_is_reached_in_the_same_way(autojump_clock):
    """G13, L18: while it connects again. Reached otherwise it may be quite another server."""
    server, other = ScriptedServer(Life(), Life(connects_after=2)), ScriptedServer(Life(connects_after=2))
    async with open_supervisor([spec(server)]) as supervisor:
        await supervisor.reload([spec(server, max_in_flight=1)])
        assert [(tool.name, tool.available) for tool in supervisor.tools] == [("mcp_lab_echo", False)]
        assert status(supervisor).server_info is not None
        await supervisor.wait_connected("lab")
        await supervisor.reload([spec(other)])
        assert (supervisor.tools, status(supervisor).server_info) == ((), None)
        assert (await supervisor.call_tool("mcp_lab_echo")).incarnation == 3
        await supervisor.reload([spec(other, lazy=True)])
        assert [(tool.name, tool.available) for tool in supervisor.tools] == [("mcp_lab_echo", False)]


async def test_the_era_is_known_as_before_if_it_is_reached_in_the_same_way(autojump_clock):
    """Q23, L18: and found out anew otherwise."""
    dies = Life(modern=False, dies_of_probe=True)
    server, other = ScriptedServer(dies), ScriptedServer(dies)
    async with open_supervisor([spec(server)]) as supervisor:
        assert len(server.starts) == 2
        await supervisor.reload([spec(server, max_in_flight=1)])
        await supervisor.wait_connected("lab")
        assert len(server.starts) == 3
        await supervisor.reload([spec(other)])
        await supervisor.wait_connected("lab")
        assert len(other.starts) == 2


async def test_the_era_of_another_protocol_is_not_taken_for_that_of_auto(autojump_clock):
    """P7, L18: `handshake` asks nothing, so the server may well speak the modern era."""
    SERVERS["x"] = ScriptedServer()
    store = MemoryStore()
    for protocol, spoken in (("handshake", "2025-11-25"), ("auto", "2026-07-28")) * 2:
        async with open_supervisor([ServerSpec("lab", Named("x"), protocol="handshake")], state=store) as supervisor:
            await supervisor.reload([ServerSpec("lab", Named("x"), protocol=protocol)])
            assert (await supervisor.wait_connected("lab")).protocol_version == spoken


def test_secrets_of_an_earlier_spec_are_kept_where_a_text_is_not_resolved_yet():
    """L17, T9, K5: what stands in a configuration file to the letter is looked for beside what stood there."""
    redactor = Redactor.of(["first-secret"]).also_of(SimpleNamespace(literals={"second-secret"}))
    assert redactor.text("first-secret second-secret") == "[REDACTED:config] [REDACTED:config]"


@pytest.mark.parametrize("life", [Life(modern=False, closes_after=1), Life(modern=False, deaf_after=3)])
async def test_what_the_old_connection_found_is_not_said_of_the_new_spec(autojump_clock, life):
    """Q23, L18: its last words, or its first, come when the server has another spec already."""
    SERVERS.update(old=ScriptedServer(life, Life(modern=False)), new=ScriptedServer())
    old, new = (ServerSpec("lab", Named(name)) for name in ("old", "new"))
    async with open_supervisor([old], state=MemoryStore()) as supervisor:
        await trio.sleep(1)
        await supervisor.reload([new])
        assert (await supervisor.wait_connected("lab")).protocol_version == "2026-07-28"
        await supervisor.reload([old])
        assert (await supervisor.wait_connected("lab")).protocol_version == "2025-11-25"


@pytest.mark.parametrize("named", [True, False], ids=["in the store", "in memory"])
async def test_what_tools_were_is_known_as_before_if_it_is_reached_in_the_same_way(autojump_clock, named):
    """L18: a reload is no way around pins, whatever else it changes; another server has pins of its own."""
    servers = {name: ScriptedServer(declared={"echo": {"description": "Echoes."}}) for name in ("x", "y")}
    SERVERS.update(servers)

    def one(name: str, **options) -> ServerSpec:
        return ServerSpec("lab", Named(name) if named else servers[name].transport, **options)

    async with open_supervisor([one("x")], state=MemoryStore(), pins="block") as supervisor:
        await supervisor.wait_connected("lab")
        servers["x"].declared["echo"]["description"] = "Mails."
        for options in ({}, {"source": "file"}, {"max_in_flight": 9}, {"lazy": True}):
            await supervisor.reload([one("x", **options)])
            await supervisor.reconnect("lab")
            assert supervisor.tools == ()
            assert [change.tool for change in supervisor.definition_changes] == ["echo"]
        await supervisor.reload([one("x")])
        assert (status(supervisor).state, supervisor.tools) == (S.CONNECTING, ())
        await supervisor.reload([one("y")])
        await supervisor.wait_connected("lab")
        assert [tool.tool for tool in supervisor.tools] == ["echo"]


async def test_the_new_spec_holds_for_tools(autojump_clock):
    """T5, T7, T11, L18: filters, hints and sizes are those of the new spec, at once where tools are known."""
    server = ScriptedServer(Life(closes_after=1), tools={"one": lasting(0), "two": lasting(0)})
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.reload, [spec(server, deny=["t*"], trust_hints=False, max_result_chars=9)])
        await trio.testing.wait_all_tasks_blocked()
        for available in (False, True):
            (tool,) = supervisor.tools
            assert (tool.tool, tool.available, tool.trusted_hints, tool.max_result_chars) == (
                "one",
                available,
                False,
                9,
            )
            await trio.sleep(1)
            await supervisor.wait_connected("lab")


async def test_the_new_spec_holds_for_connections(autojump_clock):
    """L14, L18, G8: its time limits and its ladder."""
    server = ScriptedServer(Life(), Life(mute=True), Life(mute=True), Life())
    policy = RestartPolicy(delays=(5, 7))
    async with open_supervisor([spec(server)]) as supervisor:
        await supervisor.reload([spec(server, connect_timeout=2, policy=policy, stop_idle_after=20)])
        await trio.sleep_until(100)
        assert (server.starts, server.ends) == ([0, 0, 7, 16], [0, 2, 9, 36])
        assert status(supervisor).state is S.IDLE
        await supervisor.reload([spec(server)])
        await trio.sleep_until(1000)
        assert (server.starts[4:], status(supervisor).max_attempts) == ([100], 4)


async def test_where_it_was_configured_does_not_count_and_is_shown(autojump_clock):
    """L18, K4: neither `source` nor what means nothing here restarts it."""
    server = ScriptedServer()
    async with open_supervisor([spec(server, source="a.json", extra={"x": 1})]) as supervisor:
        await supervisor.reload([spec(server, source="b.json", extra={"y": 2})])
        assert server.starts == [0]
        shown = supervisor._servers.snapshots["lab"].value.spec
        assert (shown.label, shown.extra) == ("mcp:lab via b.json", {"y": 2})


async def test_secrets_of_both_specs_are_taken_out(autojump_clock):
    """L17, T9, L18: until it is removed, and with it all that was known of it."""
    server = ScriptedServer(Life(), Life(refuses="first-secret and second-secret", usable=False), Life())
    async with open_supervisor([ServerSpec("lab", WithEnvironment(server, {"KEY": "first-secret"}))]) as supervisor:
        await supervisor.reload([ServerSpec("lab", WithEnvironment(server, {"KEY": "second-secret"}))])
        await trio.sleep(1)
        assert status(supervisor).error == "[REDACTED:config] and [REDACTED:config]"
        await supervisor.remove_server("lab")
        await supervisor.add_server(ServerSpec("lab", WithEnvironment(server)))
        redactor = supervisor._servers.redactor("lab")
        assert redactor.text("first-secret second-secret") == "first-secret second-secret"


async def test_names_are_made_for_the_new_set_in_one_step(autojump_clock):
    """T3, L18: nobody sees names of two sets, although what is removed takes its time to close."""
    a, a_b = ScriptedServer(tools={"b_c": lasting(0)}), ScriptedServer(Life(closes_after=3), tools={"c": lasting(0)})
    c = ScriptedServer(tools={"d": lasting(0)})
    specs = [spec(a, "a"), spec(a_b, "a_b")]
    async with open_supervisor(specs) as supervisor:
        (own, others) = (tool.name for tool in supervisor.tools)
        assert own != "mcp_a_b_c" != others
        seen = []

        async def watch():
            toolset, tools = supervisor.as_toolset(), supervisor.tools
            while True:
                tools = await toolset.changed(tools)
                seen.append([tool.name for tool in tools])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            await supervisor.reload([specs[0], spec(c, "c")])
            assert trio.current_time() == 3
            assert (await supervisor.call_tool("mcp_a_b_c")).incarnation == 1
            nursery.cancel_scope.cancel()
        assert seen == [["mcp_a_b_c"], ["mcp_a_b_c", "mcp_c_d"]]


async def test_a_removed_server_gives_its_names_up_at_once(autojump_clock):
    """T3: by `remove_server` too; its own tools tell of its state until it is closed."""
    a, a_b = ScriptedServer(tools={"b_c": lasting(0)}), ScriptedServer(Life(closes_after=3), tools={"c": lasting(0)})
    async with open_supervisor([spec(a, "a"), spec(a_b, "a_b")]) as supervisor, trio.open_nursery() as nursery:
        gone = next(tool.name for tool in supervisor.tools if tool.server == "a_b")
        nursery.start_soon(supervisor.remove_server, "a_b")
        await trio.sleep(1)
        assert [tool.name for tool in supervisor.tools] == ["mcp_a_b_c"]
        await supervisor.add_server(spec(ScriptedServer(), "other"))  # names are made again
        for name in ({"name": gone}, {"name": "c", "server": "a_b"}):
            with pytest.raises(ServerDown, match=r"a_b.*stopped"):
                await supervisor.call_tool(**name)
        await trio.sleep(3)
        with pytest.raises(UnknownTool):
            await supervisor.call_tool(gone)


async def test_the_names_of_what_leaves_tell_of_its_state_until_it_has_left(autojump_clock):
    """T3, L18: the names it had, also when none is left that they had to be told from."""
    a, a_b = (ScriptedServer(Life(closes_after=3), tools={tool: lasting(0)}) for tool in ("b_c", "c"))
    async with open_supervisor([spec(a, "a"), spec(a_b, "a_b")]) as supervisor, trio.open_nursery() as nursery:
        names = [tool.name for tool in supervisor.tools]
        nursery.start_soon(supervisor.reload, [])
        await trio.sleep(1)
        for name in names:
            with pytest.raises(ServerDown, match="stopped"):
                await supervisor.call_tool(name)
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("mcp_a_b_c")
