"""What a keeper publishes is made ready in pieces, whatever happens meanwhile, and shown in one step."""

import sys
from functools import lru_cache

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors import fairness
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.events import ToolsChanged
from mcp_nursery.supervisor.restart_policy import RestartPolicy
from mcp_nursery.supervisor.servers.observable import Observable
from mcp_nursery.supervisor.servers.registry import ServerRegistry
from mcp_nursery.supervisor.servers.settings import SupervisorSettings
from mcp_nursery.supervisor.servers.subscriptions import Subscriptions
from mcp_nursery.supervisor.servers.usage import Usage
from mcp_nursery.supervisor.state_machine import Snapshot
from mcp_nursery.supervisor.storage.store import MemoryStore
from mcp_nursery.supervisor.storage.worker import StoreWorker
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual
from mcp_nursery.supervisor.tools.naming import public_names
from tests.supervisor.catalogue.test_catalogue import server
from tests.supervisor.specs import live_events
from tests.supervisor.specs import spec as scripted


async def work(arguments) -> object:
    await trio.lowlevel.checkpoint()
    return "done"


def numbered(first: int, last: int) -> dict[str, object]:
    return {f"tool_{at}": work for at in range(first, last)}


@pytest.fixture(autouse=True)
def smallest_pieces(monkeypatch):
    """Others have their turn after each piece, however quick it was."""
    monkeypatch.setattr(fairness, "_SLICE", 0)


# -- turns --------------------------------------------------------------------------------------------------------


def a_registry(*snapshots: Snapshot) -> ServerRegistry:
    settings = SupervisorSettings(RestartPolicy(), "mcp_{server}_{tool}", (), 5, {}, StoreWorker(MemoryStore()))
    registry = ServerRegistry(settings, work, Usage(lambda _server: None), Subscriptions(lambda _server, _uris: None))
    for each in snapshots:
        registry.snapshots[each.spec.name] = Observable(each)
    registry.rebuild({})
    return registry


async def test_others_run_while_ten_thousand_tools_are_made_ready():
    """One turn of the loop was 0.46 s long."""
    old = server("a")
    new = server("a", *(f"tool_{at}" for at in range(10_000)))
    registry = a_registry(old)
    others, seen = 0, set[int]()
    ready = False

    async def count() -> None:
        nonlocal others
        while not ready:
            others += 1
            seen.add(len(registry.catalogue.value.tools))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        prepared = await registry.prepare(old, new)
        ready = True
        registry.publish(old, new, prepared)
    assert others > 10_000
    assert seen == {0}
    assert len(registry.catalogue.value.tools) == 10_000


class _Turns(trio.abc.Instrument):
    """The most functions that one step of a task called: a measure of work that no busy machine disturbs."""

    def __init__(self) -> None:
        self.most = self._calls = 0

    def _count(self, frame, event, argument) -> None:
        self._calls += event == "call"

    def before_task_step(self, task) -> None:
        self._calls = 0
        sys.setprofile(self._count)

    def after_task_step(self, task) -> None:
        sys.setprofile(None)
        self.most, self._calls = max(self.most, self._calls), 0


@pytest.mark.slow
@pytest.mark.parametrize("event", ["changed", "unchanged", "lost"])
def test_no_turn_of_a_keeper_grows_with_the_tools_of_its_server(event):
    """A list that changes everything, one that changes nothing, and the loss of a connection."""
    many = 3000

    async def main():
        peer = ScriptedServer(Life(), tools=numbered(0, many))
        async with open_supervisor([ServerSpec("lab", peer.transport)]) as supervisor:
            assert len(supervisor.tools) == many
            if event == "changed":
                peer.declared = {name: {"description": "Another."} for name in peer.tools}
            counted = _Turns()
            trio.lowlevel.add_instrument(counted)
            if event == "lost":
                peer.crash()
            else:
                await supervisor.list_tools(refresh=True)
            await wait_all_tasks_blocked()
            trio.lowlevel.remove_instrument(counted)
            assert {tool.available for tool in supervisor.tools} == {event != "lost"}
            assert {tool.definition.description for tool in supervisor.tools} == {
                "Another." if event == "changed" else None
            }
            assert counted.most < 1.5 * many  # 256 tools are pinned in one go

    run_virtual(main)


@pytest.mark.slow
@pytest.mark.parametrize("event", ["reconnect", "stop", "start", "add", "remove", "reload"])
def test_no_turn_grows_with_the_tools_of_a_server_when_the_host_changes_what_there_is(event):
    """Under this template every tool has another name when a second server comes or goes."""
    many = 1000

    async def main():
        peer, other = ScriptedServer(Life(), Life(), tools=numbered(0, many)), ScriptedServer(tools={})
        lab, another = ServerSpec("lab", peer.transport), ServerSpec("another", other.transport)
        at_first = [lab, another] if event == "remove" else [lab]
        async with open_supervisor(at_first, template="{tool}") as supervisor:
            if event == "start":
                await supervisor.stop_server("lab")
            await wait_all_tasks_blocked()
            changes = {
                "reconnect": lambda: supervisor.reconnect("lab"),
                "stop": lambda: supervisor.stop_server("lab"),
                "start": lambda: supervisor.start_server("lab"),
                "add": lambda: supervisor.add_server(another),
                "remove": lambda: supervisor.remove_server("another"),
                "reload": lambda: supervisor.reload([lab, another]),
            }
            counted = _Turns()
            trio.lowlevel.add_instrument(counted)
            await changes[event]()
            await wait_all_tasks_blocked()
            trio.lowlevel.remove_instrument(counted)
            plain = "tool_0" in {tool.name for tool in supervisor.tools}
            assert len(supervisor.tools) == (0 if event == "stop" else many)
            assert plain is (event in ("reconnect", "start", "remove"))
            of_the_peer = 3 * many if event == "reload" else 0  # the digest of a spec that holds all these tools
            assert counted.most < 1.5 * many + of_the_peer

    run_virtual(main)


# -- what happens meanwhile -----------------------------------------------------------------------------------------


async def nothing(supervisor) -> None:
    await trio.lowlevel.checkpoint()


async def stop(supervisor) -> None:
    await supervisor.stop_server("lab")


async def remove(supervisor) -> None:
    await supervisor.remove_server("lab")


async def add(supervisor) -> None:
    await supervisor.add_server(ServerSpec("another", ScriptedServer(tools={}).transport))


async def add_and_remove(supervisor) -> None:
    await add(supervisor)
    await supervisor.remove_server("another")


async def add_many(supervisor) -> None:
    """One after the other, more often than what is overtaken is made again."""
    for at in range(20):
        await supervisor.add_server(ServerSpec(f"another_{at}", ScriptedServer(tools={}).transport))


prepared_in_steps = ServerRegistry._publication


class _Watched:
    """Says when a publication has come to a certain step; it goes on as without it."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.there: trio.Event | None = None

    def steps(self, *args):
        for taken, each in enumerate(work := _Outcome(prepared_in_steps(*args)), start=1):
            if taken == self._after and self.there is not None:
                self.there.set()
            yield each
        return work.outcome


class _Outcome:
    """A generator's values, and then what it has returned."""

    def __init__(self, steps) -> None:
        self._steps = steps

    def __iter__(self):
        self.outcome = yield from self._steps


def right(supervisor, *tools) -> bool:
    """Whether it shows one of these lists, under names of the servers there are; one that is being removed names
    nothing any more."""
    servers = frozenset(status.name for status in supervisor.status())
    names = {tool.name for tool in supervisor.tools}
    return any(names == named(frozenset(each), among) for each in tools for among in (servers, servers - {"another"}))


@lru_cache
def named(tools, servers) -> set[str]:
    return set(public_names("lab", sorted(tools), servers, "{tool}").values())


async def follow(supervisor, shown, task_status) -> None:
    """What a reader of events knows of the server's tools."""
    shown.update(tool.name for tool in supervisor.tools)
    async with supervisor.events() as events:
        task_status.started()
        async for event in events:
            if isinstance(event, ToolsChanged) and event.server == "lab":
                shown.difference_update(event.removed)
                shown.update(event.added)


BEFORE, NOW = numbered(0, 40), numbered(10, 50)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 60, 110])
@pytest.mark.parametrize("meanwhile", [nothing, stop, remove, add, add_and_remove, add_many])
def test_what_happens_meanwhile_leaves_a_right_catalogue(monkeypatch, meanwhile, after):
    """Tools are there as before or as they are now, never some of each."""
    watched = _Watched(after)
    monkeypatch.setattr(ServerRegistry, "_publication", lambda *args: watched.steps(*args))  # noqa: PLW0108 - binds

    async def look(supervisor) -> None:
        while True:
            assert right(supervisor, BEFORE, NOW, ())
            await trio.lowlevel.checkpoint()

    async def disturb(supervisor) -> None:
        await watched.there.wait()
        await meanwhile(supervisor)

    async def relist(supervisor, peer) -> None:
        async with trio.open_nursery() as outer:
            outer.start_soon(look, supervisor)
            watched.there = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(disturb, supervisor)
                peer.tools = NOW
                await supervisor.list_tools(refresh=True)
            outer.cancel_scope.cancel()

    async def main():
        peer = ScriptedServer(tools=BEFORE)
        shown: set[str] = set()
        async with (
            open_supervisor([ServerSpec("lab", peer.transport)], template="{tool}") as supervisor,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(follow, supervisor, shown)
            await relist(supervisor, peer)
            await wait_all_tasks_blocked()
            assert right(supervisor, () if meanwhile in (stop, remove) else NOW)
            assert shown == {tool.name for tool in supervisor.tools}
            for tool in supervisor.tools:
                assert not (await supervisor.call_tool(tool.name)).is_error
            nursery.cancel_scope.cancel()

    run_virtual(main)


# -- the end ------------------------------------------------------------------------------------------------------


async def test_many_servers_that_end_together_take_their_tools_along_in_one_step(autojump_clock):
    """A catalogue for each of five thousand servers was a fifth of the time that leaving them took. A server of many
    tools takes them out in turns, and all have told of it when the block is left."""
    heard = list[object]()

    async def listen(*, task_status) -> None:
        async with live_events(supervisor) as events:
            task_status.started()
            heard.extend([event async for event in events])

    few = [scripted(ScriptedServer(tools=numbered(0, 3)), f"few{at}") for at in range(10)]
    many = scripted(ScriptedServer(tools=numbered(0, 101)), "many")
    async with trio.open_nursery() as nursery, open_supervisor([*few, many], gate=20) as supervisor:
        assert len(await supervisor.list_tools()) == 131
        await nursery.start(listen)
    kinds = [type(event) for event in heard]
    assert kinds[:10] == [ToolsChanged] * 10
    assert {event.server: len(event.removed) for event in heard if isinstance(event, ToolsChanged)} == {
        **{spec.name: 3 for spec in few},
        "many": 101,
    }
    assert supervisor.tools == ()
