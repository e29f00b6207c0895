"""The course of one server: where it stands, its place on the restart ladder, and when its next start is due."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio
from attrs import evolve

from mcp_nursery.actors.messages import Connected, ExitReason, ServerState

from .aftermath import snapshot_after
from .lifecycle import check_beginning, check_transition
from .policy import RestartPolicy, RestartTracker
from .spec import ServerSpec
from .standing import renewed_snapshot
from .status import Introduction, Snapshot
from .tools.pins import Review

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

_NEVER = math.inf


class Course:
    """Snapshot, ladder and time of the next start, which change together. Each method is one step in the life of the
    server and publishes what it has changed; its keeper alone takes them.

    Args:
        snapshot: Where the server stands before anything was done.
        policy: Its ladder, if its spec brings none.
        publish: Told of each change, old and new, in one step with it.
    """

    def __init__(
        self, snapshot: Snapshot, policy: RestartPolicy, publish: Callable[[Snapshot, Snapshot], None]
    ) -> None:
        self.snapshot: Snapshot = snapshot
        """Where the server stands."""
        self.due: float = trio.current_time() if snapshot.state is ServerState.CONNECTING else _NEVER
        """When the next incarnation is to begin, on Trio's clock; `inf` for never."""
        self._publish = publish
        self._tracker = _tracker_of(snapshot.spec, policy)

    # -- on its way to a connection -------------------------------------------------------------------------------

    def begin(self, *, woken: bool = False) -> None:
        """It is to be started now, from its present place on the ladder; `woken`: a call or a list waits for it."""
        self.due = trio.current_time()
        self._show(evolve(self._connecting(), pid=None, woken=woken))

    def begin_afresh(self, *, woken: bool = False) -> None:
        """It is to be started now, with a whole ladder."""
        self._tracker = self._tracker.reset()
        self.begin(woken=woken)

    def join(self) -> None:
        """The attempt under way is as good as a fresh start, from now on."""
        self._tracker = self._tracker.reset()
        self._show(self._connecting())

    def incarnate(self) -> None:
        """The next incarnation begins. What is due after it, its end will say."""
        self.due = _NEVER
        self._show(evolve(self._connecting(), incarnation=self.snapshot.incarnation + 1))

    def opened(self, pid: int | None) -> None:
        """There is a transport."""
        self._show(evolve(self.snapshot, pid=pid))

    def connected(self, report: Connected, introduction: Introduction, review: Review, stderr_tail: str | None) -> None:
        """It is ready for calls; with what it said of itself, and on standard error, without secrets."""
        now = trio.current_time()
        self._tracker = self._tracker.on_connected(now)
        self._show(
            evolve(
                self.snapshot,
                state=ServerState.CONNECTED,
                connected_at=now,
                error=None,
                stderr_tail=stderr_tail,
                introduction=introduction,
                owner=report.owner,
                definitions=report.definitions,
                review=review,
            )
        )

    # -- connected ------------------------------------------------------------------------------------------------

    def relisted(self, definitions: "tuple[Definition, ...]", review: Review) -> None:
        """Its tools were fetched again."""
        self._show(evolve(self.snapshot, definitions=definitions, review=review))

    def reviewed(self, review: Review) -> None:
        """Its tools are the same, and are looked at in another way."""
        self._show(evolve(self.snapshot, review=review))

    # -- ends -----------------------------------------------------------------------------------------------------

    def ended(self, reason: ExitReason, redact: Callable[[str], str]) -> None:
        """An incarnation has ended, and nobody had asked for that: the policy says what follows."""
        self._tracker, decision = self._tracker.on_exit(reason.at, clean=reason.clean, retriable=reason.retriable)
        after = snapshot_after(self.snapshot, reason, decision, redact=redact)
        self.due = _NEVER if after.due_at is None else after.due_at
        self._show(after)

    def go_on(self) -> None:
        """An incarnation has ended, and the next belongs to the same attempt."""
        self.due = trio.current_time()

    def idle(self) -> None:
        """Nobody has used it for long: it stays at rest until it is wanted."""
        self._tracker = self._tracker.on_idle(trio.current_time())
        self.due = _NEVER
        self._show(evolve(self._connecting(), state=ServerState.IDLE, pid=None))

    def stop(self) -> None:
        """A person wants it down, and has seen what was wrong with it."""
        self.due = _NEVER
        if self.snapshot.state is not ServerState.STOPPED:
            self._show(evolve(self._connecting(), state=ServerState.STOPPED, attempt=1, pid=None, error=None))

    # -- another configuration ------------------------------------------------------------------------------------

    def renew(self, spec: ServerSpec) -> None:
        """Its spec is another that equals the one it had: what does not count in comparing may differ."""
        self._show(evolve(self.snapshot, spec=spec))

    def begin_anew(self, spec: ServerSpec, policy: RestartPolicy) -> None:
        """It begins as if it had just been configured with this spec; `policy` is for one that brings none."""
        self._tracker = _tracker_of(spec, policy)
        new = renewed_snapshot(self.snapshot, spec, policy)
        check_beginning(new.state)
        self.due = trio.current_time() if new.state is ServerState.CONNECTING else _NEVER
        self._write(new)

    # -- writing --------------------------------------------------------------------------------------------------

    def _connecting(self) -> Snapshot:
        return evolve(
            self.snapshot,
            state=ServerState.CONNECTING,
            attempt=self._tracker.attempt,
            due_at=None,
            revives_on_call=False,
            connected_at=None,
            owner=None,
        )

    def _show(self, snapshot: Snapshot) -> None:
        check_transition(self.snapshot.state, snapshot.state)
        self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        old, self.snapshot = self.snapshot, snapshot
        self._publish(old, snapshot)


def _tracker_of(spec: ServerSpec, policy: RestartPolicy) -> RestartTracker:
    return RestartTracker(spec.policy or policy, spec.restart)
