"""Lists as a session knows them: it is told of a change only if it has not listed since, nor will by itself."""

import math
from collections.abc import Generator
from contextlib import contextmanager

import trio
from attrs import define, field


@define(eq=False)
class KnownList:
    """One list of one session. Times are those of Trio's clock."""

    since: float
    """What has changed by then its client has listed, or was told of."""
    _under_way: int = field(default=0, init=False)
    """Requests for it that are not answered."""
    _passed_over: float = field(default=-math.inf, init=False)
    """When it changed last while it was listed."""

    def is_news(self, at: float) -> bool:
        """Note that it changed; whether the client has to be told now."""
        if self._under_way:
            self._passed_over = max(self._passed_over, at)
        elif at > self.since:
            self.since = at
            return True
        return False

    @contextmanager
    def listed(self) -> Generator["Listing", None, None]:
        """It is listed in the block."""
        listing = Listing()
        self._under_way += 1
        try:
            yield listing
            self.since = max(self.since, listing.read_at)
        finally:
            self._under_way -= 1

    def is_owed(self) -> bool:
        """Whether it changed while it was listed, and what the client got does not have it."""
        return not self._under_way and self.is_news(self._passed_over)


@define(eq=False)
class Listing:
    """One answer to a request for a list, while it is made."""

    read_at: float = -math.inf
    """What had changed by then is in it."""

    def read(self) -> None:
        """It is read from now on."""
        self.read_at = math.nextafter(trio.current_time(), -math.inf)  # in this moment something may still change
