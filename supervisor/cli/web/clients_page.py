"""The page of a gateway's clients: their sessions, what they have under way, and what waits for them."""

import time
from collections.abc import Callable, Mapping, Sequence

import trio

from mcp_nursery.supervisor.gateway.client_status import ClientsStatus, SessionStatus

from ..output import safe_line
from .layout import Part, act_form, since, table, until
from .markup import Child, Html, h, join
from .replicas import ReplicaReport
from .visitors import Visitor

NOBODY = "not authenticated"


class ClientsPage:
    """The clients of a gateway over HTTP."""

    title = "Clients"

    def __init__(
        self,
        read: Callable[[], ClientsStatus],
        replicas: Callable[[], Mapping[str, ReplicaReport]],
        visitor: Visitor,
    ) -> None:
        self._read = read
        self._replicas = replicas
        self._visitor = visitor

    def parts(self) -> Sequence[Part]:
        """The parts of the page as they are now."""
        now = self._read()
        sessions = [
            (each.key, each.client, each.program, each.requests, each.subscriptions, each.waiting)
            for each in now.sessions
        ]
        held = [(each.client, each.server, each.name, each.questions) for each in now.held]
        replicas = self._replicas()
        return [
            Part("replicas", tuple(replicas.items()), lambda: _all_replicas(replicas)),
            Part("sessions", sessions, lambda: self._sessions(now)),
            Part("requests", (now.clients, tuple(sorted(now.kept.items()))), lambda: _requests(now)),
            Part("held", held, lambda: _held(now)),
        ]

    def content(self, parts: Sequence[tuple[Part, Html]]) -> Html:
        """The page of these parts."""
        return join([html for _, html in parts])

    def _sessions(self, now: ClientsStatus) -> Html:
        heads = ("Client", "Program", "Protocol", "Server", "Age", "Under way", "Subscribed", "Waiting", "")
        rows = [self._session(each) for each in now.sessions]
        shown = table("Sessions, the oldest first", heads, rows, empty="No session is open.")
        about = "Clients of 2026-07-28 have none: each of their requests stands for itself."
        count = f"{len(now.sessions)} of {now.most_sessions} that there may be. {about}"
        return h("section", h("h2", "Sessions"), h("p", count, class_="quiet"), shown, id="sessions")

    def _session(self, session: SessionStatus) -> Sequence[Child]:
        return (
            safe_line(session.client or NOBODY),
            safe_line(session.program or ""),
            session.protocol_version,
            safe_line(session.server or "all"),
            since(trio.current_time() - session.age),
            f"{session.requests}",
            f"{session.subscriptions}",
            f"{session.waiting}",
            act_form(self._visitor, "End", "end_session", session=session.key),
        )


def _all_replicas(replicas: Mapping[str, ReplicaReport]) -> Html:
    if not replicas:
        return h("section", id="replicas")
    rows = [
        (
            safe_line(name),
            safe_line(each.version),
            since(trio.current_time() - (time.time() - each.began)),
            safe_line(each.servers),
            h("span", ", ".join(map(safe_line, each.trouble)), class_="bad") if each.trouble else "none",
            f"{each.sessions}",
            f"{each.requests}",
        )
        for name, each in replicas.items()
    ]
    heads = ("Replica", "Version", "Serves since", "Servers", "In trouble", "Sessions", "Under way")
    shown = table("Replicas that share the database", heads, rows, empty="")
    return h("section", h("h2", "Replicas"), shown, id="replicas")


def _requests(now: ClientsStatus) -> Html:
    rows = [
        (
            safe_line(each.name or NOBODY),
            f"{each.requests}",
            _bytes(each.kept),
            "-" if each.name is None else _bytes(now.most_kept_of_client),
        )
        for each in now.clients
    ]
    heads = ("Client", "Requests and streams", "Bytes kept", "Of at most")
    shown = table("Clients with requests under way", heads, rows, empty="No request is under way.")
    kinds = ", ".join(f"{_bytes(count)} of {kind}" for kind, count in sorted(now.kept.items()) if count) or "nothing"
    total = sum(each.requests for each in now.clients)
    said = (
        f"{total} requests of at most {now.most_requests}; kept for all: {kinds}, of at most {_bytes(now.most_kept)}."
    )
    return h("section", h("h2", "Requests under way"), h("p", said, class_="quiet"), shown, id="requests")


def _held(now: ClientsStatus) -> Html:
    rows = [
        (
            safe_line(each.client or NOBODY),
            safe_line(each.server),
            safe_line(each.name or each.method),
            f"{each.questions}",
            until(trio.current_time() + each.expires_in),
        )
        for each in now.held
    ]
    heads = ("Client", "Server", "Call", "Questions", "Given up in")
    shown = table("Calls that wait for their clients", heads, rows, empty="No call waits for its client.")
    return h("section", h("h2", "Held calls"), shown, id="held")


def _bytes(count: int) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
