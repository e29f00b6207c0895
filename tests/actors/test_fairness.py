"""Long work and long queues: all others get their turn."""

import pytest
import trio

from mcp_nursery.actors import fairness
from mcp_nursery.actors.fairness import Pace, by_turns
from mcp_nursery.actors.pieces import SMALL, at_once


def work(pieces, ended=None):
    try:
        for _ in range(pieces):
            yield
        return pieces
    finally:
        if ended is not None:
            ended.append(True)


async def passes(done, said):
    while not done:
        said.append(1)
        await trio.lowlevel.checkpoint()


async def test_others_run_between_pieces_that_take_long(monkeypatch):
    monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)
    others, done = [], []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(passes, done, others)
        assert await by_turns(work(50)) == 50
        done.append(True)
    assert len(others) >= 49


async def test_a_turn_of_the_loop_has_one_slice_of_all_long_work(monkeypatch):
    monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)
    slices, most = [0], []

    def counted():
        for _ in range(10):
            slices[0] += 1
            yield

    class EachTurn(trio.abc.Instrument):
        def before_io_wait(self, timeout):
            most.append(slices[0])
            slices[0] = 0

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(by_turns, counted())
        await trio.lowlevel.checkpoint()  # all have begun
        await trio.lowlevel.checkpoint()
        slices[0] = 0
        trio.lowlevel.add_instrument(EachTurn())
    assert max(most) == 1
    assert sum(most) > 150  # of 200, or nothing was seen


async def test_small_pieces_are_done_together():
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await by_turns(work(3)) == 3  # a checkpoint would have ended it


async def test_it_can_be_cancelled_between_pieces(monkeypatch):
    monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)
    ended = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await by_turns(work(3, ended))
    assert scope.cancelled_caught
    assert ended == [True]


def test_what_has_no_task_is_done_in_one_go():
    assert at_once(work(3)) == 3


def failing():
    yield
    raise ValueError("no")


async def test_a_failure_comes_out():
    with pytest.raises(ValueError, match="no"):
        await by_turns(failing())
    with pytest.raises(ValueError, match="no"):
        at_once(failing())


def test_a_turn_is_over_after_so_many_messages_or_bytes():
    pace = Pace()
    assert [pace.spent(10) for _ in range(33)] == [*[False] * 15, True] * 2 + [False]
    assert [pace.spent(size) for size in (SMALL // 2, SMALL // 2, SMALL, 1)] == [False, True, True, False]
