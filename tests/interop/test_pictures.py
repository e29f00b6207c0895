"""The moving picture of the README: it shows what it is to show, and stands in the documentation as it is drawn."""

from xml.etree import ElementTree

import trio

from . import moving_picture as it

SVG = "{http://www.w3.org/2000/svg}"


def test_a_server_crashes_waits_and_is_back():
    frames = trio.run(it.record, clock=trio.testing.MockClock(autojump_threshold=0))
    shown = ["\n".join("".join(segment.text for segment in line) for line in frame) for frame in frames]
    waits = next(number for number, text in enumerate(shown) if "start 2 of 4" in text)
    back = next(number for number, text in enumerate(shown) if "connected, incarnation 3" in text)
    assert 0 < waits < back < len(shown)
    assert "3 of 3 connected" in shown[-1]
    drawn, kept = (ElementTree.fromstring(text) for text in (it.picture(frames), it.PICTURE.read_text()))
    assert len(drawn.findall(f"{SVG}g")) == len(kept.findall(f"{SVG}g")) == len(frames)
    words = "".join(kept.itertext())
    assert "exited with code 137: out of memory" in words
    assert "3 of 3 connected" in words
