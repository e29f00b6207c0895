"""The skills of one server that are known: those of its list, and those that it was asked for by their URIs."""

import math
from collections.abc import Mapping

import trio
from attrs import define, field

from ..skills import Skill


@define(eq=False)
class KnownSkills:
    """The entries that a server gave last. They outlast its connection: what is read is held against what was known, so
    that a file cannot change unseen."""

    by_uri: Mapping[str, Skill] = field(factory=dict[str, Skill], init=False)
    """The skills, those that were known first before others."""
    fresh_until: float = field(default=-math.inf, init=False)
    """The time until which they are those of the server's list, on Trio's clock."""

    @property
    def is_fresh(self) -> bool:
        """True if the list need not be asked for again."""
        return trio.current_time() < self.fresh_until
