import pytest

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.cli.statuses import error_of, line_of_event, row
from mcp_nursery.supervisor.events import (
    DefinitionChange,
    DefinitionsChanged,
    InjectionSuspected,
    Lagged,
    PromptsChanged,
    Reloaded,
    ReloadFailed,
    ResourcesChanged,
    ServerRemoved,
    SnapshotEvent,
    StateChanged,
    ToolsChanged,
)
from mcp_nursery.supervisor.status import CallCounts, ServerStatus


def changed(new, **facts):
    defaults = {
        "incarnation": 2,
        "old": None,
        "error": None,
        "attempt": 2,
        "max_attempts": 4,
        "retry_in": None,
        "pid": None,
        "at": 0.0,
    }
    return StateChanged(server="lab", new=new, **{**defaults, **facts})


def status(state, **facts):
    nothing = dict.fromkeys(
        ("error", "uptime", "retry_in", "pid", "protocol_version", "server_info", "instructions", "transport")
    )
    counted = {"tool_count": 3, "incarnation": 1, "attempt": 1, "max_attempts": 4, "calls": CallCounts(1, 2, 3)}
    return ServerStatus(name="lab", state=state, **{**nothing, **counted, **facts})


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (changed(ServerState.CONNECTING, error="old news"), "lab: connecting"),
        (changed(ServerState.CONNECTED, pid=7), "lab: connected, incarnation 2, pid 7"),
        (changed(ServerState.CONNECTED), "lab: connected, incarnation 2"),
        (changed(ServerState.WAITING, error="gone", retry_in=1.96), "lab: waiting, start 2 of 4 in 2.0 s (gone)"),
        (changed(ServerState.FAILED, error="gone"), "lab: failed (gone)"),
        (ToolsChanged("lab", ("a", "b"), (), ("c",), 0.0), "lab: tools added 2, changed 1"),
        (ToolsChanged("lab", ("a", "b"), (), (), 0.0, cached=True), "lab: tools from the cache: 2"),
        (ResourcesChanged("lab", ("a://b", "a://{b}"), (), (), 0.0), "lab: resources and templates added 2"),
        (PromptsChanged("lab", ("a",), (), (), 0.0, cached=True), "lab: prompts from the cache: 1"),
        (ServerRemoved("lab", 0.0), "lab: removed"),
        (Reloaded(("a",), ("b", "c"), (), ("d",), 0.0), "reloaded: 1 added (a), 2 changed (b, c), 1 untouched"),
        (Reloaded((), (), tuple("abcdef"), (), 0.0), "reloaded: 6 removed (a, b, c, d, e and 1 more), 0 untouched"),
        (ReloadFailed("a.json: not JSON", 0.0), "not reloaded: a.json: not JSON"),
        (
            InjectionSuspected("lab", "read me", ("mode-switch", "ignore-previous"), 1.0),
            "lab: read me: suspicious output (mode-switch, ignore-previous)",
        ),
        (
            DefinitionsChanged("lab", (DefinitionChange("lab", "add", '{"title":"a"}', '{"x":1}'),), True, 1.0),
            "lab: changed since they were first used, held back: add (title, x)",
        ),
        (
            DefinitionsChanged(
                "lab", tuple(DefinitionChange("lab", each, '{"title":"a"}', "{}") for each in "abcdefg"), False, 1.0
            ),
            "lab: changed since they were first used: a (title), b (title), c (title), d (title), e (title) and 2 more",
        ),
        (Lagged(3), "3 events were missed"),
        (SnapshotEvent(status(ServerState.STOPPED)), "lab: stopped"),
    ],
)
def test_every_event_has_a_line(event, line):
    assert line_of_event(event) == line


@pytest.mark.parametrize("state", ServerState)
def test_every_state_has_a_row(state):
    cells = row(status(state, retry_in=1.25, uptime=61.0))
    assert [str(cell) for cell in cells] == [
        "lab",
        str(state),
        "1/4" if state is ServerState.WAITING else "None",
        "1.2 s",
        "1 min 1 s",
        "3",
        "None",
        "2, 3 failed, 1 running",
        "None",
    ]


def test_a_server_without_an_error_still_says_why_it_has_no_tools():
    assert error_of(status(ServerState.NEEDS_AUTH)) == "the server is needs_auth"
    assert error_of(status(ServerState.FAILED, error="gone")) == "gone"
    for state in (ServerState.CONNECTED, ServerState.IDLE, ServerState.DISABLED, ServerState.STOPPED):
        assert error_of(status(state, error="old news")) is None
