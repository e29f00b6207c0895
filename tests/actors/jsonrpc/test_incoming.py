"""One message of the peer, as its handler sees it."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.jsonrpc.incoming import Inbound
from mcp_nursery.actors.protocol import JsonRpcError


class Back:
    """Keeps what it was given."""

    def __init__(self):
        self.sent = []

    async def send_raw_request(self, method, params, opts=None):
        self.sent.append((method, params, opts))
        return {"answer": method}

    async def notify(self, method, params, opts=None):
        self.sent.append((method, params, opts))


def inbound(params=None, request_id=1):
    back = Back()
    return back, Inbound(back, request_id, params)


async def test_a_message_that_is_served_is_open():
    _, message = inbound()
    assert message.request_id == 1
    assert message.can_send_request
    assert not message.cancel_requested.is_set()


async def test_while_it_is_served_its_handler_can_ask_and_tell_the_peer():
    back, message = inbound()

    async def handler():
        assert await message.send_raw_request("roots/list", {"a": 1}, {"timeout": 1}) == {"answer": "roots/list"}
        await message.notify("notifications/message", None)

    await message.serve(handler)
    assert back.sent == [("roots/list", {"a": 1}, {"timeout": 1}), ("notifications/message", None, None)]


async def test_once_answered_there_is_no_way_back():
    back, message = inbound({"_meta": {"progressToken": 1}})
    await message.serve(trio.lowlevel.checkpoint)
    assert not message.can_send_request
    with pytest.raises(JsonRpcError, match="answered"):
        await message.send_raw_request("roots/list", None)
    await message.notify("notifications/message", None)
    await message.progress(1)
    assert back.sent == []


async def test_a_handler_that_raises_closes_the_way_back_too():
    _, message = inbound()

    async def handler():
        raise KeyError("oops")

    with pytest.raises(KeyError):
        await message.serve(handler)
    assert not message.can_send_request


async def test_a_cancel_ends_the_handler_and_says_so():
    _, message = inbound()
    cancelled = []

    async def handler():
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(message.cancel_requested.is_set())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(message.serve, handler)
        await wait_all_tasks_blocked()
        message.cancel()
    assert cancelled == [True]
    assert not message.can_send_request


async def test_a_cancel_may_come_before_the_handler_starts():
    _, message = inbound()
    message.cancel()
    with trio.fail_after(20):
        await message.serve(trio.sleep_forever)


@pytest.mark.parametrize("token", [0, 7, "seven"])
async def test_progress_names_the_token_the_peer_asked_with(token):
    back, message = inbound({"_meta": {"progressToken": token}})
    await message.progress(1)
    await message.progress(2, 4, "half")
    assert back.sent == [
        ("notifications/progress", {"progressToken": token, "progress": 1}, None),
        ("notifications/progress", {"progressToken": token, "progress": 2, "total": 4, "message": "half"}, None),
    ]


@pytest.mark.parametrize("params", [None, {}, {"_meta": None}, {"_meta": {}}, {"_meta": {"progressToken": True}}])
async def test_progress_that_nobody_asked_for_is_not_sent(params):
    back, message = inbound(params)
    await message.progress(1)
    assert back.sent == []
