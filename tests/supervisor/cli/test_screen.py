"""What is on the full screen, and what keys do: without a terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.cli.lives import IncarnationRecord, ServerHistory
from mcp_nursery.supervisor.cli.output import safe_text
from mcp_nursery.supervisor.cli.screen.screen import MOST_PANE_LINES, Action, Order, Pane, Screen, Shown
from mcp_nursery.supervisor.cli.screen.terminal import keys_of
from mcp_nursery.supervisor.control.protocol import ToolSummary
from mcp_nursery.supervisor.status import BreakerStatus

from .test_statuses import ERROR, TWELVE, WAITING, status

RUDE = "\x1b[2J\x1b]0;title\x07[b]x[/b]\u202e\x9b1A"


def lines_of(screen, width=80, height=24):
    return [line.plain for line in screen.render(width, height)]


def showing(*statuses):
    return Screen("mcp-nursery run", statuses=[status(0, **facts) for facts in statuses])


def named(*names, **facts):
    return showing(*({"name": name, **facts} for name in names))


def press(screen, keys):
    return [screen.press(key) for key in keys]


def tool(name, server="a", **facts):
    known = {"description": "Does it.", "available": True, "requires_approval": False, "changed": False}
    return ToolSummary(name=name, server=server, tool=name, **{**known, **facts})


@pytest.mark.parametrize("width", [1, 20, 60, 80, 200])
@pytest.mark.parametrize("height", [1, 3, 5, 24, 60])
@pytest.mark.parametrize("pane", ["", "e", "t", "/"])
def test_it_has_the_size_of_the_terminal(width, height, pane):
    """Whatever is shown: as many lines as there are, all as wide as it is."""
    screen = Screen("mcp-nursery run", statuses=TWELVE)
    press(screen, pane)
    for number in range(50):
        screen.add_event(f"{number} 名前 {ERROR}")
        screen.add_stderr(ERROR * 3)
    rendered = screen.render(width, height)
    assert [line.cell_len for line in rendered] == [width] * height


@pytest.mark.parametrize(
    ("width", "columns"), [(60, "SERVER STATE TOOLS ERROR"), (200, "SERVER STATE TRY RETRY IN UP")]
)
def test_servers_events_and_keys(width, columns):
    screen = Screen("mcp-nursery run", statuses=[status(0), status(1, **WAITING)])
    screen.add_event("12:00:00 lab: connected")
    title, header, first, second, heading, event, *rest, keys = lines_of(screen, width)
    assert title.strip() == "mcp-nursery run  1 of 2 connected, 1 waiting"
    assert " ".join(header.split()).startswith(columns)
    assert (first[:3], second[:3]) == ("> s", "  s")
    assert ("14.9 s" in first, "14.9 s" in second) == (True, False)
    assert (heading.strip(), event.strip()) == ("events", "12:00:00 lab: connected")
    assert " ".join(" ".join(rest).split()) == f"{status(1).name}: {ERROR}"  # the table has no room for it
    for meaning in ("r reconnect", "x stop", "s start", "e stderr", "t tools", "/ filter", "q quit"):
        assert meaning in keys
    assert ("o order" in keys) == (width == 200)


def test_orders_are_for_the_selected_server():
    screen = named("a", "b", "c")
    assert press(screen, ["r", "down", "x", "end", "s", "up", "home", "k", "j", "r", "q"]) == [
        Order(Action.RECONNECT, "a"),
        None,
        Order(Action.STOP, "b"),
        None,
        Order(Action.START, "c"),
        *[None] * 4,
        Order(Action.RECONNECT, "b"),
        Order(Action.QUIT),
    ]
    assert press(Screen("t"), ["r", "x", "s", "up", "e", "\x1b[99~", "\x00"]) == [None] * 7


def test_a_server_stays_selected_as_long_as_it_is_there():
    screen = named("a", "b", "c")
    press(screen, ["down"])
    screen.statuses = named("new", "a", "b").statuses
    assert screen.selected == "b"
    screen.statuses = named("new", "a").statuses
    assert screen.selected == "new"
    screen.statuses = ()
    assert screen.selected is None


def test_the_selected_server_is_always_seen():
    screen = named(*(f"server-{number:03}" for number in range(100)))
    for _ in range(99):
        assert any(line.startswith(f"> {screen.selected}") for line in lines_of(screen))
        press(screen, ["down"])
    assert screen.selected == "server-099"
    assert "14 of 100 shown" in lines_of(screen)[0]


def test_a_filter_is_of_names_and_states():
    screen = showing({"name": "Alpha"}, {"name": "beta", "state": ServerState.FAILED}, {"name": "gamma"})
    press(screen, ["/", "A", "m", "q", "backspace", "enter"])
    assert screen.selected == "gamma"
    assert "filter: Am" in lines_of(screen)[0]
    assert press(screen, "x") == [Order(Action.STOP, "gamma")]
    press(screen, ["escape", "/", *"failed"])
    assert screen.selected == "beta"
    assert "filter: failed_" in lines_of(screen)[-1]
    press(screen, ["escape"])
    assert screen.selected == "gamma"
    press(screen, ["/", *"nobody", "enter"])
    assert press(screen, "r") == [None]


def test_panes():
    screen = named("a", "b")
    assert screen.shown == Shown(Pane.EVENTS)
    press(screen, "e")
    assert screen.shown == Shown(Pane.STDERR, "a")
    screen.add_stderr("  File x,\tline 1")
    assert "  File x,   line 1" in "\n".join(lines_of(screen))
    press(screen, ["down"])
    assert screen.shown == Shown(Pane.STDERR, "b")
    press(screen, "t")
    screen.clear()
    screen.set_tools([tool("mcp_b_x", available=False, requires_approval=True, changed=True), tool("mcp_b_y")])
    shown = "\n".join(lines_of(screen))
    assert "tools of b" in shown
    assert "mcp_b_x (not available, needs approval, changed): Does it." in shown
    press(screen, "t")
    assert screen.shown == Shown(Pane.EVENTS)
    press(screen, ["e", "escape"])
    assert screen.shown == Shown(Pane.EVENTS)


def test_what_is_read_stays_where_it_is():
    """The end of events is seen, unless somebody looks further up."""
    screen = named("a")
    for number in range(100):
        screen.add_event(f"event {number}.")
    assert lines_of(screen)[-2].strip() == "event 99."
    press(screen, ["page up", "page up"])
    assert lines_of(screen)[-2].strip() == "event 89."
    screen.add_event("one more")
    assert lines_of(screen)[-2].strip() == "event 89."
    press(screen, ["page down"] * 3)
    assert lines_of(screen)[-2].strip() == "one more"
    press(screen, "t")
    screen.set_tools([tool(f"tool {number}.") for number in range(100)])
    assert lines_of(screen)[4].startswith("tool 0.")
    press(screen, ["page down"])
    assert lines_of(screen)[4].startswith("tool 5.")


TROUBLE = {
    "failed": {"state": ServerState.FAILED, "error": ERROR},
    "blocked": {"state": ServerState.BLOCKED},
    "locked": {"state": ServerState.NEEDS_AUTH},
    "waiting": WAITING,
    "again": {"state": ServerState.CONNECTING, "error": ERROR},
    "refusing": {"breaker": BreakerStatus("open", 3, 12.5)},
}


def test_trouble_among_two_hundred_is_seen_without_scrolling():
    """In a usual terminal: who failed, is blocked or waits stands first, whatever place it was configured at."""
    servers = {f"server-{number}": {} for number in range(200)}
    for number, facts in zip((199, 150, 100, 3, 50, 120), TROUBLE.values(), strict=True):
        servers[f"server-{number}"] = facts
    screen = showing(*({"name": name, **facts} for name, facts in servers.items()))
    title, _, *rows = lines_of(screen, 100)
    assert "195 of 200 connected, 1 failed, 1 blocked, 1 needs_auth, 1 waiting, 1 connecting" in title
    names = [row[2:].split()[0] for row in rows[:8]]
    assert names == [f"server-{number}" for number in (199, 150, 100, 3, 50, 120, 0, 1)]
    assert rows[0].startswith("> server-199")


def test_a_key_orders_them_otherwise():
    screen = showing({"name": "Beta"}, {"name": "alpha"}, {"name": "gone", "state": ServerState.FAILED})

    def seen():
        return [line[2:].split()[0] for line in lines_of(screen)[2:5]], "  by " in lines_of(screen)[0]

    assert seen() == (["gone", "Beta", "alpha"], False)
    press(screen, "o")
    assert seen() == (["alpha", "Beta", "gone"], True)
    assert "by name" in lines_of(screen)[0]
    press(screen, "o")
    assert seen() == (["Beta", "alpha", "gone"], True)
    press(screen, "o")
    assert seen() == (["gone", "Beta", "alpha"], False)


def test_numbers_in_names_are_in_order_as_numbers():
    screen = showing({"name": "s10"}, {"name": "s2"})
    press(screen, "o")
    assert [line[2:].split()[0] for line in lines_of(screen)[2:4]] == ["s2", "s10"]
    press(screen, "t")
    screen.set_tools([tool("t10"), tool("t2")])
    text = "\n".join(lines_of(screen))
    assert text.index("t2:") < text.index("t10:")


@pytest.mark.parametrize(("key", "ordered"), [("x", "a"), ("down", None), ("e", None)])
def test_a_key_means_the_server_that_was_seen_selected(key, ordered):
    """Another one fails and comes first in the moment before the key."""
    screen = named("a", "b")
    lines_of(screen)
    screen.statuses = [*screen.statuses, status(0, name="new", state=ServerState.FAILED)]
    assert press(screen, [key]) == [ordered and Order(Action.STOP, ordered)]
    assert screen.selected == ("b" if key == "down" else "a")
    assert lines_of(screen)[2].startswith("  new")


def test_the_reason_of_a_trouble_is_never_cut():
    screen = showing({"name": "calm"}, {"name": "long", **TROUBLE["failed"]}, {"name": "short", **TROUBLE["refusing"]})
    for width in (60, 80, 100):
        shown = " ".join(" ".join(lines_of(screen, width)).split())
        assert f"long: {ERROR}" in shown
    assert f"long: {ERROR}" not in " ".join(lines_of(screen, 250))  # the table has it whole


def test_the_reason_of_the_selected_server_stands_first_where_there_is_little_room():
    screen = showing(*({"name": f"s{number}", **TROUBLE["failed"]} for number in range(9)))
    press(screen, ["down"] * 5)
    assert "s5: the process ended" in " ".join(lines_of(screen, 80, 16))


def test_lives_are_a_column():
    screen = showing({"name": "lab"}, {"name": "new"})
    screen.lives = {"lab": ServerHistory()}
    screen.lives["lab"].incarnations.append(IncarnationRecord(1, 1, 0, 30))
    screen.now = 60
    _, header, first, second, *_ = lines_of(screen, 100)
    assert "LAST 1 MIN" in header
    assert "▒▒▒▒▒▒▒▒████████" in first
    assert "█" not in second
    screen.plain = True
    assert "~~~~~~~~========" in lines_of(screen, 100)[2]
    assert "LAST" not in lines_of(screen, 79)[1]


def test_what_does_not_fit_leaves_out_the_title_first():
    screen = showing(*TROUBLE.values())
    assert lines_of(screen, 120)[0].startswith("mcp-nursery run  1 of 6 connected, 1 failed")
    assert lines_of(screen, 80)[0].startswith("1 of 6 connected, 1 failed, 1 blocked")


def test_lines_are_folded_between_words():
    screen = named("a")
    screen.add_event("12:00:00 lab: failed (the process ended) " + "x" * 45)
    assert [line.rstrip() for line in lines_of(screen, 30)[4:9]] == [
        "12:00:00 lab: failed (the",
        "process ended)",
        "x" * 30,
        "x" * 15,
        "",
    ]


def test_an_order_is_answered_until_the_next_key():
    screen = named("a")
    screen.note = "stop a: done"
    assert lines_of(screen)[-1].strip() == "stop a: done"
    press(screen, ["down"])
    assert "q quit" in lines_of(screen)[-1]


def test_memory_is_bounded():
    screen = named("a")
    press(screen, "e")
    for number in range(MOST_PANE_LINES + 10):
        screen.add_event(str(number))
        screen.add_stderr(str(number))
    assert (len(screen._events), len(screen._content)) == (MOST_PANE_LINES, MOST_PANE_LINES)


def test_nothing_that_a_server_says_steers_the_terminal():
    screen = showing({"name": f"a{RUDE}", "error": RUDE, "state": ServerState.FAILED})
    screen.add_event(RUDE)
    seen = []
    for keys in ("", "e", "t"):
        press(screen, keys)
        screen.add_stderr(f"{RUDE}\n\r{RUDE}")
        if keys == "t":
            screen.set_tools([tool(f"x{RUDE}", description=RUDE)])
        screen.note = RUDE
        out = io.StringIO()
        Console(file=out, width=80, color_system=None).print(*screen.render(80, 24), sep="\n", markup=False)
        seen.append(out.getvalue())
    assert all(text == safe_text(text) for text in seen)
    assert "[b]x[/b]" in "".join(seen)


@given(st.lists(st.sampled_from(["/", "enter", "escape", "backspace", "up", "down", "end", "page up", *"retxsa0bq"])))
def test_any_keys(keys):
    """Whatever is typed: it is drawn, and an order is for a server that is seen."""
    screen = named("a0", "b0", "c")
    screen.add_event("x" * 100)
    for key in keys:
        order = screen.press(key)
        assert order is None or order.action is Action.QUIT or order.server == screen.selected
        assert len(screen.render(60, 12)) == 12


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1bOBj", ["up", "down", "j"]),
        ("\x1b", ["escape"]),
        ("\x1b[5~\x1b[6~\x1b[1~\x1bOF", ["page up", "page down", "home", "end"]),
        ("é\r\x7f", ["é", "enter", "backspace"]),
        ("\x1b[1;5Cq", ["\x1b[1;5C", "q"]),
    ],
)
def test_keys(typed, keys):
    assert keys_of(typed) == keys
