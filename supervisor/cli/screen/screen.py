"""The full screen of `run` and `top`, and the meaning of each key. Pure: a `Viewer`, which has the terminal and the
host, asks for the lines and carries out the orders.

The screen has a table of servers, and below it a pane with events, or with standard error or the tools of the selected
server.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.text import Text

from mcp_nursery.actors.records import define, field, frozen
from mcp_nursery.supervisor.control.protocol import ToolSummary
from mcp_nursery.supervisor.status import ServerStatus

from ..lives import ServerHistory, line_of_life, window_of
from ..output import natural, safe_line, safe_text
from ..statuses import counts, is_troubled, row, worst_first
from ..tables import Lives, table_lines

MOST_PANE_LINES: Final = 1000
"""Lines of a pane that are kept."""
_LONGEST_FILTER: Final = 60
_MARGIN: Final = 2
"""Characters of the mark of the selected server."""
_FRAME_LINES: Final = 4
"""Lines that are always shown: the title, the table's header, the pane's title and the keys."""
_NARROWEST_WITH_LIVES: Final = 80
"""Characters of a line that has room for the lives of servers."""
_PAGE: Final = 5
"""Lines, or servers, by which `page up` and `page down` move."""


class Pane(StrEnum):
    """The contents of the part below the table."""

    EVENTS = "events"
    STDERR = "stderr"
    TOOLS = "tools"


class Ranking(StrEnum):
    """The order of the servers of the table."""

    TROUBLE = "trouble"
    """The order in which servers that failed, are blocked, need a login, or wait for their next start come first."""
    NAME = "name"
    FILE = "file"
    """The order in which they are configured."""


@frozen
class Shown:
    """The content of the pane."""

    pane: Pane
    server: str | None = None
    """The server that it is about; None for all."""


class Action(StrEnum):
    """The actions that keys request and the owner of the screen carries out."""

    QUIT = "quit"
    RECONNECT = "reconnect"
    STOP = "stop"
    START = "start"


@frozen
class Order:
    """An order to the owner of the screen."""

    action: Action
    server: str = ""


_KEYS: Final = {
    "r": "reconnect",
    "x": "stop",
    "s": "start",
    "e": "stderr",
    "t": "tools",
    "o": "order",
    "/": "filter",
    "q": "quit",
}
"""The help about keys."""
_KEY_LEFT_OUT: Final = "o"
"""The key that the help leaves out if it would be wider than 60 characters."""
_ORDERS: Final[Mapping[str, Action]] = {"r": Action.RECONNECT, "x": Action.STOP, "s": Action.START}
_NEXT: Final = dict(zip(Ranking, [*Ranking][1:] + [*Ranking][:1], strict=True))
_PANES: Final[Mapping[str, Pane]] = {"e": Pane.STDERR, "t": Pane.TOOLS}
_MOVES: Final[Mapping[str, int]] = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -(10**9), "end": 10**9}
_SCROLLS: Final[Mapping[str, int]] = {"page up": -_PAGE, "page down": _PAGE}


def _lines() -> "deque[str]":
    return deque(maxlen=MOST_PANE_LINES)


@define(eq=False)
class Screen:
    """The screen as it is now. Keys are characters, or `up`, `down`, `page up`, `page down`, `home`, `end`, `enter`,
    `escape` and `backspace`."""

    title: str
    statuses: Sequence[ServerStatus] = ()
    """The status of every server."""
    medians: Mapping[str, float] = field(factory=dict[str, float])
    """The p50 of the calls, in seconds, for each server that has any."""
    lives: Mapping[str, ServerHistory] = field(factory=dict[str, ServerHistory])
    """The past of each server, as far as it was seen here."""
    now: float = 0.0
    """The time, on the clock of these lives."""
    seen_since: float = 0.0
    """The time from which they were seen."""
    plain: bool = False
    """True if the terminal has no characters but ASCII."""
    note: str = field(default="", init=False)
    """The outcome of an order, until the next key."""
    _selected: str | None = field(default=None, init=False)
    _marked: str | None = field(default=None, init=False)
    """The server that was selected in the last drawing: a key applies to that one, though another may be first now."""
    _ranking: Ranking = field(default=Ranking.TROUBLE, init=False)
    _filter: str = field(default="", init=False)
    _typing: bool = field(default=False, init=False)
    """True if keys are typed into the filter."""
    _pane: Pane = field(default=Pane.EVENTS, init=False)
    _events: deque[str] = field(factory=_lines, init=False)
    _content: deque[str] = field(factory=_lines, init=False)
    """The standard error of the selected server, or its tools."""
    _scrolled: int = field(default=0, init=False)
    """Lines between the visible part of the pane and its end, or for tools its beginning."""

    # -- changes ------------------------------------------------------------------------------------------------------

    def add_event(self, line: str) -> None:
        """Add the line of an event, which begins with its time."""
        self._add(self._events, line, seen=self._pane is Pane.EVENTS)

    def add_stderr(self, line: str) -> None:
        """Add a line of standard error of the server in the pane."""
        self._add(self._content, line, seen=self._pane is Pane.STDERR)

    def set_tools(self, tools: Sequence[ToolSummary]) -> None:
        """Set the tools of the server in the pane."""
        self._content = deque(map(_tool, sorted(tools, key=lambda tool: natural(tool.name))), maxlen=MOST_PANE_LINES)

    def clear(self) -> None:
        """Empty the pane for other content."""
        self._content.clear()
        self._scrolled = 0

    def _add(self, lines: deque[str], line: str, *, seen: bool) -> None:
        lines.append(safe_text(line).replace("\n", " ").expandtabs(4))
        if seen and self._scrolled:  # keep the visible lines in place
            self._scrolled = min(self._scrolled + 1, len(lines) - 1)

    # -- drawing ------------------------------------------------------------------------------------------------------

    @property
    def selected(self) -> str | None:
        """The server that orders are for: the last one selected, unless the filter hides it."""
        names = [status.name for status in self._visible]
        return self._selected if self._selected in names else (names[0] if names else None)

    @property
    def shown(self) -> Shown:
        """The content that the pane is to show."""
        return Shown(self._pane, None if self._pane is Pane.EVENTS else self.selected)

    @property
    def _visible(self) -> list[ServerStatus]:
        wanted = self._filter.casefold()
        found = [status for status in self.statuses if wanted in status.name.casefold() or wanted in status.state]
        if self._ranking is Ranking.TROUBLE:
            return worst_first(found)
        return found if self._ranking is Ranking.FILE else sorted(found, key=lambda status: natural(status.name))

    def render(self, width: int, height: int) -> list[Text]:
        """Draw the screen: as many lines as its height, none wider than its width."""
        room = max(height - _FRAME_LINES, 1)
        servers = self._window(max(room - max(room // 3, 4), 1))
        self._marked = self.selected
        table = self._table(servers, width)
        lines = [self._title(len(servers), width), *table, self._heading()]
        reasons = self._reasons(servers, table, width, height - len(lines) - 1)
        lines += self._pane_lines(width, height - len(lines) - len(reasons) - 1)
        lines = [*lines, *reasons][: height - 1]
        lines.append(self._footer(width))
        for line in lines:
            line.truncate(width, overflow="ellipsis", pad=True)
        return lines

    def _window(self, room: int) -> list[ServerStatus]:
        """The servers that fit, the selected one among them."""
        visible, selected = self._visible, self.selected
        at = next((number for number, status in enumerate(visible) if status.name == selected), 0)
        first = max(min(at - room // 2, len(visible) - room), 0)
        return visible[first : first + room]

    def _title(self, seen: int, width: int) -> Text:
        parts = [self.title, counts(self.statuses)]
        if self._filter:
            parts.append(f"filter: {self._filter}")
        if self._ranking is not Ranking.TROUBLE:
            parts.append(f"by {self._ranking}")
        if seen < len(self._visible):
            parts.append(f"{seen} of {len(self._visible)} shown")
        title = "  ".join(map(safe_line, parts))
        return Text(title if cell_len(title) <= width else "  ".join(map(safe_line, parts[1:])), style="reverse")

    def _table(self, servers: Sequence[ServerStatus], width: int) -> list[Text]:
        selected = self.selected
        marks = [False, *(status.name == selected for status in servers)]
        return [
            Text.assemble("> " if marked else "  ", line, style="bold" if marked else "")
            for marked, line in zip(
                marks, table_lines(servers, width - _MARGIN, self.medians, self._lives(servers, width)), strict=True
            )
        ]

    def _lives(self, servers: Sequence[ServerStatus], width: int) -> Lives | None:
        if not self.lives or width < _NARROWEST_WITH_LIVES:
            return None
        window = window_of(self.now - self.seen_since)
        header = f"LAST {window / 60:.0f} MIN"
        lines = {
            status.name: line_of_life(self.lives[status.name], self.now, window, width // 6, plain=self.plain)
            for status in servers
            if status.name in self.lives
        }
        return Lives(header, lines)

    def _reasons(self, servers: Sequence[ServerStatus], table: Sequence[Text], width: int, room: int) -> list[Text]:
        """The reasons of servers in trouble for which the table has no room, each whole: that of the selected server
        first, and as many as there is room for."""
        reasons = {status.name: safe_line(row(status)[-1]) for status in servers if is_troubled(status)}
        cut = [
            status.name
            for status, line in zip(servers, table[1:], strict=True)
            if reasons.get(status.name, "") not in line.plain
        ]
        found: list[str] = []
        for name in sorted(cut, key=lambda name: name != self.selected):
            told = _wrap(f"{safe_line(name)}: {reasons[name]}", max(width, 1))
            if not found or len(found) + len(told) <= room:
                found += told
        return [Text(line) for line in found[: max(room, 0)]]

    def _heading(self) -> Text:
        shown = self.shown
        of = "" if shown.server is None else f" of {safe_line(shown.server)}"
        return Text(f"{shown.pane}{of}", style="reverse")

    def _pane_lines(self, width: int, room: int) -> list[Text]:
        """The lines of the pane that fit: the first of tools, the last of events and standard error."""
        if room <= 0:
            return []
        lines = list(self._events if self._pane is Pane.EVENTS else self._content) or ["(nothing)"]
        if self._pane is Pane.TOOLS:
            first = max(min(self._scrolled, len(lines) - 1), 0)
            seen = _wrap_all(lines[first : first + room], width)[:room]
        else:
            end = max(len(lines) - self._scrolled, 1)
            seen = _wrap_all(lines[max(end - room, 0) : end], width)[-room:]
        return [*map(Text, seen), *(Text() for _ in range(room - len(seen)))]

    def _footer(self, width: int) -> Text:
        if self._typing:
            return Text.assemble(("filter: ", "bold"), f"{self._filter}_  (Enter keeps it, Esc ends it)")
        if self.note:
            return Text(safe_line(self.note))
        lengths = {key: len(meaning) + 4 for key, meaning in _KEYS.items()}
        gap = "  " if width >= sum(lengths.values()) else " "
        if width < sum(lengths.values()) - len(_KEYS):
            del lengths[_KEY_LEFT_OUT]
        return Text(gap).join(Text.assemble((key, "bold"), f" {_KEYS[key]}") for key in lengths)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> Order | None:
        """Handle a key. Returns its order; None if it changes only the screen."""
        self.note = ""
        if self._typing:
            self._type(key)
        elif key == "q":
            return Order(Action.QUIT)
        elif key in _ORDERS and (server := self._select_marked()) is not None:
            return Order(_ORDERS[key], server)
        else:
            self._change_view(key)
        return None

    def _select_marked(self) -> str | None:
        """The server that the person sees selected. It stays selected, wherever it moves."""
        if self._marked in [status.name for status in self._visible]:
            self._selected = self._marked
        return self.selected

    def _change_view(self, key: str) -> None:
        if key in _PANES:
            self._select_marked()
            self._show(Pane.EVENTS if self._pane is _PANES[key] else _PANES[key])
        elif key in _MOVES:
            self._move(_MOVES[key])
        elif key in _SCROLLS:
            self._scroll(_SCROLLS[key])
        elif key == "o":
            self._ranking = _NEXT[self._ranking]
        elif key == "/":
            self._typing = True
        elif key == "escape" and self._pane is not Pane.EVENTS:
            self._show(Pane.EVENTS)
        elif key == "escape":
            self._filter = ""

    def _show(self, pane: Pane) -> None:
        self._pane, self._scrolled = pane, 0

    def _move(self, by: int) -> None:
        names = [status.name for status in self._visible]
        if (server := self._select_marked()) is not None:
            self._selected = self._marked = names[min(max(names.index(server) + by, 0), len(names) - 1)]

    def _scroll(self, by: int) -> None:
        away = by if self._pane is Pane.TOOLS else -by
        lines = self._events if self._pane is Pane.EVENTS else self._content
        self._scrolled = min(max(self._scrolled + away, 0), max(len(lines) - 1, 0))

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self._typing = False
            self._filter = self._filter if key == "enter" else ""
        elif key == "backspace":
            self._filter = self._filter[:-1]
        elif len(key) == 1 and key.isprintable() and len(self._filter) < _LONGEST_FILTER:
            self._filter += key


def _wrap_all(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in _wrap(line, max(width, 1))]


def _wrap(line: str, width: int) -> list[str]:
    """Split the line into parts no wider than this, between words where possible."""
    parts: list[str] = []
    rest = ""
    for word in re.findall(r"\s*\S+", line):
        if rest and cell_len(rest) + cell_len(word) > width:
            parts.append(rest)
            rest = word.lstrip()
        else:
            rest += word
        if cell_len(rest) > width:
            *whole, rest = chop_cells(rest, width)
            parts += whole
    return [*parts, rest]


def _tool(tool: ToolSummary) -> str:
    marks = {"not available": not tool.available, "needs approval": tool.requires_approval, "changed": tool.changed}
    listed = ", ".join(mark for mark, holds in marks.items() if holds)
    return safe_line(f"{tool.name}{f' ({listed})' if listed else ''}: {tool.description}")
