"""The circuit breaker of a server that does not answer. Pure: values in, values out, the time is an argument.

A connection can live while no call is answered: a server that hangs, a gateway that answers 500. Each caller would wait
for its own timeout, and each call would keep something in flight. After some failures in a row the breaker is open, and
calls fail at once; then one call probes, and its outcome decides for all.

Outcomes of requests count in the order in which they become known, whatever their caller and whenever they were sent.
An answer of any kind closes the breaker, also to a request from before it opened: the server answers. The end of a
connection does not concern it: the restart policy sees to that, and the next connection begins with a closed breaker.
"""

import math
from typing import Final, Literal

from mcp_nursery.actors.argument_checks import number
from mcp_nursery.actors.outcomes import Answered, Dropped, Expired, Malformed, Outcome, Rejected
from mcp_nursery.actors.records import evolve, field, frozen

BreakerState = Literal["closed", "open", "half_open"]
"""`closed`: calls are sent. `open`: they fail at once. `half_open`: one call probes, and the others fail at once."""

LEAST_WAIT: Final = 0.5
"""Seconds that a server must have had a request before its timeout counts. Giving up sooner says more of the caller,
which loses little by calling a server that hangs."""
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
    """The rule by which calls of a connected server that does not answer are refused, and for how long.

    A failure is a request that was sent and timed out, got an HTTP status of 500 or more instead of an answer, or lost
    its exchange while the connection goes on. Results with `isError` and JSON-RPC errors are answers. What was not
    sent, was cancelled, or timed out within half a second or after its server had reported progress, does not count.

    Raises:
        ValueError: A value out of its range.
    """

    failures: int = field(default=3, validator=_check_failures)
    """Failures in a row that open it."""
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
    """Failures in a row."""
    probe_at: float | None = None
    """The time at which a call may probe, on Trio's clock; None while it is closed."""
    probe: object | None = None
    """The call that probes."""
    probes_since: float = 0.0
    """The time at which the last probe was sent, on Trio's clock."""

    @property
    def state(self) -> BreakerState:
        """The state of the circuit."""
        if self.probe_at is None:
            return "closed"
        return "open" if self.probe is None else "half_open"

    def status(self, now: float) -> BreakerStatus | None:
        """The status at `now`; None while it is closed."""
        if self.probe_at is None:
            return None
        return BreakerStatus(self.state, self.failures, max(0.0, self.probe_at - now))

    def admits(self, now: float) -> bool:
        """True if a call may be sent at `now`. A probe may have no time limit, and its server may have lost it: others
        wait for it no longer than for the first one."""
        since = self.probe_at if self.probe is None else self.probes_since + self.breaker.open_for
        return since is None or since <= now

    def sent(self, call: object, now: float) -> "Circuit":
        """The circuit once this call, which it admits, is being sent."""
        return self if self.probe_at is None else evolve(self, probe=call, probes_since=now)

    def settled(self, call: object, *, answers: bool | None, now: float, rest: float | None = None) -> "Circuit":
        """The circuit after the outcome of a call, which shows whether the server answers; None: it shows nothing.
        `rest`: seconds for which the server wants to be asked nothing, if it said so."""
        if answers:
            return Circuit(self.breaker)
        probed = self.probe is call
        if answers is None:
            return evolve(self, probe=None) if probed else self
        if self.probe_at is not None and not probed:
            return self
        failures = self.failures + 1
        opens = failures >= self.breaker.failures
        return Circuit(self.breaker, failures, now + max(self.breaker.open_for, rest or 0.0) if opens else None)


def judge(outcome: Outcome | None, *, sent: bool, waited: float = math.inf, heard: bool = False) -> bool | None:
    """True or False if the outcome of a request shows that a server answers, or does not; None if it shows neither. The
    outcome is None if the caller does not wait any more. The request has left if it was `sent`; the server has had it
    for `waited` seconds, and if `heard`, has sent a notification about it meanwhile."""
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
            return None if heard or waited < LEAST_WAIT else False
        case _:
            return None
