"""What a server writes beside the protocol, or instead of it."""

import logging
import re
import time

import psutil
import pytest
import trio

from mcp_nursery.supervisor import ConnectionLost
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import lab, next_state, outcome_of, status_of, supervised


@pytest.mark.slow
async def test_output_without_newline_ends_at_the_line_cap():
    """Q25: 64 MiB of a line are taken, not more; the server is lost and started again."""
    async with supervised(lab()) as supervisor, supervisor.events() as events:
        before = psutil.Process().memory_info().rss
        with pytest.raises(ConnectionLost, match="sent a line of more than 64 MiB"):
            await supervisor.call_tool("flood", server="lab")
        lost = await next_state(events, ServerState.WAITING)
        assert lost.error == "sent a line of more than 64 MiB"
        assert psutil.Process().memory_info().rss - before < 200 << 20
        await next_state(events, ServerState.CONNECTED)
        assert (await supervisor.call_tool("echo", {"text": "again"}, server="lab")).full_text == "again"


async def test_lines_that_are_no_json_are_counted(caplog):
    """Q25: and logged five times for 20,000; calls go on beside them."""
    caplog.set_level(logging.INFO, "mcp_nursery")
    async with supervised(lab()) as supervisor:
        for _ in range(2):
            await supervisor.call_tool("garbage", {"lines": 10_000}, server="lab")
        assert status_of(supervisor).incarnation == 1
        assert (await supervisor.call_tool("echo", {"text": "well"}, server="lab")).full_text == "well"
    counted = [int(found[1]) for record in caplog.records if (found := re.search(r"(\d+) frames", record.message))]
    assert counted == [1, 10, 100, 1000, 10_000]
    assert len([record for record in caplog.records if "connect" not in record.message]) == len(counted)


async def test_a_bad_byte_stops_nobody():
    """Q25: one that is not UTF-8, inside a string; later calls go on, by the same process."""
    async with supervised(lab()) as supervisor:
        assert (await supervisor.call_tool("bad_notification", server="lab")).full_text == "answered"
        assert (await supervisor.call_tool("echo", {"text": "well"}, server="lab")).full_text == "well"
        assert status_of(supervisor).incarnation == 1


ODD_ANSWERS = {
    "a byte that is not UTF-8": '{"content":[{"type":"text","text":"caf\xe9"}]}',
    "half a surrogate pair": r'{"content":[{"type":"text","text":"caf\udce9"}]}',
    "not a number": '{"content":[],"structuredContent":{"mean":NaN,"max":-Infinity}}',
}
"""What Python's `json` writes by default for a file name or a float is in part no JSON."""


@pytest.mark.parametrize("result", ODD_ANSWERS.values(), ids=ODD_ANSWERS)
async def test_who_was_answered_oddly_does_not_wait_for_ever(result):
    """Q25: a call has no timeout by default; it gets a result or a typed error, and later calls go on."""
    async with supervised(lab()) as supervisor:
        with trio.move_on_after(20) as patience:
            await outcome_of(supervisor.call_tool("raw_answer", {"result": result}, server="lab"))
        assert not patience.cancelled_caught, "the answer came, and the caller waited on"
        assert (await supervisor.call_tool("echo", {"text": "well"}, server="lab")).full_text == "well"
        assert status_of(supervisor).incarnation == 1


async def test_a_big_integer_arrives_as_it_was_sent():
    """Q25: JSON sets no limit, and neither does Python's `json` nor the SDK."""
    async with supervised(lab()) as supervisor:
        arguments = {"result": f'{{"content":[],"structuredContent":{{"big":{2**70 + 1}}}}}'}
        result = await supervisor.call_tool("raw_answer", arguments, server="lab")
        assert result.structured == {"big": 2**70 + 1}


@pytest.mark.slow
async def test_a_huge_result_is_whole_and_its_cost_is_linear():
    """Q31: 32 MB are all there, a model gets the beginning, and it takes about four times the work of 8 MB, from the
    pipe to the typed result."""
    async with supervised(lab()) as supervisor:

        async def cost(megabytes):
            size = megabytes << 20
            before = time.process_time()
            result = await supervisor.call_tool("big", {"size": size}, server="lab")
            spent = time.process_time() - before
            assert len(result.content[0].text) == len(result.full_text) == size
            assert result.truncated
            assert size > 50_000 < len(result.text) < 50_300
            return spent

        await cost(1)
        small = min([await cost(8) for _ in range(3)])
        large = min([await cost(32) for _ in range(3)])
        assert large < 9 * small


@pytest.mark.parametrize("code", [None, 5], ids=["lives", "dies"])
async def test_ten_megabytes_of_stderr_in_a_call(code):
    """Q26: nobody is held up, little is kept, and the last of it is in the report."""
    async with supervised(lab()) as supervisor:
        before = psutil.Process().memory_info().rss
        arguments = {"size": 10_000_000, "code": code}
        if code is None:
            result = await supervisor.call_tool("complain", arguments, server="lab", timeout=60)
            assert result.full_text == "10000000"
        else:
            with pytest.raises(ConnectionLost) as caught:
                await supervisor.call_tool("complain", arguments, server="lab", timeout=60)
            assert caught.value.exit_code == 5
            lines = caught.value.stderr_tail.split("\n")
            assert lines[-6:] == ["noise", "last 0", "last 1", "last 2", "last 3", "last 4"]
            assert len(lines) <= 20
        assert psutil.Process().memory_info().rss - before < 5 << 20
