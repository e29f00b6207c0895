"""The restart ladder against a model that keeps the whole history and decides by definition.

The model remembers every incarnation of a server and counts anew at each failure, in the words of DESIGN.md section
Restarting; it has no counter of its own. Times are integers and halves, so that they compare with ==.
"""

import math
from itertools import accumulate
from typing import Literal

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mcp_nursery.supervisor.decisions.restart_policy import (
    Finished,
    GiveUp,
    Restart,
    RestartMode,
    RestartPolicy,
    RestartTracker,
)

halves = st.integers(0, 160).map(lambda n: n / 2)
ladders = st.lists(halves, max_size=5).map(tuple)
modes = st.sampled_from(["permanent", "transient", "temporary"])

StartedBy = Literal["person", "policy", "obstacle removed", "call"]


@define
class Incarnation:
    """One connection of the server, as somebody who watches the clock would note it."""

    started_by: StartedBy
    started: float
    connected: float | None = None
    ended: float | None = None

    def was_stable(self, stable_after: float) -> bool:
        return self.connected is not None and self.ended is not None and (self.ended - self.connected) >= stable_after


@define
class History:
    """Everything that happened to the server since the world began."""

    delays: tuple[float, ...]
    stable_after: float
    incarnations: list[Incarnation] = field(factory=list)

    def restarts_since_reset(self) -> int:
        """The policy's own starts after the last reset: a person's start, or an incarnation that was stable."""
        restarts = 0
        for incarnation in reversed(self.incarnations):
            if incarnation.was_stable(self.stable_after):
                break
            if incarnation.started_by == "person":
                break
            restarts += incarnation.started_by == "policy"
        return restarts

    def next_start(self) -> float | None:
        """When the failure just noted is followed by a start; None if it is the last straw."""
        k = self.restarts_since_reset() + 1
        failure = self.incarnations[-1].ended
        assert failure is not None
        return failure + self.delays[k - 1] if k <= len(self.delays) else None


class RestartingServer(RuleBasedStateMachine):
    """One server that connects, dies, is restarted and is looked after by a person, in any order."""

    @initialize(
        delays=st.lists(halves, min_size=1, max_size=5).map(tuple),
        stable_after=st.just(30.0) | halves,
        mode=st.sampled_from(["permanent", "permanent", "permanent", "transient", "temporary"]),
    )
    def begin(self, delays: tuple[float, ...], stable_after: float, mode: RestartMode) -> None:
        self.policy = RestartPolicy(delays=delays, stable_after=stable_after)
        self.mode = mode
        self.tracker = RestartTracker(self.policy, mode)
        self.history = History(delays, stable_after)
        self.now = 0.0
        self.due: float | None = None
        self.may_resume = self.idle = False
        self._start("person")

    def _start(self, started_by: StartedBy) -> None:
        self.history.incarnations.append(Incarnation(started_by, self.now))
        self.due = None
        self.may_resume = self.idle = False

    @property
    def current(self) -> Incarnation:
        return self.history.incarnations[-1]

    def _ends(self, *, clean: bool = False, retriable: bool = True) -> None:
        """Note the end, ask the policy, and compare what it says with what the history demands."""
        self.current.ended = self.now
        before = self.tracker
        self.tracker, decision = before.on_exit(self.now, clean=clean, retriable=retriable)
        due = self.history.next_start()
        if clean and self.mode != "permanent":
            assert isinstance(decision, Finished | GiveUp)
            assert isinstance(decision, Finished) or not retriable
        elif not retriable or self.mode == "temporary" or due is None:
            assert decision == GiveUp()
        else:
            assert decision == Restart(at=due, attempt=self.history.restarts_since_reset() + 2)
            assert decision.attempt == self.tracker.attempt
            self.due = due
        if self.due is None and not retriable:
            self.may_resume = True

    @rule(
        idle=halves,
        resumes=st.booleans(),
        attempt=halves,
        past_stable=st.none() | st.sampled_from([-math.inf, -0.5, 0.0, 0.5]) | halves.map(lambda seconds: seconds - 40),
        how=st.sampled_from(["lost", "lost", "lost", "clean", "hopeless", "clean and hopeless", "idle"]),
    )
    def one_incarnation(self, idle: float, resumes: bool, attempt: float, past_stable: float | None, how: str) -> None:
        """A start, late by `idle` or asked for; an attempt; perhaps a connection; an end.

        `past_stable` is None for an attempt that fails. A connection lasts 0 (greets and dies), 30 - e, 30, 30 + e or
        any other time: the edges are where the bugs are. `hopeless` is an unusable command, refused trust, missing
        authorisation; `idle` is a connection that nobody used.
        """
        self._start_if_it_lies_still(idle, resumes=resumes)
        self.now += attempt
        if past_stable is not None:
            self.current.connected = self.now
            self.tracker = self.tracker.on_connected(self.now)
            self.now += max(self.policy.stable_after + past_stable, 0.0)
        if how == "idle" and past_stable is not None:
            self._stops_for_idleness()
            return
        self._ends(clean="clean" in how, retriable="hopeless" not in how)

    def _stops_for_idleness(self) -> None:
        """No failure, so nothing is due; a call starts it, and the history alone says what the ladder has left."""
        self.current.ended = self.now
        self.tracker = self.tracker.on_idle(self.now)
        assert self.tracker.attempt == self.history.restarts_since_reset() + 1
        self.idle = True

    def _start_if_it_lies_still(self, idle: float, *, resumes: bool) -> None:
        if self.current.ended is None:
            return
        if self.idle:
            self.now += idle
            self._start("call")
        elif (
            self.due is not None
        ):  # late when the old connection took long to close: that does not matter to the ladder
            self.now = self.due + idle
            self._start("policy")
        elif self.may_resume and resumes:  # it goes on from its place, for an end without retry took no delay
            self.now += idle
            self._start("obstacle removed")
        else:
            self.a_person_starts_it_anew(idle)

    @rule(after=halves)
    def a_person_starts_it_anew(self, after: float) -> None:
        """`reconnect`, in whatever state: equal to a fresh start."""
        self.now += after
        if self.current.ended is None:
            self.current.ended = self.now
        self.tracker = self.tracker.reset()
        self._start("person")

    @invariant()
    def reset_equals_a_fresh_tracker(self) -> None:
        assert self.tracker.reset() == RestartTracker(self.policy, self.mode)

    @invariant()
    def a_ladder_is_never_longer_than_its_delays(self) -> None:
        ladder = 0
        for incarnation in self.history.incarnations:
            if incarnation.started_by == "person":
                ladder = 0
            ladder += incarnation.started_by == "policy"
            assert ladder <= len(self.policy.delays)
            if incarnation.was_stable(self.policy.stable_after):
                ladder = 0

    @invariant()
    def only_permanent_and_transient_servers_are_restarted(self) -> None:
        if self.mode == "temporary":
            assert self.due is None

    @invariant()
    def attempt_is_within_bounds(self) -> None:
        assert 1 <= self.tracker.attempt <= self.policy.max_attempts == len(self.policy.delays) + 1


TestRestartingServer = RestartingServer.TestCase


@given(delays=ladders)
def test_a_server_that_always_fails_starts_after_each_delay_and_then_never(delays: tuple[float, ...]):
    tracker = RestartTracker(RestartPolicy(delays=delays))
    starts = [0.0]
    while True:
        tracker, decision = tracker.on_exit(starts[-1])
        if not isinstance(decision, Restart):
            break
        starts.append(decision.at)
    assert starts == list(accumulate(delays, initial=0.0))
    assert decision == GiveUp()
    assert tracker.on_exit(starts[-1] + 1000)[1] == GiveUp()


@given(delays=ladders, lives=st.lists(st.integers(0, 59).map(lambda n: n / 2), min_size=8, max_size=8))
def test_handshakes_alone_never_buy_a_start(delays: tuple[float, ...], lives: list[float]):
    """Lives of 0 to 29.5 seconds: at most one start more than there are delays, however often it greets."""
    tracker, now, starts = RestartTracker(RestartPolicy(delays=delays)), 0.0, 1
    for life in lives:
        tracker, decision = tracker.on_connected(now).on_exit(now + life)
        if not isinstance(decision, Restart):
            break
        now, starts = decision.at, starts + 1
    assert starts == len(delays) + 1
    assert isinstance(decision, GiveUp)


@given(
    delays=ladders.filter(bool),
    stable_after=halves,
    edge=st.sampled_from([-1, 0, 1]),
    failures=st.integers(0, 5),
)
def test_the_ladder_begins_anew_exactly_from_stable_after_on(
    delays: tuple[float, ...], stable_after: float, edge: int, failures: int
):
    """To the last bit: one float below `stable_after` is not stable, `stable_after` is."""
    lived = stable_after if edge == 0 else math.nextafter(stable_after, edge * math.inf)
    if lived < 0:
        return
    tracker = RestartTracker(RestartPolicy(delays=delays, stable_after=stable_after))
    failures = min(failures, len(delays))
    for _ in range(failures):
        tracker, _decision = tracker.on_exit(0.0)
    _tracker, decision = tracker.on_connected(0.0).on_exit(lived)
    if edge >= 0:
        assert decision == Restart(at=lived + delays[0], attempt=2)
    elif failures < len(delays):
        assert decision == Restart(at=lived + delays[failures], attempt=failures + 2)
    else:
        assert decision == GiveUp()


@given(delays=ladders, failures=st.integers(0, 5), mode=modes, clean=st.booleans(), connected=st.booleans())
def test_an_end_beyond_repair_schedules_nothing_and_takes_no_delay(
    delays: tuple[float, ...], failures: int, mode: RestartMode, clean: bool, connected: bool
):
    tracker = RestartTracker(RestartPolicy(delays=delays), mode)
    for _ in range(min(failures, len(delays))):
        tracker, _decision = tracker.on_exit(0.0)
    hopeless = tracker.on_connected(0.0) if connected else tracker
    after, decision = hopeless.on_exit(29.5, clean=clean, retriable=False)
    assert not isinstance(decision, Restart)
    assert after == tracker
