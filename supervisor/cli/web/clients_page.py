"""The page of a gateway's clients: their sessions, their requests under way, and the calls that wait for them. And the
page of recorded tasks."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import trio

from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.decisions.task_records import TaskInfo
from mcp_nursery.supervisor.gateway.client_status import ClientsStatus, SessionStatus

from ..statuses import counted
from .layout import (
    LONGEST_PHRASE,
    LivePage,
    Part,
    ShownParts,
    act_button,
    clock,
    first_of,
    pages_of,
    short,
    since,
    table,
    until,
    url,
)
from .markup import Child, Html, h, join

NOBODY = "not authenticated"
MOST_ROWS: Final = 500
"""Rows of a table of this page."""
TASKS_EVERY: Final = 2.0
"""Seconds between two reads of all recorded tasks."""


class ClientsPage(LivePage):
    """The clients of a gateway over HTTP."""

    title = "Clients"

    def __init__(self, clients: Callable[[], ClientsStatus], *, may_act: bool) -> None:
        self._clients = clients
        self._may_act = may_act

    def parts(self) -> Sequence[Part]:
        """The parts of the page as they are now."""
        now = self._clients()
        sessions = [
            (each.key, each.client, each.program, each.requests, each.subscriptions, each.waiting)
            for each in now.sessions
        ]
        held = [(each.client, each.server, each.name, each.questions) for each in now.held]
        return [
            Part("sessions", sessions, lambda: self._sessions(now)),
            Part("requests", (now.clients, tuple(sorted(now.kept.items()))), lambda: _requests(now)),
            Part("held", held, lambda: _held(now)),
        ]

    def content(self, shown: ShownParts) -> Html:
        """The page of these parts."""
        return join([shown[name][1] for name in ("sessions", "requests", "held")])

    def _sessions(self, now: ClientsStatus) -> Html:
        heads = ("Client", "Program", "Protocol", "Server", "Age", "Under way", "Subscribed", "Waiting", "")
        rows = [self._session(each) for each in now.sessions[-MOST_ROWS:]]
        shown = table("Sessions, the latest last", heads, rows, empty="No session is open.", numbers=heads[5:8])
        about = "Clients of 2026-07-28 have none: each of their requests stands for itself."
        more = f" Here are the latest {MOST_ROWS}." if len(now.sessions) > MOST_ROWS else ""
        count = f"{len(now.sessions)} of {now.most_sessions} that there may be.{more} {about}"
        return h("section", h("h2", "Sessions"), h("p", count, class_="quiet"), shown, id="sessions")

    def _session(self, session: SessionStatus) -> Sequence[Child]:
        return (
            short(session.client or NOBODY),
            short(session.program or ""),
            session.protocol_version,
            short(session.server or "all"),
            since(trio.current_time() - session.age),
            f"{session.requests}",
            f"{session.subscriptions}",
            f"{session.waiting}",
            act_button("End", "end_session", may_act=self._may_act, session=session.key),
        )


def _requests(now: ClientsStatus) -> Html:
    rows = [
        (
            short(each.name or NOBODY),
            f"{each.requests}",
            _bytes(each.kept),
            None if each.name is None else _bytes(now.most_kept_of_client),
        )
        for each in now.clients[:MOST_ROWS]
    ]
    heads = ("Client", "Requests and streams", "Bytes kept", "Of at most")
    shown = table("Clients with requests under way", heads, rows, empty="No request is under way.", numbers=heads[1:])
    kinds = ", ".join(f"{_bytes(count)} of {kind}" for kind, count in sorted(now.kept.items()) if count) or "nothing"
    total = sum(each.requests for each in now.clients)
    said = (
        f"{counted(total, 'request')} of at most {now.most_requests}; "
        f"kept for all: {kinds}, of at most {_bytes(now.most_kept)}."
    )
    return h("section", h("h2", "Requests under way"), h("p", said, class_="quiet"), shown, id="requests")


def _held(now: ClientsStatus) -> Html:
    rows = [
        (
            short(each.client or NOBODY),
            short(each.server),
            short(each.name or each.method),
            f"{each.questions}",
            until(trio.current_time() + each.expires_in),
        )
        for each in now.held[:MOST_ROWS]
    ]
    heads = ("Client", "Server", "Call", "Questions", "Given up in")
    shown = table(
        "Calls that wait for their clients", heads, rows, empty="No call waits for its client.", numbers=heads[3:4]
    )
    return h("section", h("h2", "Held calls"), shown, id="held")


def _bytes(count: int) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


class TasksPage(LivePage):
    """The recorded tasks, the latest first."""

    title = "Tasks"

    def __init__(self, supervisor: Supervisor, page: int) -> None:
        self._supervisor = supervisor
        self._page = page
        self._read_at = -math.inf
        self._tasks: Sequence[TaskInfo] = ()
        self._problem = ""

    async def read(self) -> None:
        """Read the tasks from the state, where other hosts write theirs."""
        if trio.current_time() - self._read_at < TASKS_EVERY:
            return
        try:
            self._tasks, self._problem = (await self._supervisor.tasks())[::-1], ""
        except NurseryError as error:
            self._tasks, self._problem = (), short(error, LONGEST_PHRASE)
        self._read_at = trio.current_time()

    def parts(self) -> Sequence[Part]:
        """The parts of the page as they were read."""
        return [Part("tasks", (self._problem, self._tasks), self._table)]

    def content(self, shown: ShownParts) -> Html:
        """The page of these parts."""
        return shown["tasks"][1]

    def _table(self) -> Html:
        if self._problem:
            return h("section", h("p", self._problem, class_="bad", role="alert"), id="tasks")
        began = trio.current_time() - time.time()  # tasks have Unix times
        first = first_of(self._page, MOST_ROWS, len(self._tasks))
        rows = [
            (
                h("code", short(each.id)),
                h("a", short(each.server), href=url("/server", name=each.server)),
                short(each.tool),
                h("span", str(each.status).replace("_", " "), class_=f"state {each.status}"),
                clock(began + each.created),
                None if each.finished is None else clock(began + each.finished),
                short(each.error or "; ".join(each.questions) or each.message, LONGEST_PHRASE),
            )
            for each in self._tasks[first : first + MOST_ROWS]
        ]
        heads = ("Task", "Server", "Tool", "State", "Began", "Ended", "Said")
        shown = table("Tasks, the latest first", heads, rows, empty="No task is recorded.")
        return h("section", pages_of("/tasks", "", self._page, MOST_ROWS, len(self._tasks)), shown, id="tasks")
