"""For any starts of servers and any gate: a list lacks nobody whose time is not over, and a client that lists again
when it is told to ends with the tools of all."""

from functools import partial

import trio
from attrs import define, field, frozen
from hypothesis import event, given
from hypothesis import strategies as st

from mcp_nursery.supervisor.events import StateChanged
from mcp_nursery.supervisor.status import ServerState
from mcp_nursery.supervisor.testing import Life, run_virtual

from ..lab.specs import spec
from ..supervisor.gateway.test_gate import CHANGED, script, served

S = ServerState
CONNECT_TIMEOUT = 8.0
END = 40.0
"""When all servers have long been there."""


@frozen
class World:
    """Servers, each with its starts; and clients, each with the time at which it comes, and whether it has no session.
    Starts end at whole and half seconds, and all else happens at other times."""

    servers: tuple[tuple[Life, ...], ...]
    gate: float
    clients: tuple[tuple[float, bool], ...]


@define
class Seen:
    """A list that a client got."""

    asked: float
    came: float
    names: frozenset[str]


@define
class Client:
    modern: bool
    lists: list[Seen] = field(factory=list)


first_starts = st.builds(
    Life,
    connects_after=st.sampled_from([0.0, 0.5, 3.0, 7.5, 20.0]),
    refuses=st.sampled_from([None, None, None, "no"]),
    mute=st.sampled_from([False, False, False, True]),
    dies_after=st.sampled_from([float("inf")] * 3 + [0.0, 1.0]),
    modern=st.booleans(),
    dies_of_probe=st.sampled_from([False, False, True]),
)
worlds = st.builds(
    World,
    servers=st.lists(
        st.tuples(first_starts, st.builds(Life, connects_after=st.sampled_from([0.0, 4.0]))).map(
            lambda lives: (*lives, Life())
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    gate=st.sampled_from([0.25, 2.25, 10.25]),
    clients=st.lists(
        st.tuples(st.sampled_from([0.0625, 1.0625, 4.0625, 12.0625]), st.booleans()), min_size=1, max_size=3
    ).map(tuple),
)


async def play(world):
    """What became of it: the states of each server, and the clients."""
    states, clients = {}, [Client(modern) for _, modern in world.clients]
    specs = [
        spec(script(*lives), f"s{number}", connect_timeout=CONNECT_TIMEOUT)
        for number, lives in enumerate(world.servers)
    ]

    async def watch(events):
        async for each in events:
            if isinstance(each, StateChanged):
                states.setdefault(each.server, []).append((each.at, each.new))

    async def use(client, comes, front):
        """As hosts do: list, and list again whenever told."""
        await trio.sleep_until(comes)
        if client.modern:
            session, heard = None, await front.told(modern=True)
        else:
            session, heard = front.session()
        known = -1
        while True:
            if known != (known := heard.count(CHANGED)):
                asked = trio.current_time()
                names = frozenset(await front.list(of=session))
                client.lists.append(Seen(asked, trio.current_time(), names))
            await trio.sleep(1)

    async with served(specs, gate=world.gate) as (supervisor, front), supervisor.events() as events:
        for status in supervisor.status():
            states[status.name] = [(0.0, status.state)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, events)
            for client, (comes, _) in zip(clients, world.clients, strict=True):
                nursery.start_soon(use, client, comes, front)
            await trio.sleep_until(END)
            assert {status.state for status in supervisor.status()} == {S.CONNECTED}
            nursery.cancel_scope.cancel()
    return states, clients


def check_list(seen, gate, states):
    """It lacks no server but those whose first start has failed, or that have not connected when the gate is over. A
    server that connects in the same moment may be in it."""
    assert seen.came <= max(seen.asked, gate)
    for server, changes in states.items():
        before = [state for at, state in changes if at <= seen.came]
        if f"{server}_look" not in seen.names:
            assert S.CONNECTED not in [state for at, state in changes if at < seen.came], (server, seen)
            is_over = seen.came >= gate
            assert is_over or set(before) - {S.CONNECTING}, (server, seen)
            event("lacks a server: " + ("the gate is over" if is_over else "its first start failed"))


@given(worlds)
def test_a_list_lacks_nobody_whose_time_is_not_over_and_clients_end_with_the_tools_of_all(world):
    states, clients = run_virtual(partial(play, world))
    for client in clients:
        assert client.lists
        for seen in client.lists:
            check_list(seen, world.gate, states)
        assert client.lists[-1].names == {f"{server}_look" for server in states}
        event(f"{len(client.lists)} lists")
