"""Boxes, arrows and sequences as SVG. Nothing else is needed to draw them; they follow the colours of the page."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

LINE = 17
"""Pixels from one line of text to the next."""


class Box(NamedTuple):
    """A rounded rectangle with a text of one or more lines around its middle."""

    x: float
    """Of its middle."""
    y: float
    text: str
    kind: str = ""
    """A CSS class."""
    width: float = 130
    height: float = 40


class Arrow(NamedTuple):
    """From the border of one box to the border of another."""

    start: str
    end: str
    text: str = ""
    both: bool = False
    """A head at each end."""
    kind: str = ""
    shift: float = 0.0
    """Pixels to the left of the straight way: for two arrows between the same boxes."""
    lift: float = -11.0
    """Pixels from the line down to its text."""
    aside: float = 0.0
    """Pixels from the line to the right, to the middle of its text."""


def figure(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """The SVG of these parts."""
    marker = (
        '<marker id="{id}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="{id}" d="M0 0 10 5 0 10z"/></marker>'
    )
    return (
        f'<svg class="diagram" viewBox="0 0 {width:g} {height:g}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'style="max-width: {width:g}px"><title>{escape(title)}</title>'
        f"<defs>{marker.format(id='head')}</defs>{''.join(parts)}</svg>"
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Lines of text around a point."""
    lines = words.split("\n")
    top = y - LINE * (len(lines) - 1) / 2
    spans = "".join(
        f'<tspan x="{x:g}" y="{top + LINE * number:g}">{escape(line)}</tspan>' for number, line in enumerate(lines)
    )
    return f'<text class="{kind}">{spans}</text>'


def box(it: Box) -> str:
    """A box."""
    left, top = it.x - it.width / 2, it.y - it.height / 2
    return (
        f'<rect class="box {it.kind}" x="{left:g}" y="{top:g}" width="{it.width:g}" height="{it.height:g}" rx="8"/>'
        + text(it.x, it.y, it.text, "in-box")
    )


def line(x1: float, y1: float, x2: float, y2: float, *, kind: str = "", both: bool = False) -> str:
    """An arrow between two points."""
    tail = ' marker-start="url(#head)"' if both else ""
    return (
        f'<line class="arrow {kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        f'{tail} marker-end="url(#head)"/>'
    )


def _border(it: Box, x: float, y: float, dx: float, dy: float) -> tuple[float, float]:
    """Where the way from (x, y) inside the box, in a direction, leaves it."""
    ways = [math.inf]
    if dx:
        ways.append(((it.x + math.copysign(it.width / 2 + 3, dx)) - x) / dx)
    if dy:
        ways.append(((it.y + math.copysign(it.height / 2 + 3, dy)) - y) / dy)
    way = min(ways)
    return x + dx * way, y + dy * way


def bend(*points: tuple[float, float], kind: str = "") -> str:
    """An arrow along these points."""
    way = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="arrow {kind}" points="{way}" marker-end="url(#head)"/>'


def graph(
    size: tuple[float, float], title: str, boxes: dict[str, Box], arrows: Sequence[Arrow], more: Sequence[str] = ()
) -> str:
    """Boxes with arrows between them, and more."""
    parts = [*(box(it) for it in boxes.values()), *more]
    for arrow in arrows:
        a, b = boxes[arrow.start], boxes[arrow.end]
        dx, dy = b.x - a.x, b.y - a.y
        length = math.hypot(dx, dy)
        ox, oy = arrow.shift * dy / length, -arrow.shift * dx / length
        x1, y1 = _border(a, a.x + ox, a.y + oy, dx, dy)
        x2, y2 = _border(b, b.x + ox, b.y + oy, -dx, -dy)
        parts.append(line(x1, y1, x2, y2, kind=arrow.kind, both=arrow.both))
        if arrow.text:
            parts.append(text((x1 + x2) / 2 + arrow.aside, (y1 + y2) / 2 + arrow.lift, arrow.text, "label"))
    return figure(*size, title, parts)


class Step(NamedTuple):
    """A message of a sequence; one without a receiver is a note beside who has it."""

    sender: str
    receiver: str
    text: str
    kind: str = ""


def sequence(title: str, names: Sequence[str], steps: Sequence[Step], *, gap: float = 220) -> str:
    """Who says what to whom, from top to bottom."""
    places = {name: gap * (number + 0.5) for number, name in enumerate(names)}
    parts = [box(Box(x, 30, name, "actor", gap - 30, 44)) for name, x in places.items()]
    y = 62.0
    drawn: list[str] = []
    for step in steps:
        lines = step.text.count("\n") + 1
        y += 17 + LINE * lines
        here = places[step.sender]
        if not step.receiver:
            drawn.append(box(Box(here, y - LINE * lines / 2 + 8, step.text, "note", gap - 14, LINE * lines + 10)))
            y += 12
            continue
        there = places[step.receiver]
        way = math.copysign(1, there - here)
        drawn.append(line(here + 2 * way, y, there - 2 * way, y, kind=step.kind))
        drawn.append(text((here + there) / 2, y - 11 - LINE * (lines - 1) / 2, step.text, "label"))
    height = y + 26
    parts += [f'<line class="life" x1="{x:g}" y1="52" x2="{x:g}" y2="{height - 6:g}"/>' for x in places.values()]
    return figure(gap * len(names), height, title, parts + drawn)
