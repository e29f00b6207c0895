"""The commands that a keeper obeys, their answers, and the commands that still wait for one."""

from collections.abc import Collection, Mapping
from typing import Any

import trio

from mcp_nursery.actors.enums import ListKind, ServerState
from mcp_nursery.actors.records import define, field, frozen

from ..decisions.state_machine import Snapshot
from ..skills import Skill
from ..spec import ServerSpec
from ..tools.pins import UNREVIEWED, DefinitionChange, Review
from ..transports import Transport
from .settings import KeeperSettings


@define(eq=False)
class Command:
    """A command to a keeper, with its answer."""

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
    """The command of a person to run it: a fresh start, unless it runs or is being started."""


class Wake(Command):
    """The command of a call or list that needs it: start it if it is idle, or failed and revived by calls. Shortens no
    ladder."""


@define(eq=False)
class SkipRestartDelay(Command):
    """The command of a call to begin the due attempt at once; of many, the first does so. Never answered."""

    lost: int
    """The incarnation that the attempt follows: a command that comes late begins no later attempt."""


@define(eq=False)
class PutFirst(Command):
    """The command of a caller that named it and waits: its first start goes before those that nobody waits for. Never
    answered."""

    awaited: float
    """The place among those that somebody waits for."""


class Authorised(Wake):
    """The command to start it again if it still waits for that: its tokens changed after they were refused."""


@define(eq=False)
class NotAuthorised(Command):
    """The keeper's own command: a person was asked to authorise the server, in vain."""

    why: str
    """One line, without secrets."""


class Recall(Command):
    """The keeper's own command: the store was asked for the server's cached definitions."""


@define(eq=False)
class Measured(Command):
    """The keeper's own command: the memory of the server's processes was looked at."""

    incarnation: int
    """The incarnation that has these processes."""
    memory: int | None
    """Bytes; None if they cannot be known."""


class Reconnect(Command):
    """The command to start the server afresh now, in any state. Answered with the outcome of the attempt; many commands
    share an attempt."""


class Refresh(Command):
    """The command to fetch the tools again; an idle server is started for it. Answered when that is done; if the
    connection is lost meanwhile, by the next one."""


@define(eq=False)
class RefreshOld(Command):
    """The command to fetch those of these lists again that may be old, if it runs. Answered when that is done, or the
    connection is lost; if the known lists have to do, after the reports that are already on their way."""

    kinds: Collection[ListKind]
    since: float
    """The time on Trio's clock from which on a fetch is recent enough."""
    deferred: bool = field(default=False, init=False)
    """True if it was sent again, behind those reports."""


class RefreshExpired(Command):
    """The command to fetch lists again that are too old, if it runs. Answered at once."""


class AnnounceRoots(Command):
    """The command to notify the server of new roots of the host, if it runs. Answered at once."""


@define(eq=False)
class SendNotification(Command):
    """The command to send the server a notification, if it runs. Answered when that is sent or dropped."""

    method: str
    params: Mapping[str, Any] | None


@define(eq=False)
class Subscribe(Command):
    """The command to replace the set of resources that callers subscribe to, in addition to those that the spec names.
    Answered at once."""

    uris: frozenset[str]


@define(eq=False)
class Stop(Command):
    """The command to end it, and start it no more. Answered when everything it owned is closed."""

    drain: float = 0.0
    """Seconds that calls already sent may still take."""


class Remove(Stop):
    """The command to stop it and end the keeper."""


@define(eq=False)
class Reconfigure(Command):
    """The command to keep the server by another spec. If the spec differs from the one before, the connection ends and
    the server begins anew; otherwise the server is started afresh only if it has failed, or lacks authorisation.
    Answered when the old connection is closed."""

    spec: ServerSpec
    settings: KeeperSettings
    drain: float
    """Seconds that calls already sent may still take."""
    restart: bool = False
    """True if it begins anew in any case."""


@define(eq=False)
class AcceptChange(Command):
    """The command of a person who accepts how a tool or a skill has changed: it is pinned so, and all of the kind are
    compared again."""

    change: DefinitionChange


@define(eq=False)
class LearnSkills(Command):
    """The command to know these skills, which the server has just given, compared with what they were at first use."""

    skills: Mapping[str, Skill]
    """The skills by URI."""
    whole: bool
    """True if they are its list; False if others are known as well."""
    transport: Transport
    """The way in which the server was reached: one that is reached otherwise has other skills."""
    review: Review = field(default=UNREVIEWED, init=False)
    """The comparison, once it is done."""


@frozen(eq=False)
class PendingCommands:
    """Unanswered commands, by what answers them. Each event of the server's life is one method, and answers some."""

    for_outcome: list[Command] = field(factory=list[Command], init=False)
    """Commands for the attempt under way, or about to begin."""
    for_tools: list[Command] = field(factory=list[Command], init=False)
    """Commands for tools that are being fetched from the present connection."""
    for_next_tools: list[Command] = field(factory=list[Command], init=False)
    """Commands for tools that the next connection brings: they are fresh enough."""
    for_lists: list[Command] = field(factory=list[Command], init=False)
    """Commands for lists that are being fetched again because they may be old: if the connection is lost, they stay as
    they are."""
    for_closing: list[Command] = field(factory=list[Command], init=False)
    """Commands for the closing of all that the incarnation owns."""

    def connected(self, now: Snapshot) -> None:
        """Answer for an attempt that has succeeded, and brought tools."""
        _settle(now, self.for_next_tools, self.for_outcome)

    def refreshed(self, now: Snapshot, answers: Collection[object]) -> None:
        """Answer these requests: lists were fetched again, or could not be."""
        for waiting in (self.for_tools, self.for_lists):
            answered = [command for command in waiting if command in answers]
            waiting[:] = [command for command in waiting if command not in answers]
            _settle(now, answered)

    def overruled(self, now: Snapshot) -> None:
        """Answer for lists of a connection that is being ended: they stay as they are."""
        _settle(now, self.for_lists)

    def replaced(self) -> None:
        """Leave tools to the connection that takes the place of this one: it fetches them anyway."""
        self.for_next_tools.extend(self.for_tools)
        self.for_tools.clear()

    def ended(self, now: Snapshot) -> None:
        """Answer for an incarnation that has ended unasked."""
        _settle(now, self.for_next_tools)
        if now.state is ServerState.WAITING:
            self.replaced()
        _settle(now, self.for_tools, self.for_lists, self.for_outcome)

    def stopped(self, now: Snapshot) -> None:
        """Answer those for attempts and lists: none will come."""
        _settle(now, self.for_tools, self.for_lists, self.for_next_tools, self.for_outcome)

    def closed(self, now: Snapshot) -> None:
        """Answer for an earlier connection, of which nothing is left."""
        _settle(now, self.for_closing)


def _settle(now: Snapshot, *pending: list[Command]) -> None:
    for commands in pending:
        for command in commands:
            command.settle(now)
        commands.clear()
