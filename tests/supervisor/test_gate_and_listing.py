"""When the block is entered, and what the catalogue shows at each moment."""

from types import SimpleNamespace

import pytest
import trio
from mcp.server import Server
from mcp_types import ListToolsResult
from mcp_types import Tool as Definition
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ServerDown, UnknownServer, UnknownTool
from mcp_nursery.actors.messages import Definitions
from mcp_nursery.supervisor import (
    InProcessTransport,
    MemoryStore,
    RestartPolicy,
    ServerSpec,
    Supervisor,
    open_supervisor,
)
from mcp_nursery.supervisor.decisions.state_machine import Snapshot
from mcp_nursery.supervisor.events import DefinitionsChanged, ToolsChanged
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual
from tests.supervisor.catalogue.test_catalogue import build

from ..lab.specs import live_events, nothing, spec

S = ServerState
ONCE = RestartPolicy(delays=())


def state(supervisor: Supervisor, name: str = "lab") -> ServerState:
    return next(one.state for one in supervisor.status() if one.name == name)


# -- the gate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lives", "options", "entered"),
    [
        ([], {}, 0),
        ([Life()], {}, 0),
        ([Life(connects_after=0.125)], {}, 0.125),
        ([Life(refuses="down")], {}, 0),
        ([Life(), Life(connects_after=0.125), Life(refuses="down")], {}, 0.125),
        ([Life(mute=True)], {}, 0.25),
        ([Life(connects_after=7), Life()], {}, 0.25),
        ([Life(connects_after=7), Life()], {"gate": 0}, 0),
        ([Life(connects_after=7), Life()], {"gate": 3.5}, 3.5),
        ([Life(connects_after=7), Life()], {"gate": 100}, 7),
    ],
)
def test_the_block_is_entered(lives, options, entered):
    """G1: when all first attempts are settled, or after 0.25 s; settable."""

    async def main():
        specs = [spec(ScriptedServer(life), str(n)) for n, life in enumerate(lives)]
        async with open_supervisor(specs, **options):
            assert trio.current_time() == entered

    run_virtual(main)


async def test_only_first_attempts_hold_the_gate(autojump_clock):
    """G1: the second attempt of a server that failed once does not; nor do lazy and disabled servers."""
    specs = [
        spec(ScriptedServer(Life(refuses="down")), "failing"),
        spec(ScriptedServer(), "lazy", lazy=True),
        spec(ScriptedServer(), "off", enabled=False),
    ]
    async with open_supervisor(specs, gate=100) as supervisor:
        assert trio.current_time() == 0
        assert [one.state for one in supervisor.status()] == [S.WAITING, S.IDLE, S.DISABLED]


async def test_four_ways_at_the_gate(autojump_clock):
    """G2: connected gives tools, failed an error, pending an unknown name that is waited for; late tools are news."""
    specs = [
        spec(ScriptedServer(), "live"),
        spec(ScriptedServer(Life(refuses="no such luck")), "failed", policy=ONCE),
        spec(ScriptedServer(Life(connects_after=5)), "late"),
        spec(ScriptedServer(), "lazy", lazy=True),
    ]
    async with open_supervisor(specs) as supervisor, supervisor.events() as events:
        assert [(tool.name, tool.available) for tool in supervisor.tools] == [("mcp_live_echo", True)]
        assert {one.name: one.error for one in supervisor.status()}["failed"] == "no such luck"
        result = await supervisor.call_tool("mcp_late_echo")
        assert (trio.current_time(), result.server, result.duration) == (5, "late", 4.75)
        async for event in events:
            if isinstance(event, ToolsChanged) and event.server == "late":
                assert (event.added, event.at) == (("mcp_late_echo",), 5)
                break
        with pytest.raises(UnknownTool, match=r"no tool named 'mcp_nobody_echo'"):
            await supervisor.call_tool("mcp_nobody_echo")
        assert trio.current_time() == 5


async def test_an_unknown_name_waits_for_every_first_attempt(autojump_clock):
    """G2: then it is unknown, with near names and the servers that might have it."""
    specs = [
        spec(ScriptedServer(), "live"),
        spec(ScriptedServer(Life(connects_after=3)), "late"),
        spec(ScriptedServer(Life(mute=True)), "mute", connect_timeout=8),
    ]
    async with open_supervisor(specs) as supervisor:
        with pytest.raises(UnknownTool) as caught:
            await supervisor.call_tool("mcp_late_ecko")
        assert trio.current_time() == 8
        assert "mcp_late_echo" in caught.value.near
        assert caught.value.down == ("mute",)


async def test_an_unknown_name_waits_within_the_deadline(autojump_clock):
    """G2: the caller's own deadline, and the call's timeout, hold while it waits."""
    async with open_supervisor([spec(ScriptedServer(Life(mute=True)))]) as supervisor:
        with trio.move_on_at(2) as scope:
            await supervisor.call_tool("mcp_lab_echo")
        assert scope.cancelled_caught
        with pytest.raises(Exception, match="no answer within 3 s") as caught:
            await supervisor.call_tool("mcp_lab_echo", timeout=3)
        assert (trio.current_time(), caught.value.delivery) == (5, "not_sent")


async def test_the_second_attempt_is_not_waited_for(autojump_clock):
    """G2: only first attempts are; a name that was never known is unknown afterwards."""
    specs = [spec(ScriptedServer(Life(refuses="down"), Life(mute=True)), name) for name in ("lab", "lab_two")]
    async with open_supervisor(specs) as supervisor:
        with pytest.raises(UnknownTool, match=r"not connected: lab, lab_two"):
            await supervisor.call_tool("echo")
        await trio.sleep_until(3)
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("echo")
        assert trio.current_time() == 3


async def test_a_name_that_only_one_server_can_give_is_that_server_s(autojump_clock):
    """A server that never told what it has may have it: where that server stands is what is to be said."""
    never = spec(ScriptedServer(Life(refuses="no such luck"), Life(connects_after=5)), "never")
    specs = [spec(ScriptedServer(), "live"), never, spec(ScriptedServer(), "off", enabled=False)]
    async with open_supervisor(specs) as supervisor:
        with pytest.raises(ServerDown, match="no such luck") as caught:
            await supervisor.call_tool("mcp_never_echo", resend="always")
        assert (caught.value.server, caught.value.state, caught.value.retry_in) == ("never", S.WAITING, 2)
        assert caught.value.delivery == "not_sent"
        with pytest.raises(ServerDown, match="disabled"):
            await supervisor.call_tool("mcp_off_echo")
        for name in ("mcp_live_none", "mcp_never_", "mcp_other_echo"):
            with pytest.raises(UnknownTool):
                await supervisor.call_tool(name)
        assert trio.current_time() == 0
        result = await supervisor.call_tool("mcp_never_echo", when_down="wait")
        assert (result.server, result.duration) == ("never", 7)
        with pytest.raises(UnknownTool, match="did you mean 'mcp_never_echo'"):
            await supervisor.call_tool("mcp_never_ecko")


async def test_who_waits_for_a_server_that_never_had_the_tool(autojump_clock):
    """It connects, and has another; or it is removed. Nobody waits on."""
    async with open_supervisor(
        [spec(ScriptedServer(Life(refuses="down"), Life(connects_after=3)), name) for name in ("one", "two")]
    ) as supervisor:

        async def call(server: str, ended_at: float) -> None:
            with pytest.raises(UnknownTool):
                await supervisor.call_tool(f"mcp_{server}_none", when_down="wait")
            assert trio.current_time() == ended_at

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "one", 5)
            nursery.start_soon(call, "two", 1)
            await trio.sleep(1)
            await supervisor.remove_server("two")


# -- which states show tools --------------------------------------------------------------------------------------

SHOWN = {S.CONNECTED: True, S.CONNECTING: False, S.WAITING: False, S.IDLE: False, S.NEEDS_AUTH: False}


@pytest.mark.parametrize("one", list(ServerState))
def test_which_states_show_tools(one):
    """G13: last known tools stay visible and routed in five states, gone in the other four."""
    definition = Definition(name="echo", input_schema={"type": "object"})
    transport = SimpleNamespace(kind="none", connector=None)
    snapshot = Snapshot(ServerSpec("lab", transport), one, definitions=Definitions((definition,)))
    sibling = Snapshot(ServerSpec("other", transport), S.CONNECTED, definitions=Definitions((definition,)))
    catalogue = build(snapshot, sibling)
    shown = [(tool.name, tool.available) for tool in catalogue.tools]
    own = [("mcp_lab_echo", SHOWN[one])] if one in SHOWN else []
    assert shown == [*own, ("mcp_other_echo", True)]
    for key in (("mcp_lab_echo",), ("echo", "lab")):
        assert (catalogue.find(*key) is not None) is (one in SHOWN)
        assert catalogue.departed(*key) == (None if one in SHOWN else ("lab", "echo"))


async def test_tools_over_a_life(autojump_clock):
    """G13: what a host sees, state by state, of one server."""
    server = ScriptedServer(Life(dies_after=1), Life(connects_after=1, dies_after=1), Life(refuses="down"))
    options = {"lazy": True, "policy": RestartPolicy(delays=(2, 2))}
    async with open_supervisor([spec(server, **options)]) as supervisor:

        def seen() -> tuple[ServerState, list[bool], int]:
            count = supervisor.status()[0].tool_count
            return state(supervisor), [tool.available for tool in supervisor.tools], count

        assert seen() == (S.IDLE, [], 0)  # never listed
        await supervisor.list_tools()
        assert seen() == (S.CONNECTED, [True], 1)
        await trio.sleep_until(1.5)
        assert seen() == (S.WAITING, [False], 1)
        await trio.sleep_until(3.5)
        assert seen() == (S.CONNECTING, [False], 1)
        await trio.sleep_until(4.5)
        assert seen() == (S.CONNECTED, [True], 1)
        await trio.sleep_until(5.5)
        assert seen() == (S.WAITING, [False], 1)
        await trio.sleep_until(7.5)
        assert seen() == (S.FAILED, [], 0)
        with pytest.raises(ServerDown, match="failed"):
            await supervisor.call_tool("mcp_lab_echo")
        await supervisor.stop_server("lab")
        assert seen() == (S.STOPPED, [], 0)
        with pytest.raises(ServerDown, match="stopped"):
            await supervisor.call_tool("mcp_lab_echo")
        await supervisor.remove_server("lab")
        assert supervisor.tools == ()
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("mcp_lab_echo")


async def test_tools_go_in_one_swap(autojump_clock):
    """G13: nobody ever sees half of a server's tools."""
    server = ScriptedServer(tools={f"t{n}": nothing for n in range(20)})
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:
        counts: set[tuple[ServerState, int, int]] = set()

        async def watch():
            while True:
                one = supervisor.status()[0]
                counts.add((one.state, one.tool_count, len(supervisor.tools)))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(watch)
        await supervisor.stop_server("lab")
        await supervisor.reconnect("lab")
        await supervisor.stop_server("lab")
        nursery.cancel_scope.cancel()
    assert counts <= {(S.CONNECTED, 20, 20), (S.STOPPED, 0, 0), (S.CONNECTING, 20, 20)}


async def test_connected_is_true(autojump_clock):
    """Q22: at every scheduler step list, status and router agree: connected means listed and callable."""
    server = ScriptedServer(Life(connects_after=1, dies_after=1))
    async with open_supervisor([spec(server)], gate=0) as supervisor:
        agreed = 0
        for _ in range(3000):
            one = supervisor.status()[0]
            available = [tool.name for tool in supervisor.tools if tool.available]
            if one.state is S.CONNECTED:
                assert (one.tool_count, available) == (1, ["mcp_lab_echo"])
                agreed += 1
            else:
                assert available == []
            if one.state is S.CONNECTED and agreed == 1:
                assert not (await supervisor.call_tool("mcp_lab_echo")).is_error
            await trio.sleep(0.5 if agreed % 50 == 0 else 0)
        assert agreed


# -- list_tools ---------------------------------------------------------------------------------------------------


async def test_listing_starts_lazy_servers(autojump_clock):
    """G14: and waits for first attempts."""
    servers = {name: ScriptedServer(Life(connects_after=n)) for n, name in ((2, "lazy"), (5, "other"), (1, "live"))}
    specs = [spec(server, name, lazy=name != "live") for name, server in servers.items()]
    async with open_supervisor(specs, gate=0) as supervisor:
        tools = await supervisor.list_tools("lazy")
        assert (trio.current_time(), [tool.name for tool in tools]) == (2, ["mcp_lazy_echo"])
        assert servers["other"].starts == []
        tools = await supervisor.list_tools()
        assert trio.current_time() == 7
        assert [tool.name for tool in tools] == ["mcp_lazy_echo", "mcp_live_echo", "mcp_other_echo"]
        await supervisor.list_tools()
        assert trio.current_time() == 7


async def test_all_servers_are_lazy_where_that_is_said_of_the_supervisor(autojump_clock):
    """G7: whatever their specs say; also those that come later, by `add_server` or a reload."""
    servers = {name: ScriptedServer() for name in ("first", "added", "reloaded")}
    first, added, reloaded = (spec(server, name, lazy=False) for name, server in servers.items())
    async with open_supervisor([first], lazy=True, gate=5) as supervisor:
        await supervisor.add_server(added)
        await supervisor.reload([first, added, reloaded])
        assert trio.current_time() == 0
        assert [each.state for each in supervisor.status()] == [S.IDLE] * 3
        await supervisor.call_tool("echo", server="added")
        assert {name: server.starts for name, server in servers.items()} == {"first": [], "added": [0], "reloaded": []}
        await trio.sleep(1)
        await supervisor.reload([first, added, reloaded])
        await trio.sleep(298)
        assert servers["added"].ends == []  # the same spec as before
        await trio.sleep(2)
        assert servers["added"].ends == [300]


async def test_no_server_is_lazy_where_that_is_said_of_the_supervisor(autojump_clock):
    server = ScriptedServer()
    async with open_supervisor([spec(server, lazy=True)], lazy=False) as supervisor:
        await supervisor.wait_connected("lab")
        assert server.starts == [0]


async def test_a_server_without_tools(autojump_clock):
    """T1: it is connected, and there is nothing to call; a scripted one that is given no tools has none."""
    async with open_supervisor([spec(ScriptedServer(tools={}))], state=MemoryStore()) as supervisor:
        await supervisor.wait_connected("lab")
        assert supervisor.tools == ()


async def test_listing_with_a_failing_server(autojump_clock):
    """G14: its first attempt is waited for, no later one; the others are listed."""
    bad = ScriptedServer(Life(mute=True))
    async with open_supervisor([spec(ScriptedServer(), "good"), spec(bad, "bad", connect_timeout=3)]) as supervisor:
        assert [tool.name for tool in await supervisor.list_tools()] == ["mcp_good_echo"]
        assert trio.current_time() == 3
        await supervisor.list_tools()
        assert trio.current_time() == 3
        assert await supervisor.list_tools("bad") == ()  # it is waiting, and may have tools yet


async def test_listing_one_server_that_is_down_for_good(autojump_clock):
    """G14: `ServerDown` in a state nobody will leave."""
    bad = ScriptedServer(Life(refuses="down"))
    specs = [spec(bad, "bad", policy=ONCE), spec(ScriptedServer(), "off", enabled=False)]
    async with open_supervisor(specs) as supervisor:
        for name in ("bad", "off"):
            with pytest.raises(ServerDown):
                await supervisor.list_tools(name)
        assert await supervisor.list_tools() == ()


async def test_listing_an_unknown_server(autojump_clock):
    """G14: `UnknownServer`, bare, with near names."""
    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        with pytest.raises(UnknownServer, match="did you mean 'lab'"):
            await supervisor.list_tools("labs")


async def test_listing_while_a_server_is_removed(autojump_clock):
    """G14: a server that leaves in the middle is left out; the list has no error."""
    mute = ScriptedServer(Life(mute=True))
    async with open_supervisor([spec(ScriptedServer(), "good"), spec(mute, "mute")]) as supervisor:
        listed: list[str] = []

        async def listing():
            listed.extend(tool.name for tool in await supervisor.list_tools())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listing)
            await trio.sleep(1)
            await supervisor.remove_server("mute")
        assert listed == ["mcp_good_echo"]


def test_listing_while_a_server_is_removed_in_the_same_tick():
    """G14: also when it leaves before the listing has looked at it."""
    for steps in range(12):

        async def main(steps=steps):
            specs = [spec(ScriptedServer(), "good"), spec(ScriptedServer(), "gone", enabled=False)]
            async with open_supervisor(specs) as supervisor, trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.remove_server, "gone")
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                assert [tool.name for tool in await supervisor.list_tools()] == ["mcp_good_echo"]

        run_virtual(main)


async def test_refresh(autojump_clock):
    """G14: asks again; what changed is there when it returns; one swap, one event."""
    server = ScriptedServer(tools={"one": nothing, "two": nothing})
    async with open_supervisor([spec(server)]) as supervisor, live_events(supervisor) as events:
        server.tools = {"two": nothing, "three": nothing}
        server.annotations = {"two": {"readOnlyHint": True}}
        assert [tool.tool for tool in await supervisor.list_tools("lab")] == ["one", "two"]
        assert [tool.tool for tool in await supervisor.list_tools("lab", refresh=True)] == ["three", "two"]
        assert [tool.tool for tool in supervisor.tools] == ["three", "two"]
        event = await events.receive()
        assert event == ToolsChanged("lab", ("mcp_lab_three",), ("mcp_lab_one",), ("mcp_lab_two",), at=0)
        assert isinstance(await events.receive(), DefinitionsChanged)
        assert (await supervisor.call_tool("mcp_lab_three")).full_text == "done"
        with pytest.raises(UnknownTool):
            await supervisor.call_tool("mcp_lab_one")
        await supervisor.list_tools(refresh=True)
        with trio.move_on_after(10):
            raise AssertionError(await events.receive())


def test_a_refresh_that_meets_a_crash():
    """G14, R7: a server that dies at any step of a refresh keeps its tools; the list comes at once or on restart."""
    for steps in range(40):
        server = ScriptedServer()

        async def main(server=server, steps=steps):
            async with open_supervisor([spec(server)]) as supervisor:

                async def listing():
                    for _ in range(20 - steps):
                        await trio.lowlevel.checkpoint()
                    assert [tool.tool for tool in await supervisor.list_tools(refresh=True)] == ["echo"]
                    assert trio.current_time() in (0, 2), f"the list hung, crashed {steps - 20} steps after it began"

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(listing)
                    for _ in range(steps - 20):
                        await trio.lowlevel.checkpoint()
                    server.crash()
                    await trio.sleep(50)
                    server.crash()  # whoever still waits is let go

        run_virtual(main)


@pytest.mark.parametrize("act", ["crash", "reconnect"])
async def test_a_list_that_dies_with_its_connection_is_fetched_once_more(autojump_clock, act):
    """R7: by the next connection, for everyone who waits for it."""
    server = ScriptedServer(Life(deaf_after=2), Life(connects_after=1), tools={"old": nothing})
    listed: list[tuple[float, list[str]]] = []
    async with open_supervisor([spec(server)]) as supervisor:

        async def listing():
            tools = await supervisor.list_tools("lab", refresh=True)
            listed.append((trio.current_time(), [tool.tool for tool in tools]))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(listing)
            await trio.sleep(5)
            server.tools = {"new": nothing}
            if act == "crash":
                server.crash()
            else:
                await supervisor.reconnect("lab")
        assert listed == [(8 if act == "crash" else 6, ["new"])] * 3


@pytest.mark.parametrize(
    ("second", "policy", "until"),
    [
        (Life(refuses="down"), RestartPolicy(), 7),  # the attempt that is due fails
        (Life(mute=True), RestartPolicy(), 37),  # late
        (Life(), ONCE, 5),  # none is due
    ],
)
async def test_a_list_that_dies_is_fetched_no_more_than_once_more(autojump_clock, second, policy, until):
    """R7: then the tools last known have to do."""
    server = ScriptedServer(Life(deaf_after=2, dies_after=5), second, Life())
    async with open_supervisor([spec(server, policy=policy)]) as supervisor:
        tools = await supervisor.list_tools(refresh=True)
        assert trio.current_time() == until
        assert [tool.tool for tool in tools] == ([] if policy is ONCE else ["echo"])


@pytest.mark.parametrize("moment", [2, 6, 8])
@pytest.mark.parametrize("how", ["stop_server", "remove_server"])
async def test_a_list_of_a_server_that_is_stopped_ends(autojump_clock, how, moment):
    """R7, L9: stopped while it lists, while it waits for the restart that lists again, and in that restart."""
    server = ScriptedServer(Life(deaf_after=2, dies_after=5), Life(connects_after=5))
    async with open_supervisor([spec(server)]) as supervisor, trio.open_nursery() as nursery:

        async def listing():
            assert await supervisor.list_tools(refresh=True) == ()
            assert trio.current_time() == moment

        nursery.start_soon(listing)
        await trio.sleep(moment)
        await getattr(supervisor, how)("lab")


async def test_a_list_asked_for_while_it_connects_again_is_that_connections(autojump_clock):
    """R7: it fetches the tools anyway; and one asked for while nothing is connected comes at once."""
    server = ScriptedServer(Life(dies_after=5), Life(connects_after=4))
    async with open_supervisor([spec(server)]) as supervisor:
        await trio.sleep_until(6)
        assert [tool.available for tool in await supervisor.list_tools(refresh=True)] == [False]
        assert trio.current_time() == 6
        await trio.sleep_until(8)
        assert [tool.available for tool in await supervisor.list_tools(refresh=True)] == [True]
        assert trio.current_time() == 11


async def test_a_refresh_that_is_answered_with_nonsense(autojump_clock):
    """G14, R7: a server that lives and gives no list keeps its old tools; it is not asked again."""
    server = ScriptedServer()
    async with open_supervisor([spec(server)]) as supervisor:
        server.annotations = {"echo": {"readOnlyHint": "perhaps"}}
        assert [tool.tool for tool in await supervisor.list_tools(refresh=True)] == ["echo"]
        assert (trio.current_time(), state(supervisor), server.starts) == (0, S.CONNECTED, [0])


async def test_a_refresh_that_is_not_answered(autojump_clock, caplog):
    """G14: a server that fails to answer keeps its old tools, and why is logged; the connect timeout bounds it."""
    caplog.set_level("INFO", "mcp_nursery.supervisor.servers.keeper")
    server = ScriptedServer(Life(deaf_after=2))  # server/discover and the first tools/list
    async with open_supervisor([spec(server, connect_timeout=7)]) as supervisor:
        assert [tool.tool for tool in await supervisor.list_tools(refresh=True)] == ["echo"]
        assert trio.current_time() == 7
        assert state(supervisor) is S.CONNECTED
    assert (
        "lab: its tools could not be listed again, and stay as they were: tools/list got no answer within 7 s "
        "(connect_timeout, or connectSeconds in a file, gives it more)" in caplog.messages
    )


async def test_one_tool_by_name(autojump_clock):
    """G14: `tool(name)` looks one up, and says what was nearly meant."""
    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        tool = supervisor.tool("mcp_lab_echo")
        assert (tool.server, tool.tool, tool.available) == ("lab", "echo", True)
        with pytest.raises(UnknownTool, match="did you mean 'mcp_lab_echo'"):
            supervisor.tool("mcp_lab_ecko")


async def test_one_tool_by_its_own_name(autojump_clock):
    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        assert supervisor.tool("echo", server="lab") is supervisor.tool("mcp_lab_echo")
        with pytest.raises(UnknownTool, match="did you mean 'echo'"):
            supervisor.tool("ecko", server="lab")
        with pytest.raises(UnknownServer):
            supervisor.tool("echo", server="other")


async def test_who_asks_for_the_tools_again_gets_none_of_before():
    """A fetch that is under way already may have been answered: it answers nobody who asks after it began."""
    names, fetched, go_on = ["old"], [], trio.Event()

    async def on_list_tools(ctx, params):
        tools = [Definition(name=name, input_schema={"type": "object"}) for name in names]
        fetched.append(tools)
        if len(fetched) == 2:
            await go_on.wait()
        return ListToolsResult(tools=tools)

    async def ask(supervisor, found):
        found.append([tool.tool for tool in await supervisor.list_tools("lab", refresh=True)])

    lab = ServerSpec("lab", InProcessTransport(Server("lab", on_list_tools=on_list_tools)))
    first, second = [], []
    async with open_supervisor([lab], state=MemoryStore(), gate=10) as supervisor, trio.open_nursery() as nursery:
        nursery.start_soon(ask, supervisor, first)
        while len(fetched) < 2:
            await wait_all_tasks_blocked()
        names.append("new")
        nursery.start_soon(ask, supervisor, second)
        await wait_all_tasks_blocked()
        go_on.set()
    assert (first, second) == ([["old"]], [["new", "old"]])
