"""The figures of the explanation. The state machine is drawn from the table that the code obeys."""

from collections.abc import Callable
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from svg import Arrow, Box, Step, bend, graph, sequence, text

from mcp_nursery.supervisor.decisions.state_machine import BEGINNINGS, KEEPS_TOOLS, LEFT_BY_NOBODY, TRANSITIONS
from mcp_nursery.supervisor.status import ServerState

_PLACES = {
    ServerState.IDLE: (450, 40),
    ServerState.DISABLED: (75, 70),
    ServerState.BLOCKED: (75, 150),
    ServerState.STOPPED: (75, 230),
    ServerState.CONNECTING: (270, 150),
    ServerState.CONNECTED: (630, 150),
    ServerState.WAITING: (450, 205),
    ServerState.NEEDS_AUTH: (290, 410),
    ServerState.FAILED: (610, 410),
}
"""Where each state stands. A state without a place breaks the build: somebody has to find one for it."""


def ways() -> list[tuple[ServerState, ServerState]]:
    """Every way of the table but those to `stopped`, which leads there from everywhere."""
    return [
        (old, new) for old, follow in TRANSITIONS.items() for new in sorted(follow) if new is not ServerState.STOPPED
    ]


def state_machine() -> str:
    """The states and the ways between them."""
    others = set(TRANSITIONS) - {ServerState.STOPPED}
    assert all(ServerState.STOPPED in TRANSITIONS[state] for state in others), "draw the ways to `stopped`"
    known = set(ways())
    kinds = {"keeps": KEEPS_TOOLS, "person": LEFT_BY_NOBODY, "begins": BEGINNINGS}
    boxes = {
        state: Box(x, y, state, " ".join(kind for kind, states in kinds.items() if state in states))
        for state, (x, y) in ((state, _PLACES[state]) for state in TRANSITIONS)
    }
    arrows = [Arrow(old, new, both=(new, old) in known) for old, new in known if (new, old) not in known or old < new]
    return graph((710, 440), "The states of a server", boxes, sorted(arrows))


def who_talks_to_whom() -> str:
    """Tasks, and what passes between them."""
    boxes = {
        "host": Box(85, 100, "your task", "begins", 140, 50),
        "router": Box(350, 100, "router", "", 140, 50),
        "actor": Box(645, 100, "server actor\n(one incarnation)", "", 170, 56),
        "server": Box(920, 100, "server", "", 130, 50),
        "keeper": Box(645, 270, "keeper\n(one task per server)", "", 170, 56),
        "state": Box(350, 270, "states, catalogue,\nroutes, events", "keeps", 180, 56),
    }
    arrows = [
        Arrow("host", "router", "call"),
        Arrow("router", "actor", "call, to its owner"),
        Arrow("actor", "server", "JSON-RPC", both=True),
        Arrow("actor", "keeper", "exit\nreason", shift=32, lift=0, aside=30),
        Arrow("keeper", "actor", "starts,\nstops", shift=32, lift=0, aside=-30),
        Arrow("keeper", "state", "writes"),
        Arrow("state", "router", "routes", lift=0, aside=28),
    ]
    answer = bend((645, 69), (645, 30), (85, 30), (85, 72), kind="answer")
    news = bend((257, 270), (85, 270), (85, 128))
    labels = [text(365, 19, "the answer", "label"), text(172, 259, "status, events", "label")]
    return graph((990, 310), "Who talks to whom", boxes, arrows, [answer, news, *labels])


def a_call() -> str:
    """The way of a call over a stdio server."""
    you, router, actor, server = "your task", "router", "server actor", "server"
    steps = [
        Step(you, "", "name → route; the arguments\nbecome JSON; the clock starts"),
        Step(you, router, "call, with an empty slot"),
        Step(router, actor, "the same, to its mailbox\n(full: ServerBusy, not_sent)"),
        Step(actor, "", "waiting calls become\none write"),
        Step(actor, server, "tools/call\n(from here on: unknown)"),
        Step(server, actor, "notifications/progress", "answer"),
        Step(actor, you, "on_progress, in order", "answer"),
        Step(server, actor, "result", "answer"),
        Step(actor, you, "the slot is decided, once", "answer"),
        Step(you, "", "checked against the schema,\nscanned, rendered: ToolResult"),
    ]
    return sequence("The way of a call", [you, router, actor, server], steps)


def a_fault() -> str:
    """What the death of a server does."""
    you, keeper, actor, server = "your task", "keeper", "server actor", "server"
    steps = [
        Step(server, actor, "the process exits", "answer"),
        Step(actor, "", "reads for 0.05 s what is left:\nanswers still count"),
        Step(actor, you, "ConnectionLost(exit_code,\nstderr_tail, delivery)", "answer"),
        Step(actor, "", "ends what is left of\nthe process tree"),
        Step(actor, keeper, "exit reason", "answer"),
        Step(keeper, "", "asks the policy: restart in 2 s;\nthe server is waiting, one event"),
        Step(you, keeper, 'call_tool(when_down="wait")\nwaits for the state'),
        Step(keeper, actor, "2 s later: a new actor,\nincarnation 2"),
        Step(actor, server, "handshake, tools/list"),
        Step(keeper, you, "the server is connected:\nthe call goes on", "answer"),
    ]
    return sequence("What the death of a server does", [you, keeper, actor, server], steps)


_FIGURES: dict[str, Callable[[], str]] = {
    "state-machine": state_machine,
    "who-talks-to-whom": who_talks_to_whom,
    "a-call": a_call,
    "a-fault": a_fault,
}


class Figure(Directive):
    """`{figure-of} state-machine`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The figure, as it is."""
        return [nodes.raw("", _FIGURES[self.arguments[0]](), format="html")]


class Transitions(Directive):
    """The table of ways, in words."""

    def run(self) -> list[nodes.Node]:
        """One line a state."""
        rows = [(old, ", ".join(sorted(follow))) for old, follow in TRANSITIONS.items()]
        group = nodes.tgroup(cols=2)
        group += [nodes.colspec(colwidth=20), nodes.colspec(colwidth=80)]
        head = nodes.thead()
        head += _row(nodes.paragraph(text="from"), nodes.paragraph(text="to"))
        body = nodes.tbody()
        body += [_row(_code(old), _code(new)) for old, new in rows]
        group += [head, body]
        table = nodes.table()
        table += group
        return [table]


def _code(words: str) -> nodes.paragraph:
    paragraph = nodes.paragraph()
    for number, word in enumerate(words.split(", ")):
        if number:
            paragraph += nodes.Text(", ")
        paragraph += nodes.literal(text=word)
    return paragraph


def _row(*cells: nodes.Node) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        row += nodes.entry("", cell)
    return row


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx."""
    app.add_directive("figure-of", Figure)
    app.add_directive("transitions", Transitions)
    return {"parallel_read_safe": True}
