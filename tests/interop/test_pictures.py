"""The moving picture of the README: it shows what it is to show, and stands in the documentation as it is drawn."""

from xml.etree import ElementTree

import trio

from . import moving_picture as it

SVG = "{http://www.w3.org/2000/svg}"


def test_a_server_has_crashed_waits_and_is_back_and_a_call_that_was_held_is_answered():
    frames = trio.run(it.record, clock=trio.testing.MockClock(autojump_threshold=0))
    shown = ["\n".join("".join(segment.text for segment in line) for line in frame) for frame in frames]
    assert "2 of 3 connected" in shown[0]
    assert "start 2 of 4" in shown[0]
    assert it.Caller.NAME in shown[0]
    back = next(number for number, text in enumerate(shown) if "connected, incarnation 3" in text)
    held = [number for number, text in enumerate(shown) if "held for" in text]
    answered = [number for number, text in enumerate(shown) if "s after it was made" in text]
    assert held + answered == [*range(len(shown))]
    assert 0 < back <= answered[0] < len(shown)
    assert "3 of 3 connected" in shown[-1]
    drawn, kept = (ElementTree.fromstring(text) for text in (it.picture(frames), it.PICTURE.read_text()))
    assert len(drawn.findall(f"{SVG}g")) == len(kept.findall(f"{SVG}g")) == len(frames)
    words = "".join(kept.itertext())
    assert "exited with code 137: out of memory" in words
    assert "3 of 3 connected" in words
