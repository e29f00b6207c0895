"""The account of what a gateway keeps for clients over HTTP: requests until they are answered, and answers until they
are read. Whoever sends much, or reads little, waits for room or is refused; others do not notice."""

from collections import Counter
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from typing import Final

import trio

SMALL: Final = 16 << 10
"""Bytes of a request or an answer that are not counted: the number of requests bounds them, and a client whose room is
taken can still take calls back and answer questions."""


class BytesUnderWay:
    """Bytes that are kept, by whose they are.

    One answer or request alone always fits: how large it may be is bounded elsewhere.

    Args:
        most: For all clients together.
        most_of_client: For one of them. Those whom nobody has authenticated are not told apart, and only `most` holds.
    """

    def __init__(self, most: int, most_of_client: int) -> None:
        self._most = most
        self._most_of_client = most_of_client
        self._kept: Counter[Hashable] = Counter()
        self._unread: Counter[Hashable] = Counter()
        self._room = trio.lowlevel.ParkingLot()

    @property
    def total(self) -> int:
        """Bytes that are kept now."""
        return self._kept.total()

    def take(self, client: Hashable, count: int) -> bool:
        """Keep so many bytes more; whether there was room, or nothing is kept."""
        has_room = self.fits_all(count) and self._fits(self._kept, client, count)
        if has_room:
            self._kept[client] += count
        return has_room

    def give_back(self, client: Hashable, count: int) -> None:
        """Keep so many bytes less."""
        self._kept[client] -= count
        if not self._kept[client]:
            del self._kept[client]

    def fits_all(self, count: int) -> bool:
        """Whether there is room for so many bytes more, as far as all clients together go."""
        return not self.total or self.total + count <= self._most

    @contextmanager
    def unread(self, client: Hashable, count: int) -> Generator[bool, None, None]:
        """An answer of so many bytes is kept until it is read, for as long as the block lasts; whether there was room
        for it."""
        if count <= SMALL:
            yield True
            return
        has_room = self.take(client, count)
        kept = count * has_room
        self._unread[client] += kept
        try:
            yield has_room
        finally:
            self.give_back(client, kept)
            self._unread[client] -= kept
            if not self._unread[client]:
                del self._unread[client]
            self._room.unpark_all()

    async def room(self, client: Hashable) -> None:
        """Wait until there is room for an answer. Requests that are kept are not waited for: they may wait as well."""
        while self._unread.total() >= self._most or not self._fits(self._unread, client, 1):
            await self._room.park()

    def _fits(self, kept: Counter[Hashable], client: Hashable, count: int) -> bool:
        return client is None or not kept[client] or kept[client] + count <= self._most_of_client
