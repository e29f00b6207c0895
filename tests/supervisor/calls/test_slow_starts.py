"""Calls to a server of the modern era that is slow to start, or silent when it is asked for its era."""

from typing import Any

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.testing import ScriptedServer, run_virtual

from ...lab.callers import Peer, S
from ...lab.specs import spec


@pytest.mark.parametrize("starts_in", [5.0, 15.0])
def test_a_modern_server_that_is_slow_to_start(starts_in):
    """Q23: one that refuses `initialize` after `server/discover` (-32022) connects in its first attempt, even so."""
    modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    class Modern(Peer):
        asked = False
        awake = False
        early: list[dict[str, Any]]

        def take(self, message: dict[str, Any]) -> None:
            if not self.awake:
                self.early.append(message)
            elif message.get("method") == "server/discover":
                self.asked = True
                self.answer(message, {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **modern})
            elif message.get("method") == "initialize":
                assert self.asked
                data = {"supported": ["2026-07-28"], "requested": message["params"]["protocolVersion"]}
                self.send(id=message["id"], error={"code": -32022, "message": "unsupported version", "data": data})
            elif message.get("method") == "tools/list":
                self.answer(message, {"tools": self.tools, **modern})

        async def wake(self) -> None:
            await trio.sleep(starts_in)
            self.awake = True
            for message in self.early:
                self.take(message)

    async def main():
        peer = Modern(lambda peer, message: None)
        peer.early = []
        trio.lowlevel.spawn_system_task(peer.wake)
        async with open_supervisor([ServerSpec("peer", peer)], gate=100) as supervisor:
            one = supervisor.status()[0]
            assert (one.state, one.error) == (S.CONNECTED, None)
            assert (trio.current_time(), one.incarnation) == (starts_in, 1)

    run_virtual(main)


async def test_handshake_facts_on_a_wire(autojump_clock):
    """L16: client name and version are sent; server info and protocol version are in the status, down or not."""
    from importlib.metadata import version

    peer, modern = Peer(lambda peer, message: None), ScriptedServer()
    async with open_supervisor([ServerSpec("peer", peer), spec(modern)]) as supervisor:
        [greeting] = [message for message in peer.received if message.get("method") == "initialize"]
        assert greeting["params"]["clientInfo"] == {"name": "mcp-nursery", "version": version("mcp-nursery")}
        old, new = supervisor.status()
        assert (old.server_info, old.protocol_version) == ({"name": "peer", "version": "1"}, "2025-11-25")
        assert (new.server_info, new.protocol_version) == ({"name": "scripted", "version": "1"}, "2026-07-28")
        assert (old.instructions, old.pid) == (None, None)
        await supervisor.stop_server("peer")
        assert supervisor.status()[0].server_info == {"name": "peer", "version": "1"}


class Silent(Peer):
    """A handshake-era server that ignores the probe, and for its first `unlisted` lists `tools/list` too."""

    unlisted = 0

    def take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "server/discover":
            self.received.append(message)
        elif message.get("method") == "tools/list" and self.unlisted:
            self.received.append(message)
            self.unlisted -= 1
        else:
            super().take(message)

    def asked(self, method: str) -> int:
        return [message.get("method") for message in self.received].count(method)


async def test_a_silent_probe_costs_a_second_once(autojump_clock):
    """Q23: a server that is mute to the probe connects by `initialize` after 1 s, and at once ever after."""
    peer = Silent(lambda peer, message: None)
    async with open_supervisor([ServerSpec("peer", peer)], gate=100) as supervisor:
        assert trio.current_time() == 1
        assert (supervisor.status()[0].state, supervisor.status()[0].incarnation) == (S.CONNECTED, 1)
        await supervisor.reconnect("peer")
        assert trio.current_time() == 1
        assert (peer.asked("server/discover"), peer.asked("initialize")) == (1, 2)


async def test_what_a_probe_found_is_kept_when_the_attempt_fails(autojump_clock):
    """Q23: also when the list never came: the next start does not probe."""
    peer = Silent(lambda peer, message: None)
    peer.unlisted = 1
    async with open_supervisor([ServerSpec("peer", peer, connect_timeout=4)], gate=100) as supervisor:
        assert (trio.current_time(), supervisor.status()[0].state) == (4, S.WAITING)
        await supervisor.wait_connected("peer")
        assert trio.current_time() == 6
        assert peer.asked("server/discover") == 1
