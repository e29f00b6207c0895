"""The commands that a keeper obeys, where its answers appear, and which commands still wait for one."""

from collections.abc import Collection

import trio
from attrs import define, field, frozen

from mcp_nursery.actors.enums import ListKind, ServerState

from ..decisions.state_machine import Snapshot
from ..spec import ServerSpec
from ..tools.pins import DefinitionChange
from .settings import KeeperSettings


@define(eq=False)
class Command:
    """A command to a keeper, and where its answer appears."""

    done: trio.Event = field(factory=trio.Event, init=False)
    outcome: Snapshot | None = field(default=None, init=False)
    """The snapshot of the server when it was done; set before `done`."""
    error: str | None = field(default=None, init=False)
    """The reason why it could not be done, in one line; None if it was."""

    def settle(self, outcome: Snapshot, error: str | None = None) -> None:
        """Answer."""
        self.outcome = outcome
        self.error = error
        self.done.set()


class Start(Command):
    """A person wants it running: a fresh start, unless it runs or is being started."""


class Wake(Command):
    """A call or list needs it: start it if it is idle, or failed and revived by calls. Shortens no ladder."""


class Hasten(Command):
    """A call wants the attempt that is due to begin now; of many, the first has it begun. Never answered."""


@define(eq=False)
class PutFirst(Command):
    """Somebody who named it waits for it: its first start goes before those for whom nobody waits. Never answered."""

    awaited: float
    """The place among those for whom somebody waits."""


class Authorised(Wake):
    """The command to start it again if it still waits for that: its tokens changed after they were refused."""


@define(eq=False)
class NotAuthorised(Command):
    """From the keeper itself: a person was asked to authorise the server, and nothing came of that."""

    why: str
    """One line, without secrets."""


class Recall(Command):
    """From the keeper itself: the store was asked what is cached of the server's definitions."""


class Reconnect(Command):
    """A fresh start now, whatever it does. Answered with the outcome of the attempt; many share one."""


class Refresh(Command):
    """Fetch the tools again; what is idle is started for it. Answered when that is done; a connection that is lost
    meanwhile leaves it to the next."""


@define(eq=False)
class RefreshOld(Command):
    """Somebody asks for these lists: fetch again what of them may be old, if it runs. Answered when that is done, or
    the connection is lost, and at once if what is known has to do."""

    kinds: Collection[ListKind]
    since: float
    """The time on Trio's clock from which on a fetch is recent enough."""


class RefreshExpired(Command):
    """Somebody looks at its lists: fetch those again that are too old, if it runs. Answered at once."""


class AnnounceRoots(Command):
    """The host's roots changed: tell the server if it runs. Answered at once."""


@define(eq=False)
class Subscribe(Command):
    """The command that sets the resources of it that somebody subscribes to now, besides those of its spec. Answered at
    once."""

    uris: frozenset[str]


@define(eq=False)
class Stop(Command):
    """End it, and start it no more. Answered when everything it owned is closed."""

    drain: float = 0.0
    """Seconds that calls already sent may still take."""


class Remove(Stop):
    """As `Stop`, and the keeper ends too."""


@define(eq=False)
class Reconfigure(Command):
    """Keep it by another spec. If that differs from the one it had, the connection ends and it begins anew; otherwise
    only what has failed, or lacks authorisation, is started afresh. Answered when what ends is closed."""

    spec: ServerSpec
    settings: KeeperSettings
    drain: float
    """Seconds that calls already sent may still take."""
    restart: bool = False
    """True if it begins anew in any case."""


@define(eq=False)
class AcceptChange(Command):
    """A person accepts how a tool has changed: it is pinned so, and the tools are compared again."""

    change: DefinitionChange


@frozen(eq=False)
class PendingCommands:
    """Unanswered commands, by what answers them. Each event of the server's life is one method, and answers some."""

    for_outcome: list[Command] = field(factory=list[Command], init=False)
    """Of the attempt under way, or about to begin."""
    for_tools: list[Command] = field(factory=list[Command], init=False)
    """Commands for tools that are being fetched from the present connection."""
    for_next_tools: list[Command] = field(factory=list[Command], init=False)
    """Commands for tools that the next connection brings: they are fresh enough."""
    for_lists: list[Command] = field(factory=list[Command], init=False)
    """Commands for lists that are being fetched again because they may be old: if the connection is lost, they stay as
    they are."""
    for_closing: list[Command] = field(factory=list[Command], init=False)
    """Of everything the incarnation owns."""

    def connected(self, now: Snapshot) -> None:
        """The attempt has succeeded, and brought tools."""
        _settle(now, self.for_next_tools, self.for_outcome)

    def refreshed(self, now: Snapshot, answers: Collection[object]) -> None:
        """Lists were fetched again, or could not be: answer these requests for that."""
        for waiting in (self.for_tools, self.for_lists):
            answered = [command for command in waiting if command in answers]
            waiting[:] = [command for command in waiting if command not in answers]
            _settle(now, answered)

    def overruled(self, now: Snapshot) -> None:
        """The connection is being ended: its lists stay as they are."""
        _settle(now, self.for_lists)

    def replaced(self) -> None:
        """Another connection takes the place of this one, and fetches the tools anyway."""
        self.for_next_tools.extend(self.for_tools)
        self.for_tools.clear()

    def ended(self, now: Snapshot) -> None:
        """An incarnation has ended unasked."""
        _settle(now, self.for_next_tools)
        if now.state is ServerState.WAITING:
            self.replaced()
        _settle(now, self.for_tools, self.for_lists, self.for_outcome)

    def stopped(self, now: Snapshot) -> None:
        """No attempt will bring what they wait for."""
        _settle(now, self.for_tools, self.for_lists, self.for_next_tools, self.for_outcome)

    def closed(self, now: Snapshot) -> None:
        """Nothing of an earlier connection is left."""
        _settle(now, self.for_closing)


def _settle(now: Snapshot, *pending: list[Command]) -> None:
    for commands in pending:
        for command in commands:
            command.settle(now)
        commands.clear()
