"""Plots as SVG, written by hand: two panels each, both axes logarithmic."""

import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

WIDTH, HEIGHT, GAP = 380, 300, 70
LEFT, TOP = 60, 40
LEGEND = 200
COLOURS = {
    "mcp-nursery": "#d62728",
    "mcp-nursery, a task a call": "#ff7f0e",
    "SDK, asyncio": "#1f77b4",
    "SDK, Trio": "#17becf",
    "FastMCP ClientGroup": "#2ca02c",
    "FastMCP multi-server client": "#98a02c",
    "langchain-mcp-adapters": "#9467bd",
    "mcp-use": "#e377c2",
    "floor: pipes and orjson": "#7f7f7f",
    "a server that notifies": "#d62728",
    "a server that is asked": "#1f77b4",
}
Series = dict[str, list[tuple[float, float]]]
"""By contender: a cost over a size."""


def fan_out(tables: Iterable[dict[str, Any]]) -> str:
    panels: dict[str, Series] = {"stdio": {}, "in-process": {}}
    for table in tables:
        found = re.match(r"Fan-out to (\d+) (stdio|in-process) servers", table["title"])
        assert found is not None
        for name, figures in table["figures"].items():
            panels[found[2]].setdefault(name, []).append((int(found[1]), figures["wall_p25"] * 1e6))
    return _drawn({f"{kind} servers: wall, us a call (p25)": series for kind, series in panels.items()}, "servers")


def open_loop(figures: Mapping[str, Any]) -> str:
    """The median and the 99th percentile over the load."""
    panels: dict[str, Series] = {}
    for percentile in ("p50", "p99"):
        panels[f"{percentile} of latency from when a call was due, ms"] = {
            name: [(float(load), found[percentile] * 1e3) for load, found in one["loads"].items()]
            for name, one in figures.items()
        }
    return _drawn(panels, "calls a second")


def tasks(figures: Mapping[tuple[int, bool], Mapping[str, float]]) -> str:
    """Memory and requests over the number of tasks. No request is drawn as one in 100 s."""
    panels: dict[str, Series] = {"bytes of the host for each task": {}, "requests a second to the server": {}}
    for (size, notifies), found in figures.items():
        name = "a server that notifies" if notifies else "a server that is asked"
        for panel, cost in zip(panels.values(), (found["bytes"], max(found["requests"], 0.01)), strict=True):
            panel.setdefault(name, []).append((size, cost))
    return _drawn(panels, "tasks that calls wait for")


def _drawn(panels: Mapping[str, Series], size: str) -> str:
    drawn = [
        _panel(title, size, series, LEFT + index * (WIDTH + GAP))
        for index, (title, series) in enumerate(panels.items())
    ]
    right = LEFT + 2 * (WIDTH + GAP) - GAP
    box = f'viewBox="0 0 {right + LEGEND} {TOP + HEIGHT + 50}"'
    style = 'font-family="sans-serif" font-size="12"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    legend = _legend(right + 16, [name for name in COLOURS if any(name in series for series in panels.values())])
    parts = [background, *drawn, legend]
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _panel(title: str, size: str, series: Series, left: float) -> str:
    sizes = sorted({size for line in series.values() for size, _ in line})
    costs = [cost for line in series.values() for _, cost in line]
    low, high = 10 ** math.floor(math.log10(min(costs))), 10 ** math.ceil(math.log10(max(costs)))

    def x(size: float) -> float:
        span = math.log(sizes[-1] / sizes[0]) or 1
        return left + 12 + (WIDTH - 24) * math.log(size / sizes[0]) / span

    def y(cost: float) -> float:
        return TOP + HEIGHT * (1 - math.log(cost / low) / math.log(high / low))

    parts = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>']
    for cost in (step * 10.0**power for power in range(-2, 6) for step in (1, 2, 5)):
        if low <= cost <= high:
            parts.append(f'<path d="M{left} {y(cost):.1f}h{WIDTH}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y(cost) + 4:.1f}" text-anchor="end">{cost:g}</text>')
    parts += [f'<text x="{x(one):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{one:g}</text>' for one in sizes]
    parts.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">{size}</text>')
    parts += [_line(name, [(x(one), y(cost)) for one, cost in line]) for name, line in series.items()]
    return "\n".join(parts)


def _line(name: str, points: list[tuple[float, float]]) -> str:
    colour, width = COLOURS[name], 3 if name == "mcp-nursery" else 1.5
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 1}" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>{dots}'


def _legend(left: float, names: list[str]) -> str:
    rows = []
    for index, name in enumerate(names):
        top = TOP + 12 + 20 * index
        rows.append(f'<rect x="{left}" y="{top - 9}" width="14" height="10" fill="{COLOURS[name]}"/>')
        rows.append(f'<text x="{left + 20}" y="{top}">{escape(name)}</text>')
    return "\n".join(rows)
