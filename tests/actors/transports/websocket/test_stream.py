"""Frames on a WebSocket: what goes out, what comes in, how it ends; and that none of it waits for a peer for ever."""

from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, wrap_server_stream

from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.actors.transports.websocket.guard import HELD_SECONDS
from mcp_nursery.actors.transports.websocket.stream import UpgradeRequest, open_stream

from ....lab.timely import in_time, timely
from ....lab.websocket_peer import (
    BINARY,
    CONTINUATION,
    PING,
    TEXT,
    acceptance,
    close_frame,
    connector,
    everything,
    frame,
    listening,
    reset,
    scripted,
    serving,
)


async def write(opened, *frames):
    """As the outbox does: all of it, however often it takes."""
    waiting = list(frames)
    while waiting:
        del waiting[: opened.write_nowait(waiting)]
        await opened.writable()


@asynccontextmanager
async def in_memory(*, close_grace=1.0, streams=trio.testing.memory_stream_pair):
    """A stream and the server's connection, without sockets, for virtual time."""
    ours, theirs = streams()
    async with trio.open_nursery() as nursery:
        sides = []

        async def serve():
            request = await wrap_server_stream(nursery, theirs)
            sides.append(await request.accept(subprotocol="mcp"))

        nursery.start_soon(serve)
        opening = open_stream(ours, UpgradeRequest("host", "/"), close_grace=close_grace, frame_limit=1 << 20)
        async with opening as opened:
            yield opened, sides[0]
        nursery.cancel_scope.cancel()


# what goes over it


async def echo(request):
    connection = await request.accept(subprotocol="mcp")
    try:
        while True:
            await connection.send_message(await connection.get_message())
    except ConnectionClosed:
        pass


async def test_frames_cross_whole_and_in_order():
    frames = [b"[]", "ünï ✓".encode(), b"x" * 126, b"y" * (1 << 16), b"z" * (3 << 20), b"{}"]
    async with serving(echo) as url, connector(url).open() as opened, trio.open_nursery() as nursery:
        nursery.start_soon(write, opened, *frames)
        back = []
        while len(back) < len(frames):
            back += await opened.read()
    assert back == frames
    assert opened.pid is None


async def test_a_batch_is_begun_at_once_and_one_at_a_time():
    async with in_memory() as (opened, server):
        assert opened.write_nowait([]) == 0
        assert opened.write_nowait([b"1", b"2", b"3"]) == 3
        assert opened.unfinished
        assert opened.write_nowait([b"4"]) == 0
        await opened.writable()
        assert not opened.unfinished
        assert opened.write_nowait([b"4"]) == 1
        await opened.writable()
        assert [await server.get_message() for _ in range(4)] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("sizes", "begun"),
    [([1000] * 100, 65), ([1 << 20, 10], 1), ([1 << 16, 1], 1), ([10, 1 << 20], 1), ([1 << 15, 1 << 15], 2)],
)
async def test_what_one_write_may_not_hold_is_not_begun(sizes, begun):
    async with in_memory() as (opened, _):
        assert opened.write_nowait([b"x" * size for size in sizes]) == begun


async def test_a_batch_leaves_in_one_write(mock_clock):
    writes = []

    def counted():
        ours, theirs = trio.testing.memory_stream_pair()
        deliver = ours.send_stream.send_all_hook

        async def note():
            writes.append(True)
            await deliver()

        ours.send_stream.send_all_hook = note
        return ours, theirs

    async with in_memory(streams=counted) as (opened, peer):
        for size in (1, 20, 2_000):
            writes.clear()
            frames = [b"%d" % number for number in range(size)]
            await write(opened, *frames)
            assert len(writes) == 1
            assert [await peer.get_message() for _ in frames] == [frame.decode() for frame in frames]


async def test_a_batch_is_not_held_for_long_where_turns_take_their_time(autojump_clock):
    over = False

    async def take_time():
        while not over:
            autojump_clock.jump(HELD_SECONDS / 4)
            await trio.lowlevel.checkpoint()

    async with in_memory() as (opened, server), trio.open_nursery() as nursery:
        nursery.start_soon(take_time)
        began = trio.current_time()
        nursery.start_soon(write, opened, *[b"x"] * 128)
        assert await server.get_message() == "x"
        over = True
        assert trio.current_time() - began < 3 * HELD_SECONDS


@timely
async def test_a_peer_that_does_not_read_holds_up_the_write_and_nothing_else():
    """Q32: what was not begun was not touched; the peer is still heard."""

    async def deaf(stream):
        await stream.send_all(frame(TEXT, b"hello"))

    async with scripted(deaf, close_grace=0.1) as opened:
        assert opened.write_nowait([b"x" * (32 << 20)]) == 1
        with trio.move_on_after(0.1) as scope:
            await opened.writable()
        assert scope.cancelled_caught
        assert opened.unfinished
        assert opened.write_nowait([b"more"]) == 0
        assert await opened.read() == [b"hello"]
        left = trio.current_time()
    in_time(trio.current_time() - left, 1.0)


async def test_no_frame_is_sent_twice_by_a_write_that_was_given_up():
    """R2: whatever is cancelled, and however often it is taken up again."""
    async with in_memory() as (opened, server):
        for steps in range(8):
            assert opened.write_nowait([b"a", b"b", b"c"]) == 3
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(opened.writable)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            await opened.writable()
            assert not opened.unfinished
            assert [await server.get_message() for _ in range(3)] == ["a", "b", "c"]


async def test_a_flood_of_pings_from_a_peer_that_does_not_read_takes_no_memory():
    async def flood(stream):
        while True:
            await stream.send_all(frame(PING, b"x" * 100) * 1000)

    async with scripted(flood, close_grace=0.1) as opened, trio.open_nursery() as nursery:
        nursery.start_soon(opened.read)
        await trio.testing.wait_all_tasks_blocked(0.3)  # the flood is held up, as we are by it
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_pings_are_answered():
    heard = trio.Event()

    async def ask(stream):
        await stream.send_all(frame(PING, b"are you there"))
        data = await stream.receive_some()
        key, masked = data[2:6], data[6:]
        assert (data[0], data[1]) == (0x8A, 0x80 | 13)
        assert bytes(byte ^ key[n % 4] for n, byte in enumerate(masked)) == b"are you there"
        heard.set()

    async with scripted(ask):
        await heard.wait()


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (frame(BINARY, b'{"a":1}'), [b'{"a":1}']),
        (frame(BINARY, b"\xff\xfe"), [b"\xff\xfe"]),
        (frame(TEXT, b"no json"), [b"no json"]),
        (frame(TEXT, b""), [b""]),
        (frame(TEXT, b"one ", final=False) + frame(PING) + frame(CONTINUATION, b"two"), [b"one two"]),
        (frame(TEXT, "✓".encode()[:1], final=False) + frame(CONTINUATION, "✓".encode()[1:]), ["✓".encode()]),
        (b"".join(frame(TEXT, b"%d" % n) for n in range(2000)), [b"%d" % n for n in range(2000)]),
        (frame(TEXT, b"x" * (8 << 20)), [b"x" * (8 << 20)]),
    ],
    ids=["binary", "binary garbage", "garbage", "empty", "fragments", "a character in two", "many", "large"],
)
async def test_what_a_peer_may_send(sent, read):
    async def say(stream):
        await stream.send_all(sent + close_frame(1000))

    async with scripted(say) as opened:
        assert await everything(opened) == read


async def test_frames_in_the_packet_of_the_handshake():
    async def say(stream):
        await stream.send_all(await acceptance(stream) + frame(TEXT, b"early") + close_frame(1001))

    async with listening(say) as url, connector(url).open() as opened:
        assert await everything(opened) == [b"early"]


@pytest.mark.parametrize(("said", "heard"), [(b"", []), (frame(TEXT, b"early"), [b"early"])])
async def test_a_server_that_leaves_in_the_packet_of_the_handshake(said, heard):
    """L6: it was there, and what it said counts, whoever of us runs first."""
    for _ in range(20):
        ours, theirs = trio.testing.memory_stream_pair()

        async def say(theirs):
            await theirs.send_all(await acceptance(theirs) + said)
            await theirs.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(say, theirs)
            async with open_stream(ours, UpgradeRequest("host", "/"), close_grace=0, frame_limit=100) as opened:
                assert await everything(opened) == heard
                assert (await opened.loss()).message == "the connection ended without a close frame"


@pytest.mark.slow
async def test_a_handshake_byte_by_byte():
    async def say(stream):
        for byte in await acceptance(stream) + frame(TEXT, b"slow"):
            await stream.send_all(bytes([byte]))

    async with listening(say) as url, connector(url).open() as opened:
        assert await opened.read() == [b"slow"]


# how it ends

ENDS = {
    "close": (close_frame(1001, "going\nhome"), "closed with code 1001 (going away): going home"),
    "private close": (close_frame(4321, "mine"), "closed with code 4321 (private reserved): mine"),
    "bare close": (close_frame(), "closed without saying why"),
    "large": (
        frame(TEXT, b"x" * 2000),
        "closed with code 1009 (message too big): Exceeded maximum message size: 1000 bytes",
    ),
    "large in fragments": (
        frame(TEXT, b"x" * 600, final=False) + frame(CONTINUATION, b"x" * 600, final=False) + frame(PING),
        "closed with code 1009 (message too big): Exceeded maximum message size: 1000 bytes",
    ),
    "masked": (
        frame(TEXT, header=b"\x81\x81abcd", payload=b"x"),
        "closed with code 1002 (protocol error): client received unexpected masked frame",
    ),
    "unknown opcode": (
        frame(TEXT, header=b"\x83\x00"),
        "closed with code 1002 (protocol error): Invalid opcode 0x3",
    ),
    "continues nothing": (
        frame(CONTINUATION, b"x"),
        "closed with code 1002 (protocol error): unexpected CONTINUATION",
    ),
    "not UTF-8": (
        frame(TEXT, b"\xff"),
        "closed with code 1007 (invalid frame payload data): "
        "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
}


@pytest.mark.parametrize(("last", "message"), ENDS.values(), ids=ENDS)
async def test_an_end_is_told_in_one_line_after_all_that_came_before(last, message):
    """L6: at once, although the connection stays open."""

    async def say(stream):
        await stream.send_all(frame(TEXT, b"first") + last)

    async with scripted(say, frame_limit=1000) as opened:
        assert await everything(opened) == [b"first"]
        loss = await opened.loss()
        assert loss == Loss(message, unheard=True)
        with pytest.raises(trio.BrokenResourceError):
            opened.write_nowait([b"x"])
        with pytest.raises(trio.BrokenResourceError):
            await opened.writable()
        assert await opened.read() == []
    assert await opened.loss() == loss


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (trio.SocketStream.aclose, "the connection ended without a close frame"),
        (trio.SocketStream.send_eof, "the connection ended without a close frame"),
        (reset, "the connection broke: Connection reset by peer"),
    ],
    ids=["end", "half end", "reset"],
)
@timely
async def test_a_connection_that_goes_is_noticed_at_once(end, message):
    """L6: while idle, in less than 0.5 s."""
    ended = []

    async def say(stream):
        await stream.receive_some()
        ended.append(trio.current_time())
        await end(stream)

    async with scripted(say) as opened:
        assert opened.write_nowait([b"hello"]) == 1
        with suppress(trio.BrokenResourceError):  # it may be gone already
            await opened.writable()
        assert await everything(opened) == []
        taken = trio.current_time() - ended[0]
        assert await opened.loss() == Loss(message, unheard=False)
    in_time(taken, 0.5)


async def test_an_answer_is_read_although_a_later_write_fails():
    """R3: what the peer said before it went still counts."""
    gone = trio.Event()

    async def answer_and_go(stream):
        await stream.receive_some()
        await stream.send_all(b"".join(frame(TEXT, b"%d" % n) + frame(PING) for n in range(100)))
        await reset_softly(stream)
        gone.set()

    async def reset_softly(stream):
        await stream.aclose()  # with unread data: the peer's kernel answers a write with a reset

    async with scripted(answer_and_go) as opened:
        await write(opened, b"call")
        await gone.wait()
        with pytest.raises(trio.BrokenResourceError):
            await write(opened, *[b"x" * 65536] * 1000)
        assert await everything(opened) == [b"%d" % n for n in range(100)]


async def test_a_close_of_ours_says_goodbye_and_waits_for_the_answer():
    heard = []

    async def listen(request):
        connection = await request.accept(subprotocol="mcp")
        with pytest.raises(ConnectionClosed) as closed:
            await connection.get_message()
        heard.append(closed.value.reason.code)

    async with serving(listen) as url:
        async with connector(url).open():
            pass
        assert heard == [1000]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_peer_that_does_not_answer_the_close_is_left_in_time(autojump_clock, cancelled):
    """L10: after the grace, also when cancelled."""
    with trio.CancelScope() as scope:
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:

            async def greet():
                await theirs.send_all(await acceptance(theirs))

            nursery.start_soon(greet)
            opening = open_stream(ours, UpgradeRequest("host", "/"), close_grace=2.0, frame_limit=100)
            async with opening:
                left = trio.current_time()
                if cancelled:
                    scope.cancel()
    assert trio.current_time() - left == 2.0


async def test_a_ping_during_the_close_is_no_crash_and_holds_up_nothing():
    async def ping_then_close(stream):
        await stream.receive_some()
        await stream.send_all(frame(PING, b"?") + close_frame(1000))

    with trio.fail_after(10):
        async with scripted(ping_then_close, close_grace=30):
            pass


async def test_the_blocks_own_exception_comes_out_as_it_is():
    class Mine(Exception):
        pass

    async with serving(echo) as url:
        with pytest.raises(Mine):
            async with connector(url).open():
                raise Mine


async def test_a_batch_that_a_close_overtook_is_told_to_be_broken():
    async with in_memory() as (opened, server):
        assert opened.write_nowait([b"x"]) == 1
        await server.aclose(4000)
        assert await opened.read() == []
        with pytest.raises(trio.BrokenResourceError):
            await opened.writable()
        assert not (await opened.loss()).unheard  # it might have left


@pytest.mark.slow
async def test_fragments_of_nothing_hold_up_nobody_and_end():
    """They stopped the loop for half a second each time it read, and were kept without end."""
    passed = 0

    async def flood(stream):
        with suppress(trio.BrokenResourceError):
            await stream.send_all(frame(TEXT, final=False) + frame(0, final=False) * 300_000)

    async def others():
        nonlocal passed
        while True:
            passed += 1
            await trio.lowlevel.checkpoint()

    async with scripted(flood, close_grace=0.1) as opened, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await everything(opened) == []
        nursery.cancel_scope.cancel()
        assert (await opened.loss()).message == "sent a message in more than 100000 fragments"
    assert passed >= 100_000 // 64  # once at least between two handfuls


async def test_a_message_of_many_fragments_is_one():
    async def say(stream):
        await stream.send_all(frame(TEXT, b"a", final=False) + frame(0, b"a", final=False) * 5000 + frame(0, b"b"))
        await stream.send_all(close_frame())

    async with scripted(say) as opened:
        assert await everything(opened) == [b"a" * 5001 + b"b"]
