"""What is done to the fleet: moves, in an order that a seed decides."""

from collections.abc import Iterator
from random import Random

from attrs import frozen

REPLICAS = 3
FAILING = {"crashing": "crash", "hanging": "hang", "flooding": "flood"}
"""Servers that fail by themselves, and how."""
GOOD = tuple(f"good{number}" for number in range(7))
SERVERS = (*GOOD, *FAILING)

MOVES = (
    *("kill replica", "freeze replica", "freeze and kill replica"),
    *("drain replica", "upgrade replica", "reload replica"),
    *("kill server", "kill server", "freeze server", "stop database"),
)
"""All of them are made once, in some order, before one is made again."""
UNNOTICED = frozenset({"drain replica", "upgrade replica", "reload replica", "stop database"})
"""Moves that may fail no request."""

LASTING = {"freeze server": (1.0, 9.0), "stop database": (1.0, 6.0)}
"""Seconds for which a move lasts, at least and at most: calls to a frozen server time out, or do not."""
FREEZE = (1.0, 4.0)
"""The same, for a replica that is frozen."""
PAUSE = (0.1, 1.0)
"""Seconds between two moves."""


@frozen
class Move:
    """One thing that is done to the fleet."""

    name: str
    replica: int
    server: str
    """Of that replica, for moves against servers."""
    seconds: float
    """For which it lasts, if it does."""
    pause: float
    """Seconds before it."""

    def __str__(self) -> str:
        return f"{self.name} {self.replica}" + (f" {self.server}" if self.name.endswith("server") else "")


def drawn(seed: int) -> Iterator[Move]:
    """The moves of this seed, without end."""
    chance = Random(seed)
    while True:
        for name in chance.sample(MOVES, len(MOVES)):
            yield Move(
                name,
                chance.randrange(REPLICAS),
                chance.choice(SERVERS),
                chance.uniform(*LASTING.get(name, FREEZE)),
                chance.uniform(*PAUSE),
            )


def in_turn(name: str, times: int) -> Iterator[Move]:
    """A move against each replica, one after the other, so many times."""
    for replica in [*range(REPLICAS)] * times:
        yield Move(name, replica, "", 0.0, PAUSE[1])
