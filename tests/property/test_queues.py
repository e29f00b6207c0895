"""The bounded queue against a model that keeps one list; and readers that are cancelled, under any schedule."""

import math

import trio
from attrs import define
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trio.testing import wait_all_tasks_blocked

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.queues import BoundedQueue, WhenFull
from mcp_nursery.supervisor.testing import run_virtual

KIND = "notices"
GAP = "gap of {}"
rules = st.sampled_from(WhenFull)


@define
class Item:
    """One that waits, in the model."""

    name: object
    size: int
    key: str | None
    counts: bool


class QueueModel(RuleBasedStateMachine):
    """What a queue promises, by the simplest means: a list that is searched through."""

    @initialize(
        items=st.sampled_from([1, 2, 3, math.inf]),
        size=st.sampled_from([4, 9, math.inf]),
        when_full=rules,
        gap=st.booleans(),
        room=st.sampled_from([6, math.inf]),
    )
    def open(self, items, size, when_full, gap, room):
        self.account = Account(room)
        self.queue = BoundedQueue(
            items, size, when_full=when_full, gap=GAP.format if gap else None, account=self.account, kind=KIND
        )
        self.most_items, self.most_size, self.rule, self.gap, self.room = items, size, when_full, gap, room
        self.waiting, self.lost, self.number = [], 0, 0
        self.finished = self.closed = False

    # -- the model --------------------------------------------------------------------------------------------------

    @property
    def size(self):
        return sum(item.size for item in self.waiting)

    def fits(self, size):
        """As an account has it: the first always fits."""
        return size == 0 or self.size == 0 or self.size + size <= self.room

    def expected(self, item, when_full):
        """Whether an item comes to wait; what it displaces is lost."""
        if item.size > self.most_size:
            return False
        if self.gap and self.lost and self.rule is WhenFull.LOSE_NEWEST:
            return False

        def is_full():
            counted = sum(each.counts for each in self.waiting)
            return self.size + item.size > self.most_size or (item.counts and counted >= self.most_items)

        while is_full():
            oldest = next((each for each in self.waiting if each.counts), None)
            if when_full is not WhenFull.LOSE_OLDEST or oldest is None:
                return False
            self.waiting.remove(oldest)
            self.lost += 1
        return self.fits(item.size)

    # -- what is done -----------------------------------------------------------------------------------------------

    @rule(size=st.integers(0, 5), key=st.sampled_from([None, None, "a", "b"]), when_full=st.none() | rules)
    def put(self, size, key, when_full):
        self.number += 1
        came = self.queue.put(self.number, size, key=key, when_full=when_full)
        in_force = when_full or self.rule
        item = Item(self.number, size, key, counts=in_force is not WhenFull.EXCEED)
        if self.closed:
            assert came is False
        elif key is not None and any(each.key == key for each in self.waiting):
            assert came is True
        else:
            assert came is self.expected(item, in_force)
            if came:
                self.waiting.append(item)
            else:
                self.lost += 1

    @rule(count=st.integers(1, 3))
    def lose(self, count):
        self.queue.lose(count)
        self.lost += count

    @rule()
    def receive(self):
        try:
            outcome = self.queue.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError) as raised:
            outcome = type(raised)
        assert outcome == self.next()

    def next(self):
        if self.closed:
            return trio.ClosedResourceError
        if self.gap and self.lost and (self.rule is WhenFull.LOSE_OLDEST or not self.waiting):
            lost, self.lost = self.lost, 0
            return GAP.format(lost)
        if self.waiting:
            return self.waiting.pop(0).name
        return trio.EndOfChannel if self.finished else trio.WouldBlock

    @precondition(lambda self: self.number > 15)
    @rule()
    def finish(self):
        self.queue.finish()
        self.finished = True

    @precondition(lambda self: self.number > 25)
    @rule()
    def close(self):
        self.queue.close()
        self.closed, self.waiting = True, []

    # -- what holds at every moment ---------------------------------------------------------------------------------

    @invariant()
    def as_the_model_has_it(self):
        assert (len(self.queue), self.queue.lost) == (len(self.waiting), self.lost)
        assert self.account.kept == ({KIND: self.size} if self.size else {})


TestQueue = QueueModel.TestCase


scripts = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=20)


@given(st.sampled_from([WhenFull.LOSE_NEWEST, WhenFull.LOSE_OLDEST]), scripts, st.integers(1, 3), st.random_module())
def test_readers_that_are_cancelled_lose_nothing(when_full, script, readers, random_module):
    """After so many seconds so many items come, and so on. Readers give up after every second, or in the step in which
    items come, and read on."""
    del random_module

    async def run():
        queue, put, taken = BoundedQueue[int](5, when_full=when_full), 0, []
        scopes = {}

        async def read(number):
            while True:
                with trio.move_on_after(1) as scopes[number]:
                    taken.append(await queue.receive())

        async with trio.open_nursery() as nursery:
            for number in range(readers):
                nursery.start_soon(read, number)
            await wait_all_tasks_blocked()
            for seconds, count, gives_up in script:
                await trio.sleep(seconds)
                for _ in range(count):
                    queue.put(put)
                    put += 1
                if gives_up:
                    scopes[put % readers].cancel()
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert len(taken) + queue.lost + len(queue) == put
        assert len(queue) == 0
        assert sorted(set(taken)) == sorted(taken)
        if readers == 1:
            assert taken == sorted(taken)

    run_virtual(run)
