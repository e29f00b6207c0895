"""A connection on a wire: its tool calls beside the session, everything else through it."""

import json
import math

import pytest
import trio
from mcp_types import Tool
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.callbacks import NO_CALLBACKS, Host
from mcp_nursery.actors.enums import Delivery, Era
from mcp_nursery.actors.jsonrpc.stream_carrier import StreamCarrier
from mcp_nursery.actors.outcomes import Answered, Loss, Rejected, Unlisted, Unsendable
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.base import HandshakeFailed
from mcp_nursery.actors.session.connection import open_connection
from mcp_nursery.actors.session.lazy_definitions import as_sdk_type

from ...lab.sdk_bridge import bridged
from ...lab.sessions import CACHING, MUTE, answers, connection, discovery, greeting, listing, refuses
from ...lab.tool_requests import tool_request
from ...lab.wire_peer import GONE, error, no_progress, result

STAMP = "io.modelcontextprotocol/"
READY = {"server_discover": answers(discovery()), "tools_list": listing("echo", "add"), "tools_call": MUTE}


def call(tool="echo", arguments=b"{}", meta=None, *, wants_progress=False):
    return tool_request(
        server="lab",
        tool=tool,
        arguments=arguments,
        meta=meta or {},
        slot=ReplySlot(wants_progress=wants_progress),
    )


async def made_ready(opening, era=None):
    await opening.handshake(era)
    await opening.list_tools()


async def test_the_process_behind_it_is_the_streams():
    async with connection(**READY) as (lab, opening):
        assert opening.pid == lab.pid


async def test_a_batch_of_calls_is_one_write_and_carries_the_stamp():
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        before = len(lab.writes)
        opening.submit([call(arguments=b'{"n":%d}' % n, meta={"mine": n}) for n in range(3)])
        assert lab.writes[before:] == [3]
        for n, message in enumerate(lab.heard_of("tools/call")):
            params = message["params"]
            assert (params["name"], params["arguments"], params["_meta"]["mine"]) == ("echo", {"n": n}, n)
            assert params["_meta"][f"{STAMP}protocolVersion"] == "2026-07-28"
        assert opening.in_flight == 3


async def test_a_handshake_server_gets_no_stamp():
    script = READY | {"server_discover": refuses(-32601), "initialize": answers(greeting())}
    async with connection(**script) as (lab, opening):
        await made_ready(opening)
        opening.submit([call(arguments=None)])
        (message,) = lab.heard_of("tools/call")
        assert message["params"] == {"name": "echo"}


async def test_a_tool_that_was_not_listed_is_refused_without_a_frame():
    known, unknown = call(), call("nope")
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        opening.submit([unknown, known])
        assert unknown.slot.outcome == Unlisted()
        assert [message["params"]["name"] for message in lab.heard_of("tools/call")] == ["echo"]


async def test_the_slot_learns_what_is_needed_to_judge_its_result():
    sent = call("add")
    async with connection(**READY | {"tools_call": answers({"content": [], "resultType": "complete"})}) as (_, opening):
        await made_ready(opening)
        opening.submit([sent])
        outcome = await sent.slot.wait(no_progress)
        assert sent.slot.codec.name == "add"
        assert at_once(sent.slot.codec.result(outcome.result)).content == []


async def test_the_token_of_a_call_that_wants_progress_is_its_own_id():
    one, two = call(wants_progress=True, meta={"progressToken": "forged", "a": 1}), call()
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        opening.submit([one, two])
        first, second = lab.heard_of("tools/call")
        assert first["params"]["_meta"]["progressToken"] == first["id"]
        assert lab.id_of(first["id"]) == one.slot.request_id
        assert first["params"]["_meta"]["a"] == 1
        assert "progressToken" not in second["params"]["_meta"]
        assert one.meta == {"progressToken": "forged", "a": 1}


async def test_a_call_whose_meta_has_no_json_form_ends_itself_and_nobody_else():
    """A caller's mistake; the incarnation, and with it the supervisor, must not pay for it."""
    bad, good = call(meta={"x": object()}), call()
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        opening.submit([bad, good])
        assert isinstance(bad.slot.outcome, Unsendable)
        assert len(lab.heard_of("tools/call")) == 1


async def test_a_new_listing_replaces_the_tools():
    script = READY | {"tools_list": [listing("old", "both"), listing("both", "new")]}
    gone, new = call("old"), call("new")
    async with connection(**script) as (lab, opening):
        await made_ready(opening)
        tools = await opening.list_tools()
        assert all(isinstance(as_sdk_type(tool), Tool) for tool in tools)
        opening.submit([gone, new])
        assert (gone.slot.outcome, gone.slot.delivery) == (Unlisted(), Delivery.NOT_SENT)
        assert [message["params"]["name"] for message in lab.heard_of("tools/call")] == ["new"]


async def test_a_listing_that_fails_leaves_the_tools_as_they_were():
    script = READY | {"tools_list": [listing("echo"), refuses(-32000, message="not\nnow")]}
    async with connection(**script) as (lab, opening):
        await made_ready(opening)
        with pytest.raises(HandshakeFailed) as caught:
            await opening.list_tools()
        assert caught.value.loss.message.endswith("not now")
        assert not caught.value.probe_refused
        opening.submit([call()])
        assert len(lab.heard_of("tools/call")) == 1


async def test_a_tool_nobody_can_show_is_left_out(caplog):
    """T1: it does not cost its server the others."""
    schema = {"type": "object"}
    for _ in range(150):
        schema = {"type": "object", "properties": {"a": schema}}
    tools = [{"name": "deep", "inputSchema": schema}, {"name": "echo", "inputSchema": {"type": "object"}}]
    script = READY | {"tools_list": [answers({"tools": tools, **CACHING})]}
    async with connection(**script) as (_, opening):
        await made_ready(opening)
        assert [tool.name for tool in await opening.list_tools()] == ["echo"]
    assert "dropped a tool named 'deep': nested deeper than 200 levels" in caplog.text


# room


async def test_room_is_what_is_left_and_comes_back_with_every_answer():
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        assert await opening.room(2) == 2
        opening.submit([call()])
        assert await opening.room(2) == 1
        opening.submit([call()])
        with trio.move_on_after(0):
            raise AssertionError(await opening.room(2))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opening.room, 2)
            await wait_all_tasks_blocked()
            lab.say(error(lab.heard[-1]["id"], -1))
        assert opening.in_flight == 1


async def test_idle_is_when_the_last_call_has_ended(autojump_clock):
    calls = [call(), call()]
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        await opening.idle()  # at once
        opening.submit(calls)

        async def end():
            await trio.sleep(1)
            lab.say(result(calls[0].slot.request_id))
            await trio.sleep(1)
            opening.cancel(calls[1].slot)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            await opening.idle()
            assert trio.current_time() == 2


async def test_withdraw_gives_up_what_was_not_sent_and_only_that():
    calls = [call() for _ in range(3)]
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        lab.room = 1
        opening.submit(calls)
        opening.withdraw_unsent()
        assert [sent.slot.delivery for sent in calls] == [Delivery.UNKNOWN, Delivery.NOT_SENT, Delivery.NOT_SENT]
        assert [sent.slot.decided for sent in calls] == [False, True, True]
        assert opening.in_flight == 1


# the end


async def test_the_loss_is_told_and_counts_the_calls():
    sent = call()
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        opening.submit([sent])
        lab.end(Loss("crashed", exit_code=-9, stderr_tail="segfault"))
        assert await opening.lost() == Loss("crashed", exit_code=-9, stderr_tail="segfault", pending=1)
        assert sent.slot.outcome == await opening.lost()
        assert await opening.room(1) == 1
        opening.submit([late := call()])
        assert late.slot.outcome == await opening.lost()
        assert late.slot.delivery is Delivery.NOT_SENT


async def test_a_loss_in_the_middle_of_the_listing_is_told_as_it_is():
    async with connection(**READY | {"tools_list": MUTE}) as (lab, opening):
        await opening.handshake(Era.MODERN)
        async with trio.open_nursery() as nursery:

            async def end():
                await wait_all_tasks_blocked()
                lab.end(GONE)

            nursery.start_soon(end)
            with pytest.raises(HandshakeFailed) as caught:
                await opening.list_tools()
        assert (caught.value.loss, caught.value.era) == (GONE, Era.MODERN)


async def test_leaving_the_block_decides_what_still_waits():
    sent = call()
    async with connection(**READY) as (_, opening):
        await made_ready(opening)
        opening.submit([sent])
    assert sent.slot.outcome == Loss("the connection was closed", pending=1)


# whether it lives


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ({}, "server/discover"),
        ({"server_discover": refuses(-32601), "initialize": answers(greeting()), "ping": answers({})}, "ping"),
    ],
    ids=["modern", "handshake"],
)
async def test_a_probe_is_one_round_trip(script, asked, autojump_clock):
    """L6."""
    async with connection(**READY | script) as (lab, opening):
        await made_ready(opening)
        before = len(lab.asked)
        await trio.sleep(5)
        assert opening.heard_at == 0
        await opening.probe()
        assert lab.asked[before:] == [asked]
        assert opening.heard_at == 5


@pytest.mark.parametrize("answer", [refuses(-32601), answers({"_meta": 1})], ids=["refusal", "nonsense"])
async def test_a_probe_that_is_refused_was_heard(answer, autojump_clock):
    """L6: whatever it says, it lives."""
    script = READY | {"server_discover": refuses(-32601), "initialize": answers(greeting()), "ping": answer}
    async with connection(**script) as (_, opening):
        await made_ready(opening)
        await trio.sleep(5)
        with pytest.raises(HandshakeFailed, match="the probe failed: "):
            await opening.probe()
        assert opening.heard_at == 5


async def test_any_frame_is_a_sign_of_life(autojump_clock):
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        await trio.sleep(5)
        lab.say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
        await wait_all_tasks_blocked()
        assert opening.heard_at == 5


async def test_a_connection_given_up_for_lost_is_lost_once():
    """L6: every call in flight learns why, at once, and the end that comes later changes nothing."""
    silent = Loss("silent")
    sent, late = call(), call()
    async with connection(**READY) as (lab, opening):
        await made_ready(opening)
        opening.submit([sent])
        opening.lose(silent)
        opening.lose(Loss("again"))
        assert sent.slot.outcome == await opening.lost() == Loss("silent", pending=1)
        assert sent.slot.delivery is Delivery.UNKNOWN
        assert opening.in_flight == 0
        lab.end(GONE)
        await wait_all_tasks_blocked()
        opening.submit([late])
        assert late.slot.outcome == Loss("silent", pending=1)


# against the SDK's own server


@pytest.mark.parametrize("era", [Era.MODERN, Era.HANDSHAKE])
async def test_the_whole_of_it_against_a_real_server(era):
    steps = []

    async def on_progress(*step):
        steps.append(step)

    async with bridged() as bridge, open_connection(StreamCarrier(bridge)) as wired:
        assert (await wired.handshake(era)).era is era
        await wired.list_tools()
        add = call("add", b'{"terms":[1,2]}')
        count = call("count", b'{"to":20}', wants_progress=True)
        refuse, hang = call("refuse"), call("hang", None)
        wired.submit([add, count, refuse, hang])
        answered = await add.slot.wait(no_progress)
        assert at_once(add.slot.codec.result(answered.result)).structured_content == {"sum": 3}
        assert isinstance(await count.slot.wait(on_progress), Answered)
        assert steps == [(float(n), 20.0, f"step {n}") for n in range(20)]
        assert await refuse.slot.wait(no_progress) == Rejected(-32000, "not today", {"when": "tomorrow"})
        wired.cancel(hang.slot)
        await wait_all_tasks_blocked()
        assert bridge.cancelled == [hang.slot.request_id]
        assert await wired.room(math.inf) == math.inf
    stamps = [
        STAMP + "protocolVersion" in json.loads(frame)["params"].get("_meta", {}) for frame in bridge.frames[-5:-1]
    ]
    assert set(stamps) == {era is Era.MODERN}


async def test_the_log_says_whose_frames_were_dropped(autojump_clock, caplog):
    async with connection(Host("lab", NO_CALLBACKS)) as (lab, _):
        lab.say(b"listening on port 8080")
        await wait_all_tasks_blocked()
    assert "lab: dropped 1 frames that are not JSON-RPC, the latest of 22 bytes" in caplog.text
