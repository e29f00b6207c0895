"""Readers of what servers say unasked: each hears of its servers, and may fall behind within bounds."""

import trio

from mcp_nursery.supervisor.notices import MOST_NOTICES, NOTICES_BYTES, NoticeHub

LOG = "notifications/message"


async def all_of(notices):
    """All that waits for a reader."""
    found = []
    with trio.move_on_after(1):
        async for notice in notices:
            found.append((notice.server, notice.params["data"]))
    return found


async def test_readers_hear_of_their_servers_while_they_listen(autojump_clock):
    hub = NoticeHub()
    hub.publish("lab", LOG, {"data": 0})
    async with hub.open({"lab"}) as one, hub.open({"lab", "other"}) as both:
        hub.publish("lab", LOG, {"data": 1})
        hub.publish("other", LOG, {"data": 2})
        assert await all_of(one) == [("lab", 1)]
        assert await all_of(both) == [("lab", 1), ("other", 2)]


async def test_a_reader_that_falls_behind_loses_the_latest(autojump_clock):
    hub = NoticeHub()
    async with hub.open({"lab"}) as notices:
        for number in range(MOST_NOTICES + 9):
            hub.publish("lab", LOG, {"data": number})
        assert await all_of(notices) == [("lab", number) for number in range(MOST_NOTICES)]


async def test_what_waits_for_a_reader_is_bounded_in_bytes(autojump_clock):
    """By what it keeps: empty objects keep twenty times what they take on the wire."""
    hub = NoticeHub()
    async with hub.open({"lab"}) as notices:
        for number in range(20):
            hub.publish("lab", LOG, {"data": number, "more": [{}] * (NOTICES_BYTES // 64 // 10)})
        assert [number for _, number in await all_of(notices)] == list(range(9))
