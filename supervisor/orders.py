"""What a keeper can be told, and where its answer appears."""

from enum import Enum

import trio
from attrs import define, field, frozen

from .spec import ServerSpec
from .status import Snapshot
from .terms import KeeperSettings
from .tools.pins import DefinitionChange


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
