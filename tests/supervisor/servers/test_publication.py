"""What a keeper publishes is shown in one step, and costs the other servers' tools nothing."""

import sys
from functools import lru_cache

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors import fairness
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.events import ToolsChanged
from mcp_nursery.supervisor.testing import ScriptedServer, run_virtual
from mcp_nursery.supervisor.tools.naming import public_names

from ...lab.specs import live_events
from ...lab.specs import spec as scripted


async def work(arguments) -> object:
    await trio.lowlevel.checkpoint()
    return "done"


def numbered(first: int, last: int) -> dict[str, object]:
    return {f"tool_{at}": work for at in range(first, last)}


# -- turns --------------------------------------------------------------------------------------------------------


class _Turns(trio.abc.Instrument):
    """The most functions that one step of a task called: a measure of work that no busy machine disturbs. Tasks whose
    name does not begin so are left out."""

    def __init__(self, task: str = "") -> None:
        self.most = self._calls = 0
        self._task = task

    def _count(self, frame, event, argument) -> None:
        self._calls += event == "call"

    def before_task_step(self, task) -> None:
        self._calls = 0
        sys.setprofile(self._count)

    def after_task_step(self, task) -> None:
        sys.setprofile(None)
        if task.name.startswith(self._task):
            self.most = max(self.most, self._calls)


@pytest.mark.parametrize("event", ["add", "remove"])
def test_no_tool_of_a_server_is_named_again_because_of_a_stranger(event):
    """Its names can never be those of the other server's tools, whatever these are."""
    many = 1000

    async def main():
        peers = [ScriptedServer(tools=numbered(0, many)) for _ in range(3)]
        large = [ServerSpec(f"lab {at}", peer.transport) for at, peer in enumerate(peers)]
        another = ServerSpec("another", ScriptedServer(tools={}).transport)
        async with open_supervisor([*large, another] if event == "remove" else large) as supervisor:
            await wait_all_tasks_blocked()
            before = supervisor.tools
            counted = _Turns()
            trio.lowlevel.add_instrument(counted)
            await trio.lowlevel.checkpoint()  # a step is counted from its begin
            await (supervisor.add_server(another) if event == "add" else supervisor.remove_server("another"))
            await wait_all_tasks_blocked()
            trio.lowlevel.remove_instrument(counted)
            assert supervisor.tools == before
            assert counted.most < many

    run_virtual(main)


def test_tools_that_all_change_are_made_in_pieces(monkeypatch):
    """A server that declared 5,000 tools anew held up all others for 111 ms: they were made in the step that shows
    them, here and to each borrower."""
    many = 600

    async def main():
        peer = ScriptedServer(tools=numbered(0, many), declared={})
        async with (
            open_supervisor([ServerSpec("lab", peer.transport)]) as supervisor,
            open_supervisor(borrow=supervisor) as borrower,
        ):
            await supervisor.list_tools()
            monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)  # a turn for each piece, however fast this machine is
            peer.declared = {f"tool_{at}": {"description": "another"} for at in range(many)}
            counted = _Turns("keeper of lab")
            trio.lowlevel.add_instrument(counted)
            await supervisor.list_tools(refresh=True)
            trio.lowlevel.remove_instrument(counted)
            for shown in supervisor, borrower:
                assert {tool.full_description for tool in shown.tools} == {"another"}
            assert counted.most < 10 * many

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


@pytest.mark.parametrize("meanwhile", [nothing, stop, remove, add, add_and_remove])
def test_what_happens_meanwhile_leaves_a_right_catalogue(meanwhile, monkeypatch):
    """Tools are there as before or as they are now, never some of each."""
    monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)  # a turn for each tool, however fast this machine is

    async def look(supervisor) -> None:
        while True:
            assert right(supervisor, BEFORE, NOW, ())
            await trio.lowlevel.checkpoint()

    async def relist(supervisor, peer) -> None:
        async with trio.open_nursery() as outer:
            outer.start_soon(look, supervisor)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(meanwhile, supervisor)
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
