"""Servers of the handshake era, and what they do when they are asked for the newer one."""

import time

import pytest
import trio

from mcp_nursery.supervisor import MemoryStore, RestartPolicy, open_supervisor
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import lab, next_state, status_of, supervised
from ..lab.timely import in_time, timely


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "extra"),
    [("silent", 0), ("error", 0), ("nonsense", 0), ("exit", 1), ("exit_late", 1), ("refuse", 0)],
)
@timely
async def test_every_way_to_meet_the_probe_ends_connected(journal, way, extra):
    """Q23: by `initialize`, after one extra start at most; what was found is remembered."""
    journal.clear()
    began = time.monotonic()
    async with supervised(lab(journal=journal, flags={"probe": way}), state=MemoryStore()) as supervisor:
        in_time(time.monotonic() - began, 2.0 if way in ("silent", "exit_late") else 1.0)
        assert status_of(supervisor).protocol_version == "2025-11-25"
        assert status_of(supervisor).attempt == 1
        assert journal.count("start") == 1 + extra
        assert (await supervisor.call_tool("echo", {"text": way}, server="lab")).full_text == way
        await supervisor.reconnect("lab")
        assert journal.count("start") == 2 + extra
        assert (await supervisor.call_tool("echo", {"text": way}, server="lab")).full_text == way
    assert (journal.count("discover"), journal.count("initialize")) == (1, 2)


async def test_the_probe_costs_no_attempt(journal):
    """Q23: a server that dies of the probe connects although its policy allows no restart."""
    spec = lab(journal=journal, flags={"probe": "exit"}, policy=RestartPolicy(delays=[]), restart="temporary")
    async with supervised(spec) as supervisor:
        assert status_of(supervisor).attempt == 1
        assert status_of(supervisor).max_attempts == 1


@pytest.mark.slow
async def test_a_mute_probe_is_remembered_although_the_attempt_failed(journal):
    """Q23: it greets and exits; later starts do not probe again."""
    flags = {"probe": "silent", "greet": "4"}
    spec = lab(journal=journal, flags=flags, policy=RestartPolicy(delays=[0.05] * 2))
    with trio.fail_after(60):
        async with open_supervisor([spec], gate=0) as supervisor, supervisor.events() as events:
            await next_state(events, ServerState.FAILED)
    assert (journal.count("start"), journal.count("discover"), journal.count("initialize")) == (3, 1, 3)
