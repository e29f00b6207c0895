"""All elements of the page, made by the functions that make the page: for a picture in the documentation."""

from collections.abc import Mapping
from importlib.resources import files

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.cli.lives import EventRecord, IncarnationRecord, Load, ServerHistory, TaskSpan
from mcp_nursery.supervisor.cli.web.layout import (
    Flash,
    act_button,
    acts_of,
    document,
    events_of,
    flash_of,
    life,
    state_of,
    table,
    trouble_of,
)
from mcp_nursery.supervisor.cli.web.markup import Html, h
from mcp_nursery.supervisor.cli.web.server_page import _life
from mcp_nursery.supervisor.cli.web.visitors import Visitor
from mcp_nursery.supervisor.status import CallCounts, ServerStatus

STYLE = '<link rel="stylesheet" href="/ui/static/style.css">'
CALLS = [
    ("19:13:55", h("code", "search"), "12.4", "answered", ""),
    ("19:13:51", h("code", "delete"), "2,004", "ConnectionLost: exited with code 137", "unknown"),
]


def gallery() -> str:
    """A document with every element, and with its style in itself. Runs in a Trio loop."""
    now, past = trio.current_time(), ServerHistory()
    for number, (began, connected, ended) in enumerate([(54, 52, 30), (28, 27, 12), (7, 6, 4)], 1):
        record = IncarnationRecord(number, number, now - began, now - connected, now - ended, "exited with code 137")
        record.then, record.next_at, record.held = "waiting", now - ended + 5, number - 1
        past.incarnations.append(record)
    past.tasks.append(TaskSpan("1", "import", now - 45, now - 33))
    past.load.extend(
        Load(now - at, done, failed) for at, done, failed in ((50, 4, 0), (40, 9, 0), (30, 6, 2), (20, 8, 0))
    )
    down = status(ServerState.WAITING, attempt=4, retry_in=9.3, error="exited with code 137: out of memory")
    shown: Mapping[str, Html | list[Html]] = {
        "States": [h("p", [h("span", state_of(state), "  ") for state in ServerState])],
        "A timeline, and its key": _life(life(past, 60.0), 60.0),
        "A server in trouble": h(
            "article",
            h("h2", h("a", "crm", href="#"), state_of(down.state)),
            life(past, 60.0),
            trouble_of(down, past),
            acts_of(down, may_act=True),
            class_="trouble waiting",
        ),
        "Verdicts": [
            h("p", "All 12 servers are connected", class_="verdict good"),
            h("p", "1 server is in trouble: crm", class_="verdict bad"),
        ],
        "Outcomes of acts": [
            flash_of(Flash("crm is reconnected.")),
            flash_of(Flash("crm does not start: exited with code 137", good=False)),
            h("p", "This server is connected: calls under way are lost.", class_="warning"),
        ],
        "Acts": h(
            "div",
            act_button("Reconnect", "reconnect", may_act=True),
            act_button("Stop", "stop", may_act=False),
            class_="acts",
        ),
        "A table": table(
            "Calls", ("At", "Tool", "Took ms", "Outcome", "Delivery"), CALLS, empty="", numbers=("Took ms",)
        ),
        "A field": h(
            "div",
            h("label", "query (required)", for_="query"),
            h("input", id="query", value="invoices"),
            class_="field",
        ),
        "Events": events_of([EventRecord(now - 4, "crm: waiting, start 4 of 4 in 15.0 s (exited with code 137)")]),
    }
    parts = [h("section", h("h2", name), element) for name, element in shown.items()]
    visitor = Visitor("", "", is_new=False, may_look=True, may_act=False)
    page = document("Elements", visitor, h("div", parts, class_="sides"))
    style = files("mcp_nursery.supervisor.cli.web").joinpath("static/style.css").read_text()
    assert STYLE in page
    return page.replace(STYLE, f"<style>{style}</style>")


def status(state: ServerState, **facts: object) -> ServerStatus:
    """The status of the server."""
    known: dict[str, object] = dict.fromkeys(
        ("error", "uptime", "retry_in", "pid", "protocol_version", "server_info", "instructions")
    )
    known |= {"transport": "stdio", "tool_count": 3, "incarnation": 3, "attempt": 1, "max_attempts": 4}
    return ServerStatus(name="crm", state=state, **{**known, "calls": CallCounts(), **facts})
