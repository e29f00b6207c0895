"""What a process writes to a pipe, remembered without its secrets."""

import os

import pytest
import trio
import trio.testing

from mcp_nursery.actors.process.stderr_tail import KEPT, Tail

SECRET = "correct horse battery staple"


@pytest.fixture
async def written():
    """What is remembered of these bytes: `await written(b"…")`."""

    async def write(data, *secrets):
        theirs, ours = (trio.lowlevel.FdStream(fd) for fd in reversed(os.pipe()))
        tail = Tail(ours, secrets)
        async with theirs, ours, trio.open_nursery() as nursery:
            nursery.start_soon(tail.pump)
            await theirs.send_all(data)
            await theirs.aclose()
            await tail.ended.wait()
            return tail.text

    return write


async def test_secrets_are_taken_out_the_longer_first(written):
    """T9: also where one is a part of another."""
    text = f"a {SECRET} b {SECRET[:7]} c"
    assert await written(text.encode(), SECRET[:7], SECRET) == "a [REDACTED] b [REDACTED] c"


@pytest.mark.parametrize("lost", range(len(SECRET) + 1))
async def test_what_is_left_of_a_secret_at_the_cut_is_taken_out_too(written, lost):
    """T9: only the last 64 KiB are kept, and they may begin within a secret, which then is none that could be found."""
    data = (SECRET + "." * KEPT).encode()[: KEPT + lost]
    kept = await written(data, SECRET, SECRET[:3])
    assert kept.strip(".") == ("" if lost else "[REDACTED]")


async def test_without_a_cut_the_beginning_stays(written):
    """T9: what looks like the rest of a secret is one only behind a cut."""
    assert await written(SECRET[3:].encode(), SECRET) == SECRET[3:]


async def test_its_age_is_counted_to_the_end_of_the_pipe(autojump_clock):
    """Whoever asks may have been busy: what was said last then still says why."""
    theirs, ours = (trio.lowlevel.FdStream(fd) for fd in reversed(os.pipe()))
    tail = Tail(ours, ())
    async with ours:
        async with theirs, trio.open_nursery() as nursery:
            nursery.start_soon(tail.pump)
            await theirs.send_all(b"sorry")
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)
            assert tail.age == 1
            await theirs.aclose()
        await trio.sleep(10)
        assert tail.age == 1
