"""What a reader of events hears, and what it hears when it falls behind."""

import pytest
import trio
from attrs import evolve

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import MemoryStore, RestartPolicy, ServerSpec, Supervisor, open_supervisor
from mcp_nursery.supervisor.events import (
    EVENT_BUFFER,
    DefinitionsChanged,
    Event,
    EventStream,
    Lagged,
    ServerRemoved,
    SnapshotEvent,
    StateChanged,
    ToolsChanged,
)
from mcp_nursery.supervisor.status import ServerStatus
from mcp_nursery.supervisor.testing import Life, ScriptedServer

from ..lab.specs import SERVERS, Named, live_events, nothing, spec

S = ServerState


async def read(events, count: int) -> list[Event]:
    return [await events.receive() for _ in range(count)]


async def test_the_story_of_a_server(autojump_clock):
    """G4, P2: each step once, in order, with its time, incarnation, attempt and what follows."""
    server = ScriptedServer(Life(connects_after=1, dies_after=2), Life(refuses="down"))
    policy = RestartPolicy(delays=(2,))
    async with open_supervisor([], gate=0) as supervisor, live_events(supervisor) as events:
        await supervisor.add_server(spec(server, policy=policy))
        await trio.sleep(50)
        await supervisor.remove_server("lab")
        story = [
            (event.at, event.old, event.new, event.incarnation, event.attempt, event.retry_in, event.error)
            if isinstance(event, StateChanged)
            else event
            for event in await read(events, 9)
        ]
    assert story == [
        (0, None, S.CONNECTING, 1, 1, None, None),
        (1, S.CONNECTING, S.CONNECTED, 1, 1, None, None),
        ToolsChanged("lab", added=("mcp_lab_echo",), removed=(), changed=(), at=1),
        (3, S.CONNECTED, S.WAITING, 1, 2, 2, "exited with code 1"),
        (5, S.WAITING, S.CONNECTING, 2, 2, None, "exited with code 1"),
        (5, S.CONNECTING, S.FAILED, 2, 2, None, "down"),
        ToolsChanged("lab", added=(), removed=("mcp_lab_echo",), changed=(), at=5),
        (50, S.FAILED, S.STOPPED, 2, 1, None, None),
        ServerRemoved("lab", at=50),
    ]


async def test_a_stream_begins_with_where_everything_stands(autojump_clock):
    """G4: who comes after the gate has missed nothing, and hears live events after that."""
    specs = [spec(ScriptedServer(), "b"), spec(ScriptedServer(Life(mute=True)), "a")]
    async with open_supervisor(specs) as supervisor, supervisor.events() as events:
        standing = [SnapshotEvent(status) for status in supervisor.status()]
        await supervisor.stop_server("b")
        assert await read(events, 2) == standing
        assert [one.status.state for one in standing] == [S.CONNECTED, S.CONNECTING]
        assert (await events.receive()).new is S.STOPPED


async def test_what_differs_and_was_not_accepted_is_part_of_that(autojump_clock):
    """CVE-2025-54136: also what was found before the block was entered, and again after a lag."""
    store = MemoryStore()
    for description in ("Adds.", "Adds, and mails it."):
        SERVERS["x"] = ScriptedServer(declared={"echo": {"description": description}})
        one = ServerSpec("lab", Named("x"))
        async with open_supervisor([one], state=store) as supervisor, supervisor.events() as events:
            standing = await read(events, 1 + len(supervisor.definition_changes))
            for _ in range(60):
                await supervisor.reconnect("lab")
            rest = await read(events, EVENT_BUFFER)
            assert not any(isinstance(event, DefinitionsChanged) for event in rest)
            assert isinstance(await events.receive(), Lagged)
            again = await read(events, len(standing))
    assert [type(event) for event in standing] == [SnapshotEvent, DefinitionsChanged]
    assert standing[1].changes == again[1].changes
    assert [change.tool for change in standing[1].changes] == ["echo"]


@pytest.mark.parametrize("rest", ["idle", "stopped", "failed", "disabled"])
async def test_a_start_from_rest_is_told_once(autojump_clock, rest):
    """With the number of the connection that is being made; the next start has the next number."""
    lab = spec(ScriptedServer(Life(refuses="no")) if rest == "failed" else ScriptedServer(), policy=RestartPolicy(()))
    lab = evolve(lab, lazy=rest == "idle", enabled=rest != "disabled")
    async with open_supervisor([lab]) as supervisor:
        if rest == "stopped":
            await supervisor.stop_server("lab")
        before = supervisor.status()[0]
        assert before.state == rest
        async with live_events(supervisor) as events:
            await supervisor.start_server("lab")
            await trio.sleep(1)
            await supervisor.stop_server("lab")
            await supervisor.start_server("lab")
            told = []
            while len([state for state, _ in told if state is S.CONNECTING]) < 2:
                event = await events.receive()
                if isinstance(event, StateChanged):
                    told.append((event.new, event.incarnation))
    after = S.FAILED if rest == "failed" else S.CONNECTED
    number = before.incarnation + 1
    assert told == [
        (S.CONNECTING, number),
        (after, number),
        (S.STOPPED, number),
        (S.CONNECTING, number + 1),
    ]


async def test_every_reader_hears_everything(autojump_clock):
    """P2: from the moment it listens; one that left hears nothing, and costs nothing."""
    async with open_supervisor([spec(ScriptedServer())]) as supervisor:
        async with live_events(supervisor) as first, live_events(supervisor) as second:
            async with live_events(supervisor) as gone:
                pass
            await supervisor.stop_server("lab")
            assert await read(first, 2) == await read(second, 2)
        with pytest.raises(trio.ClosedResourceError):
            await gone.receive()
        async with live_events(supervisor) as late:
            with trio.move_on_after(5):
                raise AssertionError(await late.receive())


async def test_the_end_of_the_stream(autojump_clock):
    """P2: what was there, then the end, when the block is left; also for a stream opened afterwards."""
    heard: list[Event] = []

    async def listen(supervisor: Supervisor, task_status=trio.TASK_STATUS_IGNORED):
        async with supervisor.events() as events:
            task_status.started()
            heard.extend([event async for event in events])

    specs = [spec(ScriptedServer(Life(closes_after=2)))]
    async with trio.open_nursery() as nursery, open_supervisor(specs) as supervisor:
        await nursery.start(listen, supervisor)
    assert [event.new for event in heard if isinstance(event, StateChanged)] == [S.STOPPED]
    assert trio.current_time() == 2
    async with supervisor.events() as events:
        assert [event async for event in events] == []


@pytest.mark.parametrize(("reconnects", "missed"), [(50, 0), (51, 2), (90, 80)])
async def test_a_reader_that_falls_behind(autojump_clock, reconnects, missed):
    """P2: 100 events are kept; then `Lagged` says how many are missing, and snapshots where each server stands."""
    specs = [spec(ScriptedServer()), spec(ScriptedServer(), "other")]
    async with open_supervisor(specs) as supervisor, live_events(supervisor) as events:
        for _ in range(reconnects):  # two events each
            await supervisor.reconnect("lab")
        await read(events, min(reconnects * 2, 100))
        if missed:
            lagged, *snapshots = await read(events, 3)
            assert lagged == Lagged(missed)
            assert snapshots == [SnapshotEvent(status) for status in supervisor.status()]
        await supervisor.stop_server("other")
        event = await events.receive()
        assert isinstance(event, StateChanged)
        assert (event.server, event.new) == ("other", S.STOPPED)


async def test_a_lag_shows_what_is_true_when_it_is_read(autojump_clock):
    """P2: the snapshots are of the moment they are read, and nothing that follows contradicts them."""
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, live_events(supervisor) as events:
        for _ in range(75):
            await supervisor.reconnect("lab")
        await read(events, 100)
        await supervisor.stop_server("lab")
        lagged, snapshot = await read(events, 2)
        assert lagged == Lagged(52)  # 50 of the reconnects, then the stop and the tools that went
        assert isinstance(snapshot, SnapshotEvent)
        assert (snapshot.status.state, snapshot.status.tool_count) == (S.STOPPED, 0)
        with trio.move_on_after(5):
            raise AssertionError(await events.receive())


@pytest.mark.slow
async def test_more_servers_than_a_reader_may_fall_behind(autojump_clock):
    """P2: after a storm it hears what happens live again within one catch-up, however many servers there are."""
    specs = [spec(ScriptedServer(), f"s{number}") for number in range(EVENT_BUFFER + 50)]
    async with open_supervisor(specs, gate=0) as supervisor, live_events(supervisor) as events:
        for one in specs:
            await supervisor.wait_connected(one.name)
        await read(events, EVENT_BUFFER)
        assert isinstance(await events.receive(), Lagged)
        for _ in range(20):  # the storm goes on while it catches up
            await supervisor.reconnect("s0")
        caught_up = await read(events, len(specs))
        assert {event.status.name for event in caught_up} == {one.name for one in specs}
        live = [event for event in await read(events, 40) if isinstance(event, StateChanged)]
        assert [event.new for event in live] == [S.CONNECTING, S.CONNECTED] * 20
        await supervisor.stop_server("s1")
        assert (await events.receive()).new is S.STOPPED


async def test_a_replay_forgets_at_a_lag_what_it_knew(autojump_clock):
    """P2: also which servers there are: one that was removed while the reader was behind is in no snapshot."""
    known: dict[str, ServerState] = {}
    async with open_supervisor([], gate=0) as supervisor, supervisor.events() as events:
        for name in ("gone", "stays"):
            await supervisor.add_server(spec(ScriptedServer(), name))
            await supervisor.wait_connected(name)
        for _ in range(50):
            await supervisor.reconnect("stays")
        await supervisor.remove_server("gone")
        await supervisor.stop_server("stays")
        with trio.move_on_after(1):
            async for event in events:
                match event:
                    case Lagged():
                        assert "gone" in known
                        known.clear()
                    case StateChanged(server=name, new=state) | SnapshotEvent(ServerStatus(name=name, state=state)):
                        known[name] = state
                    case ServerRemoved(server=name):
                        del known[name]
                    case _:
                        pass
        assert known == {one.name: one.state for one in supervisor.status()} == {"stays": S.STOPPED}


def test_readers_only_read():
    """Nobody who is handed a stream can write into it, or end it for the supervisor."""
    assert {name for name in dir(EventStream) if not name.startswith("_")} == {"receive", "aclose"}


@pytest.mark.parametrize("behind", [False, True])
async def test_replaying_the_events_gives_the_status(autojump_clock, behind):
    """G4, P2: states and tools that a reader puts together are the true ones, lag or not."""
    servers = {
        "a": ScriptedServer(Life(dies_after=3)),
        "b": ScriptedServer(Life(refuses="down"), Life(dies_after=1), Life()),
        "c": ScriptedServer(Life(connects_after=2), tools={"one": nothing, "two": nothing}),
    }
    states: dict[str, ServerState] = {}
    names: set[str] = set()
    async with open_supervisor([], gate=0) as supervisor, supervisor.events() as events:
        for name, server in servers.items():
            await supervisor.add_server(spec(server, name))
        for moment in range(60):
            await trio.sleep_until(moment)
            if moment % 7 == 0:
                await supervisor.reconnect("c")
        servers["c"].tools = {"two": nothing, "three": nothing}
        await supervisor.list_tools(refresh=True)
        for _ in range(60 * behind):
            await supervisor.reconnect("c")
        with trio.move_on_after(1):
            async for event in events:
                match event:
                    case StateChanged(server=name, new=state):
                        states[name] = state
                    case ToolsChanged(added=added, removed=removed):
                        names = (names | set(added)) - set(removed)
                    case SnapshotEvent(status=status):
                        states[status.name] = status.state
                    case Lagged():
                        assert behind
                        names = {tool.name for tool in supervisor.tools}
                    case _:
                        raise AssertionError(event)
        assert states == {one.name: one.state for one in supervisor.status()}
        assert names == {tool.name for tool in supervisor.tools}


async def test_reading_can_be_cancelled_without_loss(autojump_clock):
    """P2: a reader that gives up waiting loses nothing."""
    async with open_supervisor([spec(ScriptedServer())]) as supervisor, live_events(supervisor) as events:
        with trio.move_on_after(1):
            await events.receive()
        await supervisor.stop_server("lab")
        with trio.CancelScope() as scope:
            scope.cancel()
            await events.receive()
        assert scope.cancelled_caught
        first = await events.receive()
        assert isinstance(first, StateChanged)
        assert first.new is S.STOPPED


async def test_no_event_for_what_nobody_would_care_for(autojump_clock):
    """P2: the same tools again are no news; nor is a call."""
    server = ScriptedServer(Life(dies_after=31))
    async with open_supervisor([spec(server)]) as supervisor, live_events(supervisor) as events:
        await supervisor.list_tools(refresh=True)
        await supervisor.call_tool("mcp_lab_echo")
        with trio.move_on_at(30):
            raise AssertionError(await events.receive())
        await trio.sleep_until(40)  # lost and connected again, with the same tools
        assert [event.new for event in await read(events, 3)] == [S.WAITING, S.CONNECTING, S.CONNECTED]


async def test_a_tool_that_changed_in_what_is_not_pinned(autojump_clock):
    """P2: a host may use all of `_meta`; no pin and no approval minds it."""
    server = ScriptedServer(declared={"echo": {"_meta": {"seen": 1}}})
    async with open_supervisor([ServerSpec("lab", server.transport)]) as supervisor, live_events(supervisor) as events:
        before = supervisor.tool("mcp_lab_echo")
        server.declared = {"echo": {"_meta": {"seen": 2}}}
        await supervisor.list_tools(refresh=True)
        after = supervisor.tool("mcp_lab_echo")
        assert await events.receive() == ToolsChanged("lab", (), (), ("mcp_lab_echo",), at=0)
        assert before.definition_hash == after.definition_hash
        assert after.definition.meta == {"seen": 2}
        assert after.change is None
