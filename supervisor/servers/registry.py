"""The registry of servers: all that is known of those that a supervisor keeps, and where their keepers write.

Theory of operation
-------------------

Each server has one writer, its keeper, and any number of readers. A keeper writes a `Snapshot`: an immutable value
with the state, the spec, the owner of the connection and the definitions. All else that anybody can see of the server
follows from the old and the new snapshot, and is worked out here in one synchronous step:

    catalogue       the public names and the tools of all servers, as one value
    routes          the mailbox for each server's calls, given to the router together with the catalogue
    events          the difference between the two, as hosts read it
    figures         statistics, traces, circuit breakers, kept reads, the log

No task runs between the parts of the step, so nobody sees half of it: a tool in the catalogue has its route, and an
event is published when what it reports can be read. In return the step must be short. Therefore the definitions of a
server are bounded where they come in, the tools of new definitions are made before the step and in pieces
(`prepare_all`), an entry that is as it was stays the same object, and a change of one server makes one part of the
catalogue new and keeps all others. Nothing in the step waits or raises for what a server says.

The set of servers changes in two steps. A server that is removed is in `leaving` from that moment: it has no tools
and its name is free for nobody. `forget` takes it out when its keeper has closed all that it owned. A public name may
depend on what other servers are called, so that each change of the set goes through `rebuild`; parts whose rivals
are the same stay as they are.

A supervisor may borrow servers of another. It sees them through a `Projection` of its own: the same snapshots, with
filters, names, reserved words and events of the borrower. `ServerRegistry` is the projection of the owner. `publish`
and `rebuild` change every projection in the same step, the owner's first: a borrower has no keepers, no task and no
state that could lag behind. Further instances of a server have a registry of their own, whose figures are counted
with those of the first.

Readers hold no locks. They take the value that is there (`Observable.value`), or wait until a condition on it holds;
a reader that waits for a tool by name waits in `AwaitedTools`, which wakes only those whom a change concerns.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeAlias

import trio

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.router import RouterActor
from mcp_nursery.actors.secrets import SECRETS

from ..catalogue.catalogue import Catalogue, replace_parts
from ..catalogue.server_tools import Before, dismiss
from ..decisions.state_machine import Snapshot
from ..events import (
    BreakerChanged,
    DefinitionsChanged,
    ResourceUpdated,
    StateChanged,
    tools_event,
)
from ..logs import TransitionLog, offer_of
from ..notices import NoticeHub
from ..security.untrusted_marks import clean_name, visible
from ..tools.tool import Invoke
from .breakers import CircuitBreakers
from .call_counter import CallCounter
from .given_up_tasks import GivenUpTasks
from .keeper_commands import Command
from .observable import Observable
from .projection import Projection, StatusFigures
from .resource_state import KeptReads, Subscriptions
from .settings import SupervisorSettings
from .task_news import TaskNews

logger: Final = logging.getLogger(__name__)

_MOST_LOGGED_NAMES = 20
"""Tools or skills that one line of the log names."""

_MOST_OF_URI = 100
"""Characters of the URI of a skill in it."""

_TOOLS_AT_ONCE = 100
"""Tools that are taken out of the catalogue in no time."""

Prepared: TypeAlias = Mapping[Projection, Before | None]
"""The part of a server that was made ahead, for each supervisor that shows the server."""
NOTHING_PREPARED: Final[Prepared] = {}


def _may_have_announced_resources(old: Snapshot, new: Snapshot) -> bool:
    """True if the resources were listed again, perhaps because their server has announced a change. A list without
    entries does not show that."""
    before, after = old.definitions, new.definitions
    return after.resources is not before.resources or (not after.resources and after is not before)


class ServerRegistry(Projection):
    """The servers that a supervisor keeps, and all that is known of them: what their keepers write is published
    here."""

    def __init__(
        self, settings: SupervisorSettings, invoke: Invoke, counter: CallCounter, subscriptions: Subscriptions
    ) -> None:
        snapshots: dict[str, Observable[Snapshot]] = {}
        self.breakers: Final = CircuitBreakers(snapshots, self._publish_breaker)
        self.leaving: Final[dict[str, Command]] = {}
        """Servers that are configured no more, until everything they owned is closed and their command is answered."""
        super().__init__(settings, invoke, StatusFigures(counter, self.breakers), self.leaving, snapshots)
        self.subscriptions: Final = subscriptions
        self.router: Final = RouterActor()
        self.borrowed: Final[set[Projection]] = set()
        """The projections of borrowers: each change here is one there too, in the same step."""
        self.notices: Final = NoticeHub()
        """Notifications of servers that are about no request."""
        self.telemetry: Final = settings.telemetry
        self._counter = counter
        self._log = TransitionLog()
        self._reads: dict[str, KeptReads] = {}
        """The kept reads of each server whose resources somebody has read."""
        self.skills_fresh_until: Final[dict[str, float]] = {}
        """The times until which the known skills of servers are those of their lists, or the pins of servers without
        skills those of the store, on Trio's clock."""
        self.given_up_tasks: Final = GivenUpTasks()
        self.task_news: Final = TaskNews()

    def account(self, server: str) -> Account:
        """The account of the messages that wait for it, or that it has sent."""
        return self._counter.tally(server).account

    def reads_of(self, server: str) -> KeptReads:
        """The reads of its resources since it was connected, or notified a change."""
        if server not in self._reads:
            self._reads[server] = KeptReads(self.snapshots[server].value.spec.max_kept_bytes)
        return self._reads[server]

    def trace(self, server: str) -> AbstractContextManager[Any]:
        """The trace in which this server is being connected, to be entered by the task that connects it."""
        return nullcontext() if self.telemetry is None else self.telemetry.connecting(server)

    # -- one server has changed -----------------------------------------------------------------------------------

    def prepare_all(self, new: Snapshot) -> Steps[Prepared]:
        """Make in pieces what shows the definitions that a keeper is about to write, here and to borrowers."""
        made: dict[Projection, Before | None] = {}
        for projection in (self, *self._showing(new.spec.name)):
            made[projection] = yield from projection.prepare(new)
        return made

    def publish(self, new: Snapshot, prepared: Prepared = NOTHING_PREPARED) -> None:
        """Publish what a keeper wrote, before any other task runs: here, to borrowers, and in the log."""
        name, old = new.spec.name, self.snapshots[new.spec.name].value
        change, differing = self.change(new, prepared.get(self))
        for borrowed in self._showing(name):
            borrowed.change(new, prepared.get(borrowed))
        if new.owner is not old.owner or new.definitions.resources is not old.definitions.resources:
            self._reads.pop(name, None)
        moved = new.owner is not old.owner or new.spec.transport != old.spec.transport
        if moved or _may_have_announced_resources(old, new):
            self.skills_fresh_until.pop(name, None)
        if new.spec.transport != old.spec.transport:
            self.given_up_tasks.forget(name)
        if new.owner is not old.owner:
            self.breakers.close(name)
            if new.owner is not None:
                self.given_up_tasks.connected(name, new.owner)
        if self.telemetry is not None:
            self.telemetry.record_step(old, new)
        self._counter.note(old, new)
        self._write_log(change, old, new, differing)

    def _showing(self, server: str) -> Sequence[Projection]:
        """The projections of borrowers that show this server."""
        return [borrowed for borrowed in self.borrowed if server in borrowed.snapshots]

    def _write_log(
        self, change: StateChanged | None, old: Snapshot, new: Snapshot, differing: DefinitionsChanged | None
    ) -> None:
        """Log the changes. A server's words are in the events alone, not here."""
        if change is not None:
            self._log.record_transition(change, offer_of(new, len(self.catalogue.value.parts[new.spec.name].tools)))
        if differing is not None:
            hide = SECRETS.get().hide_line
            names = ", ".join(
                clean_name(hide(each.tool)) if each.kind == "tool" else visible(hide(each.tool)[:_MOST_OF_URI])
                for each in differing.changes[:_MOST_LOGGED_NAMES]
            )
            if len(differing.changes) > _MOST_LOGGED_NAMES:
                names += f" and {len(differing.changes) - _MOST_LOGGED_NAMES} more"
            held = " and are held back" if differing.held else ""
            found = f"have changed since they were first used{held}: {names}; see `mcp-nursery pins`"
            logger.warning("%s: definitions of %ss %s", clean_name(new.spec.name), differing.changes[0].kind, found)
            return
        reviews = ("tools", old.review, new.review), ("skills", old.skills.review, new.skills.review)
        for noun, before, after in reviews:
            if after is not before and (unknown := set(after.held.values()) - set(before.held.values())):
                logger.warning("%s: its %s are held back: %s", clean_name(new.spec.name), noun, unknown.pop())

    def _publish_breaker(self, change: BreakerChanged) -> None:
        self._log.record_breaker(change)
        self._tell(change)

    def publish_update(self, update: ResourceUpdated) -> None:
        """Publish that a subscribed resource, or one under it, has changed, or may have."""
        self._reads.pop(update.server, None)
        self._tell(update)
        self.subscriptions.deliver(update)

    def _tell(self, event: BreakerChanged | ResourceUpdated) -> None:
        for projection in (self, *self._showing(event.server)):
            projection.events.publish(event)

    # -- the set of servers has changed ---------------------------------------------------------------------------

    @override
    def add(self, servers: Iterable[str]) -> Sequence[StateChanged]:
        events = super().add(servers)
        for event in events:
            if self.telemetry is not None:
                self.telemetry.record_step(None, self.snapshots[event.server].value)
            self._log.record_attempt(event)
        return events

    def reorder(self, servers: Iterable[str]) -> None:
        """Put all servers in the order in which they are configured now."""
        for name in servers:
            self.snapshots[name] = self.snapshots.pop(name)

    @override
    def rebuild(self) -> None:
        # Here, and for borrowers.
        super().rebuild()
        for borrowed in self.borrowed:
            borrowed.rebuild()

    def dismiss(self, servers: Mapping[str, Command]) -> None:
        """Dismiss these, as all servers end: their tools are gone in one step. With a catalogue for each, a thousand
        servers would take twice as long to end. A server with many tools is left to its keeper, which works in
        turns."""
        now, before = trio.current_time(), self.catalogue.value.parts
        few = [before[name] for name in servers if len(before[name].tools) <= _TOOLS_AT_ONCE]
        left = {part.server: dismiss(part) for part in few}
        self.leaving.update((name, servers[name]) for name in left)
        self._show(replace_parts(self.catalogue.value, left.values()))
        for part in few:
            event = tools_event(part, left[part.server], now)
            if event is not None:
                self.events.publish(event)

    def forget(self, server: str) -> None:
        """Forget a server that was leaving: everything it has owned is closed."""
        for borrowed in self._showing(server):
            borrowed.remove(server)
        del self.leaving[server]
        self.remove(server)
        self.subscriptions.end(server)
        self._reads.pop(server, None)
        self.skills_fresh_until.pop(server, None)
        self.given_up_tasks.forget(server)
        self._log.forget(server)
        if self.telemetry is not None:
            self.telemetry.forget(server)

    def _show(self, catalogue: Catalogue) -> None:
        self.router.swap(catalogue.parts)
        super()._show(catalogue)
