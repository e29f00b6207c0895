"""A thousand servers: what is worked out for all of them is worked out once, and not for each."""

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import pytest

from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import ScriptedServer, run_virtual


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


@pytest.mark.parametrize("many", [240])
def test_the_work_grows_with_the_number_of_servers_and_no_faster(many):
    """Q8: eight times as many servers, from start to end, are little more than eight times the work."""
    life(2)  # imports and caches
    few = calls_made(lambda: life(many // 8))
    assert calls_made(lambda: life(many)) < 16 * few
