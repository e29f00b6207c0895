"""The first page: whether all is well, the servers in trouble with what helps, and the table of the others."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.status import ServerStatus

from ..statuses import counted, counts, first_names, is_troubled, severity, worst_first
from .history import History, latest
from .layout import (
    LONGEST_PHRASE,
    LivePage,
    Part,
    ShownParts,
    act_button,
    acts_of,
    element_id,
    events_of,
    filter_of,
    life,
    listed,
    milliseconds,
    short,
    since,
    state_of,
    table,
    trouble_of,
    uptime_of,
    url,
)
from .markup import Child, Html, h, join
from .replicas import ReplicaReport

SHOWN_EVENTS: Final = 20
"""Events on this page."""
MOST_TROUBLES: Final = 20
"""Servers in trouble that are shown with all facts; further ones stand in the table, the worst first."""
MOST_INSTANCES: Final = 50
"""Further instances of one server that are listed."""
SERVERS, TROUBLES = "servers", "troubles"
"""The lists of the page."""
_Columns: TypeAlias = tuple[str, ...]


class Overview(LivePage):
    """All servers of a supervisor."""

    title = "Servers"

    def __init__(self, history: History, replicas: Callable[[], Mapping[str, ReplicaReport]], *, may_act: bool) -> None:
        self._history = history
        self._replicas = replicas
        self._may_act = may_act

    def parts(self) -> Sequence[Part]:
        """The parts of the page as they are now."""
        statuses = list(self._history.statuses.values())
        troubled = [status for status in worst_first(statuses) if is_troubled(status)]
        first = {status.name for status in troubled[:MOST_TROUBLES]}
        said, under_way = counts(statuses), sum(status.calls.in_flight for status in statuses)
        verdict, columns, window = _verdict(statuses, troubled), _columns(statuses), self._history.window
        events, replicas = tuple(latest(self._history.events)[:SHOWN_EVENTS]), self._replicas()
        return [
            Part("counts", (verdict, said, under_way), lambda: _counts(*verdict, said, under_way)),
            Part("heads", (columns, window), lambda: _heads(columns, window)),
            Part("replicas", tuple(replicas.items()), lambda: _all_replicas(replicas)),
            Part("events", events, lambda: h("section", h("h2", "Events"), events_of(events), id="events")),
            *(
                self._trouble(number, status, window)
                if status.name in first
                else self._row(number, status, columns, window)
                for number, status in enumerate(statuses)
            ),
        ]

    def _facts(self, status: ServerStatus) -> tuple[object, ...]:
        """All that either element of a server shows."""
        past = self._history.of(status.name)
        last = past.incarnations[-1] if past.incarnations else None
        return (
            *(status.state, status.incarnation, status.attempt, status.retry_in is None, status.error),
            *(status.installing, status.over_limit, status.tool_count, status.calls),
            tuple((each.state, each.incarnation, each.pid) for each in status.instances),
            *(len(past.incarnations), last and (last.number, last.connected, last.ended, last.then, last.held)),
            None if status.breaker is None else status.breaker.state,
            past.load[-1] if past.load else None,
            past.task_states,
        )

    def _trouble(self, number: int, status: ServerStatus, window: float) -> Part:
        id_, order = element_id("server", status.name), f"{severity(status)}-{number:08}"
        past = self._history.of(status.name)

        def render() -> Html:
            return h(
                "article",
                h("h2", _link(status, id_), " ", state_of(status.state)),
                h("div", life(past, window), h("small", f"The last {window / 60:.0f} min")),
                trouble_of(status, past),
                _instances(status, id_),
                acts_of(status, may_act=self._may_act, most=1),
                id=id_,
                class_=f"trouble {status.state}",
                data_list=TROUBLES,
                data_order=order,
            )

        return Part(id_, (TROUBLES, self._facts(status), window), render, TROUBLES, order)

    def _row(self, number: int, status: ServerStatus, columns: _Columns, window: float) -> Part:
        id_, order = element_id("server", status.name), f"{severity(status)}-{number:08}"
        latency = self._history.latency_of(status.name)

        def render() -> Html:
            said = status.installing or status.error or status.over_limit
            cells: dict[str, Child] = {
                "State": join(state_of(status.state), h("small", short(said, LONGEST_PHRASE)) if said else None),
                "Timeline": life(self._history.of(status.name), window),
                "Up": uptime_of(status),
                "Tools": f"{status.tool_count}",
                "Calls": f"{status.calls.done}",
                "p50 ms": milliseconds(None if latency is None else latency.p50),
                "p99 ms": milliseconds(None if latency is None else latency.p99),
                "Failed": f"{status.calls.failed}",
            }
            name = h("span", _link(status, id_), h("small", status.transport or ""))
            first = h("div", name, _instances(status, id_), role="rowheader")
            rest = [h("span", cells[head], role="cell", data_head=head) for head in columns]
            return h(
                "div",
                first,
                rest,
                id=id_,
                role="row",
                class_=_class("server", columns),
                data_list=SERVERS,
                data_order=order,
            )

        return Part(id_, (self._facts(status), latency, columns, number, window), render, SERVERS, order)

    def content(self, shown: ShownParts) -> Html:
        """The page of these parts."""
        rows = listed(shown, SERVERS)
        return join(
            shown["counts"][1],
            h("div", listed(shown, TROUBLES), id=TROUBLES),
            filter_of(SERVERS),
            h(
                "div",
                h("div", shown["heads"][1], role="rowgroup"),
                h("div", rows, id=SERVERS, role="rowgroup"),
                role="table",
                aria_label="Servers",
                class_="servers",
            ),
            shown["replicas"][1],
            h("div", act_button("Reload the configuration", "reload", may_act=self._may_act), class_="acts"),
            shown["events"][1],
        )


def _link(status: ServerStatus, id_: str) -> Html:
    return h("a", short(status.name), href=url("/server", name=status.name), id=f"{id_}-link")


def _instances(status: ServerStatus, id_: str) -> Html | None:
    """The further instances of a server, folded."""
    lines = [
        h("li", state_of(each.state), h("small", f"connection {each.incarnation}, up ", uptime_of(each) or "not yet"))
        for each in status.instances[:MOST_INSTANCES]
    ]
    summary = h("summary", counted(len(status.instances), "further instance"), id=f"{id_}-instances")
    return h("details", summary, h("ul", lines, class_="instances")) if lines else None


def _all_replicas(replicas: Mapping[str, ReplicaReport]) -> Html:
    if not replicas:
        return h("section", id="replicas")
    rows = [
        (
            short(name),
            short(each.version),
            since(trio.current_time() - (time.time() - each.began)),
            short(each.servers, LONGEST_PHRASE),
            h("span", ", ".join(map(short, each.trouble)), class_="bad") if each.trouble else "none",
            f"{each.sessions}",
            f"{each.requests}",
        )
        for name, each in replicas.items()
    ]
    heads = ("Replica", "Version", "Serves for", "Servers", "In trouble", "Sessions", "Under way")
    shown = table("Replicas that share the database", heads, rows, empty="", numbers=heads[5:])
    return h("section", h("h2", "Replicas"), shown, id="replicas")


def _verdict(statuses: Sequence[ServerStatus], troubled: Sequence[ServerStatus]) -> tuple[str, str]:
    """The answer to the question whether all is well, and the class of its element."""
    starting = sum(status.state is ServerState.CONNECTING for status in statuses)
    if troubled:
        names = first_names([short(status.name) for status in troubled])
        return f"{counted(len(troubled), 'server is', 'servers are')} in trouble: {names}", "bad"
    if starting:
        return f"{counted(starting, 'server is', 'servers are')} starting", "quiet"
    return ("All is well", "good") if statuses else ("No server is configured", "quiet")


def _counts(verdict: str, kind: str, said: str, under_way: int) -> Html:
    about = f"{said}. {counted(under_way, 'call')} under way."
    return h(
        "div", h("p", verdict, class_=f"verdict {kind}", role="status"), h("p", about, class_="quiet"), id="counts"
    )


def _columns(statuses: Sequence[ServerStatus]) -> _Columns:
    """The columns after the names: those in which nothing stands are left out."""
    called = any(status.calls.done or status.calls.failed for status in statuses)
    failed = any(status.calls.failed for status in statuses)
    calls = ("Calls", "p50 ms", "p99 ms", *(("Failed",) if failed else ())) if called else ()
    return ("State", "Timeline", "Up", "Tools", *calls)


def _class(name: str, columns: _Columns) -> str:
    return " ".join([name, *(["called"] if "Calls" in columns else []), *(["failing"] if "Failed" in columns else [])])


def _heads(columns: _Columns, window: float) -> Html:
    named = ["Server", *(f"Last {window / 60:.0f} min" if head == "Timeline" else head for head in columns)]
    heads = [h("span", name, role="columnheader") for name in named]
    return h("div", heads, id="heads", role="row", class_=_class("heads", columns))
