"""A session over HTTP whose client does not listen, or not fast. Virtual time."""

import json

import trio
import trio.testing

from mcp_nursery.supervisor.gateway.http_sessions import BACKLOG, BACKLOG_BYTES, HttpSession
from mcp_nursery.supervisor.gateway.responses import Response

CHANGED = "notifications/tools/list_changed"


def session():
    return HttpSession("id", None, None, trio.CancelScope(), 60.0)


class Sent:
    """A client that takes what it is sent when it is let."""

    def __init__(self):
        self.messages = []
        self.reads = trio.Event()

    async def __call__(self, message):
        await self.reads.wait()
        if body := message.get("body", b""):
            self.messages.append(json.loads(body.removeprefix(b"event: message\r\ndata: ")))


async def heard(told):
    """What a client hears that begins to listen after all that."""
    sent = Sent()
    sent.reads.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.stream, Response(sent))
        await trio.testing.wait_all_tasks_blocked()
        told.end()
    return sent.messages


async def test_what_waits_for_a_client_that_does_not_listen_is_bounded(autojump_clock):
    """In number and in bytes; that lists have changed is not lost."""
    loud, long = session(), session()
    for number in range(2 * BACKLOG):
        loud.tell("notifications/message", {"level": "info", "data": number})
        long.tell("notifications/message", {"level": "info", "data": "x" * 60_000})
    loud.tell(CHANGED, None)
    long.tell(CHANGED, None)
    assert len(await heard(loud)) == BACKLOG
    messages = await heard(long)
    assert len(json.dumps(messages)) < BACKLOG_BYTES + 1000
    assert messages[-1]["method"] == CHANGED


async def test_a_stream_ends_with_its_session_while_its_client_reads_slowly(autojump_clock):
    told, sent = session(), Sent()
    told.tell(CHANGED, None)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.stream, Response(sent))
            await trio.testing.wait_all_tasks_blocked()
            told.end()
            sent.reads.set()
