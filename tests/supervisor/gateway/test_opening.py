"""A gateway for as long as its block lasts. Virtual time."""

import pytest
import trio

from mcp_nursery.supervisor import open_supervisor
from mcp_nursery.supervisor.gateway import open_gateway, open_http
from mcp_nursery.supervisor.testing import ScriptedServer

from ...lab.specs import spec


async def test_what_the_block_raises_comes_out(autojump_clock):
    with trio.fail_after(60), pytest.raises(ValueError, match="mine"):
        async with (
            open_supervisor([spec(ScriptedServer())]) as supervisor,
            open_gateway(supervisor) as gateway,
            open_http(gateway),
        ):
            raise ValueError("mine")
