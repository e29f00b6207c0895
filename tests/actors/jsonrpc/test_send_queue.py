"""The outbox: frames leave in order, once, and `sent` is true of exactly those whose write began."""

import cProfile
import inspect
import math
import pstats
import tracemalloc

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.carrier import Outgoing
from mcp_nursery.actors.jsonrpc.stream_carrier import MOST_OWED, Outbox, StreamCarrier
from mcp_nursery.actors.reply import ReplySlot

from ...lab.wire_peer import GONE, Peer


class Told(Peer):
    """A peer that minds being written to while it is still to be waited for."""

    blocked = False

    def write_nowait(self, frames):
        assert frames, "a write of nothing"
        assert not self.blocked, "a write before `writable()` returned"
        begun = super().write_nowait(frames)
        self.blocked = begun < len(frames) or self.unfinished
        return begun

    async def writable(self):
        await super().writable()
        self.blocked = False


def has_room(outbox, frame):
    """Whether a bounded frame would be taken; it is taken back."""
    slot = ReplySlot()
    return outbox.push(frame, slot, bounded=True) and outbox.withdraw(slot)


async def test_all_that_waits_is_one_write():
    peer = Told()
    outbox = Outbox(peer)
    for frame in (b"a", b"b", b"c"):
        outbox.push(frame)
    assert (peer.frames, peer.writes) == ([], [])
    outbox.flush()
    assert (peer.frames, peer.writes) == ([b"a", b"b", b"c"], [3])
    outbox.flush()
    assert peer.writes == [3]


async def test_a_torn_frame_counts_as_sent_and_cannot_be_withdrawn():
    peer = Told(room=1)
    peer.torn = True
    outbox, torn, whole = Outbox(peer), ReplySlot(), ReplySlot()
    outbox.push(b"torn", torn)
    outbox.push(b"next", whole)
    outbox.flush()
    assert (torn.sent, whole.sent) == (True, False)
    assert not outbox.withdraw(torn)
    assert outbox.withdraw(whole)
    assert not outbox.withdraw(whole)


async def test_a_torn_last_frame_keeps_the_next_one_waiting():
    peer = Told()
    peer.torn = True
    outbox = Outbox(peer)
    outbox.push(b"torn")
    outbox.flush()
    outbox.push(b"next")
    outbox.flush()
    assert peer.frames == [b"torn"]
    async with trio.open_nursery() as nursery:
        outbox.open(nursery)
        await wait_all_tasks_blocked()
        assert peer.frames == [b"torn"]
        peer.take()
        await wait_all_tasks_blocked()
        assert peer.frames == [b"torn", b"next"]


async def test_a_full_outbox_has_no_room_for_calls_and_takes_the_others():
    peer = Told(room=0)
    outbox = Outbox(peer, limit=10)
    assert has_room(outbox, b"x" * 11)  # a single larger one is taken when nothing waits
    outbox.push(b"x" * 11, ReplySlot())
    assert not has_room(outbox, b"y")
    outbox.push(b"z" * 100)
    peer.take()
    outbox.flush()
    assert peer.frames == [b"x" * 11, b"z" * 100]


async def test_what_is_withdrawn_makes_room():
    outbox, first = Outbox(Told(room=0), limit=10), ReplySlot()
    outbox.push(b"x" * 6, first)
    assert (has_room(outbox, b"y" * 4), has_room(outbox, b"y" * 5)) == (True, False)
    outbox.push(b"y" * 4)
    assert outbox.withdraw(first)
    assert (has_room(outbox, b"y" * 6), has_room(outbox, b"y" * 7)) == (True, False)


@pytest.mark.parametrize("end", [ReplySlot.cancel, lambda slot: slot.resolve(GONE)], ids=["given up", "lost"])
async def test_what_nobody_waits_for_any_more_does_not_leave(end):
    """R4: who was told that a call was not sent was told the truth, whoever runs first once the pipe has room."""
    peer = Told(room=1)
    outbox, given_up, kept = Outbox(peer), ReplySlot(), ReplySlot()
    outbox.push(b"first")
    outbox.push(b"given up", given_up)
    outbox.push(b"kept", kept)
    outbox.flush()
    end(given_up)
    peer.take(math.inf)
    async with trio.open_nursery() as nursery:
        outbox.open(nursery)
        await wait_all_tasks_blocked()
    assert (peer.frames, given_up.sent, kept.sent) == ([b"first", b"kept"], False, True)
    assert has_room(outbox, b"x" * (4 << 20))


async def test_what_may_have_company_waits_for_it():
    peer = Told()
    outbox, slots = Outbox(peer), [ReplySlot() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        outbox.open(nursery)
        for before in range(2):
            for slot in slots:
                outbox.push(b"frame", slot)
                outbox.flush_later()
            assert peer.writes == [3] * before
            assert len(nursery.child_tasks) == 1
            await wait_all_tasks_blocked()
            assert all(slot.sent for slot in slots)
            assert not nursery.child_tasks  # an idle connection keeps none
    assert peer.writes == [3, 3]


async def test_much_does_not_wait_for_company():
    peer = Told()
    outbox = Outbox(peer)
    async with trio.open_nursery() as nursery:
        outbox.open(nursery)
        outbox.push(b"x" * 1000, ReplySlot())
        outbox.flush_later()
        assert peer.writes == []
        outbox.push(b"x" * (1 << 16), ReplySlot())
        outbox.flush_later()
        assert peer.writes == [2]


@pytest.mark.parametrize("end", [ReplySlot.cancel, lambda slot: slot.resolve(GONE)], ids=["given up", "lost"])
async def test_what_waited_for_company_and_is_decided_does_not_leave_with_what_cannot_wait(end):
    """R4: as above, whoever writes."""
    peer, waits = Told(), ReplySlot()
    outbox = Outbox(peer)
    async with trio.open_nursery() as nursery:
        outbox.open(nursery)
        outbox.push(b"waits", waits)
        outbox.flush_later()
        end(waits)
        outbox.flush()
        assert (peer.writes, outbox.size) == ([], 0)
        outbox.push(b"waits", waits)
        outbox.flush_later()
        outbox.push(b"notification")
        outbox.flush()
        assert (peer.frames, waits.sent, outbox.size) == ([b"notification"], False, 0)


async def test_what_left_makes_room():
    peer = Told(room=1)
    outbox = Outbox(peer, limit=10)
    outbox.push(b"x" * 6, ReplySlot())
    outbox.push(b"y" * 4, ReplySlot())
    assert not has_room(outbox, b"z")
    outbox.flush()
    assert (has_room(outbox, b"z" * 6), has_room(outbox, b"z" * 7)) == (True, False)


def test_a_flush_can_not_wait():
    assert not inspect.iscoroutinefunction(Outbox.flush)


@pytest.mark.parametrize("flush", [Outbox.flush, Outbox.flush_later])
async def test_a_peer_that_reads_no_more_ends_the_writer_and_nothing_counts_as_sent(flush):
    peer = Told()
    peer.broken = True
    outbox, slot = Outbox(peer), ReplySlot()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            outbox.open(nursery)
            outbox.push(b"a", slot)
            flush(outbox)
    assert not slot.sent
    peer.broken = False
    outbox.flush()
    assert peer.frames == []  # for good: a half of the stream is no stream
    assert outbox.withdraw(slot)


async def test_a_peer_that_breaks_while_it_is_waited_for_ends_the_writer():
    peer = Told(room=1)
    outbox, slots = Outbox(peer), [ReplySlot(), ReplySlot()]
    async with trio.open_nursery() as nursery:
        outbox.open(nursery)
        for slot in slots:
            outbox.push(b"a", slot)
        outbox.flush()
        await wait_all_tasks_blocked()
        peer.close_its_ears()
    assert [slot.sent for slot in slots] == [True, False]


# against a model

sizes = st.integers(1, 12)
operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["call", "call", "word"]), sizes),
        st.tuples(st.sampled_from(["flush", "flush later", "tear", "settle"]), st.just(0)),
        st.tuples(st.just("withdraw"), st.integers(0, 10)),
        st.tuples(st.just("take"), st.integers(1, 4)),
    ),
    max_size=40,
)


class Model:
    """What must be true of an outbox, said without a queue of its own being written to anybody."""

    LIMIT = 24

    def __init__(self, room):
        self.peer = Told(room=room)
        self.outbox = Outbox(self.peer, limit=self.LIMIT)
        self.pushed = []
        self.slots = {}
        self.withdrawn = set()

    @property
    def waiting(self):
        begun = len(self.peer.frames)
        kept = [frame for frame in self.pushed if frame not in self.withdrawn]
        assert self.peer.frames == kept[:begun], "reordered, lost, doubled, or withdrawn"
        return kept[begun:]

    def call(self, size):
        slot, frame = ReplySlot(), self._frame(size)
        taken = self.outbox.push(frame, slot, bounded=True)
        waiting = self.waiting  # what waited for company alone has left, if there was no room
        fits = not waiting or sum(map(len, waiting)) + len(frame) <= self.LIMIT
        assert taken is fits
        if fits:
            self.pushed.append(frame)
            self.slots[frame] = slot

    def word(self, size):
        frame = self._frame(size)
        self.outbox.push(frame)
        self.pushed.append(frame)

    def withdraw(self, index):
        if not self.slots:
            return
        frame = list(self.slots)[index % len(self.slots)]
        still = frame in self.waiting
        assert self.outbox.withdraw(self.slots[frame]) is still
        if still:
            self.withdrawn.add(frame)

    def check(self):
        waiting = self.waiting
        begun = set(self.peer.frames)
        assert all(slot.sent is (frame in begun) for frame, slot in self.slots.items())
        return waiting

    def _frame(self, size):
        return b"%d:" % (len(self.pushed) + 1000) + b"x" * size


@given(operations, st.sampled_from([0, 1, 3, math.inf]), st.booleans(), st.random_module())
def test_frames_leave_in_order_once_and_sent_is_true_of_those_that_left(script, room, breaks, schedule):
    async def run():
        model = Model(room)
        peer = model.peer
        async with trio.open_nursery() as nursery:
            model.outbox.open(nursery)
            for operation, number in script:
                match operation:
                    case "flush":
                        model.outbox.flush()
                    case "flush later":
                        model.outbox.flush_later()
                    case "tear":
                        peer.torn = True
                    case "take":
                        peer.take(number)
                    case "settle":
                        await wait_all_tasks_blocked()
                    case _:
                        getattr(model, operation)(number)
                model.check()
            if breaks:
                before = list(peer.frames)
                peer.close_its_ears()
                model.outbox.flush()
                await wait_all_tasks_blocked()
                assert peer.frames == before
            else:
                model.outbox.flush()
                while model.check():
                    peer.take(2)
                    await wait_all_tasks_blocked()
                peer.take()  # the rest of a torn last frame
            model.check()

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_a_long_queue_leaves_in_one_go():
    peer, count = Told(room=0), 5000
    outbox = Outbox(peer)
    frames = [b"%d" % number for number in range(count)]
    for frame in frames:
        outbox.push(frame)
    outbox.flush()
    async with trio.open_nursery() as nursery:
        outbox.open(nursery)
        peer.take()
        await wait_all_tasks_blocked()
    assert peer.frames == frames
    assert peer.writes == [0, count]


def test_the_work_of_withdrawing_does_not_grow_with_what_waits():
    """Thousands of calls to a frozen server may end at one time: each looked at all that were before it."""

    def work(many: int) -> int:
        outbox, slots, profile = Outbox(Peer(room=0)), [ReplySlot() for _ in range(many)], cProfile.Profile()
        for slot in slots:
            outbox.push(b"frame", slot)
        profile.runcall(lambda: [outbox.withdraw(slot) for slot in reversed(slots)])
        assert outbox.size == 0
        return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]

    assert work(1000) < 12 * work(100)


async def test_what_waits_takes_no_more_memory_than_it_needs():
    """An encoder leaves kilobytes behind each short frame, and ten times the size of a longer one."""
    for size, before in ((10, 0), (10, 1), (5000, 0)):
        outbox = Outbox(Peer(room=0))
        tracemalloc.start()
        for number in range(200):
            outbox.push(codec.result(number, {"text": "x" * size}))
            if before and not number:
                outbox.flush()
        outbox.flush()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 200 * (size + 600)
        assert outbox.owed_bytes > 200 * size


async def test_what_a_peer_is_owed_does_not_count_what_it_is_asked():
    outbox = Outbox(Told(room=1), limit=1000)
    for _ in range(2000):
        outbox.push(b"x" * 100, ReplySlot())
    assert outbox.has_room
    outbox.push(b"x" * 700)
    assert (outbox.has_room, outbox.owed, outbox.owed_bytes) == (True, 1, 828)
    outbox.push(b"x" * 100)
    assert (outbox.has_room, outbox.owed, outbox.owed_bytes) == (False, 2, 1056)


async def test_room_is_waited_for_until_the_peer_reads_or_reads_no_more():
    for ends in (Peer.take, Peer.close_its_ears):
        peer = Peer(room=0)
        outbox = Outbox(peer)
        for _ in range(MOST_OWED):
            outbox.push(b"x")
        outbox.flush()
        waited = trio.Event()

        async def wait(outbox=outbox, waited=waited):
            await outbox.room()
            waited.set()

        async with trio.open_nursery() as nursery:
            outbox.open(nursery)
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not waited.is_set()
            ends(peer)
            with trio.fail_after(20):
                await waited.wait()
        assert outbox.push(b"y")
        assert outbox.owed == (1 if ends is Peer.take else MOST_OWED)


async def test_a_patient_notification_waits_for_room():
    """Those of clients: there may be any number, and the server of a slow one owes nobody its memory."""
    peer = Peer(room=0)
    carrier = StreamCarrier(peer)
    for _ in range(MOST_OWED):
        await carrier.notify(Outgoing(b"own"))
    sent = trio.Event()

    async def send():
        await carrier.notify(Outgoing(b"of a client", patient=True))
        sent.set()

    async with trio.open_nursery() as nursery:
        carrier.outbox.open(nursery)
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert not sent.is_set()
        assert carrier.outbox.owed == MOST_OWED
        peer.take()
        with trio.fail_after(20):
            await sent.wait()
    assert peer.frames[-1] == b"of a client"
