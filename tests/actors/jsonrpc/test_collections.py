"""A server cannot bring about collections of garbage that look at all objects of its host: no turn may take as long."""

import gc
import json

import pytest
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.jsonrpc.incoming import Notices
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.actors.reply import ReplySlot

from ...lab.wire_peer import Peer, post, result, running

MANY, FEWER = b"[" + b",".join([b"[]"] * 20_000) + b"]", b"[" + b",".join([b"[]"] * 4_900) + b"]"
HEAD = b'{"jsonrpc":"2.0",'
FLOODS = {
    "notifications": HEAD + b'"method":"notifications/message","params":{"data":%s}}' % MANY,
    "shorter ones": HEAD + b'"method":"notifications/message","params":{"data":%s}}' % FEWER,
    "a method that is hidden": HEAD + b'"params":{"data":%s},"method":"notifications/message","x":{}}' % FEWER,
    "progress": HEAD + b'"method":"notifications/progress","params":{"progressToken":1,"progress":1,"a":%s}}' % FEWER,
    "a method that is none": HEAD + b'"method":7,"params":{"a":%s}}' % FEWER,
    "requests": HEAD + b'"id":"q","method":"sampling/createMessage","params":{"a":%s}}' % MANY,
    "answers nobody waits for": HEAD + b'"id":"none","result":{"a":%s}}' % MANY,
    "shorter answers": HEAD + b'"id":"none","result":{"a":%s}}' % FEWER,
    "batches": b"[" + b",".join([b'{"jsonrpc":"2.0","id":"none","result":{"a":[[]]}}'] * 1_000) + b"]",
    "batches of nothing": b"[" + b",".join([b"[]"] * 2_000) + b"]",
}


async def refuse(*_asked):
    return {}


@pytest.mark.parametrize("frame", FLOODS.values(), ids=FLOODS)
async def test_no_flood_brings_about_a_whole_collection(frame):
    peer, slot = Peer(), ReplySlot()
    async with running(peer, refuse, intercept=lambda *_: True) as endpoint:
        endpoint.post([post(slot)])
        await wait_all_tasks_blocked()
        gc.collect()
        before = gc.get_stats()[2]["collections"]
        for _ in range(200):
            peer.say(frame)
            await wait_all_tasks_blocked()
        assert gc.get_stats()[2]["collections"] == before
        assert gc.isenabled()
        peer.say(result(1))
        await wait_all_tasks_blocked()
        assert slot.outcome == Answered({})


async def test_garbage_is_collected_as_before_and_never_where_a_host_collects_none():
    peer, slots = Peer(), [ReplySlot(), ReplySlot()]
    async with running(peer) as endpoint:
        endpoint.post([post(slot) for slot in slots])
        peer.say(result(1, {"a": json.loads(MANY)}))
        await wait_all_tasks_blocked()
        assert gc.isenabled()
        gc.disable()
        try:
            peer.say(result(2, {"a": json.loads(MANY)}))
            await wait_all_tasks_blocked()
            assert not gc.isenabled()
        finally:
            gc.enable()
        assert [slot.outcome.result for slot in slots] == [{"a": [[]] * 20_000}] * 2


async def test_a_change_is_heard_however_much_is_said_of_it():
    peer, heard = Peer(), []

    async def hear(context, method, params):
        heard.append((method, params))

    changed = HEAD + b'"method":"notifications/tools/list_changed","params":{"a":%s}}' % MANY
    async with running(peer, refuse, hear):
        peer.say(changed)
        await wait_all_tasks_blocked()
        assert heard == [("notifications/tools/list_changed", None)]


def test_what_waits_is_what_came():
    notices, said = Notices(), {"data": [{"a": 2**70}, "é", None] * 500}
    notices.add("notifications/message", said, 5_000)
    assert notices.receive_nowait() == ("notifications/message", said)
