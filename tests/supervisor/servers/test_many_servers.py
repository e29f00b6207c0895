"""A thousand servers: what is worked out for all of them is worked out once, and not for each."""

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import pytest
import trio

from mcp_nursery.supervisor import ServerSpec, UnknownTool, open_supervisor
from mcp_nursery.supervisor.catalogue.catalogue import Catalogue
from mcp_nursery.supervisor.catalogue.server_tools import ServerTools
from mcp_nursery.supervisor.testing import ScriptedServer, run_virtual
from mcp_nursery.supervisor.tools import naming
from mcp_nursery.supervisor.tools.naming import public_names


async def echo(arguments: dict[str, Any]) -> object:
    return "echoed"


def calls_made(work: Callable[[], object]) -> int:
    """How many functions it calls: a measure of work that no busy machine disturbs."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def life(servers: int) -> None:
    async def main() -> None:
        server = ScriptedServer(tools={"echo": echo})
        async with open_supervisor([ServerSpec(f"s{n}", server.transport) for n in range(servers)]) as supervisor:
            assert len(supervisor.tools) == servers

    run_virtual(main)


def life_with_waiting_calls(servers: int) -> None:
    """To each server one call by public name and one by its own, and one of a tool nobody has, before any is there."""

    async def call(supervisor: Any, name: str, server: str | None) -> None:
        await supervisor.call_tool(name, server=server)

    async def miss(supervisor: Any, name: str) -> None:
        with pytest.raises(UnknownTool):
            await supervisor.call_tool(name)

    async def main() -> None:
        server = ScriptedServer(tools={"echo": echo})
        specs = [ServerSpec(f"s{n}", server.transport, lazy=n % 2 == 0) for n in range(servers)]
        async with open_supervisor(specs, gate=0) as supervisor, trio.open_nursery() as nursery:
            for spec in specs:
                nursery.start_soon(call, supervisor, f"mcp_{spec.name}_echo", None)
                nursery.start_soon(call, supervisor, "echo", spec.name)
                nursery.start_soon(miss, supervisor, f"nobody has it {spec.name}")

    run_virtual(main)


@pytest.mark.slow
@pytest.mark.parametrize(("lived", "many"), [(life, 240), (life_with_waiting_calls, 160)])
def test_the_work_grows_with_the_number_of_servers_and_no_faster(lived, many):
    """Q8: eight times as many servers, from start to end, are little more than eight times the work."""
    lived(2)  # imports and caches
    few = calls_made(lambda: lived(many // 8))
    assert calls_made(lambda: lived(many)) < 12 * few


def test_the_work_of_naming_does_not_grow_with_the_number_of_servers():
    """Each name was held against what every other server could give."""

    def named(servers: int) -> int:
        everyone = frozenset(f"s{n:04}" for n in range(servers))
        public_names("s0000", ["echo"], everyone)  # what follows from their names alone
        naming._names.cache_clear()
        return calls_made(lambda: public_names("s0000", [f"{n}_echo" for n in range(20)], everyone))

    assert named(1000) < 1.1 * named(10)


def test_a_call_that_waits_for_its_server_does_not_look_at_the_others():
    """It looks again whenever that server moves, and so does every other call at the start."""

    def looked(servers: int) -> int:
        names = [f"s{n}" for n in range(servers)]
        catalogue = Catalogue({name: ServerTools(name) for name in names}, {})
        return calls_made(lambda: (catalogue.held_back("echo", "s0"), catalogue.departed("echo", "s0")))

    assert looked(1000) == looked(10)


@pytest.mark.parametrize("cancelled", [False, True])
def test_leaving_ends_more_servers_than_are_told_in_one_turn(cancelled):
    """L7: each is closed when the block is left, also when it is left because somebody cancels."""
    server = ScriptedServer(tools={"echo": echo})

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with open_supervisor([ServerSpec(f"s{n}", server.transport) for n in range(50)]):
                assert len(server.starts) == 50
                if cancelled:
                    scope.cancel()
        assert len(server.ends) == 50

    run_virtual(main)
