"""What comes on a WebSocket is handed on whole, in order, and few frames at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.transports.websocket import guard
from mcp_nursery.actors.transports.websocket.guard import FramePace


def frame(first, payload, mask=b""):
    size, masked = len(payload), 128 if mask else 0
    if size < 126:
        head = bytes([first, size | masked])
    else:
        head = (
            bytes([first, 126 | masked]) + size.to_bytes(2)
            if size < 1 << 16
            else bytes([first, 127 | masked]) + size.to_bytes(8)
        )
    return head + mask + payload


def taken(pace):
    return list(iter(pace.take, b""))


frames = st.builds(
    frame,
    st.sampled_from([0x01, 0x81, 0x00, 0x80, 0x89, 0x02]),
    st.integers(0, 200).map(bytes) | st.sampled_from([bytes(125), bytes(126), bytes(70_000)]),
    st.sampled_from([b"", b"", b"mask"]),
)


@given(st.lists(frames, max_size=20), st.lists(st.integers(1, 3000), max_size=30), st.integers(1, 3))
def test_all_of_it_comes_in_order_wherever_reads_end(sent, cuts, at_once):
    data, pace, got = b"".join(sent), FramePace(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "_FRAMES_AT_ONCE", at_once)
        for cut in cuts:
            pace.add(data[:cut])
            data = data[cut:]
            got += taken(pace)
        pace.add(data)
        got += taken(pace)
    assert b"".join(got) == b"".join(sent)
    assert all(len(each) <= 2 * 70_100 * at_once for each in got)


def test_frames_of_nothing_come_sixty_four_at_a_time():
    pace = FramePace()
    pace.add(frame(1, b"") + frame(0, b"") * 999)
    assert [len(each) for each in taken(pace)] == [128] * 15 + [80]
    assert pace.fragments == 1000


def test_a_long_frame_comes_as_it_is_read():
    pace, whole = FramePace(), frame(0x81, bytes(200_000))
    pace.add(whole[:65_536])
    assert taken(pace) == [whole[:65_536]]
    pace.add(whole[65_536:131_072])
    assert taken(pace) == [whole[65_536:131_072]]


@pytest.mark.parametrize(("last", "fragments"), [(0x80, 0), (0x81, 0), (0x89, 3), (0x00, 4)])
def test_fragments_are_counted_to_the_end_of_their_message(last, fragments):
    pace = FramePace()
    pace.add(frame(1, b"a") + frame(0, b"") * 2 + frame(last, b""))
    taken(pace)
    assert pace.fragments == fragments
