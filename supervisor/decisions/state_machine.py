"""The state machine of one server: its states, the legal transitions between them, and what follows each event. Pure.

The table says which state may follow which; the code, the tests and the figure in the documentation read it. A
`Snapshot` is all that is known of a server at one moment. A `StateMachine` is a snapshot with the server's place on the
restart ladder and the time of its next start. Its methods are the events of a server's life: the keeper
(`servers/keeper.py`) is notified of one, takes the machine that follows it, and publishes the snapshot of that.
"""

import math
import shlex
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, assert_never

from mcp_nursery.actors.enums import ExitKind, ServerState
from mcp_nursery.actors.errors import one_line
from mcp_nursery.actors.messages import NOTHING_DECLARED, Connected, Definitions, ExitReason, Owner
from mcp_nursery.actors.outcomes import Challenge
from mcp_nursery.actors.records import evolve, field, frozen

from ..skills import NO_SKILLS, KnownSkills
from ..tools.pins import UNREVIEWED, DefinitionChange, Review
from .error_line import LAST_WORDS, find_cause, redact_tail, way_out
from .restart_policy import (
    Finished,
    GiveUp,
    Restart,
    RestartPolicy,
    RestartTracker,
    is_revived_by_calls,
    seconds_to_revival,
)
from .server_info import Introduction, own_copy

if TYPE_CHECKING:
    from ..spec import ServerSpec

_S = ServerState

TRANSITIONS: Mapping[ServerState, frozenset[ServerState]] = MappingProxyType(
    {
        _S.DISABLED: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.BLOCKED: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.IDLE: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.CONNECTING: frozenset({_S.CONNECTED, _S.WAITING, _S.FAILED, _S.STOPPED, _S.NEEDS_AUTH, _S.BLOCKED}),
        _S.CONNECTED: frozenset({_S.CONNECTING, _S.WAITING, _S.FAILED, _S.STOPPED, _S.IDLE, _S.NEEDS_AUTH}),
        _S.NEEDS_AUTH: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.WAITING: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.FAILED: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.STOPPED: frozenset({_S.CONNECTING}),
    }
)
"""From each state, the states that may follow it. A state may always follow itself: the same state with new facts."""

BEGINNINGS = frozenset({_S.DISABLED, _S.IDLE, _S.CONNECTING})
"""The states of a server whose configuration is new, whatever it did before: a changed one begins again."""

KEEPS_TOOLS = frozenset({_S.CONNECTED, _S.CONNECTING, _S.WAITING, _S.IDLE, _S.NEEDS_AUTH})
"""States in which a server's last known tools stay visible and routed, as they do in `failed` if `revive` ends that; in
all others it has none."""

CALLS_WAIT = frozenset({_S.CONNECTING, _S.IDLE})
"""States in which a call waits for the server unless it says otherwise."""

ASKED_AGAIN = 900.0
"""Seconds in `needs_auth` until the server is tried again: that takes one start, and no person."""

SHUT = frozenset({_S.STOPPED, _S.DISABLED, _S.BLOCKED})
"""States in which a person does not want the server, or has yet to trust it."""
LEFT_BY_NOBODY = frozenset({_S.DISABLED, _S.BLOCKED, _S.NEEDS_AUTH, _S.FAILED, _S.STOPPED})
"""States that only a person's act ends, unless `revive` ends `failed`. A server in `needs_auth` is asked again now and
then whether somebody has authorised it: there is no waiting for that."""


class IllegalTransition(AssertionError):
    """The error of a transition that the table does not have: a bug of ours."""


def check_beginning(new: ServerState) -> None:
    """Refuse a state in which no configuration begins.

    Raises:
        IllegalTransition: The state is not in `BEGINNINGS`.
    """
    if new not in BEGINNINGS:
        raise IllegalTransition(f"begins in {new}")


def check_transition(old: ServerState, new: ServerState) -> None:
    """Refuse a transition that the table does not have.

    Raises:
        IllegalTransition: The transition is not in `TRANSITIONS`.
    """
    if new is not old and new not in TRANSITIONS[old]:
        raise IllegalTransition(f"{old} -> {new}")


@frozen
class Snapshot:
    """All that is known of one server at one moment. Written by its keeper alone, as a whole."""

    spec: "ServerSpec"
    state: ServerState
    incarnation: int = 0
    """The latest connection under its name, or the one that is about to be made, from 1; 0 before the first."""
    attempt: int = 1
    """The number of the current start, or of the one that is due, since the ladder began; from 1."""
    max_attempts: int = 1
    due_at: float | None = None
    """The time of the next start, on Trio's clock; set in `waiting`, and in `failed` if it is revived by time."""
    revives_on_call: bool = False
    """In `failed`: whether a call starts it afresh."""
    was_stable: bool = False
    """In `waiting`: whether the lost connection was stable, so that a held call begins the restart at once."""
    woken: bool = False
    """In `connecting`: whether a call or a list began this attempt, and waits for it as for a first one."""
    connected_at: float | None = None
    """The time at which `connected` began, on Trio's clock."""
    error: str | None = None
    """The last failure, one line; None once connected."""
    ended: ExitKind | None = None
    """The kind of its last connection's end; None since another was begun."""
    stderr_tail: str | None = field(default=None, repr=False)
    """The last lines that its process wrote to stderr, without secrets; None if there are none."""
    pid: int | None = None
    installing: str | None = None
    """In `connecting`, while its command may be installing what it starts: the command's name, and the last line that
    it wrote, without secrets."""
    introduction: Introduction | None = None
    """The server's introduction, last known in this run."""
    cached_hello: dict[str, Any] | None = field(default=None, repr=False, eq=False)
    """The server's introduction in an earlier run, as it came; None: none is cached."""
    owner: Owner | None = field(default=None, repr=False)
    """The owner of calls; set in `connected` only."""
    definitions: Definitions = field(default=NOTHING_DECLARED, repr=False)
    """The definitions that the server declares, last known; the catalogue decides in which states they are shown."""
    recalling: bool = False
    """True if the cache is still to be read for its definitions."""
    review: Review = field(default=UNREVIEWED, repr=False)
    """The comparison of its tools with what they were at first use."""
    skills: KnownSkills = field(default=NO_SKILLS, repr=False, eq=False)
    """The skills that are known of it, since somebody has asked."""
    challenge: Challenge | None = None
    """In `needs_auth`: what the server said was missing, if it did; without secrets."""
    over_limit: str | None = None
    """In `connected`: the limit that it is over, and why it is not renewed yet. In `connecting`: the limit for which it
    is being renewed."""

    @property
    def changes(self) -> tuple[DefinitionChange, ...]:
        """The tools and skills that differ from what they were at first use."""
        return tuple(change for each in (self.review, self.skills.review) for change in each.changes.values())

    @property
    def settled(self) -> bool:
        """True if no first attempt is under way, and none will begin if nothing is cached. An attempt that a call or a
        list began counts as a first one."""
        if self.state is ServerState.IDLE:
            return not (self.recalling and self.spec.lazy == "cached")
        return not (self.state is ServerState.CONNECTING and (self.attempt == 1 or self.woken))

    @property
    def keeps_tools(self) -> bool:
        """True if its last known tools are visible and routed."""
        comes_back = self.revives_on_call or self.due_at is not None
        return self.state in KEEPS_TOOLS or (self.state is ServerState.FAILED and comes_back)

    @property
    def listed(self) -> bool:
        """True if its offers are known, or will not be known before a later attempt than the first."""
        return not self.recalling and (self.settled or bool(self.definitions))

    @property
    def is_unknown(self) -> bool:
        """True if nothing is known of its offers, and its first start is under way: it may have whatever is asked for.
        A server that could not be started does not count, because it would keep callers from the tools of all
        others."""
        return not self.settled and self.introduction is None and not self.definitions

    @property
    def started_by_lists(self) -> bool:
        """True if it is at rest, and a list starts it."""
        cached = self.spec.lazy == "cached" and (self.recalling or self.definitions)
        return self.state is ServerState.IDLE and not cached

    @property
    def waits_for_place(self) -> bool:
        """True if its first start may be waiting for its turn."""
        return self.state is ServerState.CONNECTING and self.attempt == 1 and self.pid is None

    @property
    def started_by_unknown_names(self) -> bool:
        """True if it is at rest, and has to be started before its offers are known."""
        return self.started_by_lists and (self.introduction is None or not self.definitions)

    @property
    def hello(self) -> Mapping[str, Any] | None:
        """The last introduction as it came, of this run or of an earlier one."""
        return self.cached_hello if self.introduction is None else self.introduction.hello

    def own_hello(self) -> dict[str, Any] | None:
        """A copy of the last introduction, that the caller may change."""
        hello = self.hello
        return None if hello is None else own_copy(hello)

    @property
    def abandoned(self) -> bool:
        """True if it cannot come to `connected` by itself: waiting for that cannot help."""
        return self.state in LEFT_BY_NOBODY and self.due_at is None

    def retry_in(self, now: float) -> float | None:
        """Seconds from `now` until the next start; None if none is due."""
        return None if self.due_at is None else max(0.0, self.due_at - now)


_NEVER = math.inf

_NOT_RETRIED = frozenset({ExitKind.UNUSABLE, ExitKind.NEEDS_AUTH, ExitKind.REFUSED})
"""Ends that another start cannot mend."""


@frozen
class StateMachine:
    """One server between two events. Nothing here changes: each event is a method that returns what follows it.

    Raises:
        IllegalTransition: From every event: its transition is not in `TRANSITIONS`.
    """

    snapshot: Snapshot
    """The state of the server and what is known of it."""
    due: float
    """The time at which the next incarnation is to begin, on Trio's clock; `inf` for never."""
    _tracker: RestartTracker
    """The place on the restart ladder."""
    _begun: bool = field(default=True, alias="begun")
    """True if the incarnation that the snapshot names has begun, or there is none yet."""

    @classmethod
    def configured(
        cls, spec: "ServerSpec", policy: RestartPolicy, now: float, *, recalls: bool = False, last: int = 0
    ) -> "StateMachine":
        """The machine of a server that has just been configured. The policy is the ladder, if the spec has none. With
        `recalls`, its definitions may be cached: `recalled` follows. `last` is the last incarnation of a server that
        had its name before."""
        ladder = spec.policy or policy
        state = ServerState.CONNECTING
        if not spec.enabled:
            state = ServerState.DISABLED
        elif spec.lazy and (recalls or spec.lazy != "cached"):
            state = ServerState.IDLE
        starts = state is ServerState.CONNECTING
        coming = last + starts
        snapshot = Snapshot(spec, state, incarnation=coming, max_attempts=ladder.max_attempts, recalling=recalls)
        return cls(snapshot, now if starts else _NEVER, RestartTracker(ladder, spec.restart), begun=not starts)

    def recalled(
        self, definitions: Definitions, review: Review, now: float, *, hello: dict[str, Any] | None = None
    ) -> "StateMachine":
        """The event: the cache was read, and had this. A server that only calls start, and of which nothing is cached,
        is started once to learn what it has."""
        snapshot = evolve(self.snapshot, recalling=False, cached_hello=hello)
        if definitions and not self.snapshot.definitions:
            snapshot = evolve(snapshot, definitions=definitions, review=review)
        machine = evolve(self, snapshot=snapshot)
        learns = snapshot.spec.lazy == "cached" and snapshot.state is ServerState.IDLE and not snapshot.definitions
        return machine.started(now) if learns else machine

    # -- on its way to a connection -------------------------------------------------------------------------------

    def started(self, now: float, *, woken: bool = False) -> "StateMachine":
        """The event: it is to be started now, with a whole ladder; `woken`: a call or a list waits for it."""
        return self._resumed(now, self._tracker.reset(), woken=woken)

    def woken(self, now: float) -> "StateMachine | None":
        """The event: a call or a list needs it; None if those do not start it in this state.

        After idleness it keeps its place on the ladder.
        """
        if self.snapshot.revives_on_call:
            return self.started(now, woken=True)
        return self._resumed(now, self._tracker, woken=True) if self.snapshot.state is ServerState.IDLE else None

    def delay_skipped(self, now: float) -> "StateMachine | None":
        """The event: a call wants the attempt that is due to begin now, or as soon as the server wants to be asked;
        None if no attempt is due, or it cannot begin sooner. On the ladder it counts as if it had been on time."""
        due = max(now, self._tracker.not_before)
        if self.snapshot.state is not ServerState.WAITING or self.due <= due:
            return None
        return self._to(evolve(self.snapshot, due_at=due), due=due)

    def authorised(self, now: float) -> "StateMachine | None":
        """The event: somebody may have authorised it; None if it does not wait for that."""
        return self.started(now) if self.snapshot.state is ServerState.NEEDS_AUTH else None

    def not_authorised(self, why: str) -> "StateMachine | None":
        """The event: a person was asked to authorise it, in vain; None if it does not wait for that."""
        if self.snapshot.state is not ServerState.NEEDS_AUTH:
            return None
        way = _way_to_authorise(self.snapshot)
        said = ": ".join(filter(None, ((self.snapshot.error or "").removesuffix(way), why)))
        return self._to(evolve(self.snapshot, error=one_line(said) + way))

    def _resumed(self, now: float, tracker: RestartTracker, *, woken: bool) -> "StateMachine":
        coming = evolve(self._connecting(tracker), incarnation=self._coming, pid=None, woken=woken)
        return self._to(coming, due=now, tracker=tracker, begun=False)

    def reconnected(self, now: float) -> "StateMachine":
        """The event: somebody wants a fresh start. An attempt under way counts as one from now on."""
        if self.snapshot.state is not ServerState.CONNECTING:
            return self.started(now)
        fresh = self._tracker.reset()
        return self._to(self._connecting(fresh), tracker=fresh)

    def incarnated(self) -> "StateMachine":
        """The event: the next incarnation begins. Its end will decide what is due after it."""
        return self._arrived(begun=True)

    def withheld(self) -> "StateMachine":
        """The event: the next incarnation is due, and its spec cannot work: it does not begin, and `ended` follows."""
        return self._arrived(begun=False)

    def _arrived(self, *, begun: bool) -> "StateMachine":
        over = self.snapshot.over_limit
        coming = evolve(self._connecting(self._tracker), incarnation=self._coming, over_limit=over)
        return self._to(coming, due=_NEVER, begun=begun)

    @property
    def _coming(self) -> int:
        """The number of the incarnation that begins next. In `connecting` the snapshot has it already."""
        return self.snapshot.incarnation + self._begun

    def opened(self, pid: int | None) -> "StateMachine":
        """The event: there is a transport."""
        return self._to(evolve(self.snapshot, pid=pid))

    def installing(self, said: str) -> "StateMachine":
        """The event: its command may be installing what it starts, and has written this last, without secrets."""
        return self if said == self.snapshot.installing else self._to(evolve(self.snapshot, installing=said))

    def connected(
        self, report: Connected, introduction: Introduction, review: Review, *, stderr_tail: str | None, now: float
    ) -> "StateMachine":
        """The event: it is ready for calls. Introduction and stderr are without secrets."""
        snapshot = evolve(
            self.snapshot,
            state=ServerState.CONNECTED,
            installing=None,
            connected_at=now,
            error=None,
            stderr_tail=stderr_tail,
            introduction=introduction,
            owner=report.owner,
            definitions=report.definitions,
            review=review,
            over_limit=None,
        )
        return self._to(snapshot, tracker=self._tracker.on_connected(now))

    # -- connected ------------------------------------------------------------------------------------------------

    def listed(self, definitions: Definitions, review: Review) -> "StateMachine":
        """The event: some of its lists were fetched again, or its tools compared again with what they were."""
        return self._to(evolve(self.snapshot, definitions=definitions, review=review))

    def knowing(self, skills: KnownSkills) -> "StateMachine":
        """The event: the server was asked for skills, or its skills were compared again with their pins."""
        return evolve(self, snapshot=evolve(self.snapshot, skills=skills))

    def idle(self, now: float) -> "StateMachine":
        """The event: it was idle for long, and stays at rest until it is wanted."""
        tracker = self._tracker.on_idle(now)
        return self._to(
            evolve(self._connecting(tracker), state=ServerState.IDLE, pid=None), due=_NEVER, tracker=tracker
        )

    def exceeding(self, over: str | None) -> "StateMachine":
        """The event: it is over a limit of its spec, and cannot be renewed yet; None: it is over none any more."""
        return self._to(evolve(self.snapshot, over_limit=over))

    def renewed(self, over: str, now: float) -> "StateMachine":
        """The event: the server is over a limit of its spec, nobody uses the server, and a new life begins. No failure,
        and by itself no proof that the server works."""
        machine = self._resumed(now, self._tracker.on_idle(now), woken=False)
        return machine.exceeding(over)

    # -- ends -----------------------------------------------------------------------------------------------------

    def ended(self, reason: ExitReason, redact: Callable[[str], str]) -> "StateMachine":
        """The event: an incarnation has ended unasked. The policy decides what follows.

        A refused probe is no failure: the next incarnation belongs to the same attempt.
        """
        if reason.kind is ExitKind.PROBE_REFUSED:
            return evolve(self, due=reason.at)
        clean = reason.loss.exit_code == 0 and not reason.loss.pending
        retriable = reason.kind not in _NOT_RETRIED
        tracker, decision = self._tracker.on_exit(
            reason.at, clean=clean, retriable=retriable, rest=reason.loss.retry_in
        )
        ended = _disconnect(self.snapshot, reason, redact)
        match decision:
            case Restart():
                ended = evolve(
                    ended,
                    state=ServerState.WAITING,
                    due_at=decision.at,
                    attempt=decision.attempt,
                    was_stable=self._tracker.is_stable(reason.at),
                )
            case GiveUp():
                ended = _give_up(ended, reason, begun=self._begun)
            case Finished():
                ended = evolve(ended, state=ServerState.STOPPED)
            case _:
                assert_never(decision)
        due = _NEVER if ended.due_at is None else ended.due_at
        if ended.state is ServerState.NEEDS_AUTH:
            due = reason.at + ASKED_AGAIN
        return self._to(ended, due=due, tracker=tracker)

    def stopped(self) -> "StateMachine":
        """The event: a person wants the server down, and has seen the error."""
        if self.snapshot.state is ServerState.STOPPED:
            return evolve(self, due=_NEVER)
        snapshot = evolve(self._connecting(self._tracker), state=ServerState.STOPPED, attempt=1, pid=None, error=None)
        return self._to(snapshot, due=_NEVER)

    # -- another configuration ------------------------------------------------------------------------------------

    def reconfigured(
        self, spec: "ServerSpec", policy: RestartPolicy, now: float, *, restart: bool = False, recalls: bool = False
    ) -> "StateMachine":
        """The event: its spec is another. It begins as if it had just been configured, with incarnations counted on.

        A spec equal to the one before changes nothing, unless the server is to `restart`: only fields that do not count
        in comparing may differ. Its introduction, its tools and its skills are kept if it is reached in the same way;
        otherwise it may be quite another server, and they are forgotten.
        """
        old = self.snapshot
        if spec == old.spec and not restart:
            return evolve(self, snapshot=evolve(old, spec=spec))
        machine = self.configured(spec, policy, now, recalls=recalls)
        starts = machine.snapshot.state is ServerState.CONNECTING
        snapshot = evolve(machine.snapshot, incarnation=self._coming if starts else old.incarnation)
        if spec.transport == old.spec.transport:
            known = old.definitions, old.review, old.introduction
            snapshot = evolve(snapshot, definitions=known[0], review=known[1], introduction=known[2], skills=old.skills)
        check_beginning(snapshot.state)
        return evolve(machine, snapshot=snapshot, begun=self._begun and not starts)

    # -- the snapshot that follows --------------------------------------------------------------------------------

    def _connecting(self, tracker: RestartTracker) -> Snapshot:
        return evolve(
            self.snapshot,
            state=ServerState.CONNECTING,
            attempt=tracker.attempt,
            due_at=None,
            revives_on_call=False,
            was_stable=False,
            installing=None,
            connected_at=None,
            ended=None,
            owner=None,
            challenge=None,
            over_limit=None,
        )

    def _to(
        self,
        snapshot: Snapshot,
        *,
        due: float | None = None,
        tracker: RestartTracker | None = None,
        begun: bool | None = None,
    ) -> "StateMachine":
        check_transition(self.snapshot.state, snapshot.state)
        return StateMachine(
            snapshot,
            self.due if due is None else due,
            tracker or self._tracker,
            begun=self._begun if begun is None else begun,
        )


def _disconnect(snapshot: Snapshot, reason: ExitReason, redact: Callable[[str], str]) -> Snapshot:
    """The snapshot without the connection, and with its error: one line without secrets, the process's own included."""
    tail = redact_tail(reason.loss.stderr_tail, redact)
    said = find_cause(tail or "", recent=reason.loss.stderr_age <= LAST_WORDS)
    error = ": ".join([one_line(redact(reason.loss.message)), *([said[:200]] if said else [])])
    advice = way_out(said or "")
    error = f"{error}; {advice}" if advice else error
    missing = reason.loss.challenge
    challenge = None if missing is None else missing.redacted(redact)
    return evolve(
        snapshot,
        owner=None,
        connected_at=None,
        installing=None,
        pid=None,
        woken=False,
        error=error,
        ended=reason.kind,
        stderr_tail=tail,
        challenge=challenge,
        over_limit=None,
    )


def _way_to_authorise(snapshot: Snapshot) -> str:
    """The end of the error of a server that wants authorisation: the command that gives it."""
    return f"; mcp-nursery login {shlex.quote(one_line(snapshot.spec.name))}"


def _give_up(ended: Snapshot, reason: ExitReason, *, begun: bool) -> Snapshot:
    """The snapshot of a server that is started only by a person, or by what its spec says revives it. Nothing revives
    a server that could not even begin: a missing program may come to this machine, but a spec stays the same."""
    if reason.kind is ExitKind.NEEDS_AUTH:
        error = f"{ended.error}{_way_to_authorise(ended)}"
        return evolve(ended, state=ServerState.NEEDS_AUTH, error=error)
    if reason.kind is ExitKind.REFUSED:
        return evolve(ended, state=ServerState.BLOCKED)
    failed, revive = evolve(ended, state=ServerState.FAILED), ended.spec.revive
    if not begun:
        return failed
    seconds = seconds_to_revival(revive)
    due = None if seconds is None else reason.at + seconds
    return evolve(failed, revives_on_call=is_revived_by_calls(revive), due_at=due)
