"""The life of a server as a picture: SVG, with the same facts in words for who cannot see it. Pure.

The picture is drawn in parts of its width, so that it fits any width, and is drawn again only when a fact has changed:
between two facts browsers slide its inner picture to the left, and what lasts reaches beyond the right edge.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, TypeAlias

from ..lives import HOUR, SAMPLE, LifePhase, ServerHistory, Span
from ..statuses import counted
from .markup import Html, h

Clock: TypeAlias = Callable[[float], str]
"""The function that returns the time of the day, in words, of a time on the clock of the facts."""
LONGEST_WHY: Final = 200
"""Characters of a reason in a picture."""
MOST_SAID: Final = 5
"""Losses that the words about a picture name, the latest ones."""
_AHEAD: Final = 1_000
"""The right end of what lasts, in hundredths of the width."""
_CALLS: Final = 34
"""The height of the calls, in hundredths."""
_BANDS: Final = {LifePhase.BEGIN: (58, 24), LifePhase.UP: (44, 52), LifePhase.WAIT: (68, 4), LifePhase.DOWN: (66, 8)}
"""The top and the height of each phase, in hundredths."""


def timeline(past: ServerHistory, now: float, window: float, *, clock: Clock, unix: float) -> Html:
    """The last `window` seconds of a life. `unix` is the Unix time of `now`, from which browsers go on."""
    since = now - window

    def place(at: float) -> float:
        return max((at - since) / window * 100, -1.0)

    facts = (_tasks, _spans, _losses, _held)
    drawn = [*_calls(past, since, place), *chain.from_iterable(draw(past, since, place, clock) for draw in facts)]
    inner = h("svg", drawn, class_="plot", data_drawn=f"{unix:.0f}", data_window=f"{window:.0f}")
    return h("svg", inner, class_="plot", role="img", aria_label=life_in_words(past, now, clock))


def _spans(past: ServerHistory, since: float, place: Callable[[float], float], clock: Clock) -> Iterator[Html]:
    for span in past.spans(since):
        left, right = place(span.began), _AHEAD if span.ended is None else place(span.ended)
        top, height = _BANDS[span.phase]
        yield h(
            "rect",
            h("title", said_of(span, clock)),
            x=f"{left:.2f}%",
            y=f"{top}%",
            width=f"{right - left:.2f}%",
            height=f"{height}%",
            class_=str(span.phase),
        )


def _losses(past: ServerHistory, since: float, place: Callable[[float], float], clock: Clock) -> Iterator[Html]:
    for lost in past.losses(since):
        at = f"{place(lost.ended or since):.2f}%"
        said = f"{clock(lost.ended or since)} {(lost.why or '')[:LONGEST_WHY]}"
        mark = h("line", x1=at, x2=at, y1="38%", y2="100%"), h("circle", cx=at, cy="40%", r="3.5")
        yield h("g", h("title", said), mark, class_="loss")


def _held(past: ServerHistory, since: float, place: Callable[[float], float], clock: Clock) -> Iterator[Html]:
    """Ticks where calls had waited for the server until it was connected."""
    for each in past.incarnations:
        if each.held and each.connected is not None and each.connected > since:
            at = f"{place(each.connected):.2f}%"
            said = h("title", f"{clock(each.connected)} {counted(each.held, 'call')} had waited")
            yield h("g", said, h("line", x1=at, x2=at, y1="28%", y2="44%"), class_="held")


def _tasks(past: ServerHistory, since: float, place: Callable[[float], float], clock: Clock) -> Iterator[Html]:
    for each in past.tasks:
        if each.ended is None or each.ended > since:
            left, right = place(each.began), _AHEAD if each.ended is None else place(each.ended)
            said = h("title", f"task of {each.tool[:LONGEST_WHY]} since {clock(each.began)}")
            size = {"width": f"{max(right - left, 0.3):.2f}%", "height": "4%"}
            yield h("rect", said, x=f"{left:.2f}%", y="37%", class_="task", **size)


def _calls(past: ServerHistory, since: float, place: Callable[[float], float]) -> Iterator[Html]:
    """The calls, in steps of some seconds: the highest of them is the highest here."""
    seen = [each for each in past.load if each.at > since]
    most = max((each.done + each.failed for each in seen), default=0)
    width = place(since + SAMPLE)
    for each in seen:
        low = 0.0
        for count, kind in ((each.done, "done"), (each.failed, "failed")):
            if count:
                height = max(count / most * _CALLS, 4)
                x, y = f"{place(each.at - SAMPLE):.2f}%", f"{_CALLS - low - height:.1f}%"
                yield h("rect", x=x, y=y, width=f"{width:.2f}%", height=f"{height:.1f}%", class_=kind)
                low += height


def said_of(span: Span, clock: Clock) -> str:
    """One part of a life in words."""
    record = span.record
    match span.phase:
        case LifePhase.BEGIN:
            return f"start {record.attempt} at {clock(span.began)}"
        case LifePhase.UP:
            return f"connection {record.number} since {clock(span.began)}"
        case LifePhase.WAIT:
            return f"waits for start {record.attempt + 1} since {clock(span.began)}"
        case _:
            return f"{record.then.replace('_', ' ')} since {clock(span.began)}"


def life_in_words(past: ServerHistory, now: float, clock: Clock) -> str:
    """A life in words: the present, and the latest losses and held calls of an hour."""
    spans, lost = past.spans(now - HOUR), past.losses(now - HOUR)
    present = said_of(spans[-1], clock) if spans and spans[-1].ended is None else "not connected"
    tasks = sum(each.ended is None for each in past.tasks)
    latest = lost[: -MOST_SAID - 1 : -1]
    told = [f"lost at {clock(each.ended or now)}: {(each.why or '')[:LONGEST_WHY]}" for each in latest]
    more = f"and {len(lost) - MOST_SAID} losses before" if len(lost) > MOST_SAID else ""
    held = [
        f"{counted(each.held, 'call')} had waited at {clock(each.connected or now)}"
        for each in past.incarnations
        if each.held and (each.connected or 0) > now - HOUR
    ]
    under_way = f"{counted(tasks, 'task')} under way" if tasks else ""
    return "; ".join(filter(None, [present, under_way, *told, more, *held[: -MOST_SAID - 1 : -1]]))
