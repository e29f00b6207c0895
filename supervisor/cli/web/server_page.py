"""The page of one server: why it is where it is, what it says, what it was called, and what it offers."""

import json
from collections.abc import Sequence
from typing import Final

import trio

from mcp_nursery.actors.errors import UnknownServer
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.events import DefinitionChange
from mcp_nursery.supervisor.status import CallRecord, ServerStatus
from mcp_nursery.supervisor.tools.tool import Tool

from ..output import safe_line, safe_text
from .changes import digest_of
from .history import History, IncarnationRecord, latest
from .layout import (
    Part,
    act_form,
    clock,
    events_of,
    milliseconds,
    plot,
    spoken,
    start_of,
    state_of,
    table,
    until,
    uptime_of,
    url,
)
from .markup import Child, Html, h, join
from .visitors import Visitor

SHOWN: Final = 500
"""Tools, resources or prompts that are listed; of more, their number is said."""
LONGEST_SHOWN: Final = 4_000
"""Characters of a description or a definition that are shown."""


class ServerPage:
    """One server of a supervisor."""

    def __init__(self, supervisor: Supervisor, history: History, visitor: Visitor, name: str) -> None:
        self._supervisor = supervisor
        self._history = history
        self._visitor = visitor
        self._name = name
        self.title = name

    def parts(self) -> Sequence[Part]:
        """The parts of the page as they are now.

        Raises:
            UnknownServer: It is configured no more.
        """
        status = next((each for each in self._supervisor.status() if each.name == self._name), None)
        if status is None:
            raise UnknownServer(self._name)
        past = self._history.of(self._name)
        calls = self._supervisor.recent_calls(self._name)[::-1]
        tools = [tool for tool in self._supervisor.tools if tool.server == self._name]
        changes = [each for each in self._supervisor.definition_changes if each.server == self._name]
        resources = [each for each in self._supervisor.resources if each.server == self._name]
        prompts = [each for each in self._supervisor.prompts if each.server == self._name]
        busy = tuple(past.load) if any(each.done or each.failed for each in past.load) else ()
        seen = self._history.statistics.get(self._name)
        latency = None if seen is None else seen.latency
        state = (
            *(status.state, status.incarnation, status.attempt, status.retry_in is None, status.error, status.pid),
            *(status.calls, status.breaker is None, latency, busy, status.protocol_version),
            tuple((each.state, each.incarnation) for each in status.instances),
        )
        incarnations = [(each.number, each.attempt, each.connected, each.ended) for each in past.incarnations]
        events = latest(past.events)
        return [
            Part("state", state, lambda: self._state(status)),
            Part("changes", changes, lambda: self._changes(changes)),
            Part("incarnations", incarnations, lambda: self._incarnations(list(past.incarnations)[::-1])),
            Part("events", tuple(events), lambda: h("section", h("h2", "Events"), events_of(events), id="events")),
            Part("calls", calls, lambda: self._calls(calls)),
            Part("tools", tuple(map(id, tools)), lambda: self._tools(tools)),
            Part(
                "others",
                (tuple(map(id, resources)), tuple(map(id, prompts))),
                lambda: h(
                    "section",
                    _names("Resources", [(each.uri, each.description) for each in resources]),
                    _names("Prompts", [(each.name, each.description) for each in prompts]),
                    id="others",
                ),
            ),
        ]

    def content(self, parts: Sequence[tuple[Part, Html]]) -> Html:
        """The page of these parts."""
        shown = {part.id: html for part, html in parts}
        stderr = h(
            "section",
            h("h2", "Standard error"),
            h("pre", id="stderr", class_="log", tabindex=0, role="log", aria_label="Standard error"),
        )
        first = ("state", "changes", "incarnations", "events")
        return join([shown[name] for name in first], stderr, [shown[name] for name in ("calls", "tools", "others")])

    # -- its parts ------------------------------------------------------------------------------------------------

    def _state(self, status: ServerStatus) -> Html:
        seen = self._history.statistics.get(self._name)
        latency = None if seen is None else seen.latency
        calls = status.calls
        info = status.server_info or {}
        introduced = " ".join(str(info[key]) for key in ("name", "version") if info.get(key))
        challenge = status.challenge
        facts: list[tuple[str, Child]] = [
            ("State", join(state_of(status.state), " ", start_of(status))),
            ("Reason", safe_line(status.error) if status.error else None),
            ("Needs", None if challenge is None else f"mcp-nursery login {safe_line(self._name)}"),
            ("Circuit breaker", None if status.breaker is None else f"{status.breaker.state}"),
            ("Up", uptime_of(status)),
            ("Connection", f"{status.incarnation}" if status.incarnation else None),
            ("Process", None if status.pid is None else f"{status.pid}"),
            ("Transport", status.transport),
            ("Calls", f"{calls.done} answered, {calls.failed} failed, {calls.in_flight} under way"),
            ("p50 / p99", None if latency is None else f"{milliseconds(latency.p50)} / {milliseconds(latency.p99)}"),
            ("Last ten minutes", plot(tuple(self._history.of(self._name).load))),
            ("Introduced as", safe_line(introduced) or None),
            ("Protocol", status.protocol_version),
            ("Configured in", safe_line(status.source) if status.source else None),
            ("Description", safe_line(status.description) if status.description else None),
        ]
        listed = [join(h("dt", name), h("dd", value)) for name, value in facts if value]
        instances = table(
            "Further instances",
            ("State", "Connection", "Up", "Process"),
            [
                (state_of(each.state), f"{each.incarnation}", uptime_of(each), f"{each.pid or ''}")
                for each in status.instances
            ],
            empty="",
        )
        acts = [
            act_form(self._visitor, label, act, server=self._name)
            for label, act in (("Reconnect", "reconnect"), ("Stop", "stop"), ("Start", "start"))
        ]
        return h(
            "section",
            h("div", acts, class_="acts"),
            h("dl", listed),
            instances if status.instances else None,
            id="state",
        )

    def _incarnations(self, records: Sequence[IncarnationRecord]) -> Html:
        rows = [
            (
                f"{each.number}",
                f"{each.attempt}",
                clock(each.began),
                "-" if each.connected is None else spoken((each.ended or trio.current_time()) - each.connected),
                "now" if each.ended is None else clock(each.ended),
                safe_line(each.why or ""),
                None if each.ended is None else join(each.then, _next(each)),
            )
            for each in records
        ]
        heads = ("Connection", "Start", "Began", "Was up for", "Ended", "Why", "Then")
        shown = table(
            "Connections, the latest first", heads, rows, empty="It was not connected while this page recorded."
        )
        return h("section", h("h2", "Connections"), shown, id="incarnations")

    def _calls(self, records: Sequence[CallRecord]) -> Html:
        rows = [
            (
                h("small", clock(each.at)),
                safe_line(each.tool) if each.tool else h("span", "no tool", class_="quiet"),
                milliseconds(each.duration),
                h("span", each.error or "answered", class_="bad" if each.error else "good"),
                each.delivery.replace("_", " "),
            )
            for each in records
        ]
        heads = ("At", "Tool", "Took", "Outcome", "Delivery")
        shown = table("Calls, the latest first", heads, rows, empty="Nothing was called yet.")
        return h("section", h("h2", "Calls"), shown, id="calls")

    def _tools(self, tools: Sequence[Tool]) -> Html:
        listed = [
            h(
                "li",
                h("a", safe_line(tool.tool), href=url("/tool", server=self._name, tool=tool.tool)),
                h("span", " asks first", class_="quiet") if tool.requires_approval else None,
                h("p", safe_line(tool.full_description)[:LONGEST_SHOWN]),
                h(
                    "details",
                    h("summary", "Schema"),
                    h("pre", safe_text(json.dumps(tool.input_schema, indent=2, ensure_ascii=False))[:LONGEST_SHOWN]),
                ),
            )
            for tool in tools[:SHOWN]
        ]
        shown = h("ul", listed, class_="tools") if listed else h("p", "It has no tools now.", class_="quiet")
        return h("section", h("h2", f"Tools ({len(tools)})"), shown, _more(len(tools)), id="tools")

    def _changes(self, changes: Sequence[DefinitionChange]) -> Html:
        if not changes:
            return h("section", id="changes")
        shown = [
            h(
                "article",
                h("h3", safe_line(change.tool)),
                h("p", f"It differs in {', '.join(map(safe_line, change.fields))}."),
                h(
                    "div",
                    _definition("When it was first used", change.before),
                    _definition("Now", change.after),
                    class_="sides",
                ),
                act_form(
                    self._visitor,
                    "Accept the new definition",
                    "accept",
                    server=self._name,
                    tool=change.tool,
                    digest=digest_of(change),
                ),
                h("p", "To leave it as it is, do nothing: you are asked again.", class_="quiet"),
            )
            for change in changes[:SHOWN]
        ]
        return h("section", h("h2", "Changed definitions"), shown, _more(len(changes)), id="changes", class_="warning")


def _next(record: IncarnationRecord) -> Html | None:
    if record.next_at is None or record.next_at <= trio.current_time():
        return None
    return join(", next start in ", until(record.next_at))


def _definition(caption: str, text: str) -> Html:
    shown = safe_text(json.dumps(json.loads(text), indent=2, ensure_ascii=False))[:LONGEST_SHOWN]
    return h("figure", h("figcaption", caption), h("pre", shown))


def _names(title: str, named: Sequence[tuple[str, str | None]]) -> Html | None:
    if not named:
        return None
    listed = [
        h("li", h("code", safe_line(name)), " ", h("small", safe_line(about or "")[:LONGEST_SHOWN]))
        for name, about in named[:SHOWN]
    ]
    return join(h("h2", f"{title} ({len(named)})"), h("ul", listed), _more(len(named)))


def _more(count: int) -> Html | None:
    return h("p", f"and {count - SHOWN} more", class_="quiet") if count > SHOWN else None
