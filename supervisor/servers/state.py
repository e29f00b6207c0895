"""The state of one server and how it changes: where it stands, its place on the restart ladder, when it starts next.

`lifecycle` has the states and the legal ways between them, `policy` decides about restarts, the keeper says what
happens.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

import trio
from attrs import evolve

from mcp_nursery.actors.errors import one_line
from mcp_nursery.actors.messages import Connected, ExitReason
from mcp_nursery.actors.states import ExitKind, ServerState

from ..error_line import kept_tail, telling_line
from ..lifecycle import check_beginning, check_transition
from ..policy import Decision, Finished, GiveUp, Restart, RestartPolicy, RestartTracker
from ..spec import ServerSpec
from ..status import Introduction, Snapshot
from ..tools.pins import Review

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


def snapshot_after(
    snapshot: Snapshot, reason: ExitReason, decision: Decision, *, redact: Callable[[str], str]
) -> Snapshot:
    """The snapshot that follows, with the time of the next start where one is due, and no secret in its error."""
    tail = kept_tail(reason.loss.stderr_tail, redact)
    ended = evolve(
        snapshot,
        owner=None,
        connected_at=None,
        pid=None,
        woken=False,
        error=_told(redact(reason.loss.message), tail or ""),
        stderr_tail=tail,
    )
    match decision:
        case Restart():
            return evolve(ended, state=ServerState.WAITING, due_at=decision.at, attempt=decision.attempt)
        case GiveUp():
            return _given_up(ended, reason)
        case Finished():
            return evolve(ended, state=ServerState.STOPPED)
        case _:
            assert_never(decision)


def _given_up(ended: Snapshot, reason: ExitReason) -> Snapshot:
    """Started no more but by a person, or by what its spec says revives it."""
    if reason.kind is ExitKind.NEEDS_AUTH:
        return evolve(ended, state=ServerState.NEEDS_AUTH)
    if reason.kind is ExitKind.REFUSED:
        return evolve(ended, state=ServerState.BLOCKED)
    failed = evolve(ended, state=ServerState.FAILED)
    revive = ended.spec.revive
    if revive is None or reason.kind is ExitKind.UNUSABLE:
        return failed
    if revive == "on_call":
        return evolve(failed, revives_on_call=True)
    return evolve(failed, due_at=reason.at + float(revive))


def _told(message: str, tail: str) -> str:
    """The failure in one line, with what the process said of it."""
    said = telling_line(tail)
    return ": ".join([one_line(message), *([said[:200]] if said else [])])


def initial_snapshot(spec: ServerSpec, policy: RestartPolicy) -> Snapshot:
    """Where a server stands before its keeper has done anything; `policy` is for one that brings none."""
    state = ServerState.CONNECTING
    if not spec.enabled:
        state = ServerState.DISABLED
    elif spec.lazy:
        state = ServerState.IDLE
    return Snapshot(spec, state, max_attempts=(spec.policy or policy).max_attempts)


def renewed_snapshot(old: Snapshot, spec: ServerSpec, policy: RestartPolicy) -> Snapshot:
    """Where a server stands when its spec has changed: as one that was just configured, with incarnations counted on.

    What it said of itself and its tools are known as before if it is reached in the same way; otherwise it may be quite
    another server, and they are forgotten.
    """
    new = evolve(initial_snapshot(spec, policy), incarnation=old.incarnation)
    if spec.transport != old.spec.transport:
        return new
    return evolve(new, definitions=old.definitions, review=old.review, introduction=old.introduction)
