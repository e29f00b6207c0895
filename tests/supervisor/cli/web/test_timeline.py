"""The picture of a life: what is drawn of which fact, the same in words, and what servers say as text alone."""

import re

from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.cli.lives import IncarnationRecord, Load, ServerHistory, TaskSpan
from mcp_nursery.supervisor.cli.web.timeline import LONGEST_WHY, MOST_SAID, life_in_words, timeline

from .test_markup import read


def clock(at):
    return f"{at:.0f}"


def past(*records, load=(), tasks=()):
    found = ServerHistory()
    found.tasks.extend(tasks)
    found.incarnations.extend(records)
    found.load.extend(load)
    return found


def drawn(found, now=100, window=100):
    return timeline(found, now, window, clock=clock, unix=1_000)


LOST = IncarnationRecord(1, 1, 0, 10, 40, "exited with code 7", "waiting", 50)
LASTS = IncarnationRecord(2, 2, 50, 60)


def test_bars_gaps_marks_and_calls():
    picture = drawn(past(LOST, LASTS, load=[Load(70, 30, 0), Load(80, 10, 5)]))
    rects = re.findall(r'<rect x="([\d.]+)%" y="[\d.]+%" width="([\d.]+)%" height="([\d.]+)%" class="(\w+)">', picture)
    assert [(kind, float(x), float(width)) for x, width, _, kind in rects] == [
        ("done", 60, 10), ("done", 70, 10), ("failed", 70, 10),
        ("begin", 0, 10), ("up", 10, 30), ("wait", 40, 10), ("begin", 50, 10), ("up", 60, 940),
    ]  # fmt: skip
    heights = [float(height) for _, _, height, kind in rects if kind in ("done", "failed")]
    assert heights[0] > heights[1] > heights[2]
    assert re.findall(r'<line x1="40.00%" x2="40.00%"', picture)
    assert "<title>40 exited with code 7</title>" in picture
    assert 'data-drawn="1000" data-window="100"' in picture


def test_held_calls_and_tasks_lie_above():
    back = IncarnationRecord(2, 2, 50, 60, held=2)
    tasks = [TaskSpan("a", "<work>", 20, 30), TaskSpan("b", "rest", 70), TaskSpan("c", "gone", -60, -50)]
    found = past(LOST, back, tasks=tasks)
    picture = drawn(found)
    assert "<title>60 2 calls had waited</title>" in picture
    assert '<line x1="60.00%" x2="60.00%" y1="28%"' in picture
    bars = re.findall(r'<rect x="([\d.]+)%" y="37%" class="task" width="([\d.]+)%"', picture)
    assert [(float(x), float(width)) for x, width in bars] == [(20, 10), (70, 930)]
    assert "<title>task of &lt;work&gt; since 20</title>" in picture
    words = life_in_words(found, 100, clock)
    assert words == "connection 2 since 60; 1 task under way; lost at 40: exited with code 7; 2 calls had waited at 60"


def test_the_same_facts_stand_in_words():
    assert life_in_words(past(LOST, LASTS), 100, clock) == "connection 2 since 60; lost at 40: exited with code 7"
    assert life_in_words(past(LOST), 100, clock) == "waits for start 2 since 40; lost at 40: exited with code 7"
    assert life_in_words(past(), 100, clock) == "not connected"
    many = [IncarnationRecord(number, 1, number, None, number + 1, "no", "failed") for number in range(8)]
    words = life_in_words(past(*many), 100, clock)
    assert words.startswith("failed since 8; lost at 8: no; lost at 7: no")
    assert words.endswith(f"and {8 - MOST_SAID} losses before")


@given(st.text(), st.floats(0, 1e9))
def test_words_of_a_server_are_text_and_few(why, now):
    lost = [IncarnationRecord(number, 1, 0, 1, 2, why + "<script>" * 1_000, "failed") for number in range(30)]
    picture = drawn(past(*lost), now=now, window=3600)
    assert {each[0] for each in read(picture) if isinstance(each, tuple)} <= {
        "svg", "rect", "g", "title", "line", "circle",
    }  # fmt: skip
    assert len(picture) < 30 * (6 * LONGEST_WHY + 1_000)
