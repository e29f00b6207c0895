"""The first page: every server, those in trouble first."""

from collections.abc import Sequence

from mcp_nursery.supervisor.status import ServerStatus

from ..statuses import counts, severity
from .history import History, latest
from .layout import (
    LONGEST_PHRASE,
    Part,
    ShownParts,
    act_button,
    element_id,
    events_of,
    listed,
    milliseconds,
    plot,
    short,
    start_of,
    state_of,
    uptime_of,
    url,
)
from .markup import Html, h, join

HEADS = ("Server", "State", "Up", "Tools", "Under way", "p50", "p99", "Failed", "Last ten minutes")
SHOWN_EVENTS = 20
"""Events on this page."""
SERVERS = "servers"
"""The list of the servers."""


class Overview:
    """All servers of a supervisor."""

    title = "Servers"

    def __init__(self, history: History, *, may_act: bool) -> None:
        self._history = history
        self._may_act = may_act

    def parts(self) -> Sequence[Part]:
        """The parts of the page as they are now."""
        statuses = list(self._history.statuses.values())
        said = counts(statuses)
        under_way = sum(status.calls.in_flight for status in statuses)
        events = tuple(latest(self._history.events)[:SHOWN_EVENTS])
        return [
            Part("counts", (said, under_way), lambda: h("p", f"{said}. {under_way} calls under way.", id="counts")),
            Part("events", events, lambda: h("section", h("h2", "Events"), events_of(events), id="events")),
            *(self._row(number, status) for number, status in enumerate(statuses)),
        ]

    def _row(self, number: int, status: ServerStatus) -> Part:
        latency, busy = self._history.latency_of(status.name), self._history.of(status.name).busy
        shown = (
            *(number, status.state, status.incarnation, status.attempt, status.retry_in is None, status.error),
            *(status.installing, status.over_limit, status.tool_count, status.calls, latency, busy),
            len(status.instances),
        )
        id_, order = element_id("server", status.name), f"{severity(status)}-{number:08}"

        def render() -> Html:
            more = f" +{len(status.instances)}" if status.instances else ""
            said = status.installing or status.error or status.over_limit
            cells = (
                h("a", short(status.name), href=url("/server", name=status.name), id=f"{id_}-link"),
                join(state_of(status.state), start_of(status), h("small", short(said, LONGEST_PHRASE))),
                uptime_of(status),
                f"{status.tool_count}",
                f"{status.calls.in_flight}",
                milliseconds(None if latency is None else latency.p50),
                milliseconds(None if latency is None else latency.p99),
                f"{status.calls.failed}",
                plot(busy),
            )
            first = h("span", cells[0], h("small", f"{status.transport or ''}{more}"), role="rowheader")
            rest = [
                h("span", cell, role="cell", data_head=head) for cell, head in zip(cells[1:], HEADS[1:], strict=True)
            ]
            return h("div", first, rest, id=id_, role="row", class_="server", data_list=SERVERS, data_order=order)

        return Part(id_, shown, render, SERVERS, order)

    def content(self, shown: ShownParts) -> Html:
        """The page of these parts."""
        rows = listed(shown, SERVERS)
        head = h("div", [h("span", name, role="columnheader") for name in HEADS], role="row", class_="heads")
        label = h("label", "Filter ", h("input", id="filter", type="search", data_filters=SERVERS))
        return join(
            shown["counts"][1],
            h("p", label),
            h(
                "div",
                h("div", head, role="rowgroup"),
                h("div", rows, id=SERVERS, role="rowgroup"),
                role="table",
                aria_label="Servers",
                class_="servers",
            ),
            None if rows else h("p", "No server is configured.", class_="quiet"),
            h("div", act_button("Reload the configuration", "reload", may_act=self._may_act), class_="acts"),
            shown["events"][1],
        )
