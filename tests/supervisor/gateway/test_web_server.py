"""What a server does where the system has no room."""

import errno

import pytest

from mcp_nursery.supervisor.gateway.web_server import PAUSE, _accepted


async def test_connections_wait_for_room_which_is_told_once(autojump_clock, caplog):
    class Listener:
        left = 50

        async def accept(self):
            self.left -= 1
            if self.left:
                raise OSError(errno.EMFILE, "Too many open files")
            return "a connection"

    assert await _accepted(Listener()) == "a connection"
    assert autojump_clock.current_time() == pytest.approx(49 * PAUSE)
    assert [record.getMessage() for record in caplog.records] == ["no room for another connection: Too many open files"]
