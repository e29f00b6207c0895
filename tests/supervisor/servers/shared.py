"""What the tests of servers share."""

import pytest

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor import RestartPolicy

S = ServerState

ONCE = RestartPolicy(delays=())


async def swallow(function) -> None:
    with pytest.raises(Exception, match="connection lost"):
        await function()
