"""The limits of a server's memory and age. A server that is over one is renewed once nobody uses it: it ends, and is
started again. Pure: values in, values out, the time is an argument."""

from typing import Final, cast

from mcp_nursery.actors.argument_checks import finite_seconds_or_none, number, setting
from mcp_nursery.actors.limits import size_text
from mcp_nursery.actors.records import field, frozen

MEASURED_EVERY: Final = 30.0
"""Seconds between two looks at the memory of a server that has a limit of it."""

COMPARED_AGAIN: Final = 1.0
"""Seconds between two looks whether a server that is over a limit may be renewed by now."""

RENEWAL_PAUSE: Final = 600.0
"""Seconds from the renewal of a server to one for its memory, at least: a server may need more than its limit."""

LEAST_AGE: Final = 60.0
"""Seconds that a limit of age has at least."""


def _bytes(memory: object) -> str | None:
    return None if memory is None or number(memory) else "bytes >= 1"


def _long_enough(age: object) -> str | None:
    fits = finite_seconds_or_none(age) is None and (age is None or cast("float", age) >= LEAST_AGE)
    return None if fits else f"finite seconds >= {LEAST_AGE:g}"


@frozen
class Limits:
    """Limits of a server's memory and age. A server that is over one is renewed once no call or list of it is under
    way: its connection ends, and the next begins. That is no failure.

    Raises:
        ConfigError: A value out of its range.
    """

    memory: int | None = field(default=None, validator=setting(_bytes))
    """Bytes of memory that its process and all descendants take together. They are looked at every 30 seconds, first
    when it has been connected for 30 to 60. Memory that several of them share counts once, and what is swapped out
    counts. None: no limit. Only for a server that is started as a process of this machine."""
    age: float | None = field(default=None, validator=setting(_long_enough))
    """Seconds, 60 or more, since it was connected; None: no limit."""


def next_look(now: float) -> float:
    """The time of the next look at the memory of a server. It is the same for all servers, because one look at the
    processes of the machine then serves them all."""
    return (now // MEASURED_EVERY + 1) * MEASURED_EVERY


@frozen
class Excess:
    """The excess of a server over one of its limits."""

    words: str
    """The limit, for people."""
    obstacle: str = ""
    """The reason why the server is renewed only later; empty if it is to be renewed now."""

    def __str__(self) -> str:
        return f"{self.words}; {self.obstacle}" if self.obstacle else f"renewed: {self.words}"


def excess_of(
    limits: Limits,
    *,
    memory: int | None,
    connected_at: float,
    renewed_at: float,
    in_use: bool,
    now: float,
) -> Excess | None:
    """The excess of a connected server over its limits; None if there is none. `memory`: the bytes that it took at the
    last look, if known. `renewed_at`: the time of its last renewal, `-inf` if there was none. `in_use`: whether a call
    or a list of it is under way."""
    is_old = limits.age is not None and now >= connected_at + limits.age
    if is_old:
        words = f"connected for {now - connected_at:.0f} s (limits.age)"
    elif limits.memory is not None and memory is not None and memory > limits.memory:
        words = f"its processes take {-(-memory >> 20)} MiB, more than {size_text(limits.memory)} (limits.memory)"
    else:
        return None
    if not is_old and now < renewed_at + RENEWAL_PAUSE:
        return Excess(words, f"it was renewed less than {RENEWAL_PAUSE:g} s ago, and is not yet renewed again")
    return Excess(words, "it is renewed once nobody uses it" if in_use else "")
