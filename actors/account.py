"""The account of the memory that is kept for slow parties: for each party, and for all of them together. Pure.

Whatever waits for a server or a client is charged to its account, by kind and by the memory really kept. Where there is
no room, each kind has its refusal: the sender is not read, waits for room, or gets an error; of items that may be lost,
the oldest go.
"""

import math
from collections.abc import Mapping
from typing import Final

from .json_depth import characters_of, size_of

KEPT_FOR_SERVERS: Final = 512 << 20
"""Bytes that wait, for all servers of a supervisor together."""

ANSWERS: Final = "answers"
"""Answers to a server or a client, and messages to it, that it has not read."""
NEWS: Final = "news"
"""Notifications for a client, unrequested and unread."""
NOTICES: Final = "notices"
"""Notifications of a server that nobody has taken."""
PROGRESS_KIND: Final = "progress"
"""Progress of calls that their callers have not taken."""
QUESTIONS: Final = "questions"
"""Requests of a server, or of a client on standard streams, that are not answered; and questions to a client over HTTP
that it has not read."""
REQUESTS: Final = "requests"
"""Requests of clients over HTTP that are not answered."""

VALUE: Final = 64
"""Bytes that a JSON value keeps once it is parsed, besides its text: an empty list, say."""
_LIGHT: Final = 1 << 10
"""Bytes of a message whose values are not counted: the number of such messages is bounded, too."""


def weight(parsed: object, size: int) -> int:
    """Bytes that a JSON value from a message of `size` bytes keeps."""
    return size if size <= _LIGHT else size + VALUE * size_of(parsed)[1]


def own_weight(parsed: object) -> int:
    """Bytes that a JSON value keeps, about, whatever message it came in."""
    return characters_of(parsed) + VALUE * size_of(parsed)[1]


class Account:
    """The memory that is kept for one party, or for all: at most `most` bytes, of all kinds. Everything counts in the
    account `whole` as well."""

    def __init__(self, most: float = math.inf, whole: "Account | None" = None) -> None:
        self._most = most
        self._whole = whole
        self._kept: dict[str, int] = {}
        self.total: int = 0
        """Bytes that are kept, of all kinds."""

    @property
    def kept(self) -> Mapping[str, int]:
        """Bytes by kind; a kind of which nothing is kept is left out."""
        return dict(self._kept)

    def of(self, *kinds: str) -> int:
        """Bytes of these kinds."""
        return sum(self._kept.get(kind, 0) for kind in kinds)

    def fits(self, count: int) -> bool:
        """True if there is room for `count` bytes, here and in the whole. A party's first item always fits into its
        own: its size is bounded elsewhere."""
        own = not self.total or self.total + count <= self._most
        return own and (self._whole is None or self._whole.fits(count))

    def take(self, kind: str, count: int, most: float = math.inf) -> bool:
        """Charge `count` bytes of a kind, of which this party may keep `most`; False if there is no room."""
        has_room = self.of(kind) + count <= most and self.fits(count)
        if has_room:
            self.charge(kind, count)
        return has_room

    def charge(self, kind: str, count: int) -> None:
        """Charge `count` bytes, whether there is room or not; a negative number gives them back."""
        left = self._kept.get(kind, 0) + count
        if left:
            self._kept[kind] = left
        else:
            self._kept.pop(kind, None)
        self.total += count
        if self._whole is not None:
            self._whole.charge(kind, count)

    def give_back(self, kind: str, count: int) -> None:
        """Give back `count` bytes."""
        self.charge(kind, -count)

    def close(self) -> None:
        """Close it: the party is gone, and bytes given back later count nowhere."""
        if self._whole is not None:
            for kind, count in self._kept.items():
                self._whole.give_back(kind, count)
            self._whole = None
