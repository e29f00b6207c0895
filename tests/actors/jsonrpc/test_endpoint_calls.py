"""Calls beside the session: posted in batches, answered in their slots, taken back or cancelled."""

import logging
import math

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.jsonrpc.endpoint import Endpoint
from mcp_nursery.actors.jsonrpc.stream_carrier import OUTBOX_LIMIT, StreamCarrier
from mcp_nursery.actors.outcomes import Answered, Busy, Loss, Rejected, Unsendable
from mcp_nursery.actors.reply import ReplySlot

from ...lab.wire_peer import GONE, Peer, error, no_progress, notice, post, result, running


def cancels(peer):
    return [message["params"]["requestId"] for message in peer.heard_of("notifications/cancelled")]


async def test_a_batch_is_one_write_and_answers_come_in_any_order():
    peer, slots = Peer(), [ReplySlot() for _ in range(5)]
    async with running(peer) as endpoint:
        endpoint.post([post(slot, n=n) for n, slot in enumerate(slots)])
        assert peer.writes == [5]
        assert [message["params"]["n"] for message in peer.heard] == [0, 1, 2, 3, 4]
        assert endpoint.in_flight == 5
        peer.say(*(result(message["id"], message["params"]) for message in reversed(peer.heard)))
        await wait_all_tasks_blocked()
        assert [slot.outcome for slot in slots] == [Answered({"n": n}) for n in range(5)]
        assert endpoint.in_flight == 0


async def test_of_calls_made_one_by_one_all_but_two_leave_in_one_write():
    peer, slots = Peer(), [ReplySlot() for _ in range(9)]
    async with running(peer) as endpoint:
        for _ in range(2):  # a peer that is read is one that keeps up
            del peer.writes[:]
            for slot in slots:
                endpoint.post([post(slot)])
            assert peer.writes == [1, 1]
            assert [slot.delivery for slot in slots] == [Delivery.UNKNOWN] * 2 + [Delivery.NOT_SENT] * 7
            await wait_all_tasks_blocked()
            assert peer.writes == [1, 1, 7]
            first, slots = slots[0], [ReplySlot() for _ in range(9)]
            peer.say(result(peer.heard[-9]["id"]))
            await wait_all_tasks_blocked()
            assert first.outcome == Answered({})


async def test_calls_made_together_leave_at_once_whatever_has_left():
    peer = Peer()
    async with running(peer) as endpoint:
        for _ in range(4):
            endpoint.post([post(), post()])
        assert peer.writes == [2] * 4


async def test_calls_that_wait_to_leave_together_leave_in_order_and_with_what_cannot_wait():
    peer, slots = Peer(), [ReplySlot() for _ in range(6)]
    async with running(peer) as endpoint:
        for n, slot in enumerate(slots):
            endpoint.post([post(slot, n=n)])
        await endpoint.notify("notifications/roots/list_changed", None)
        assert peer.writes == [1, 1, 5]
        assert [message.get("params", {}).get("n") for message in peer.heard] == [0, 1, 2, 3, 4, 5, None]
        await wait_all_tasks_blocked()
        assert peer.writes == [1, 1, 5]


async def test_a_call_that_is_lost_before_it_left_never_leaves():
    """R4: it counts as not sent, so it may be called again elsewhere."""
    peer, slots = Peer(), [ReplySlot() for _ in range(6)]
    async with running(peer) as endpoint:
        for slot in slots:
            endpoint.post([post(slot)])
        endpoint.lose(GONE)
        assert [slot.delivery for slot in slots] == [Delivery.UNKNOWN] * 2 + [Delivery.NOT_SENT] * 4
        await wait_all_tasks_blocked()
        assert len(peer.frames) == 2


@pytest.mark.parametrize(("small", "writes"), [(2, [1] * 5), (4, [1, 1, 2, 1, 1, 1])])
async def test_large_calls_wait_for_no_others_so_that_each_finds_room(small, writes):
    peer, slots = Peer(), [ReplySlot() for _ in range(small + 3)]
    async with running(peer) as endpoint:
        for n, slot in enumerate(slots):
            endpoint.post([post(slot, text="x" * (OUTBOX_LIMIT if n >= small else 1))])
        assert [slot.outcome for slot in slots] == [None] * len(slots)
        assert peer.writes == writes


async def test_an_answer_whose_id_comes_back_as_text_is_an_answer():
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say(result("1", {"ok": True}))
        await wait_all_tasks_blocked()
        assert slot.outcome == Answered({"ok": True})


async def test_an_answer_that_comes_twice_counts_once():
    peer, first, second = Peer(), ReplySlot(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(first), post(second)])
        peer.say(result(1, {"n": 1}), result(1, {"n": 2}), error(1, -1))
        await wait_all_tasks_blocked()
        assert first.outcome == Answered({"n": 1})
        assert (second.outcome, endpoint.in_flight) == (None, 1)


@pytest.mark.parametrize("request_id", [99, "x", None, True, 1.5, [1]])
async def test_an_answer_nobody_waits_for_is_dropped_without_a_word(request_id, caplog):
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say(result(request_id), result(1))
        await wait_all_tasks_blocked()
        assert slot.outcome == Answered({})
        assert endpoint.noise == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_error_of_the_peer_keeps_code_words_and_data():
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say(error(1, -32000, "not today", data={"retry": [1, 2]}))
        await wait_all_tasks_blocked()
    assert slot.outcome == Rejected(-32000, "not today", {"retry": [1, 2]})
    assert slot.delivery is Delivery.ANSWERED


async def test_a_malformed_answer_is_still_an_answer():
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say({"jsonrpc": "2.0", "id": 1, "result": "text"})
        await wait_all_tasks_blocked()
    assert slot.outcome == Rejected(-32603, "malformed response", {"keys": ["id", "jsonrpc", "result"]})


async def test_a_batch_of_answers_in_one_frame_answers_all():
    peer, slots = Peer(), [ReplySlot(), ReplySlot()]
    async with running(peer) as endpoint:
        endpoint.post([post(slot) for slot in slots])
        peer.say([result(2), result(1)])
        await wait_all_tasks_blocked()
    assert [slot.outcome for slot in slots] == [Answered({}), Answered({})]


async def test_what_is_wrong_in_a_batch_hides_no_answer_behind_it():
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say([{"jsonrpc": "2.0", "method": 5}, result(1)])
        await wait_all_tasks_blocked()
        assert (slot.outcome, endpoint.noise) == (Answered({}), 1)


# giving up


async def test_a_call_that_was_not_sent_is_withdrawn_and_the_peer_never_sees_it():
    peer, sent, queued = Peer(room=1), ReplySlot(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(sent, n=1), post(queued, n=2)])
        endpoint.cancel([queued])
        assert (queued.delivery, endpoint.in_flight) == (Delivery.NOT_SENT, 1)
        peer.take()
        endpoint.post([post(n=3)])
        await wait_all_tasks_blocked()
        assert [message["params"].get("n") for message in peer.heard] == [1, 3]
        assert cancels(peer) == []


async def test_a_call_that_was_sent_is_cancelled_by_its_id_and_a_late_answer_is_nobodys():
    peer, slots = Peer(), [ReplySlot() for _ in range(3)]
    async with running(peer) as endpoint:
        endpoint.post([post(slot) for slot in slots])
        endpoint.cancel([slots[1]], "bored")
        assert peer.heard[-1] == notice("notifications/cancelled", {"requestId": 2, "reason": "bored"})
        assert endpoint.in_flight == 2
        peer.say(result(2), result(1), result(3))
        await wait_all_tasks_blocked()
        assert [slot.outcome for slot in slots] == [Answered({}), None, Answered({})]


async def test_many_that_give_up_together_are_told_with_one_write():
    peer, slots = Peer(), [ReplySlot() for _ in range(5)]
    async with running(peer) as endpoint:
        endpoint.post([post(slot) for slot in slots])
        endpoint.cancel(slots[1:])
        assert peer.writes == [5, 4]
        assert cancels(peer) == [2, 3, 4, 5]
        assert endpoint.in_flight == 1


async def test_a_torn_frame_was_sent():
    peer, slot = Peer(room=1), ReplySlot()
    peer.torn = True
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        assert slot.delivery is Delivery.UNKNOWN
        endpoint.cancel([slot])
        assert cancels(peer) == []  # behind the torn frame
        peer.take()
        await wait_all_tasks_blocked()
        assert cancels(peer) == [1]


async def test_a_deaf_peer_holds_no_canceller():
    peer, sent, queued = Peer(room=1), ReplySlot(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(sent), post(queued)])
        endpoint.cancel([sent])
        endpoint.cancel([queued])
        assert (endpoint.in_flight, peer.frames) == (0, peer.frames[:1])
        peer.take()
        await wait_all_tasks_blocked()
        assert [message["method"] for message in peer.heard] == ["tools/call", "notifications/cancelled"]


async def test_a_call_that_never_was_posted_can_be_given_up():
    peer = Peer()
    async with running(peer) as endpoint:
        endpoint.cancel([ReplySlot()])
    assert peer.frames == []


async def test_cancelling_twice_tells_the_peer_once_or_not_at_all():
    """The caller gives up once; still, nothing may go wrong after the answer."""
    peer, slot = Peer(room=0), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        endpoint.cancel([slot])
        endpoint.cancel([slot])
        peer.take()
        await wait_all_tasks_blocked()
    assert peer.frames == []


async def test_withdraw_unsent_gives_up_exactly_what_was_not_sent():
    peer, slots = Peer(room=2), [ReplySlot() for _ in range(4)]
    async with running(peer) as endpoint:
        endpoint.post([post(slot) for slot in slots])
        endpoint.withdraw_unsent()
        assert [slot.decided for slot in slots] == [False, False, True, True]
        assert {type(slot.outcome) for slot in slots[2:]} == {Loss}
        assert [slot.delivery for slot in slots[2:]] == [Delivery.NOT_SENT, Delivery.NOT_SENT]
        assert endpoint.in_flight == 2
        peer.take()
        peer.say(result(1), result(2))
        await wait_all_tasks_blocked()
        assert [slot.outcome for slot in slots[:2]] == [Answered({}), Answered({})]
        assert len(peer.frames) == 2


async def test_who_waits_for_room_is_woken_by_every_way_a_call_can_end():
    peer = Peer(room=4)
    woken = []

    async def watch():
        while True:
            await endpoint.settled()
            woken.append(endpoint.in_flight)

    slots = [ReplySlot() for _ in range(5)]
    async with running(peer) as endpoint, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        endpoint.post([post(slot) for slot in slots])
        for end in (
            lambda: peer.say(result(1)),
            lambda: peer.say(error(2, -1)),
            lambda: endpoint.cancel([slots[2]]),
            endpoint.withdraw_unsent,
            peer.end,
        ):
            await wait_all_tasks_blocked()
            end()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert woken == [4, 3, 2, 1, 0]


# limits


async def test_a_call_that_finds_no_room_in_the_outbox_is_busy():
    peer, big, late = Peer(room=0), ReplySlot(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(big, text="x" * OUTBOX_LIMIT)])
        endpoint.post([post(late)])
        assert late.outcome == Busy()
        assert late.delivery is Delivery.NOT_SENT
        assert (big.outcome, endpoint.in_flight, len(endpoint._table)) == (None, 1, 1)
        peer.take()
        await wait_all_tasks_blocked()
        assert len(peer.frames) == 1
        assert big.delivery is Delivery.UNKNOWN


async def test_a_call_whose_frame_cannot_be_made_ends_itself_and_nobody_else():
    """Only the caller's `_meta` can do that: the arguments are encoded in the caller's task."""
    peer, bad, good = Peer(), ReplySlot(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(bad, meta=object()), post(good)])
        assert isinstance(bad.outcome, Unsendable)
        assert "object" in bad.outcome.problem
        assert bad.delivery is Delivery.NOT_SENT
        assert (endpoint.in_flight, len(endpoint._table)) == (1, 1)
        assert good.sent
        peer.say(result(peer.heard[0]["id"]))
        await wait_all_tasks_blocked()
        assert good.outcome == Answered({})


# the end


async def test_the_loss_reaches_every_waiting_slot_and_counts_them():
    peer, slots = Peer(room=2), [ReplySlot() for _ in range(3)]
    async with running(peer) as endpoint:
        endpoint.post([post(slot) for slot in slots])
        peer.end()
        await endpoint.lost.wait()
        assert endpoint.loss == Loss("gone", exit_code=7, stderr_tail="oh no", pending=3)
        assert [slot.outcome for slot in slots] == [endpoint.loss] * 3
        assert [slot.delivery for slot in slots] == [Delivery.UNKNOWN, Delivery.UNKNOWN, Delivery.NOT_SENT]
        assert endpoint.in_flight == 0


async def test_answers_written_before_the_end_still_count():
    peer, answered, lost = Peer(), ReplySlot(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(answered), post(lost)])
        peer.say(result(1))
        peer.end()
        await endpoint.lost.wait()
        assert answered.outcome == Answered({})
        assert lost.outcome == endpoint.loss
        assert endpoint.loss.pending == 1


async def test_what_is_posted_while_the_loss_is_looked_into_is_lost_too(autojump_clock):
    peer, slot = Peer(), ReplySlot()
    peer.loss_takes = 0.5
    async with running(peer) as endpoint:
        peer.end()
        await wait_all_tasks_blocked()
        endpoint.post([post(slot)])
        await endpoint.lost.wait()
        assert trio.current_time() == 0.5
        assert slot.outcome == endpoint.loss
        assert endpoint.loss.pending == 1


async def test_calls_after_the_loss_fail_at_once_and_are_not_sent():
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        peer.end()
        await endpoint.lost.wait()
        endpoint.post([post(slot)])
        assert slot.outcome == endpoint.loss
        assert slot.delivery is Delivery.NOT_SENT
        endpoint.cancel([slot])
        assert (peer.frames, endpoint.in_flight) == ([], 0)


async def test_closing_from_our_side_decides_every_slot():
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
    assert endpoint.lost.is_set()
    assert slot.outcome == endpoint.loss == Loss("the connection was closed", pending=1)


async def test_a_peer_that_reads_no_more_may_still_answer():
    peer, heard, unheard = Peer(), ReplySlot(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(heard)])
        peer.close_its_ears()
        endpoint.post([post(unheard)])
        peer.say(result(1))
        await wait_all_tasks_blocked()
        assert heard.outcome == Answered({})
        assert (unheard.outcome, unheard.delivery) == (None, Delivery.NOT_SENT)
        peer.end()
        await endpoint.lost.wait()
        assert unheard.outcome == endpoint.loss


async def test_run_returns_on_the_end_of_the_stream_and_does_not_raise():
    peer = Peer()
    endpoint = Endpoint(StreamCarrier(peer))
    peer.end(GONE)
    with trio.fail_after(20):
        await endpoint.run(*[_never] * 2)
    assert endpoint.loss == GONE


async def _never(*_args):
    raise AssertionError


# noise


NOISE = [b"", b"hello", b"{", b"[1]", b"7", b"\xff", b'{"method": 5}', b'{"method": {}, "id": 1}']


async def test_noise_is_counted_and_harms_nothing():
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        endpoint.post([post(slot)])
        peer.say(*NOISE, result(1), b"more")
        await wait_all_tasks_blocked()
        assert endpoint.noise == len(NOISE) + 1
        assert slot.outcome == Answered({})


async def test_a_babbling_peer_does_not_fill_the_log(caplog):
    peer = Peer()
    async with running(peer) as endpoint:
        for _ in range(100):
            peer.say(*[b"bla " * 1000] * 100)
            await wait_all_tasks_blocked()
        assert endpoint.noise == 10_000
    assert len(caplog.records) == 1 + math.log10(10_000)
    assert all(len(record.getMessage()) < 200 for record in caplog.records)
    assert "bla" not in caplog.text  # whatever it is may be a secret
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize(
    "message",
    [{}, {"jsonrpc": "2.0"}, {"id": 1}, {"method": "ping", "id": None}, {"method": "ping", "id": 1.5}],
)
async def test_messages_that_say_nothing_are_passed_over(message):
    peer, slot = Peer(), ReplySlot()
    async with running(peer) as endpoint:
        peer.say(message)
        await wait_all_tasks_blocked()
        endpoint.post([post(slot)])
        peer.say(result(1))
        await wait_all_tasks_blocked()
        assert slot.outcome == Answered({})


# progress


async def test_a_hundred_bursts_of_progress_arrive_in_order_and_before_the_result():
    peer = Peer()
    out_of_order = []

    async def call():
        seen, slot = [], ReplySlot(wants_progress=True)

        async def on_progress(progress, _total, _message):
            seen.append(progress)

        endpoint.post([post(slot)])
        outcome = await slot.wait(on_progress)
        if seen != list(range(20)) or outcome != Answered({}):
            out_of_order.append(seen)

    async def keep(_context, _method, _params):
        await trio.lowlevel.checkpoint()

    async with running(peer, on_notify=keep) as endpoint, trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(call)
        await wait_all_tasks_blocked()
        for message in peer.heard:
            burst = [progress(message["id"], step) for step in range(20)]
            peer.say(*burst, result(message["id"]))
    assert out_of_order == []


async def test_progress_of_another_call_and_of_no_call_is_not_mine():
    peer, mine = Peer(), ReplySlot(wants_progress=True)
    reports = []

    async def on_progress(*report):
        reports.append(report)

    async def wait():
        await mine.wait(on_progress)

    async def keep(*_notice):
        pass

    async with running(peer, on_notify=keep) as endpoint, trio.open_nursery() as nursery:
        endpoint.post([post(mine), post()])
        nursery.start_soon(wait)
        peer.say(progress(2, 1), progress(3, 1), progress("1", 5), result(1), progress(1, 6))
    assert reports == [(5.0, None, None)]


def progress(token, value):
    return notice("notifications/progress", {"progressToken": token, "progress": value})


async def test_a_call_that_wants_none_gets_none():
    peer, slot = Peer(), ReplySlot()

    async def keep(*_notice):
        pass

    async with running(peer, on_notify=keep) as endpoint:
        endpoint.post([post(slot)])
        peer.say(progress(1, 1), result(1))
        assert await slot.wait(no_progress) == Answered({})
