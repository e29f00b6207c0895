"""What a keeper can be told, where its answer appears, and who still waits for one."""

from enum import Enum

import trio
from attrs import define, field, frozen

from mcp_nursery.actors.states import ServerState

from ..spec import ServerSpec
from ..status import Snapshot
from ..tools.pins import DefinitionChange
from .settings import KeeperSettings


class Order(Enum):
    """What a keeper can be told."""

    START = "start"
    """A person wants it running: a fresh start, unless it runs or is being started."""
    WAKE = "wake"
    """A call or list needs it: start it if it is idle, or failed and revived by calls. Shortens no ladder."""
    RECONNECT = "reconnect"
    """A fresh start now, whatever it does. Answered with the outcome of the attempt; many share one."""
    RELIST = "relist"
    """Fetch the tools again; what is idle is started for it. Answered when that is done; a connection that is lost
    meanwhile leaves it to the next."""
    RENEW = "renew"
    """Keep it as this renewal says. If its spec has changed, the connection ends and it begins anew; otherwise only
    what has failed, or lacks authorisation, is started afresh. Answered when what ends is closed."""
    STOP = "stop"
    """End it and leave it. Answered when everything it owned is closed."""
    LEAVE = "leave"
    """As `STOP`, and the keeper ends too."""


@frozen
class Renewal:
    """How a server is to be kept from now on."""

    spec: ServerSpec
    settings: KeeperSettings


@define(eq=False)
class Request:
    """What a keeper is asked, and where its answer appears."""

    done: trio.Event = field(factory=trio.Event, init=False)
    outcome: Snapshot | None = field(default=None, init=False)
    """How the server stood when it was done; set before `done`."""
    error: str | None = field(default=None, init=False)
    """Why it could not be done, in one line; None if it was."""

    def settle(self, outcome: Snapshot, error: str | None = None) -> None:
        """Answer."""
        self.outcome = outcome
        self.error = error
        self.done.set()


@define(eq=False)
class Command(Request):
    """An order to a keeper."""

    order: Order
    drain: float = 0.0
    """Seconds that calls already sent may still take."""
    renewal: Renewal | None = None
    """Of `RENEW`."""


@define(eq=False)
class Acceptance(Request):
    """A person accepts how a tool has changed: it is pinned so, and the tools are looked at again."""

    change: DefinitionChange


class Waiters:
    """Unanswered commands, by what answers them. Each event of the server's life is one method, and answers some."""

    def __init__(self) -> None:
        self.for_outcome: list[Command] = []
        """Of the attempt under way, or about to begin."""
        self.for_tools: list[Command] = []
        """That are being fetched from the connection there is."""
        self.for_next_tools: list[Command] = []
        """That the next connection brings: they are fresh enough."""
        self.for_closing: list[Command] = []
        """Of everything the incarnation owns."""

    def connected(self, now: Snapshot) -> None:
        """The attempt has succeeded, and brought tools."""
        _answer(self.for_next_tools, now)
        _answer(self.for_outcome, now)

    def relisted(self, now: Snapshot) -> None:
        """The tools were fetched again, or could not be."""
        _answer(self.for_tools, now)

    def begins_anew(self) -> None:
        """Another connection takes the place of this one, and fetches the tools anyway."""
        self.for_next_tools += self.for_tools
        self.for_tools.clear()

    def ended(self, now: Snapshot) -> None:
        """An incarnation has ended, and nobody had asked for that."""
        _answer(self.for_next_tools, now)
        if now.state is ServerState.WAITING:
            self.begins_anew()
        _answer(self.for_tools, now)
        _answer(self.for_outcome, now)

    def stopped(self, now: Snapshot) -> None:
        """No attempt will bring what they wait for."""
        _answer(self.for_tools, now)
        _answer(self.for_next_tools, now)
        _answer(self.for_outcome, now)

    def closed(self, now: Snapshot) -> None:
        """Nothing of an earlier connection is left."""
        _answer(self.for_closing, now)

    def left(self, now: Snapshot) -> None:
        """The keeper ends, and answers nobody any more."""
        self.stopped(now)
        self.closed(now)


def _answer(commands: list[Command], now: Snapshot) -> None:
    for command in commands:
        command.settle(now)
    commands.clear()
