"""Processes that are stopped because nobody uses them."""

import pytest
import trio

from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import Tree, eventually, is_alive, lab, next_state, status_of, supervised


@pytest.mark.slow
async def test_an_idle_process_is_gone_and_the_next_call_starts_another(journal):
    """G8: with its descendants; a call longer than the limit is not cut off."""
    async with supervised(lab(journal=journal, stop_idle_after=0.5)) as supervisor, supervisor.events() as events:
        assert (await supervisor.call_tool("sleep", {"seconds": 1}, server="lab")).incarnation == 1
        first = status_of(supervisor).pid
        tree = Tree(first)
        await next_state(events, ServerState.IDLE)
        await eventually(lambda: not tree.living())
        assert journal.count("start") == 1
        assert (status_of(supervisor).pid, supervisor.tool("mcp_lab_echo").available) == (None, False)
        result = await supervisor.call_tool("mcp_lab_echo", {"text": "again"})
        second = status_of(supervisor).pid
        assert (result.full_text, result.incarnation) == ("again", 2)
        assert first != second
        assert is_alive(second)
    assert journal.count("start") == 2
    assert not is_alive(second)


@pytest.mark.slow
async def test_calls_at_the_moment_of_the_stop(journal):
    """G8: one answer each, executed once, however the call and the stop of a real process fall together."""
    async with supervised(lab(journal=journal, stop_idle_after=0.1)) as supervisor:
        incarnations = set()
        for number in range(20):
            await trio.sleep(0.1 + (number - 10) / 2000)  # around the moment: the time is what is tested
            result = await supervisor.call_tool("commit", {"token": str(number)}, server="lab", timeout=20)
            incarnations.add(result.incarnation)
        assert len(incarnations) > 1
    assert journal.count("commit") == 20
