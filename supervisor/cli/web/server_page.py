"""The page of one server: its state, and its past, its calls and all that it offers in tabs with an address each."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

import trio

from mcp_nursery.actors.errors import UnknownServer
from mcp_nursery.actors.records import AttrsInstance, astuple, fields, has
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.events import DefinitionChange
from mcp_nursery.supervisor.orders import digest_of
from mcp_nursery.supervisor.resources import Prompt, Resource
from mcp_nursery.supervisor.skills import Skill
from mcp_nursery.supervisor.status import CallRecord, ServerStatus
from mcp_nursery.supervisor.tools.tool import Tool

from ..lives import IncarnationRecord
from ..statuses import is_troubled, spoken
from .history import History, latest
from .layout import (
    LONGEST_PHRASE,
    LivePage,
    Part,
    Same,
    ServerWords,
    ShownParts,
    act_button,
    acts_of,
    clock,
    definitions,
    element_id,
    events_of,
    filter_of,
    first_of,
    life,
    listed,
    milliseconds,
    pages_of,
    short,
    since,
    start_of,
    state_of,
    table,
    trouble_of,
    until,
    uptime_of,
    url,
)
from .markup import Child, Html, h, join

SHOWN: Final = 300
"""Tools, resources, prompts or skills on one page."""
MOST_CHANGES: Final = 20
"""Changed definitions on one page."""
LONGEST_SHOWN: Final = 4_000
"""Characters of a description or a definition that are shown."""
TOOLS, RESOURCES, PROMPTS, SKILLS, CHANGES = "tools", "resources", "prompts", "skills", "changes"
"""The lists of the page."""
STDERR: Final = "/server/stderr"
"""The path of the tab with standard error."""
TABS: Final[Mapping[str, str]] = {
    "/server": "Timeline",
    "/server/calls": "Calls",
    "/server/tools": "Tools",
    "/server/resources": "Resources and prompts",
    "/server/skills": "Skills",
    STDERR: "Standard error",
    "/server/changes": "Changes",
    "/server/configuration": "Configuration",
}
"""The tabs, by their paths."""
LISTS: Final[Mapping[str, Sequence[str]]] = {
    "/server/tools": (TOOLS,),
    "/server/resources": (RESOURCES, PROMPTS),
    "/server/skills": (SKILLS,),
    "/server/changes": (CHANGES,),
}
"""The lists of tabs: a tab whose lists are empty is not offered."""
_Shape: TypeAlias = tuple[Callable[[Any], str], Callable[[Any], object], Callable[[str, Any], Html], int]
"""The functions of a list: the name of an item, all that its element shows, its content; and the most items."""


class ServerPage(LivePage):
    """One tab of one server of a supervisor. Its words are shown without secrets: people other than its user may
    look."""

    def __init__(
        self, supervisor: Supervisor, history: History, name: str, path: str, *, may_act: bool, page: int = 1
    ) -> None:
        self._supervisor = supervisor
        self._history = history
        self._name = name
        self._path = path
        self._may_act = may_act
        self._page = page
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
        past, supervisor = self._history.of(self._name), self._supervisor
        offered: dict[str, Sequence[Any]] = {
            TOOLS: [each for each in supervisor.tools if each.server == self._name],
            RESOURCES: [each for each in supervisor.resources if each.server == self._name],
            PROMPTS: [each for each in supervisor.prompts if each.server == self._name],
            SKILLS: [each for each in supervisor.skills if each.server == self._name],
            CHANGES: [each for each in supervisor.definition_changes if each.server == self._name],
        }
        counts = {path: sum(len(offered[each]) for each in lists) for path, lists in LISTS.items()}
        counts["/server/calls"] = status.calls.done + status.calls.failed
        state = (
            *(status.state, status.incarnation, status.attempt, status.retry_in is None, status.error, status.pid),
            *(status.installing, status.over_limit, past.troubled_at, len(past.incarnations), status.calls.in_flight),
            None if status.breaker is None else status.breaker.state,
            tuple((each.state, each.incarnation, each.pid) for each in status.instances),
        )
        return [
            Part("state", state, lambda: self._state(status)),
            Part("tabs", tuple(counts.items()), lambda: self._tabs(counts)),
            *self._tab(status, offered),
        ]

    def _tab(self, status: ServerStatus, offered: Mapping[str, Sequence[Any]]) -> Iterable[Part]:
        past, window = self._history.of(self._name), self._history.window
        match TABS[self._path]:
            case "Timeline":
                records = [astuple(each) for each in past.incarnations]
                events = tuple(latest(past.events))
                drawn = (records, past.task_states, tuple(past.load), window)
                yield Part("life", drawn, lambda: _life(life(past, window), window))
                yield Part("incarnations", records, lambda: self._incarnations(list(past.incarnations)[::-1]))
                yield Part("events", events, lambda: h("section", h("h2", "Events"), events_of(events), id="events"))
            case "Calls":
                calls = self._supervisor.recent_calls(self._name)[::-1]
                yield Part("calls", (calls, status.calls), lambda: self._calls(status, calls))
            case "Configuration":
                facts = (status.server_info, status.protocol_version, status.extensions, status.source)
                spec = self._supervisor.spec(self._name)
                yield Part("configuration", (facts, Same(spec)), lambda: self._configuration(status, spec))
            case _:
                for name in LISTS.get(self._path, ()):
                    yield from self._list(name, offered[name])

    def _list(self, name: str, items: Sequence[Any]) -> Iterable[Part]:
        """The parts of a list."""
        shapes: Mapping[str, _Shape] = {
            TOOLS: (attrgetter("tool"), _signature, self._tool, SHOWN),
            RESOURCES: (attrgetter("uri"), Same, self._named, SHOWN),
            PROMPTS: (attrgetter("name"), Same, self._named, SHOWN),
            SKILLS: (attrgetter("uri"), Same, self._named, SHOWN),
            CHANGES: (attrgetter("tool"), Same, self._change, MOST_CHANGES),
        }
        name_of, signature, render, most = shapes[name]
        first = first_of(self._page, most, len(items))
        pages = pages_of(self._path, self._name, self._page, most, len(items))
        yield Part(f"{name}-pages", pages, lambda: h("div", pages, id=f"{name}-pages"))
        for number, item in enumerate(items[first : first + most], first):
            id_, order = element_id(name, f"{number} {name_of(item)}"), f"{number:05}"

            def made(id_: str = id_, order: str = order, item: Any = item) -> Html:
                return h("li", render(name_of(item), item), id=id_, data_list=name, data_order=order)

            yield Part(id_, signature(item), made, name, order)

    def content(self, shown: ShownParts) -> Html:
        """The page of these parts."""
        own = [shown[name][1] for name in ("life", "incarnations", "events", "calls", "configuration") if name in shown]
        lists = [_section(shown, name) for name in LISTS.get(self._path, ())]
        log = h("pre", id="stderr", class_="log", tabindex=0, role="log", aria_label="Standard error")
        filtered = filter_of(TOOLS) if TOOLS in LISTS.get(self._path, ()) else None
        return join(shown["state"][1], shown["tabs"][1], filtered, own, lists, log if self._path == STDERR else None)

    # -- its parts ------------------------------------------------------------------------------------------------

    def _state(self, status: ServerStatus) -> Html:
        troubled = is_troubled(status)
        facts = definitions(
            ("Up", uptime_of(status)),
            ("Installing", status.installing and short(status.installing, LONGEST_SHOWN)),
            ("Over a limit", status.over_limit),
            ("Connection", f"{status.incarnation}" if status.incarnation else None),
            ("Process", None if status.pid is None else f"{status.pid}"),
            ("Transport", status.transport),
        )
        instances = [
            (state_of(each.state), f"{each.incarnation}", uptime_of(each), f"{each.pid or ''}")
            for each in status.instances
        ]
        heads = ("State", "Connection", "Up", "Process")
        return h(
            "section",
            h("p", state_of(status.state), None if troubled else start_of(status)),
            acts_of(status, may_act=self._may_act),
            trouble_of(status, self._history.of(self._name)) if troubled else None,
            facts,
            table("Further instances", heads, instances, empty="", numbers=heads[1::2]) if instances else None,
            id="state",
            class_=f"trouble {status.state}" if troubled else "head",
        )

    def _tabs(self, counts: Mapping[str, int]) -> Html:
        links = [
            h(
                "li",
                h(
                    "a",
                    label,
                    h("small", f" {counts[path]}") if counts.get(path) else None,
                    href=url(path, name=self._name),
                    aria_current="page" if path == self._path else None,
                ),
            )
            for path, label in TABS.items()
            if path == self._path or path not in LISTS or counts[path]
        ]
        return h("nav", h("ul", links), id="tabs", class_="tabs", aria_label="About this server")

    def _incarnations(self, records: Sequence[IncarnationRecord]) -> Html:
        rows = [
            (
                f"{each.number}",
                f"{each.attempt}",
                clock(each.began),
                _lasted(each),
                "now" if each.ended is None else clock(each.ended),
                short(each.why, LONGEST_PHRASE),
                None if each.ended is None else join(each.then.replace("_", " "), _next(each)),
            )
            for each in records
        ]
        heads = ("Connection", "Start", "Began", "Was up for", "Ended", "Why", "Then")
        empty = "It was not connected while this page recorded."
        shown = table("Connections, the latest first", heads, rows, empty=empty, numbers=heads[:2])
        return h("section", h("h2", "Connections"), shown, id="incarnations")

    def _calls(self, status: ServerStatus, records: Sequence[CallRecord]) -> Html:
        calls, latency = status.calls, self._history.latency_of(self._name)
        facts = definitions(
            ("Answered", f"{calls.done}"),
            ("Failed", f"{calls.failed}"),
            ("Under way", f"{calls.in_flight}"),
            ("p50 ms", None if latency is None else milliseconds(latency.p50)),
            ("p99 ms", None if latency is None else milliseconds(latency.p99)),
        )
        return h("section", facts, calls_table(records, self._words), id="calls")

    def _configuration(self, status: ServerStatus, spec: object) -> Html:
        info = status.server_info or {}
        introduced = " ".join(str(info[key]) for key in ("name", "version") if info.get(key))
        said = definitions(
            ("Introduced as", self._words.line(introduced) or None),
            ("Protocol", short(status.protocol_version) or None),
            ("Extensions", short(", ".join(status.extensions), LONGEST_SHOWN) or None),
        )
        rows = [(h("code", name), self._words.line(text, LONGEST_SHOWN)) for name, text in _settings(spec)]
        about = h("p", "As it is used now. Values that may be secret are left out.", class_="quiet")
        return h("section", said, about, table("Settings", ("Setting", "Value"), rows, empty=""), id="configuration")

    def _tool(self, name: str, tool: Tool) -> Html:
        return join(
            h("a", self._words.line(name), href=url("/tool", server=self._name, tool=name)),
            h("span", " asks first", class_="quiet") if tool.requires_approval else None,
            h("p", self._words.line(tool.full_description)),
        )

    def _named(self, name: str, item: Resource | Prompt | Skill) -> Html:
        return join(h("code", self._words.line(name)), h("p", self._words.line(item.description or "")))

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


def calls_table(records: Iterable[CallRecord], words: ServerWords) -> Html:
    """Calls that have their outcome, the latest first."""
    rows = [
        (
            clock(each.at),
            words.line(each.tool) if each.tool else h("span", "no tool", class_="quiet"),
            milliseconds(each.duration),
            h("span", short(each.error or "answered", LONGEST_PHRASE), class_="bad" if each.error else "good"),
            each.delivery.replace("_", " ") if each.error else None,
        )
        for each in records
    ]
    heads = ("At", "Tool", "Took ms", "Outcome", "Delivery")
    return table("Calls, the latest first", heads, rows, empty="Nothing was called yet.", numbers=heads[2:3])


def _life(drawn: Html, window: float) -> Html:
    keys = [h("span", word, class_=f"key {kind}") for kind, word in _KEYS.items()]
    ends = h("span", f"{window / 60:.0f} min ago"), h("span", keys), h("span", "now")
    return h("figure", drawn, h("figcaption", ends), id="life", class_="life")


_KEYS: Final = {
    "up": "connected",
    "begin": "starts",
    "wait": "waits",
    "down": "given up",
    "loss": "lost",
    "held": "held calls",
    "task": "tasks",
    "done": "calls",
}
"""The legend of a timeline: words, by the classes of what is drawn."""


def _settings(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """The settings of a spec, without those that are None, each as its class shows it: without secrets."""
    for each in fields(cast("type[AttrsInstance]", type(value))):
        setting: object = getattr(value, each.name)
        if setting is None or each.repr is False:
            continue
        if each.name == "transport":
            yield "transport", str(value.transport.kind)
            yield from _settings(setting, "transport.") if has(type(setting)) else ()
        else:
            kind = type(setting)
            is_shown = not prefix or issubclass(kind, str | int | float | Sequence | Mapping)
            whole = repr(setting) if is_shown else f"<{kind.__name__}>"
            yield f"{prefix}{each.name}", str(each.repr(setting)) if callable(each.repr) else whole


def _side(caption: str, text: str | None) -> Html:
    shown = (
        f"It has more than {LONGEST_SHOWN} characters, or a secret, and is not shown here." if text is None else text
    )
    return h("figure", h("figcaption", caption), h("pre", shown))


def _signature(tool: Tool) -> object:
    return Same(tool.declared), tool.requires_approval


def _section(shown: ShownParts, name: str) -> Html:
    """A section with a list; it is not visible if it is empty."""
    title = "Changed definitions" if name == CHANGES else name.capitalize()
    items, kind = h("ul", listed(shown, name), id=name), "warning" if name == CHANGES else "list"
    return h("section", h("h2", title), shown[f"{name}-pages"][1], items, class_=kind)


def _lasted(record: IncarnationRecord) -> Child:
    if record.connected is None or record.ended is None:
        return None if record.connected is None else since(record.connected)
    seconds = record.ended - record.connected
    return spoken(seconds) if seconds >= 1 else "under 1 s"


def _next(record: IncarnationRecord) -> Html | None:
    if record.next_at is None or record.next_at <= trio.current_time():
        return None
    return join(", next start in ", until(record.next_at))
