"""What a server's process writes to standard error, followed line by line."""

import os
from contextlib import contextmanager

import pytest
import trio

from mcp_nursery.actors.process.stderr_tail import KEPT, Tail
from mcp_nursery.supervisor.stderr import LONGEST_LINE, MOST_LINES, StderrLines, StderrLogs


class Process:
    """Somebody who writes, and what is pumped of it."""

    def __init__(self, *secrets):
        self.theirs, ours = (trio.lowlevel.FdStream(fd) for fd in reversed(os.pipe()))
        self.tail = Tail(ours, secrets)

    async def write(self, data):
        """Write it, and have it taken by who looks at the tail."""
        for start in range(0, len(data), KEPT // 2):
            await self.theirs.send_all(data[start : start + KEPT // 2])
            assert self.tail.text is not None

    async def end(self):
        await self.theirs.aclose()
        await self.tail.pump()
        self.tail.close()


@contextmanager
def opened(logs, redact=str):
    """Lines as a user gets them."""
    with logs.open("lab") as lines:
        yield StderrLines(lines, redact)


def taken(lines):
    found = []
    try:
        while True:
            found.append(lines.receive_nowait())
    except (trio.WouldBlock, trio.EndOfChannel):
        return found


async def test_lines_begin_with_the_last_and_go_on():
    logs, process = StderrLogs(), Process()
    await process.write(b"a\nb\nhalf")
    logs.begin("lab", process.tail)
    with opened(logs, str.upper) as lines, opened(logs) as other:
        assert taken(lines) == ["A", "B"]
        await process.write(b" a line\nc\nlast")
        assert taken(lines) == ["HALF A LINE", "C"]
        await process.end()
        assert taken(lines) == ["LAST"]
        assert taken(other) == ["a", "b", "half a line", "c", "last"]
        following = Process()
        await following.theirs.send_all(b"at once\n")
        logs.begin("lab", following.tail)
        await following.write(b"again\n")
        assert taken(lines) == ["AT ONCE", "AGAIN"]
        await following.end()
    with opened(logs) as lines:
        assert taken(lines) == ["at once", "again"]
        logs.end_all()
        with pytest.raises(trio.EndOfChannel):
            await lines.receive()


async def test_nobody_follows_who_has_left():
    logs, process = StderrLogs(), Process()
    logs.begin("lab", process.tail)
    with opened(logs) as lines, opened(logs):
        pass
    await process.write(b"a\n")
    with pytest.raises(trio.ClosedResourceError):
        lines.receive_nowait()
    assert process.tail._hear is None
    with opened(logs) as lines:
        assert taken(lines) == ["a"]
    await process.end()


async def test_a_secret_is_never_cut_apart():
    """T9: neither by two writes, nor by the end of a line that is too long."""
    logs, process = StderrLogs(), Process("correct horse")
    logs.begin("lab", process.tail)
    with opened(logs) as lines:
        await process.write(b"a correct ")
        await process.write(b"horse b\n")
        assert taken(lines) == ["a [REDACTED] b"]
        await process.write(b"x" * KEPT * 3 + b"correct horse\nc\n")
        assert taken(lines) == ["[a line of more than 64 KiB]", "c"]
        await process.write(b"y" * KEPT * 2)
        await process.end()
        assert taken(lines) == ["[a line of more than 64 KiB]"]


async def test_who_begins_within_a_line_that_is_too_long():
    logs, process = StderrLogs(), Process()
    await process.write(b"x" * KEPT * 2)
    logs.begin("lab", process.tail)
    with opened(logs) as lines:
        await process.write(b"x\ny\n")
        assert taken(lines) == ["[a line of more than 64 KiB]", "y"]
    await process.end()


async def test_a_process_has_written_more_than_a_tail_before_it_is_known():
    """One that starts while somebody follows its server: no line of it is missed."""
    logs, first, second = StderrLogs(), Process(), Process()
    logs.begin("lab", first.tail)
    with opened(logs) as lines:
        await second.write(b"".join(b"%d\n" % n for n in range(50)) + b"half")
        logs.begin("lab", second.tail)
        assert taken(lines) == [str(n) for n in range(50)]
        await second.write(b" a line\n")
        assert taken(lines) == ["half a line"]
    await first.end()
    await second.end()


async def test_a_reader_that_falls_behind_is_told_how_far():
    logs, process = StderrLogs(), Process()
    logs.begin("lab", process.tail)
    with opened(logs) as lines:
        await process.write(b"".join(b"%d\n" % n for n in range(MOST_LINES + 7)))
        await process.write(b"z" * (LONGEST_LINE + 1) + b"\n")
        missed, *rest = taken(lines)
        assert (missed, len(rest)) == ("[8 lines were missed]", MOST_LINES)
        assert rest[0] == "8"
        assert rest[-1] == "z" * LONGEST_LINE
        await lines.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await lines.receive()
    await process.end()


async def test_a_flood_of_empty_lines_costs_no_more_than_can_be_read_of_it():
    process, told = Process(), []
    process.tail.follow(lambda lines, missed: told.append((missed, lines)))
    await process.write(b"\n" * (KEPT // 2) + b"the last\nand half")
    await process.write(b" a line\n")
    assert [(missed, len(lines), lines[-1]) for missed, lines in told] == [
        (KEPT // 2 - MOST_LINES, MOST_LINES, ""),
        (0, 1, "the last"),
        (0, 1, "and half a line"),
    ]
    await process.end()


async def test_a_reader_may_fall_behind_by_so_many_characters():
    """A thousand lines of 64 KiB each waited for one."""
    logs, process = StderrLogs(), Process()
    logs.begin("lab", process.tail)
    with opened(logs) as lines:
        for number in range(40):
            await process.write(b"%05d\n" % number)
            await process.write(b"x" * (KEPT - 1) + b"\n")
        missed, first, *_ = taken(lines)
        assert (missed, first) == ("[50 lines were missed]", "00025")  # 15 of the long ones have room
    await process.end()
