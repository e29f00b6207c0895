"""A session over HTTP whose client does not listen, or not fast. Virtual time."""

import json

import pytest
import trio
import trio.testing

from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway
from mcp_nursery.supervisor.gateway.clients import (
    BACKLOG_BYTES,
    MOST_WAITING_NOTIFICATIONS,
    Backlog,
    ClientSession,
    Notification,
)
from mcp_nursery.supervisor.gateway.http.exchange import HttpExchange
from mcp_nursery.supervisor.gateway.http.sessions import HttpSession
from mcp_nursery.supervisor.testing import ScriptedServer

from ....lab.specs import spec

CHANGED = "notifications/tools/list_changed"


def session():
    backlog = Backlog()
    return HttpSession("id", None, None, 60.0, None, ClientSession(backlog.add, None), backlog)


def response(send):
    return HttpExchange("GET", "/mcp", {}, [], trio.sleep_forever, send)


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
        nursery.start_soon(told.stream, response(sent))
        await trio.testing.wait_all_tasks_blocked()
        told.end()
    return sent.messages


async def test_what_waits_for_a_client_that_does_not_listen_is_bounded(autojump_clock):
    """In number and in bytes; that lists have changed is not lost."""
    loud, long = session(), session()
    for number in range(2 * MOST_WAITING_NOTIFICATIONS):
        loud.notify(Notification("notifications/message", {"level": "info", "data": number}))
        long.notify(Notification("notifications/message", {"level": "info", "data": "x" * 60_000}))
    loud.notify(Notification(CHANGED))
    long.notify(Notification(CHANGED))
    assert len(await heard(loud)) == MOST_WAITING_NOTIFICATIONS + 1
    messages = await heard(long)
    assert len(json.dumps(messages)) < BACKLOG_BYTES + 1000
    assert messages[-1]["method"] == CHANGED


@pytest.mark.parametrize("method", ["notifications/resources/updated", "notifications/cancelled", "notifications/x"])
async def test_each_change_is_told_once_whatever_else_comes(method, autojump_clock):
    told = session()
    told.notify(Notification(CHANGED))
    for number in [*range(2 * MOST_WAITING_NOTIFICATIONS), 0]:
        told.notify(Notification(method, {"uri": f"x:{number}"}))
        told.notify(Notification(CHANGED))
    messages = await heard(told)
    assert messages[0] == {"jsonrpc": "2.0", "method": CHANGED}
    updated = "updated" in method
    expected = (
        range(2 * MOST_WAITING_NOTIFICATIONS)
        if updated
        else [*range(MOST_WAITING_NOTIFICATIONS + 1, 2 * MOST_WAITING_NOTIFICATIONS), 0]
    )
    assert [message["params"]["uri"] for message in messages[1:]] == [f"x:{number}" for number in expected]


async def test_a_change_that_was_not_sent_is_told_to_who_listens_next(autojump_clock):
    told = session()
    told.notify(Notification(CHANGED))
    with trio.move_on_after(1):
        await told.stream(response(Sent()))
    assert [message["method"] for message in await heard(told)] == [CHANGED]


async def test_a_stream_ends_with_its_session_while_its_client_reads_slowly(autojump_clock):
    told, sent = session(), Sent()
    told.notify(Notification(CHANGED))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.stream, response(sent))
            await trio.testing.wait_all_tasks_blocked()
            told.end()
            sent.reads.set()


async def test_a_log_message_is_written_once_for_all_who_hear_it(autojump_clock):
    server, told = ScriptedServer(), []
    server.capabilities["logging"] = {}
    async with (
        open_supervisor([spec(server)], callbacks=gateway_callbacks(), state=MemoryStore()) as supervisor,
        open_gateway(supervisor) as gateway,
        trio.open_nursery() as nursery,
    ):
        await supervisor.wait_connected("lab")
        for view in (None, "lab"):
            gateway.news.enter(ClientSession(told.append, nursery, view))
        await server.notify("notifications/message", {"level": "info", "data": "x"})
        await trio.sleep(1)
    assert json.loads(told[0].frame)["params"]["data"] == "x"
    assert [one.frame is told[0].frame for one in told] == [True, True]


async def test_the_first_answer_to_a_question_counts(autojump_clock):
    asking, asked, results = session(), [], []

    async def send(frame):
        await trio.lowlevel.checkpoint()
        asked.append(json.loads(frame))

    async def ask():
        results.append(await asking.ask(send, "elicitation/create", {}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        for number in (1, 2):
            asking.take_answer({"id": asked[0]["id"], "result": {"n": number}})
    assert results == [{"n": 1}]
