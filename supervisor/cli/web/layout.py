"""The frame of every page, and the pieces that several pages show."""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias
from urllib.parse import urlencode

import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.records import field, frozen
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.decisions.task_records import LAST_TIME
from mcp_nursery.supervisor.security.redaction import CUT_MARGIN
from mcp_nursery.supervisor.security.untrusted_marks import visible
from mcp_nursery.supervisor.status import ServerStatus

from ..lives import HOUR, MOST_INCARNATIONS, EventRecord, ServerHistory
from ..output import safe_line, safe_text
from ..statuses import counted, spoken
from .markup import Child, Html, h, join
from .timeline import timeline
from .visitors import Visitor

LONGEST_NAME: Final = 200
"""Characters of a name that are shown."""
MOST_LISTED_PAGES: Final = 50
"""Pages of one list."""
LONGEST_PHRASE: Final = 500
"""Characters of an error, or of a description in a list, that are shown."""
LONGEST_REASON: Final = 4_000
"""Characters of the reason of a trouble that are shown: it is one line, and never cut short of this."""
DO: Final = "do"
"""The field of a form with the act and its arguments: the value of the button that was pressed."""
_JSON: Final = json.JSONEncoder(indent=2, ensure_ascii=False)


@frozen
class Part:
    """A part of a page. It is sent again when it has changed."""

    id: str
    """The id of its element."""
    signature: object = field(repr=False)
    """All that it shows, without clocks, which browsers advance: equal if nothing has changed."""
    render: Callable[[], Html] = field(repr=False)
    """The function that makes its element."""
    list: str = ""
    """The id of the list that it is in; empty: it has a place of its own."""
    order: str = ""
    """The place in that list, as a text by which the list is sorted."""


ShownParts: TypeAlias = Mapping[str, tuple[Part, Html]]
"""Parts with their elements, by id."""


class LivePage(Protocol):
    """A page whose parts change."""

    title: str

    async def read(self) -> None:
        """Read all that cannot be read at once, before `parts`; most pages read nothing."""
        return

    def parts(self) -> Sequence[Part]:
        """The parts as they are now.

        Raises:
            UnknownServer: The page is about a server that is no longer configured.
        """
        ...

    def content(self, shown: ShownParts) -> Html:
        """The page of these parts."""
        ...


def listed(shown: ShownParts, name: str) -> list[Html]:
    """The elements of a list, in their order."""
    rows = sorted((part.order, html) for part, html in shown.values() if part.list == name)
    return [html for _, html in rows]


@frozen(eq=False)
class Same:
    """A value that is equal to itself alone, for one that is long or slow to compare."""

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@frozen
class Flash:
    """A message about the outcome of an act, shown once."""

    text: str
    good: bool = True


def element_id(kind: str, name: str) -> str:
    """The id of an element about something with any name."""
    return f"{kind}-{blake2b(name.encode(errors='surrogatepass'), digest_size=8).hexdigest()}"


def url(path: str, **query: str) -> str:
    """The address of one of the pages."""
    asked = {key: value.encode(errors="replace") for key, value in query.items()}
    return f"/ui{path}?{urlencode(asked)}" if asked else f"/ui{path}"


def short(text: object, longest: int = LONGEST_NAME) -> str:
    """A text on one line; only the beginning of a long one: texts of clients and servers may have any length."""
    whole = "" if text is None else str(text)
    return safe_line(whole[:longest]) + ("…" if len(whole) > longest else "")


def pretty(value: object, longest: int) -> str:
    """A JSON value on several lines: at most so many characters of it, and hardly more are made."""
    pieces: list[str] = []
    length = 0
    for piece in _JSON.iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > longest:
            break
    return "".join(pieces)[:longest]


def document(title: str, visitor: Visitor, *content: Child, live: str | None = None, flash: Flash | None = None) -> str:
    """A whole page, as this visitor sees it. `live` is the address of its changes, if it has any; `flash` is a message
    above the content."""
    page = h(
        "html",
        h(
            "head",
            h("meta", charset="utf-8"),
            h("meta", name="viewport", content="width=device-width, initial-scale=1"),
            h("title", f"{short(title)} · mcp-nursery"),
            h("link", rel="stylesheet", href="/ui/static/style.css"),
            h("link", rel="icon", href="/ui/static/icon.svg"),
            h("script", src="/ui/static/live.js", defer=True),
        ),
        h(
            "body",
            h("a", "Skip to the content", class_="skip", href="#content"),
            h("header", _navigation(title, visitor)),
            h("p", id="away", class_="bad", role="status", hidden=True),
            h(
                "main",
                h("h1", short(title)),
                None if flash is None else flash_of(flash),
                *content,
                h("form", csrf_field(visitor), id="acts", method="post", action="/ui/act") if visitor.may_act else None,
                id="content",
                tabindex=-1,
                data_live=live,
            ),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{page}"


def _navigation(title: str, visitor: Visitor) -> Html:
    clients = [("Clients", "/ui/clients")] if visitor.has_clients else []
    pages = [("Servers", "/ui"), *clients, ("Tasks", "/ui/tasks")] if visitor.may_look else []
    links = [h("li", h("a", name, href=href, aria_current="page" if name == title else None)) for name, href in pages]
    leave = None
    if visitor.principal is not None:
        button = h("button", f"Log out {short(visitor.principal.name)}", class_="plain")
        leave = h("form", csrf_field(visitor), button, method="post", action="/ui/logout")
    return h("nav", h("strong", "mcp-nursery"), h("ul", links), leave, aria_label="Pages")


def csrf_field(visitor: Visitor) -> Html:
    """The field of a form that proves that the form is ours."""
    return h("input", type="hidden", name="csrf", value=visitor.csrf)


def flash_of(flash: Flash) -> Html:
    """A message about the outcome of an act."""
    return h("p", flash.text, class_="good" if flash.good else "bad", role="status" if flash.good else "alert")


def act_button(label: str, act: str, *, may_act: bool, **given: str) -> Html:
    """A button for an act. It is the same for all who may act: the form that it sends, with the token of the visitor,
    is another part of the document."""
    return h("button", label, form="acts", name=DO, value=urlencode({"act": act, **given}), disabled=not may_act)


# -- pieces -----------------------------------------------------------------------------------------------------------


def state_of(state: ServerState) -> Html:
    """A state, as a word with a mark."""
    return h("span", str(state).replace("_", " "), class_=f"state {state}")


def _unix(at: float) -> float:
    """The Unix time of a time on Trio's clock, which every function here takes, as far as a date can have it."""
    return min(max(time.time() - (trio.current_time() - at), 0.0), LAST_TIME)


def since(at: float) -> Html:
    """The time since then, which browsers advance."""
    return h("time", spoken(trio.current_time() - at), data_since=f"{_unix(at):.1f}")


def until(at: float) -> Html:
    """The time until then, which browsers advance."""
    return h("time", spoken(max(0.0, at - trio.current_time())), data_until=f"{_unix(at):.1f}")


def clock(at: float) -> Html:
    """A time of the day."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_unix(at)))
    return h("time", _time_of_day(at), datetime=stamp, title=stamp)


def start_of(status: ServerStatus) -> Html | None:
    """The number of a server's start, and the time until the next one is due; None if it is connected or off."""
    trying = status.state is ServerState.WAITING or (status.state is ServerState.CONNECTING and status.attempt > 1)
    if not trying:
        return None
    said = f"start {status.attempt} of {status.max_attempts}"
    due = None if status.retry_in is None else join(" in ", until(trio.current_time() + status.retry_in))
    return h("span", said, due, class_="quiet")


def uptime_of(status: ServerStatus) -> Html | None:
    """The time since a server was connected; None if it is not."""
    return None if status.uptime is None else since(trio.current_time() - status.uptime)


def life(past: ServerHistory, window: float) -> Html:
    """The last `window` seconds of a server, drawn."""
    now = trio.current_time()
    return timeline(past, now, window, clock=_time_of_day, unix=_unix(now))


def _time_of_day(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(_unix(at)))


def trouble_of(status: ServerStatus, past: ServerHistory) -> Html:
    """The facts about a server in trouble: since when, why, how often in an hour, and what happens next."""
    now, breaker = trio.current_time(), status.breaker
    began = past.troubled_at if breaker is None else None
    refusing = (
        None if breaker is None else f"the circuit breaker is {breaker.state.replace('_', ' ')}: calls are refused"
    )
    lost = past.losses(now - HOUR)
    unstarted = sum(each.connected is None for each in lost)
    numbers = ((len(lost) - unstarted, "loss", "losses"), (unstarted, "failed start", "failed starts"))
    often = ", ".join(counted(*each) for each in numbers if each[0])
    least = "at least " if len(lost) == MOST_INCARNATIONS else ""
    return definitions(
        ("In trouble since", None if began is None else join(clock(began), h("small", " ", since(began), " ago"))),
        ("Why", short(refusing or status.error or _WHY.get(status.state), LONGEST_REASON) or None),
        ("In the last hour", f"{least}{often}" if often else None),
        ("Calls under way", f"{status.calls.in_flight}" if status.calls.in_flight else None),
        ("Next", next_of(status)),
    )


_WHY: Final = {ServerState.BLOCKED: "nobody has agreed to its entry yet", ServerState.NEEDS_AUTH: "nobody is logged in"}


def next_of(status: ServerStatus) -> Child:
    """The next step of a server in trouble."""
    if status.breaker is not None:
        return join("one call probes in ", until(trio.current_time() + status.breaker.retry_in))
    match status.state:
        case ServerState.FAILED if status.attempt >= status.max_attempts:
            return f"gave up after {counted(status.attempt, 'start')}: it begins again when somebody reconnects it"
        case ServerState.FAILED:
            return "no further start helps: mend it, and reconnect it"
        case ServerState.BLOCKED:
            return h("code", "mcp-nursery trust")
        case ServerState.NEEDS_AUTH:
            return h("code", f"mcp-nursery login {short(status.name)}")
        case _:
            return join(start_of(status) or "the first start", None if status.retry_in is not None else " is under way")


_ROUNDED: Final = 0.1
"""Seconds from which milliseconds are whole."""


def milliseconds(seconds: float | None) -> str:
    """A duration under a head that names the unit; empty if it is not known."""
    return "" if seconds is None else f"{seconds * 1000:,.0f}" if seconds >= _ROUNDED else f"{seconds * 1000:.3g}"


def definitions(*facts: tuple[str, Child]) -> Html:
    """Named facts; those that are None are left out."""
    return h("dl", [h("div", h("dt", name), h("dd", value)) for name, value in facts if value])


_ACTS: Final = {
    ServerState.CONNECTED: ("reconnect", "stop"),
    ServerState.CONNECTING: ("reconnect", "stop"),
    ServerState.WAITING: ("reconnect", "stop"),
    ServerState.NEEDS_AUTH: ("reconnect", "stop"),
    ServerState.FAILED: ("reconnect",),
    ServerState.IDLE: ("start", "stop"),
    ServerState.STOPPED: ("start",),
    ServerState.DISABLED: ("start",),
}
"""The acts that make sense in each state; none in `blocked`, which only an agreement ends."""


def acts_of(status: ServerStatus, *, may_act: bool, most: int = 2) -> Html | None:
    """The buttons of the acts that make sense now, the one that helps first."""
    acts = _ACTS.get(status.state, ())[:most]
    made = [act_button(act.capitalize(), act, may_act=may_act, server=status.name) for act in acts]
    return h("div", made, class_="acts") if made else None


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[Child]], *, empty: str, numbers: Collection[str] = ()
) -> Html:
    """A table without the columns in which nothing stands; if it has no rows, the sentence `empty` in its place.
    `numbers` has the heads of columns of numbers, which stand at the right."""
    body = [*rows]
    if not body:
        return h("p", empty, class_="quiet")
    shown = [number for number in range(len(heads)) if any(row[number] for row in body)]
    kinds = ["number" if head in numbers else None for head in heads]
    lines = [h("tr", [h("td", row[number], class_=kinds[number]) for number in shown]) for row in body]
    names = [h("th", heads[number], scope="col", class_=kinds[number]) for number in shown]
    whole = h("table", h("thead", h("tr", names)), h("tbody", lines), aria_label=caption)
    return h("div", whole, class_="wide", tabindex=0, role="region", aria_label=caption)


def first_of(page: int, most: int, total: int) -> int:
    """The number of the first item on this page of a list, or on its last page if it has fewer."""
    return min(page - 1, max(total - 1, 0) // most) * most


def pages_of(path: str, name: str, page: int, most: int, total: int) -> Html | None:
    """Links to the pages of a list of so many items, `most` on each; None if there is one page."""
    if total <= most:
        return None
    first, about = first_of(page, most, total), {"name": name} if name else {}
    links = [
        h(
            "a",
            f"{at + 1} to {min(at + most, total)}",
            href=url(path, **about, number=f"{at // most + 1}"),
            aria_current="page" if at == first else None,
        )
        for at in range(0, min(total, MOST_LISTED_PAGES * most), most)
    ]
    return h("nav", f"{total} in all: ", links, class_="pages", aria_label="Pages of this list")


def filter_of(name: str) -> Html:
    """The field that filters the list of this name."""
    return h("p", h("label", "Filter ", h("input", id="filter", type="search", data_filters=name)))


def events_of(records: Iterable[EventRecord]) -> Html:
    """Events, the latest first."""
    lines = [h("li", clock(record.at), " ", short(record.line, LONGEST_PHRASE)) for record in records]
    return h("ol", lines, class_="events") if lines else h("p", "Nothing has happened yet.", class_="quiet")


@frozen
class ServerWords:
    """The words of one server, made fit for a page: without its secrets, and of a long text only the beginning."""

    supervisor: Supervisor
    server: str

    def line(self, text: str, longest: int = LONGEST_PHRASE) -> str:
        """A text on one line."""
        return short(self.supervisor.redact(self.server, text, longest=longest + 1), longest)

    def json(self, value: object, longest: int) -> str:
        """A JSON value on several lines."""
        whole = pretty(value, longest + CUT_MARGIN + 1)
        return safe_text(self.supervisor.redact(self.server, whole, longest=longest))

    def whole(self, value: object, longest: int) -> str | None:
        """A JSON value on several lines, with all characters visible; None if it is longer, or holds a secret."""
        text = pretty(value, longest + 1)
        return "\n".join(map(visible, text.split("\n"))) if len(text) <= longest and self.keeps(text) else None

    def keeps(self, text: str) -> bool:
        """True if there is no secret in a text."""
        return self.supervisor.redact(self.server, text, longest=len(text)) == text
