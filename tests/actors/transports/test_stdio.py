import os
import random
import signal
import time
from collections import deque

import pytest
import trio

from mcp_nursery.actors.transports import stdio as stdio_stream

from ...lab.timely import in_time, timely


async def everything(stream):
    frames = []
    while batch := await stream.read():
        frames += batch
    return frames


async def some(stream, count):
    frames = []
    while len(frames) < count:
        batch = await stream.read()
        assert batch, f"ended after {len(frames)} of {count}"
        frames += batch
    return frames


async def post(stream, frames):
    left = deque(frames)
    refused = 0
    while left:
        for _ in range(stream.write_nowait(list(left))):
            left.popleft()
        if left or stream.unfinished:
            refused += 1
            await stream.writable()
    return refused


# frames


async def test_frames_are_neither_torn_nor_lost_nor_reordered_when_the_child_reads_slowly(child):
    dice = random.Random(1)
    sizes = [dice.choice((1, 50, 4095, 4096, 5000, 70_000)) for _ in range(150)] + [600_000, 3]
    frames = [b"%d:" % n + bytes([97 + n % 26]) * size for n, size in enumerate(sizes)]
    async with child("echo_slowly") as stream, trio.open_nursery() as nursery:
        assert await stream.read() == [b"ready"]
        refusals = []

        async def write():
            refusals.append(await post(stream, frames))

        nursery.start_soon(write)
        assert await some(stream, len(frames)) == frames
    assert refusals[0] > 10


async def test_a_torn_frame_keeps_later_ones_out_until_its_rest_is_written(child):
    async with child("echo_slowly") as stream:
        assert await stream.read() == [b"ready"]
        assert stream.write_nowait([b"x" * 100_000, b"next"]) == 1
        assert stream.unfinished
        await trio.lowlevel.wait_writable(stream._tree.stdin.fileno())
        assert stream.write_nowait([b"y"]) == 0
        await stream.writable()
        assert not stream.unfinished
        assert stream.write_nowait([b"y"]) == 1
        assert await some(stream, 2) == [b"x" * 100_000, b"y"]


async def test_a_batch_is_one_write(child, monkeypatch):
    writes = []
    real = os.write
    async with child("echo") as stream:
        assert await stream.read() == [b"ready"]
        monkeypatch.setattr(os, "write", lambda fd, data: writes.append(bytes(data)) or real(fd, data))
        assert stream.write_nowait([b"a", b"b", b"c"]) == 3
        monkeypatch.undo()
        assert b"a\nb\nc\n" in writes
        assert await some(stream, 3) == [b"a", b"b", b"c"]


@timely
async def test_a_child_that_never_reads_holds_nobody_up(child):
    async with child("sleeps", grace=0.2) as stream:
        assert await stream.read() == [b"ready"]
        started = time.perf_counter()
        taken = stream.write_nowait([b"x" * 1000] * 1000)
        assert 0 < taken < 1000
        while stream.write_nowait([b"x" * 1000]):
            pass
        assert stream.write_nowait([b"x"]) == 0
        taken = time.perf_counter() - started
        with trio.move_on_after(0.1) as patience:
            await stream.writable()
        assert patience.cancelled_caught
        closing = trio.current_time()
    in_time(taken, 0.1)
    in_time(trio.current_time() - closing, 2 * 0.2 + 0.5)


async def test_carriage_returns_and_blank_lines_are_no_part_of_a_frame(child):
    async with child("raw", b'{"a":1}\r\n\n\r\n  \n{"b\r":2}\n'.hex()) as stream:
        assert await some(stream, 2) == [b'{"a":1}', b'{"b\r":2}']


async def test_bytes_that_are_not_utf_8_come_as_they_are(child):
    async with child("raw", b"\xff\xfe\x80\x00!\nnext\n".hex()) as stream:
        assert await some(stream, 2) == [b"\xff\xfe\x80\x00!", b"next"]


async def test_a_line_of_32_mib_costs_little(child):
    async with child("line_of", 32 << 20) as stream:
        assert await stream.read() == [b"first"]
        before = time.process_time()
        frames = await some(stream, 2)
        cost = time.process_time() - before
    assert [len(frame) for frame in frames] == [32 << 20, 4]
    assert cost < 1  # 0.1 on a quiet machine; looking at all that came before with each piece takes 9


@pytest.mark.parametrize("excess", [1, 10_000_000])
async def test_a_line_over_the_limit_is_a_loss(child, excess):
    async with child("line_of", (1 << 20) + excess, frame_limit=1 << 20) as stream:
        assert await everything(stream) == [b"first"]
        assert (await stream.loss()).message == "sent a line of more than 1 MiB"


async def test_a_line_of_just_the_limit_is_a_frame(child):
    async with child("line_of", 1 << 20, frame_limit=1 << 20) as stream:
        assert [len(frame) for frame in await some(stream, 3)] == [5, 1 << 20, 4]


# loss


@timely
async def test_an_exit_while_idle_is_noticed_with_its_code(child):
    async with child("leaves", 3) as stream:
        assert await stream.read() == [b"ready"]
        stream.write_nowait([b"go"])
        asked = trio.current_time()
        assert await everything(stream) == []
        loss = await stream.loss()
        taken = trio.current_time() - asked
        assert (loss.message, loss.exit_code) == ("exited with code 3", 3)
        assert await stream.read() == []
    in_time(taken, 0.5)


@timely
async def test_a_kill_is_noticed_with_its_signal(child):
    async with child("sleeps") as stream:
        assert await stream.read() == [b"ready"]
        killed = trio.current_time()
        os.kill(stream.pid, signal.SIGKILL)
        assert await stream.read() == []
        loss = await stream.loss()
        taken = trio.current_time() - killed
        assert (loss.message, loss.exit_code) == ("killed by SIGKILL", -9)
    in_time(taken, 0.5)


@timely
async def test_the_end_of_output_is_a_loss_though_the_process_lives(child):
    async with child("no_output", grace=0.1) as stream:
        assert await stream.read() == [b"ready"]
        stream.write_nowait([b"go"])
        assert await stream.read() == []
        asked = trio.current_time()
        loss = await stream.loss()
        taken = trio.current_time() - asked
        assert (loss.message, loss.exit_code) == ("closed its output", None)
    in_time(taken, 0.2)


@pytest.mark.parametrize("holder", ["sleeps", "babbler"])
@timely
async def test_an_exit_is_noticed_though_a_grandchild_holds_stdout(child, gone, holder):
    async with child("leaves_holder", holder, grace=0.2) as stream:
        grandchild = (await stream.read())[0]
        stream.write_nowait([b"go"])
        asked = trio.current_time()
        await everything(stream)
        reporting = trio.current_time()
        assert (await stream.loss()).exit_code == 5
        reported = trio.current_time()
    assert gone(grandchild)
    in_time(reporting - asked, 0.5)
    in_time(reported - reporting, 0.04)


@timely
async def test_a_refused_write_is_a_loss(child):
    async with child("no_input", grace=0.1) as stream:
        assert await stream.read() == [b"ready"]
        with pytest.raises(trio.BrokenResourceError):
            stream.write_nowait([b"x"])
        asked = trio.current_time()
        assert await stream.read() == []
        taken = trio.current_time() - asked
        assert (await stream.loss()).message == "closed its input"
        with pytest.raises(trio.BrokenResourceError):
            await stream.writable()
    in_time(taken, 0.5)


async def test_what_was_written_before_the_exit_is_read_however_late(child, monkeypatch):
    monkeypatch.setattr(stdio_stream, "DRAIN", 0)
    async with child("says_and_leaves", 5000) as stream:
        while not stream._ending:
            await trio.lowlevel.checkpoint()
        assert await everything(stream) == [b"%d" % n for n in range(5000)]


async def test_stderr_holds_nobody_up_and_its_last_lines_are_in_the_report(child):
    async with child("complains", 10_000_000) as stream:
        assert await stream.read() == [b"ready"]
        stream.write_nowait([b"go"])
        assert await stream.read() == [b"done"]
        stream.write_nowait([b"go"])
        assert await stream.read() == []
        loss = await stream.loss()
        assert loss.stderr_tail.splitlines() == [f"last {n}" for n in range(20)]
        assert len(stream._tree.stderr._kept) <= 64 << 10


async def test_after_the_block_it_is_used_up(child):
    async with child("polite") as stream:
        assert await stream.read() == [b"ready"]
    assert await stream.read() == []
    with pytest.raises(trio.BrokenResourceError):
        await stream.writable()


# what was never heard


async def test_what_an_exit_left_unread_is_unheard(child):
    async with child("leaves_unheard", 1) as stream:
        assert await stream.read() == [b"ready"]
        stream.write_nowait([b"probe"])
        assert await stream.read() == []
        loss = await stream.loss()
        assert (loss.exit_code, loss.unheard) == (1, True)


async def test_what_was_read_before_the_exit_is_heard(child):
    async with child("leaves", 1) as stream:
        assert await stream.read() == [b"ready"]
        stream.write_nowait([b"probe"])
        assert await stream.read() == []
        loss = await stream.loss()
        assert (loss.exit_code, loss.unheard) == (1, False)


async def test_a_descendant_that_may_still_read_leaves_it_unknown(child):
    async with child("leaves_reader", grace=0.1) as stream:
        await stream.read()
        stream.write_nowait([b"probe"])
        await everything(stream)
        loss = await stream.loss()
        assert (loss.exit_code, loss.unheard) == (5, False)


async def test_the_report_is_the_same_when_the_pipes_are_closed(child):
    async with child("leaves_unheard", 1) as stream:
        assert await stream.read() == [b"ready"]
        stream.write_nowait([b"probe"])
        assert await stream.read() == []
        loss = await stream.loss()
        assert loss.unheard
    assert await stream.loss() == loss
    assert await stream.read() == []
    with pytest.raises(trio.BrokenResourceError):
        stream.write_nowait([b"x"])


# long lines


def test_a_long_line_costs_as_much_as_its_bytes_however_small_the_pieces():
    """Q31: four times the pieces are about four times the work; looking at all that came before would be sixteen."""

    def cost(pieces):
        lines, piece = stdio_stream._LineBuffer(64 << 20), b"x" * 512
        before = time.process_time()
        for _ in range(pieces):
            assert lines.split(piece) == []
        (line,) = lines.split(b"\n")
        assert len(line) == pieces * 512
        return time.process_time() - before

    small, large = (min(cost(pieces) for _ in range(3)) for pieces in (2_048, 8_192))
    assert large < 9 * small


# what was taken


async def test_what_was_written_is_taken_once_it_is_read_and_not_before(child):
    async with child("ignores_eof", grace=0.1) as stream:
        await stream.read()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.taken)
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks  # nothing was written that could be read
            stream.write_nowait([b"probe"])
        assert stream._unread() == 0


async def test_what_nobody_reads_is_taken_when_nobody_can_any_more(child):
    async with child("sleeps", grace=0.1) as stream:
        assert await stream.read() == [b"ready"]
        stream.write_nowait([b"probe"])
        with trio.move_on_after(0.3) as patience:
            await stream.taken()
        assert patience.cancelled_caught
        os.kill(stream.pid, signal.SIGKILL)
        await stream.taken()
        assert (await stream.loss()).unheard


class Exited:
    """A process tree whose first process is gone, and whose pipes somebody else holds open."""

    exit_code = 0

    def __init__(self):
        reader, self.writer = os.pipe()
        self.unread, writer = os.pipe()
        self.stdout, self.stdin = trio.lowlevel.FdStream(reader), trio.lowlevel.FdStream(writer)

    async def wait(self):
        await trio.lowlevel.checkpoint()
        return 0

    async def close(self):
        for fd in (self.writer, self.unread):
            os.close(fd)
        for pipe in (self.stdout, self.stdin):
            await pipe.aclose()


async def test_what_a_descendant_still_says_is_heard_for_a_twentieth_of_a_second(autojump_clock):
    """L6: an answer that is under way when the process exits counts; a pipe that is never closed is not waited for."""
    tree = Exited()
    stream = stdio_stream.StdioStream(tree)

    async def say(at, line):
        await trio.sleep_until(at)
        os.write(tree.writer, line)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.end_reading)
        nursery.start_soon(say, 0.03125, b"an answer\n")
        assert await stream.read() == [b"an answer"]
        assert trio.current_time() == 0.03125
        assert await stream.read() == []
        assert trio.current_time() == pytest.approx(0.05)
    await tree.close()


async def test_nobody_waits_for_a_descendant_to_read(autojump_clock):
    """It holds the pipe open and reads nothing: the end of the process ends that wait too."""
    tree = Exited()
    stream = stdio_stream.StdioStream(tree)
    assert stream.write_nowait([b"x" * (1 << 20)]) == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.end_reading)
        with pytest.raises(trio.BrokenResourceError):
            await stream.writable()
        assert trio.current_time() == pytest.approx(0.05)
    await tree.close()
