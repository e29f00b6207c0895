"""The liveness of a silent connection: when it is probed, and when silence counts as a loss."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from mcp_nursery.actors.records import field, frozen

from .outcomes import Loss
from .session.base import HandshakeFailed

if TYPE_CHECKING:
    from .session.connection import Connection

CLOCK_INTERVAL = 5.0
"""Seconds between looks at the clocks. While a machine sleeps, Trio's clock stands still, so that no timer notices the
sleep: the clocks have to be compared. A hundred watched servers cost 20 wake-ups a second."""

_MISSES_IN_FLIGHT = 3
"""Silent probes in a row that are a loss while calls are in flight: a server that computes may answer late."""


def _check_seconds(_liveness: object, _field: object, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"must be finite seconds > 0, not {seconds}")


@frozen
class Liveness:
    """The probes by which a silent connection is found to be dead.

    A probe is due when no message came for `interval`, or when the machine has slept for longer than that. It is missed
    if no message at all came within `timeout` of it. One miss is a loss when no call is in flight, three in a row when
    some are; probes are an interval apart.

    Raises:
        ValueError: A time is not finite and positive.
    """

    interval: float = field(default=30.0, converter=float, validator=_check_seconds)
    """Seconds of silence before a probe."""
    timeout: float = field(default=10.0, converter=float, validator=_check_seconds)
    """Seconds a probe may stay unanswered."""


def until_probe(liveness: Liveness, *, now: float, heard_at: float, asked_at: float, slept: float) -> float:
    """Seconds until a probe is due; 0 for now. `now`, `heard_at` (the server's last message) and `asked_at` (the last
    probe) are times on Trio's clock, which has stood still for `slept` seconds since the last look."""
    if slept > liveness.interval:
        return 0.0
    return max(0.0, max(heard_at, asked_at) + liveness.interval - now)


def is_lost(misses: int, *, in_flight: int) -> bool:
    """True if so many misses in a row are a loss."""
    return misses >= (_MISSES_IN_FLIGHT if in_flight else 1)


async def keep_watch(connection: "Connection", liveness: Liveness, *, wall: Callable[[], float] = time.time) -> None:
    """Probe a connection whenever it was silent for long; return when it counts as lost."""
    asked_at, misses = -math.inf, 0
    ahead = wall() - trio.current_time()
    while True:
        now = trio.current_time()
        before, ahead = ahead, wall() - now
        pause = until_probe(liveness, now=now, heard_at=connection.heard_at, asked_at=asked_at, slept=ahead - before)
        if pause > 0:
            await trio.sleep(min(pause, CLOCK_INTERVAL))
            continue
        asked_at = now
        loss = await _ask(connection, liveness.timeout)
        misses = 0 if connection.heard_at >= asked_at else misses + 1
        if is_lost(misses, in_flight=connection.in_flight):
            connection.lose(loss)
            return


async def _ask(connection: "Connection", timeout: float) -> Loss:
    """Probe, and wait for the answer; return the loss to report if nothing comes."""
    with trio.move_on_after(timeout):
        try:
            await connection.probe()
        except HandshakeFailed as failure:
            return failure.loss
    return Loss(f"no answer to a probe within {timeout:g} s (liveness gives it more)")
