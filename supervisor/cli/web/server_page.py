"""The page of one server: the reason for its state, its standard error, its calls, and what it offers."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import trio

from mcp_nursery.actors.errors import UnknownServer
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.events import DefinitionChange
from mcp_nursery.supervisor.orders import digest_of
from mcp_nursery.supervisor.resources import Prompt, Resource
from mcp_nursery.supervisor.status import CallRecord, ServerStatus
from mcp_nursery.supervisor.tools.tool import Tool

from .history import History, IncarnationRecord, latest
from .layout import (
    LONGEST_PHRASE,
    Part,
    Same,
    ShownParts,
    act_button,
    clock,
    element_id,
    events_of,
    listed,
    milliseconds,
    plot,
    short,
    spoken,
    start_of,
    state_of,
    table,
    until,
    uptime_of,
    url,
)
from .markup import Child, Html, h, join
from .server_words import ServerWords

T = TypeVar("T")

SHOWN: Final = 300
"""Tools, resources or prompts that are listed; of further ones, only the number is shown."""
MOST_CHANGES: Final = 20
"""Changed definitions that are shown: further ones follow when these are accepted."""
LONGEST_SHOWN: Final = 4_000
"""Characters of a description or a definition that are shown."""
TOOLS, RESOURCES, PROMPTS, CHANGES = "tools", "resources", "prompts", "changes"
"""The lists of the page."""


class ServerPage:
    """One server of a supervisor. Its words are shown without secrets: people other than its user may look."""

    def __init__(self, supervisor: Supervisor, history: History, name: str, *, may_act: bool) -> None:
        self._supervisor = supervisor
        self._history = history
        self._name = name
        self._may_act = may_act
        self._words = ServerWords(supervisor, name)
        self.title = name

    def parts(self) -> Sequence[Part]:
        """The parts of the page as they are now.

        Raises:
            UnknownServer: The server is no longer configured.
        """
        status = self._history.statuses.get(self._name)
        if status is None:
            raise UnknownServer(self._name)
        past = self._history.of(self._name)
        calls = self._supervisor.recent_calls(self._name)[::-1]
        tools = [tool for tool in self._supervisor.tools if tool.server == self._name]
        changes = [each for each in self._supervisor.definition_changes if each.server == self._name]
        resources = [each for each in self._supervisor.resources if each.server == self._name]
        prompts = [each for each in self._supervisor.prompts if each.server == self._name]
        latency, busy = self._history.latency_of(self._name), past.busy
        state = (
            *(status.state, status.incarnation, status.attempt, status.retry_in is None, status.error, status.pid),
            *(status.installing, status.over_limit, status.calls, latency, busy),
            None if status.breaker is None else status.breaker.state,
            *(status.protocol_version, status.extensions, status.source, status.description),
            tuple((each.state, each.incarnation) for each in status.instances),
        )
        incarnations = [(each.number, each.attempt, each.connected, each.ended) for each in past.incarnations]
        events = tuple(latest(past.events))
        counts = len(tools), len(resources), len(prompts)
        return [
            Part("state", state, lambda: self._state(status)),
            Part("incarnations", incarnations, lambda: self._incarnations(list(past.incarnations)[::-1])),
            Part("events", events, lambda: h("section", h("h2", "Events"), events_of(events), id="events")),
            Part("calls", calls, lambda: self._calls(calls)),
            Part("offers", (counts, len(changes)), lambda: _offers(*counts, len(changes))),
            *self._list(CHANGES, changes[:MOST_CHANGES], lambda each: each.tool, Same, self._change),
            *self._list(TOOLS, tools, lambda each: each.tool, _signature, self._tool),
            *self._list(RESOURCES, resources, lambda each: each.uri, Same, self._named),
            *self._list(PROMPTS, prompts, lambda each: each.name, Same, self._named),
        ]

    def _list(
        self,
        name: str,
        items: Sequence[T],
        name_of: Callable[[T], str],
        signature: Callable[[T], object],
        render: Callable[[str, T], Html],
    ) -> Iterable[Part]:
        """The parts of a list. `render`: makes the content of one item, which has this name."""
        for number, item in enumerate(items[:SHOWN]):
            id_, order = element_id(name, f"{number} {name_of(item)}"), f"{number:05}"

            def made(id_: str = id_, order: str = order, item: T = item) -> Html:
                content = render(name_of(item), item)
                return h("li", content, id=id_, data_list=name, data_order=order)

            yield Part(id_, signature(item), made, name, order)

    def content(self, shown: ShownParts) -> Html:
        """The page of these parts."""
        stderr = h(
            "section",
            h("h2", "Standard error"),
            h("pre", id="stderr", class_="log", tabindex=0, role="log", aria_label="Standard error"),
        )
        return join(
            shown["state"][1],
            _section("Changed definitions", h("ul", listed(shown, CHANGES), id=CHANGES), class_="warning"),
            shown["incarnations"][1],
            shown["events"][1],
            stderr,
            shown["calls"][1],
            shown["offers"][1],
            _section("Tools", h("ul", listed(shown, TOOLS), id=TOOLS)),
            _section("Resources", h("ul", listed(shown, RESOURCES), id=RESOURCES)),
            _section("Prompts", h("ul", listed(shown, PROMPTS), id=PROMPTS)),
        )

    # -- its parts ------------------------------------------------------------------------------------------------

    def _state(self, status: ServerStatus) -> Html:
        latency, calls = self._history.latency_of(self._name), status.calls
        info = status.server_info or {}
        introduced = " ".join(str(info[key]) for key in ("name", "version") if info.get(key))
        facts: list[tuple[str, Child]] = [
            ("State", join(state_of(status.state), " ", start_of(status))),
            ("Installing", status.installing and short(status.installing, LONGEST_SHOWN)),
            ("Reason", short(status.error, LONGEST_SHOWN) if status.error else None),
            ("Over a limit", status.over_limit),
            ("Circuit breaker", None if status.breaker is None else f"{status.breaker.state}"),
            ("Up", uptime_of(status)),
            ("Connection", f"{status.incarnation}" if status.incarnation else None),
            ("Process", None if status.pid is None else f"{status.pid}"),
            ("Transport", status.transport),
            ("Calls", f"{calls.done} answered, {calls.failed} failed, {calls.in_flight} under way"),
            ("p50 / p99", None if latency is None else f"{milliseconds(latency.p50)} / {milliseconds(latency.p99)}"),
            ("Last ten minutes", plot(self._history.of(self._name).busy)),
            ("Introduced as", self._words.line(introduced) or None),
            ("Protocol", short(status.protocol_version)),
            ("Extensions", short(", ".join(status.extensions), LONGEST_SHOWN)),
            ("Configured in", short(status.source, LONGEST_PHRASE) if status.source else None),
            ("Description", short(status.description, LONGEST_SHOWN) if status.description else None),
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
            act_button(label, act, may_act=self._may_act, server=self._name)
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
                short(each.why, LONGEST_PHRASE),
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
                self._words.line(each.tool) if each.tool else h("span", "no tool", class_="quiet"),
                milliseconds(each.duration),
                h("span", short(each.error or "answered", LONGEST_PHRASE), class_="bad" if each.error else "good"),
                each.delivery.replace("_", " "),
            )
            for each in records
        ]
        heads = ("At", "Tool", "Took", "Outcome", "Delivery")
        shown = table("Calls, the latest first", heads, rows, empty="Nothing was called yet.")
        return h("section", h("h2", "Calls"), shown, id="calls")

    def _tool(self, name: str, tool: Tool) -> Html:
        return join(
            h("a", self._words.line(name), href=url("/tool", server=self._name, tool=name)),
            h("span", " asks first", class_="quiet") if tool.requires_approval else None,
            h("p", self._words.line(tool.full_description)),
        )

    def _named(self, name: str, item: Resource | Prompt) -> Html:
        return join(h("code", self._words.line(name)), " ", h("small", self._words.line(item.description or "")))

    def _change(self, name: str, change: DefinitionChange) -> Html:
        before, after = json.loads(change.before), json.loads(change.after)
        whole = [self._words.whole(each, LONGEST_SHOWN) for each in (before, after)]
        sides = (_side("When it was first used", whole[0]), _side("Now", whole[1]))
        accept = {"server": self._name, "tool": name, "digest": digest_of(change)}
        return h(
            "article",
            h("h3", self._words.line(name)),
            h("p", f"It differs in {short(', '.join(change.fields))}."),
            h("div", sides, class_="sides"),
            act_button("Accept the new definition", "accept", may_act=self._may_act, **accept)
            if None not in whole
            else h("p", "It is accepted where all of it can be read: mcp-nursery pins"),
            h("p", "To leave it as it is, do nothing: you are asked again.", class_="quiet"),
        )


def _side(caption: str, text: str | None) -> Html:
    shown = (
        f"It has more than {LONGEST_SHOWN} characters, or a secret, and is not shown here." if text is None else text
    )
    return h("figure", h("figcaption", caption), h("pre", shown))


def _signature(tool: Tool) -> object:
    return Same(tool.declared), tool.requires_approval


def _section(title: str, content: Html, **attributes: str) -> Html:
    """A section with a list; it is not visible if it is empty."""
    return h("section", h("h2", title), content, **attributes)


def _offers(tools: int, resources: int, prompts: int, changes: int) -> Html:
    more = f" Of each the first {SHOWN} are listed." if max(tools, resources, prompts) > SHOWN else ""
    differ = f" {changes} tools or skills differ from what they were when they were first used." if changes else ""
    return h("p", f"It has {tools} tools, {resources} resources and {prompts} prompts now.{more}{differ}", id="offers")


def _next(record: IncarnationRecord) -> Html | None:
    if record.next_at is None or record.next_at <= trio.current_time():
        return None
    return join(", next start in ", until(record.next_at))
