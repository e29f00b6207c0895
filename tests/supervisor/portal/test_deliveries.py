"""Functions on their way to another thread: each runs once, in order, whoever wakes whom."""

import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.portal.deliveries import Deliveries


@given(st.lists(st.booleans(), max_size=40))
def test_each_runs_once_in_order_with_few_wake_ups(steps):
    """A step adds a function, or lets the other thread run what it was woken for."""
    woken, ran, added = deque(), [], 0
    deliveries = Deliveries(woken.append)
    for adds in steps:
        if adds:
            deliveries.add(lambda number=added: ran.append(number))
            added += 1
            assert len(woken) == 1
        elif woken:
            woken.popleft()()
            assert ran == list(range(added))
    while woken:
        woken.popleft()()
    assert ran == list(range(added))


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
def test_what_could_not_be_delivered_comes_with_the_next(raised):
    """Such as where Ctrl-C comes between a function and its wake-up: the next one wakes for both."""
    woken, ran = [], []

    def wake(function):
        woken.append(function)
        if len(woken) == 1:
            raise raised

    deliveries = Deliveries(wake)
    with pytest.raises(raised):
        deliveries.add(lambda: ran.append(1))
    deliveries.add(lambda: ran.append(2))
    assert len(woken) == 2
    woken[1]()
    assert ran == [1, 2]


def test_what_is_added_meanwhile_comes_with_a_wake_up_of_its_own():
    """A loop has other things to do in between."""
    woken, ran = deque(), []
    deliveries = Deliveries(woken.append)

    def again():
        ran.append(len(ran))
        deliveries.add(again)

    deliveries.add(again)
    deliveries.add(again)
    for turn in range(1, 4):
        assert deliveries.has_more
        woken.popleft()()
        assert (len(ran), deliveries.batch, len(woken)) == (2 * turn, 2, 1)


def test_a_handler_of_signals_in_the_middle_of_a_wake_up_wakes_by_itself():
    """What it adds may be what it waits for, and the wake-up that it has interrupted goes on only after it."""
    woken, ran = deque(), []

    def wake(function):
        if not ran:
            ran.append("handler")
            deliveries.add(lambda: ran.append("of the handler"))
            assert woken
            woken.popleft()()
        woken.append(function)

    deliveries = Deliveries(wake)
    deliveries.add(lambda: ran.append("interrupted"))
    assert ran == ["handler", "interrupted", "of the handler"]


def test_many_threads_lose_nothing():
    ran, stop, ready = [], threading.Event(), threading.Event()
    deliveries = Deliveries(lambda _function: ready.set())

    def serve():
        while not stop.is_set():
            ready.wait(0.01)
            ready.clear()
            deliveries.run()

    def add(thread):
        for number in range(2_000):
            deliveries.add(lambda number=number: ran.append((thread, number)))

    server = threading.Thread(target=serve)
    server.start()
    adders = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for each in adders:
        each.start()
    for each in adders:
        each.join()
    stop.set()
    server.join()
    deliveries.run()
    assert len(ran) == 8_000
    assert all([number for thread, number in ran if thread == mine] == list(range(2_000)) for mine in range(4))
