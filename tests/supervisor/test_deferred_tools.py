"""Tools that a server had when it was listed last, offered before it is connected."""

import time

import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import (
    Approval,
    MemoryStore,
    NotApproved,
    RestartPolicy,
    ServerDown,
    ServerSpec,
    UnknownTool,
    open_supervisor,
)
from mcp_nursery.supervisor.events import DefinitionsChanged, StateChanged, ToolsChanged
from mcp_nursery.supervisor.spec import spec_digest
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual

from ..lab.specs import SERVERS, Named, nothing, status

S = ServerState
FIRST = {"description": "Adds."}
EVIL = {"description": "Adds, and mails it."}


def lab(*lives: Life, name: str = "lab", **options) -> ScriptedServer:
    SERVERS[name] = server = ScriptedServer(*lives, **{"tools": {"add": nothing}, **options})
    return server


def spec(name: str = "lab", **options) -> ServerSpec:
    return ServerSpec(name, Named(name), **options)


async def warm(*names: str) -> MemoryStore:
    """A store that has seen these servers."""
    store = MemoryStore()
    async with open_supervisor([spec(name) for name in names], state=store, gate=100):
        pass
    return store


def seen(supervisor) -> list[tuple[str, bool]]:
    return [(tool.name, tool.available) for tool in supervisor.tools]


# -- the gate -------------------------------------------------------------------------------------------------------


def test_five_ways_at_the_gate():
    """G2: connected gives live tools, failed an error, pending with a cache deferred tools, pending without a wait."""

    async def main():
        for name in ("live", "failed", "late", "lazy"):
            lab(name=name)
        store = await warm("live", "failed", "late", "lazy")
        lab(Life(refuses="no such luck"), name="failed")
        late, new = lab(Life(connects_after=5), name="late"), lab(Life(connects_after=3), name="new")
        once = RestartPolicy(delays=())
        specs = [spec("live"), spec("failed", policy=once), spec("late"), spec("new"), spec("lazy", lazy=True)]
        began = trio.current_time()
        async with open_supervisor(specs, state=store) as supervisor, supervisor.events() as events:
            assert trio.current_time() == began + 0.25
            assert seen(supervisor) == [("mcp_late_add", False), ("mcp_lazy_add", False), ("mcp_live_add", True)]
            assert status(supervisor, "failed").error == "no such luck"
            result = await supervisor.call_tool("mcp_new_add")
            assert (trio.current_time() - began, result.server) == (3, "new")
            result = await supervisor.call_tool("mcp_late_add")
            assert (trio.current_time() - began, result.server, result.incarnation) == (5, "late", 1)
            assert late.calls == [(1, "add", {})]
            assert new.calls == [(1, "add", {})]
            assert [server for server in ("lazy",) if SERVERS[server].starts] == ["lazy"]  # by nothing but `warm`
            changed = []
            with trio.move_on_after(1):
                async for event in events:
                    changed += [event] if isinstance(event, ToolsChanged) else []
            assert [(event.server, event.added) for event in changed] == [("new", ("mcp_new_add",))]

    run_virtual(main)


@pytest.mark.parametrize(
    ("wait_for", "gate", "entered"),
    [("all", 0.25, 0.25), ("all", 100, 5), ("uncached", 0.25, 0.25), ("uncached", 100, 3), ("uncached", 2, 2)],
)
def test_the_gate_may_wait_for_what_is_not_cached_alone(wait_for, gate, entered):
    """G15: within its bound; cached ones are offered at once."""

    async def main():
        lab()
        store = await warm("lab")
        lab(Life(connects_after=5))
        lab(Life(connects_after=3), name="new")
        began = trio.current_time()
        specs = [spec(), spec("new")]
        async with open_supervisor(specs, state=store, gate=gate, wait_for=wait_for) as supervisor:
            assert trio.current_time() - began == entered
            assert ("mcp_lab_add", entered == 5) in seen(supervisor)

    run_virtual(main)


def test_nothing_is_waited_for_where_all_is_cached():
    """G15."""

    async def main():
        lab()
        store = await warm("lab")
        lab(Life(mute=True))
        began = trio.current_time()
        async with open_supervisor([spec()], state=store, wait_for="uncached") as supervisor:
            assert trio.current_time() == began
            assert seen(supervisor) == [("mcp_lab_add", False)]

    run_virtual(main)


def test_a_late_server_replaces_its_own_part_alone_and_at_once():
    """G4: all others are the same objects; one event tells what differs."""

    async def main():
        lab(tools={"add": nothing, "old": nothing})
        lab(name="other")
        store = await warm("lab", "other")
        lab(Life(connects_after=5), tools={"add": nothing, "new": nothing})
        lab(Life(mute=True), name="other")
        async with open_supervisor([spec(), spec("other")], state=store) as supervisor, supervisor.events() as events:
            before = supervisor.tool("mcp_other_add")
            assert [name for name, _ in seen(supervisor)] == ["mcp_lab_add", "mcp_lab_old", "mcp_other_add"]
            async for event in events:
                if isinstance(event, ToolsChanged):
                    break
            assert (event.server, event.added, event.removed, event.changed) == (
                *("lab", ("mcp_lab_new",), ("mcp_lab_old",)),
                (),
            )
            assert seen(supervisor) == [("mcp_lab_add", True), ("mcp_lab_new", True), ("mcp_other_add", False)]
            assert supervisor.tool("mcp_other_add") is before
            with pytest.raises(UnknownTool):
                await supervisor.call_tool("mcp_lab_old")

    run_virtual(main)


# -- calls ----------------------------------------------------------------------------------------------------------


def test_a_deferred_tool_that_is_gone_when_its_server_comes():
    """G3: the live definitions rule."""

    async def main():
        lab()
        store = await warm("lab")
        server = lab(Life(connects_after=5), tools={"other": nothing})
        async with open_supervisor([spec()], state=store) as supervisor:
            with pytest.raises(UnknownTool):
                await supervisor.call_tool("mcp_lab_add")
            assert status(supervisor).state is S.CONNECTED
            assert server.calls == []

    run_virtual(main)


def test_a_deferred_tool_whose_server_does_not_come():
    """G3: `ServerDown`; with `revive="on_call"` one fresh start and one call."""

    async def main():
        lab()
        store = await warm("lab")
        refuses = Life(refuses="no such luck", connects_after=1)
        lab(Life(mute=True))
        once = RestartPolicy(delays=())
        async with open_supervisor([spec(policy=once, connect_timeout=4)], state=store) as supervisor:
            began = trio.current_time()
            with pytest.raises(ServerDown, match="failed"):
                await supervisor.call_tool("mcp_lab_add")
            assert trio.current_time() - began == 3.75
            assert supervisor.tools == ()
        server = lab(refuses, Life())
        async with open_supervisor([spec(policy=once, revive="on_call")], state=store, gate=0) as supervisor:
            assert (await supervisor.call_tool("add", server="lab")).full_text == "done"
            assert len(server.starts) == 2
            assert len(server.calls) == 1

    run_virtual(main)


def test_a_failed_start_is_not_stormed():
    """G10: many calls of deferred tools share the ladder's attempts."""

    async def main():
        lab()
        store = await warm("lab")
        server = lab(Life(refuses="no such luck"))
        async with open_supervisor([spec(lazy="cached")], state=store) as supervisor:
            failed = []

            async def call() -> None:
                with pytest.raises(ServerDown) as caught:
                    await supervisor.call_tool("mcp_lab_add")
                failed.append(caught.value.state)

            for _ in range(3):
                async with trio.open_nursery() as nursery:
                    for _ in range(50):
                        nursery.start_soon(call)
            assert failed == [S.WAITING] * 150
            assert len(server.starts) == 1

    run_virtual(main)


# -- pins and approval ----------------------------------------------------------------------------------------------


def test_pins_filters_and_names_hold_for_cached_definitions():
    """G5: what was held back stays held back, what is filtered is not offered."""

    async def main():
        store = MemoryStore()
        tools = {"add": nothing, "drop": nothing}
        lab(tools=tools, declared={"add": FIRST})
        async with open_supervisor([spec()], state=store):
            pass
        lab(tools=tools, declared={"add": EVIL})
        async with open_supervisor([spec()], state=store):
            pass
        lab(Life(mute=True))
        for pins, shown in (("report", ["x__lab__add"]), ("block", [])):
            async with open_supervisor(
                [spec(deny=["dr*"])], state=store, pins=pins, template="x__{server}__{tool}"
            ) as supervisor:
                assert [tool.name for tool in supervisor.tools] == shown
                (change,) = supervisor.definition_changes
                assert change.fields == ("description",)

    run_virtual(main)


def test_a_definition_that_is_another_when_its_server_comes_is_reported():
    """G5, G2: after the gate too."""

    async def main():
        lab(declared={"add": FIRST})
        store = await warm("lab")
        lab(Life(connects_after=5), declared={"add": EVIL})
        async with open_supervisor([spec()], state=store) as supervisor, supervisor.events() as events:
            assert supervisor.definition_changes == ()
            async for event in events:
                if isinstance(event, DefinitionsChanged):
                    break
            assert [change.tool for change in event.changes] == ["add"]
            assert supervisor.definition_changes == event.changes

    run_virtual(main)


@pytest.mark.parametrize("changes", [False, True])
def test_a_model_calls_what_was_agreed_to(changes):
    """T8: agreed to as it was cached, it is not called as something else."""

    async def main():
        lab(declared={"add": FIRST})
        store = await warm("lab")
        server = lab(Life(connects_after=5), declared={"add": EVIL if changes else FIRST})
        asked = []

        async def approve(request) -> Approval:
            await trio.lowlevel.checkpoint()
            asked.append(request.tool.definition.description)
            return Approval.ALLOW

        async with open_supervisor([spec()], state=store, approve=approve) as supervisor:
            tool = supervisor.tool("mcp_lab_add")
            if changes:
                with pytest.raises(NotApproved, match="its definition has changed since it was agreed to"):
                    await tool()
                assert server.calls == []
            assert (await tool()).full_text == "done"
            assert asked == (["Adds.", "Adds, and mails it."] if changes else ["Adds."])
            assert len(server.calls) == 1

    run_virtual(main)


# -- lazy="cached" --------------------------------------------------------------------------------------------------


def test_a_server_that_starts_for_its_first_call_alone():
    """Lists, and names that nobody has, are answered from the cache; a refresh starts it."""

    async def main():
        lab()
        store = await warm("lab")
        server = lab(Life(connects_after=2), tools={"add": nothing, "new": nothing})
        one = spec(lazy="cached", stop_idle_after=10)
        async with open_supervisor([one], state=store) as supervisor:
            began = trio.current_time()
            assert seen(supervisor) == [("mcp_lab_add", False)]
            assert [tool.name for tool in await supervisor.list_tools()] == ["mcp_lab_add"]
            assert [tool.name for tool in await supervisor.list_tools("lab")] == ["mcp_lab_add"]
            with pytest.raises(UnknownTool):
                await supervisor.call_tool("mcp_lab_new")
            assert (server.starts, trio.current_time()) == ([], began)
            assert (await supervisor.call_tool("mcp_lab_add")).duration == 2
            assert seen(supervisor) == [("mcp_lab_add", True), ("mcp_lab_new", True)]
            await trio.sleep(11)
            assert (len(server.ends), status(supervisor).state) == (1, S.IDLE)
            await supervisor.list_tools()
            assert len(server.starts) == 1
            await supervisor.list_tools(refresh=True)
            assert len(server.starts) == 2

    run_virtual(main)


@pytest.mark.parametrize("lasting", [True, False], ids=["a command", "an object in memory"])
def test_a_server_of_which_nothing_is_cached_is_started_to_learn_what_it_has(lasting):
    """Once, at the beginning; the gate waits for it as for any other. Then it is stopped when it is idle."""

    async def main():
        server = lab(Life(connects_after=0.125))
        options = {"lazy": "cached", "stop_idle_after": 10}
        one = spec(**options) if lasting else ServerSpec("lab", server.transport, **options)
        store = MemoryStore()
        for starts, connected in ((1, True), (1 if lasting else 2, not lasting)):
            began = trio.current_time()
            async with open_supervisor([one], state=store) as supervisor, supervisor.events() as events:
                assert seen(supervisor) == [("mcp_lab_add", connected)]
                assert trio.current_time() - began == (0.125 if connected else 0)
                await trio.sleep(11)
                assert status(supervisor).state is S.IDLE
                del events
            assert len(server.starts) == starts

    run_virtual(main)


def test_a_call_while_nobody_knows_what_is_cached():
    """It waits for that, and its server is started then."""

    async def main():
        lab()
        store = await warm("lab")
        server = lab()
        async with open_supervisor([spec(lazy="cached")], state=store, gate=0) as supervisor:
            assert (await supervisor.call_tool("mcp_lab_add")).full_text == "done"
            assert len(server.starts) == 1
        server = lab()
        async with open_supervisor([spec(lazy="cached")], state=MemoryStore(), gate=0) as supervisor:
            assert [tool.tool for tool in await supervisor.list_tools()] == ["add"]
            assert len(server.starts) == 1

    run_virtual(main)


def test_a_lazy_server_is_asked_for_what_is_not_cached():
    """G7: what was cached says what it had, not what it has."""

    async def main():
        lab()
        store = await warm("lab")
        server = lab(tools={"add": nothing, "new": nothing})
        async with open_supervisor([spec(lazy=True)], state=store) as supervisor:
            assert seen(supervisor) == [("mcp_lab_add", False)]
            assert server.starts == []
            assert (await supervisor.call_tool("mcp_lab_new")).full_text == "done"
            assert len(server.starts) == 1

    run_virtual(main)


def test_another_spec_at_a_reload_offers_what_is_cached_of_it():
    """G5, L18."""

    async def main():
        lab()
        store = await warm("lab")
        server = lab()
        SERVERS["other"] = ScriptedServer(tools={"sub": nothing})
        one, other = spec(lazy="cached"), ServerSpec("lab", Named("other"), lazy=True)
        async with open_supervisor([other], state=store) as supervisor, supervisor.events() as events:
            assert seen(supervisor) == []
            await supervisor.reload([one])
            async for event in events:
                if isinstance(event, ToolsChanged):
                    break
            assert seen(supervisor) == [("mcp_lab_add", False)]
            await supervisor.reload([spec("lab", lazy="cached", max_in_flight=1)])
            await trio.sleep(1)
            assert seen(supervisor) == [("mcp_lab_add", False)]
            await supervisor.add_server(ServerSpec("new", Named("lab"), enabled=False))
            await trio.sleep(1)
            assert server.starts == []
            states = [event.new for event in await drained(events) if isinstance(event, StateChanged)]
            assert states == [S.DISABLED]

    run_virtual(main)


async def drained(events) -> list[object]:
    got = []
    with trio.move_on_after(0.1):
        async for event in events:
            got.append(event)
    return got


def test_a_server_that_is_reached_in_another_way_may_be_another():
    """P7: nothing of what the one had is offered as the other's, and nothing of it is held against the other."""

    async def main():
        lab()
        lab(Life(connects_after=3), name="other", declared={"add": EVIL})
        async with open_supervisor([spec()], state=MemoryStore(), gate=100) as supervisor:
            assert seen(supervisor) == [("mcp_lab_add", True)]
            began = trio.current_time()
            await supervisor.reload([ServerSpec("lab", Named("other"))])
            assert seen(supervisor) == []
            assert supervisor.hello("lab") is None
            await supervisor.wait_connected("lab")
            assert trio.current_time() - began == 3
            assert seen(supervisor) == [("mcp_lab_add", True)]
            assert supervisor.definition_changes == ()

    run_virtual(main)


def test_what_a_server_said_itself_goes_before_what_was_cached():
    """G5: also where the cache is asked again, for another spec of a server that is reached in the same way."""

    async def main():
        lab(declared={"add": FIRST})
        store = await warm("lab")
        lab(declared={"add": EVIL})
        async with open_supervisor([spec()], state=store, gate=100) as supervisor:
            digest = spec_digest(spec())
            said = b'tools {"name":"add","description":"Adds.","inputSchema":{}}\n'
            store.remember_definitions("lab", digest, said, time.time() + 1000)  # another host, whose clock is ahead
            await supervisor.reload([spec(lazy=True)])
            await trio.sleep(1)
            (tool,) = supervisor.tools
            assert (tool.available, tool.definition.description) == (False, EVIL["description"])

    run_virtual(main)
