"""Whether a server that does not answer is still called. Pure: values in, values out, the time is an argument.

A connection can live while no call is answered: a server that hangs, a gateway that says 500. Each caller would wait
for its own timeout, and each call would keep something in flight. After some failures in a row the breaker is open, and
calls fail at once; then one call probes, and what becomes of that one decides for all.

What counts is what becomes of requests, in the order in which that is known, whoever made them and whenever they were
sent. An answer of any kind closes the breaker, also to a request from before it opened: the server answers. A
connection that ends is none of its business: the restart policy sees to that, and the next one begins with a closed
breaker.
"""

import math
from typing import Final, Literal

from attrs import evolve, field, frozen

from mcp_nursery.actors.argument_checks import number
from mcp_nursery.actors.outcomes import Answered, Dropped, Expired, Malformed, Outcome, Rejected

BreakerState = Literal["closed", "open", "half_open"]
"""`closed`: calls are sent. `open`: they fail at once. `half_open`: one call probes, and the others fail at once."""

PATIENCE: Final = 0.5
"""Seconds that a server must have had for a request whose time is over. To give up sooner says more of the caller; and
who waits as short as that loses little by calling a server that hangs."""
_SERVER_ERROR = 500
"""The first HTTP status that blames the server."""


def _check_failures(_breaker: object, _field: object, failures: int) -> None:
    if not number(failures):
        raise ValueError(f"must be a whole number >= 1, not {failures!r:.80}")


def _check_open_for(_breaker: object, _field: object, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"must be finite seconds > 0, not {seconds}")


@frozen
class CircuitBreaker:
    """When a server that is connected and does not answer is called no more, and for how long.

    A failure is a request that was sent and timed out, got an HTTP status of 500 or more instead of an answer, or lost
    its exchange while the connection goes on. Results with `isError` and JSON-RPC errors are answers. What was not
    sent, was cancelled, or timed out within half a second or after its server had reported progress, says nothing.

    Raises:
        ValueError: A value out of its range.
    """

    failures: int = field(default=3, validator=_check_failures)
    """So many in a row open it."""
    open_for: float = field(default=300.0, converter=float, validator=_check_open_for)
    """Seconds until one call may probe."""


@frozen
class BreakerStatus:
    """A circuit breaker that is not closed."""

    state: BreakerState
    """`open` or `half_open`."""
    failures: int
    """Failures in a row so far."""
    retry_in: float
    """Seconds until a call may probe; 0 also while one does."""


@frozen
class Circuit:
    """The breaker of one connection. Each step returns the circuit that follows it; none changes."""

    breaker: CircuitBreaker
    failures: int = 0
    """In a row."""
    probe_at: float | None = None
    """When a call may probe, on Trio's clock; None while it is closed."""
    probe: object | None = None
    """The call that probes."""
    probes_since: float = 0.0
    """When that was sent, on Trio's clock."""

    @property
    def state(self) -> BreakerState:
        """Where it stands."""
        if self.probe_at is None:
            return "closed"
        return "open" if self.probe is None else "half_open"

    def status(self, now: float) -> BreakerStatus | None:
        """Where it stands at `now`; None while it is closed."""
        if self.probe_at is None:
            return None
        return BreakerStatus(self.state, self.failures, max(0.0, self.probe_at - now))

    def admits(self, now: float) -> bool:
        """Whether a call may be sent at `now`. A probe may have no time limit, and its server may have lost it: others
        wait for it no longer than for a first one."""
        since = self.probe_at if self.probe is None else self.probes_since + self.breaker.open_for
        return since is None or since <= now

    def sent(self, call: object, now: float) -> "Circuit":
        """This call, which it admits, is being sent."""
        return self if self.probe_at is None else evolve(self, probe=call, probes_since=now)

    def settled(self, call: object, *, answers: bool | None, now: float) -> "Circuit":
        """What has become of a call says whether the server answers; None: nothing."""
        if answers:
            return Circuit(self.breaker)
        probed = self.probe is call
        if answers is None:
            return evolve(self, probe=None) if probed else self
        if self.probe_at is not None and not probed:
            return self
        failures = self.failures + 1
        opens = failures >= self.breaker.failures
        return Circuit(self.breaker, failures, now + self.breaker.open_for if opens else None)


def says(outcome: Outcome | None, *, sent: bool, waited: float = math.inf, heard: bool = False) -> bool | None:
    """Whether a server answers, as the outcome of a request shows; None if it does not show that.

    Args:
        outcome: None if nobody waits for one any more.
        sent: Whether the request has left.
        waited: For how many seconds the server has had it.
        heard: Whether the server has said something of it meanwhile.
    """
    match outcome:
        case Answered() | Malformed():
            return True
        case Rejected():
            return outcome.status is None or outcome.status < _SERVER_ERROR
        case Dropped() | Expired() if not sent:
            return None
        case Dropped():
            return False
        case Expired():
            return None if heard or waited < PATIENCE else False
        case _:
            return None
