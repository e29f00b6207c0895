"""The policy by which a server that ended is started again. Pure: values in, values out, the time is an argument."""

import math
from collections.abc import Iterable
from itertools import accumulate, repeat
from operator import mul
from typing import Literal, cast

from mcp_nursery.actors.records import evolve, field, frozen

RestartMode = Literal["permanent", "transient", "temporary"]
"""OTP's words: restart always, restart unless it ended cleanly, restart never."""

Lazy = bool | Literal["cached"]
"""The first start of a server. False: at once; True: for a list or a call; `cached`: for a call alone."""

Revive = Literal["on_call", "never"] | float | tuple[Literal["on_call"], float]
"""The event, besides a person's act, that ends `failed`: a call, the end of some seconds, or either; `never`: none."""

Instances = Literal["shared", "session", "single"]
"""The owners of an instance of a server behind a gateway."""

OnDisconnect = Literal["cancel", "keep"]
"""The fate of a task that a gateway follows for a client, if that client goes away."""

WhenDown = Literal["wait", "fail", "reconnect", "hold"] | float
"""The conduct of a call that finds its server down; a number: `hold` for so many seconds."""

HOLD = 20.0
"""Seconds that a call is held at most while its server restarts: behind a gateway and in integrations, and for
`when_down="hold"`."""


def _seconds(values: Iterable[float]) -> tuple[float, ...]:
    if isinstance(values, str):
        raise TypeError(f"restart delays are a sequence of seconds, not {values!r}")
    return tuple(float(value) for value in values)


def _check_delays(_policy: object, _field: object, delays: tuple[float, ...]) -> None:
    for delay in delays:
        if not (math.isfinite(delay) and delay >= 0):
            raise ValueError(f"restart delays are finite seconds >= 0, not {delay}")


def _check_stable_after(_policy: object, _field: object, seconds: float) -> None:
    if not seconds >= 0:
        raise ValueError(f"stable_after is seconds >= 0, not {seconds}")


def is_revive(value: object) -> bool:
    """True if it is one of `Revive`."""
    if isinstance(value, tuple):
        both = cast("tuple[object, ...]", value)
        return len(both) == 2 and both[0] == "on_call" and _are_seconds(both[1])  # noqa: PLR2004
    return value in ("on_call", "never") or _are_seconds(value)


def _are_seconds(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(cast("float", value)) and cast("float", value) > 0


def seconds_to_revival(revive: Revive | None) -> float | None:
    """Seconds after which a failed server is started afresh; None if time does not start it."""
    seconds = revive[1] if isinstance(revive, tuple) else revive
    return None if seconds is None or isinstance(seconds, str) else float(seconds)


def is_revived_by_calls(revive: Revive | None) -> bool:
    """True if a call starts a failed server afresh."""
    return revive == "on_call" or isinstance(revive, tuple)


@frozen
class RestartPolicy:
    """A ladder of delays. When the attempt after the last delay fails too, the server has failed.

    Raises:
        ValueError: A delay or `stable_after` is negative or not a number.
    """

    delays: tuple[float, ...] = field(default=(2.0, 5.0, 15.0), converter=_seconds, validator=_check_delays)
    """Seconds between a failure and the start that follows it, first failure first."""
    stable_after: float = field(default=30.0, converter=float, validator=_check_stable_after)
    """Seconds of unbroken `connected` after which the ladder begins anew. A handshake alone resets nothing: a server
    that greets and dies would be forked for ever."""

    @classmethod
    def exponential(
        cls,
        *,
        first: float = 1.0,
        factor: float = 2.0,
        cap: float = 30.0,
        attempts: int = 3,
        stable_after: float = 30.0,
    ) -> "RestartPolicy":
        """The ladder `min(first * factor**n, cap)` with `attempts` steps."""
        if attempts < 0 or math.isnan(cap):
            raise ValueError(f"attempts must be >= 0 and cap a number of seconds, not {attempts} and {cap}")
        steps = accumulate(repeat(factor, max(0, attempts - 1)), mul, initial=float(first))
        delays = tuple(min(delay, cap) for delay in steps) if attempts else ()
        return cls(delays=delays, stable_after=stable_after)

    @property
    def max_attempts(self) -> int:
        """Starts in a row without a stable connection before giving up: the first one and one after each delay."""
        return len(self.delays) + 1


@frozen
class Restart:
    """The decision to start again at `at`, on Trio's clock."""

    at: float
    attempt: int
    """The number of this start since the ladder began; from 2, unless the server asked for time at the first."""


@frozen
class GiveUp:
    """The decision to start no more until someone asks."""


@frozen
class Finished:
    """The decision that the server ended as it may: nothing failed, nothing to restart."""


Decision = Restart | GiveUp | Finished


@frozen
class RestartTracker:
    """One server's place on its ladder. Each step returns the next tracker; none changes."""

    policy: RestartPolicy
    mode: RestartMode = "permanent"
    failures: int = 0
    """Failures since the ladder began: one counter for a failed connect and for a later loss."""
    connected_at: float | None = None
    not_before: float = -math.inf
    """The time before which the server wants to be asked nothing, on Trio's clock."""

    @property
    def attempt(self) -> int:
        """The number of the current start since the ladder began, from 1."""
        return self.failures + 1

    def on_connected(self, now: float) -> "RestartTracker":
        """The tracker of a server that is `connected` since `now`."""
        return evolve(self, connected_at=now)

    def on_exit(
        self, at: float, *, clean: bool = False, retriable: bool = True, rest: float | None = None
    ) -> "tuple[RestartTracker, Decision]":
        """The tracker after the end of an incarnation, and the decision. The end was noticed `at` a time of Trio's
        clock. A `clean` end has exit code 0 with nothing pending; trying again cannot mend an end that is not
        `retriable`. `rest` are seconds for which the server wants to be asked nothing. Such an attempt was none: its
        place on the ladder is the next one's."""
        failures, delays = self._failures_before(at), self.policy.delays
        ended = evolve(self, failures=failures, connected_at=None, not_before=-math.inf if rest is None else at + rest)
        if clean and self.mode != "permanent":
            return ended, Finished()
        if not retriable or self.mode == "temporary" or (rest is None and failures >= len(delays)):
            return ended, GiveUp()
        if rest is not None:
            delay = delays[min(failures, len(delays) - 1)] if delays else 0.0
            return ended, Restart(at=at + max(delay, rest), attempt=ended.attempt)
        tracker = evolve(ended, failures=failures + 1)
        return tracker, Restart(at=at + delays[failures], attempt=tracker.attempt)

    def on_idle(self, at: float) -> "RestartTracker":
        """The tracker after a stop for idleness at `at`: no failure, and by itself no proof that the server works.

        After `stable_after` seconds of `connected` the ladder begins anew with the next start; otherwise that start has
        the place on the ladder that this one had. So a server that goes down whenever it is called fails in the end,
        however often it was stopped for idleness in between.
        """
        return evolve(self, failures=self._failures_before(at), connected_at=None)

    def _failures_before(self, end: float) -> int:
        """Failures that still count when a connection comes to an end: none after a stable one."""
        return 0 if self.is_stable(end) else self.failures

    def is_stable(self, end: float) -> bool:
        """True if a connection that comes to its end now has lasted long enough for the ladder to begin anew."""
        return self.connected_at is not None and end - self.connected_at >= self.policy.stable_after

    def reset(self) -> "RestartTracker":
        """The tracker for a fresh start, on request."""
        return evolve(self, failures=0, connected_at=None)
