"""Whom a server of the handshake era addresses over a single stream."""

from types import SimpleNamespace

import pytest

from mcp_nursery.actors.jsonrpc.relays import Relays, task_named_in
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.reply import Relay, ReplySlot

ABOUT = {"message": "which account?", "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t0"}}}


def party(name, **options) -> Relay:
    async def ask(key, method, params):
        return {"asked": name}

    return Relay(name, ask, **options)


async def asked(relays, params) -> object:
    handler = relays.handler(None, task_named_in(params), others=False)
    return await handler(SimpleNamespace(request_id=1), "elicitation/create", params)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_message_about_a_task_is_for_who_waits_for_its_result():
    """The party of another call under way was asked while nobody waited for the task at this moment."""
    relays, bob, ann = Relays(), ReplySlot(), ReplySlot()
    relays.add(bob, party("bob"))
    with pytest.raises(JsonRpcError, match="nobody waits for the task"):
        await asked(relays, ABOUT)
    assert not relays.note("notifications/message", ABOUT, 10, None, others=False)
    assert await asked(relays, {"message": "?"}) == {"asked": "bob"}
    relays.add(ann, party("ann", task="t0"))
    assert await asked(relays, ABOUT) == {"asked": "ann"}
    assert relays.note("notifications/message", ABOUT, 10, None, others=False)
    relays.discard(ann)
    with pytest.raises(JsonRpcError, match="nobody waits for the task"):
        await asked(relays, ABOUT)


@pytest.mark.parametrize("meta", [None, 5, {}, {"io.modelcontextprotocol/related-task": 5}])
def test_a_message_about_no_task(meta):
    assert task_named_in({"_meta": meta}) is None
    assert task_named_in(None) is None
