"""The ladders DESIGN.md and BEHAVIOURS.md name (L3, L4, L5, L12), as tables."""

import math

import attrs
import pytest

from mcp_nursery.supervisor.decisions.restart_policy import Finished, GiveUp, Restart, RestartPolicy, RestartTracker

EPSILON = 2**-30
NAN, INF = math.nan, math.inf


def starts_of_an_always_failing_server(policy: RestartPolicy, *, attempt_takes: float = 0.0) -> list[float]:
    tracker, starts = RestartTracker(policy), [0.0]
    while len(starts) < 100:
        tracker, decision = tracker.on_exit(starts[-1] + attempt_takes)
        if not isinstance(decision, Restart):
            assert decision == GiveUp()
            return starts
        starts.append(decision.at)
    raise AssertionError("never gave up")


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        pytest.param(RestartPolicy(), [0, 2, 7, 22], id="default"),
        pytest.param(RestartPolicy(delays=(0.5, 1, 2, 4)), [0, 0.5, 1.5, 3.5, 7.5], id="half-one-two-four"),
        pytest.param(RestartPolicy.exponential(), [0, 1, 3, 7], id="exponential-default"),
        pytest.param(
            RestartPolicy.exponential(first=1, factor=2, cap=30, attempts=3), [0, 1, 3, 7], id="exponential-as-written"
        ),
        pytest.param(RestartPolicy(delays=()), [0], id="no-restart-at-all"),
        pytest.param(RestartPolicy(delays=(0,)), [0, 0], id="at-once"),
        pytest.param(RestartPolicy(delays=iter([1, 1])), [0, 1, 2], id="any-iterable"),
    ],
)
def test_starts_of_a_server_that_always_fails(policy: RestartPolicy, starts: list[float]):
    assert starts_of_an_always_failing_server(policy) == starts
    assert policy.max_attempts == len(starts)


def test_an_attempt_that_the_server_postpones_is_none():
    """Its place on the ladder is the next one's, and the longer of both waits counts."""
    tracker, decision = RestartTracker(RestartPolicy()).on_exit(0, rest=60)
    assert decision == Restart(at=60, attempt=1)
    tracker, decision = tracker.on_exit(100, rest=1)
    assert decision == Restart(at=102, attempt=1)
    for at, next_start in ((200, 202), (300, 305), (400, 415)):
        tracker, decision = tracker.on_exit(at)
        assert isinstance(decision, Restart)
        assert decision.at == next_start
    tracker, decision = tracker.on_exit(500, rest=1)
    assert decision == Restart(at=515, attempt=4)
    assert tracker.on_exit(600)[1] == GiveUp()


@pytest.mark.parametrize(
    ("policy", "mode", "retriable", "decision"),
    [
        (RestartPolicy(delays=()), "permanent", True, Restart(at=60, attempt=1)),
        (RestartPolicy(), "temporary", True, GiveUp()),
        (RestartPolicy(), "permanent", False, GiveUp()),
    ],
)
def test_what_is_never_started_again_is_not_postponed(policy, mode, retriable, decision):
    assert RestartTracker(policy, mode).on_exit(0, retriable=retriable, rest=60)[1] == decision


def test_a_delay_counts_from_the_failure_not_from_the_start():
    assert starts_of_an_always_failing_server(RestartPolicy(), attempt_takes=30) == [0, 32, 67, 112]


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({}, (1, 2, 4)),
        ({"attempts": 7}, (1, 2, 4, 8, 16, 30, 30)),
        ({"first": 0.5, "attempts": 4}, (0.5, 1, 2, 4)),
        ({"factor": 1, "attempts": 3}, (1, 1, 1)),
        ({"factor": 10, "cap": 60, "attempts": 4}, (1, 10, 60, 60)),
        ({"first": 50, "attempts": 2}, (30, 30)),
        ({"attempts": 0}, ()),
    ],
)
def test_exponential_ladders(options: dict[str, float], delays: tuple[float, ...]):
    assert RestartPolicy.exponential(**options).delays == delays


def test_exponential_passes_stable_after_on():
    assert RestartPolicy.exponential().stable_after == 30
    assert RestartPolicy.exponential(stable_after=5).stable_after == 5


@pytest.mark.parametrize(
    "options",
    [
        {"delays": (-1,)},
        {"delays": (2, -EPSILON, 15)},
        {"delays": (NAN,)},
        {"delays": (INF,)},
        {"delays": ("soon",)},
        {"stable_after": -EPSILON},
        {"stable_after": NAN},
        {"stable_after": "long"},
    ],
)
def test_bad_values_are_refused(options: dict[str, object]):
    with pytest.raises(ValueError, match=r"seconds >= 0|could not convert"):
        RestartPolicy(**options)


@pytest.mark.parametrize("options", [{"first": -1}, {"factor": -1}, {"cap": -1}, {"first": NAN}, {"factor": NAN}])
def test_bad_exponential_values_are_refused(options: dict[str, float]):
    with pytest.raises(ValueError, match="finite seconds >= 0"):
        RestartPolicy.exponential(**options)


def test_zero_is_a_number_of_seconds():
    """`stable_after=0`: whoever asks for it has every handshake count."""
    tracker, decision = (
        RestartTracker(RestartPolicy(delays=(0,), stable_after=0), failures=1).on_connected(5).on_exit(5)
    )
    assert decision == Restart(at=5, attempt=2)
    assert tracker.failures == 1


def test_errors_name_the_bad_value():
    with pytest.raises(ValueError, match=r"-3\.0"):
        RestartPolicy(delays=(2, -3))
    with pytest.raises(ValueError, match=r"-4\.0"):
        RestartPolicy(stable_after=-4)


def test_a_server_may_be_asked_never_to_count_as_stable():
    """`stable_after=inf`: no connection, however long, gives a start back."""
    tracker = RestartTracker(RestartPolicy(delays=(1,), stable_after=INF))
    tracker, decision = tracker.on_connected(0).on_exit(1e9)
    assert decision == Restart(at=1e9 + 1, attempt=2)
    assert tracker.on_connected(1e9 + 1).on_exit(2e9)[1] == GiveUp()


@pytest.mark.parametrize(
    ("lived", "decision_after"),
    [
        (0.0, (5.0, 3)),
        (30 - EPSILON, (5.0, 3)),
        (30.0, (2.0, 2)),
        (30 + EPSILON, (2.0, 2)),
        (3600.0, (2.0, 2)),
    ],
)
def test_the_counter_goes_back_only_after_stable_after(lived: float, decision_after: tuple[float, int]):
    """After one failure: a short life goes on to the second delay, a stable one begins at the first."""
    delay, attempt = decision_after
    tracker, first = RestartTracker(RestartPolicy()).on_exit(0)
    assert first == Restart(at=2, attempt=2)
    assert tracker.on_connected(4).on_exit(4 + lived)[1] == Restart(at=4 + lived + delay, attempt=attempt)


def test_a_connection_that_failed_does_not_count_for_the_next_one():
    """Connected at 0, lost at 1, then an attempt that hangs for an hour and never connects: not stable."""
    tracker, _ = RestartTracker(RestartPolicy()).on_connected(0).on_exit(1)
    assert tracker.on_exit(3601)[1] == Restart(at=3606, attempt=3)


def test_one_counter_for_a_failed_connect_and_a_later_loss():
    tracker, first = RestartTracker(RestartPolicy()).on_exit(0)
    tracker, second = tracker.on_connected(2).on_exit(3)
    tracker, third = tracker.on_exit(8)
    tracker, last = tracker.on_connected(23).on_exit(24)
    assert [first, second, third, last] == [Restart(2, 2), Restart(8, 3), Restart(23, 4), GiveUp()]


def test_a_stable_connection_on_the_last_step_gives_the_whole_ladder_back():
    tracker = RestartTracker(RestartPolicy(), failures=3)
    tracker, decision = tracker.on_connected(22).on_exit(52)
    assert decision == Restart(at=54, attempt=2)
    assert tracker.failures == 1


@pytest.mark.parametrize(
    ("mode", "clean", "retriable", "decision"),
    [
        ("permanent", False, True, Restart(at=102, attempt=2)),
        ("permanent", True, True, Restart(at=102, attempt=2)),
        ("permanent", False, False, GiveUp()),
        ("permanent", True, False, GiveUp()),
        ("transient", False, True, Restart(at=102, attempt=2)),
        ("transient", True, True, Finished()),
        ("transient", False, False, GiveUp()),
        ("temporary", False, True, GiveUp()),
        ("temporary", True, True, Finished()),
        ("temporary", False, False, GiveUp()),
    ],
)
def test_what_an_end_means_in_each_mode(mode, clean, retriable, decision):
    tracker = RestartTracker(RestartPolicy(), mode)
    for life in (tracker, tracker.on_connected(99)):
        assert life.on_exit(100, clean=clean, retriable=retriable)[1] == decision


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_an_end_beyond_repair_takes_no_delay(failures: int):
    tracker = RestartTracker(RestartPolicy(), failures=failures)
    after, decision = tracker.on_exit(100, retriable=False)
    assert decision == GiveUp()
    assert after == tracker


def test_a_clean_end_takes_no_delay():
    tracker = RestartTracker(RestartPolicy(), "transient", failures=2)
    after, decision = tracker.on_connected(0).on_exit(1, clean=True)
    assert decision == Finished()
    assert after == tracker


@pytest.mark.parametrize(("lived", "failures"), [(30 - EPSILON, 2), (30, 0), (30 + EPSILON, 0)])
@pytest.mark.parametrize("mode", ["permanent", "transient", "temporary"])
def test_a_stop_for_idleness_is_no_failure_and_no_proof_of_health(mode, lived: float, failures: int):
    """G8, L4: it counts as an end only for whether the connection was stable."""
    tracker = RestartTracker(RestartPolicy(), mode, failures=2).on_connected(100)
    assert tracker.on_idle(100 + lived) == RestartTracker(RestartPolicy(), mode, failures=failures)


def test_reset_equals_a_fresh_tracker():
    policy = RestartPolicy(delays=(1, 2))
    used = RestartTracker(policy, "transient", failures=2).on_connected(7)
    assert used.reset() == RestartTracker(policy, "transient")
    assert used.reset().on_exit(10)[1] == Restart(at=11, attempt=2)


def test_attempt_numbers():
    """`attempt n of m while waiting` (L13): the number of the start to come."""
    tracker = RestartTracker(RestartPolicy())
    seen = [tracker.attempt]
    for _ in range(3):
        tracker, decision = tracker.on_exit(0)
        assert isinstance(decision, Restart)
        assert decision.attempt == tracker.attempt
        seen.append(tracker.attempt)
    assert seen == [1, 2, 3, 4]
    assert tracker.policy.max_attempts == 4


def test_steps_return_new_trackers():
    tracker = RestartTracker(RestartPolicy())
    tracker.on_connected(5)
    tracker.on_exit(6)
    assert tracker == RestartTracker(RestartPolicy())
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        tracker.failures = 1
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        tracker.policy.delays = ()
