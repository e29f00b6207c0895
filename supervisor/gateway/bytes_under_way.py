"""The account of what a gateway keeps for clients over HTTP: requests until they are answered, and answers until they
are read. Whoever sends much, or reads little, waits for room or is refused; others do not notice."""

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from typing import Final

import trio

from mcp_nursery.actors.account import ANSWERS, REQUESTS, Account

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
        self.account: Final = Account(most)
        """Of all clients."""
        self._most = most
        self._most_of_client = most_of_client
        self._clients: dict[Hashable, Account] = {}
        self._room = trio.lowlevel.ParkingLot()

    @property
    def total(self) -> int:
        """Bytes that are kept now."""
        return self.account.total

    def take(self, client: Hashable, count: int, kind: str = REQUESTS) -> bool:
        """Keep so many bytes more; whether there was room, or nothing is kept."""
        account = self._clients.get(client) or self._account_for(client)
        has_room = account.take(kind, count)
        if has_room:
            self._clients[client] = account
        return has_room

    def _account_for(self, client: Hashable) -> Account:
        return Account(self._most if client is None else self._most_of_client, self.account)

    def give_back(self, client: Hashable, count: int, kind: str = REQUESTS) -> None:
        """Keep so many bytes less."""
        if count:
            account = self._clients[client]
            account.give_back(kind, count)
            if not account.total:
                del self._clients[client]

    def fits_all(self, count: int) -> bool:
        """Whether there is room for so many bytes more, as far as all clients together go."""
        return self.account.fits(count)

    @contextmanager
    def unread(self, client: Hashable, count: int, kind: str = ANSWERS) -> Generator[bool, None, None]:
        """An answer of so many bytes, or something else of this kind, is kept until it is read, for as long as the
        block lasts; whether there was room for it."""
        if count <= SMALL:
            yield True
            return
        has_room = self.take(client, count, kind)
        try:
            yield has_room
        finally:
            self.give_back(client, count * has_room, kind)
            self._room.unpark_all()

    async def room(self, client: Hashable) -> None:
        """Wait until there is room for an answer. Requests that are kept are not waited for: they may wait as well."""
        while self.account.of(ANSWERS) >= self._most or self._is_full(client):
            await self._room.park()

    def _is_full(self, client: Hashable) -> bool:
        account = None if client is None else self._clients.get(client)
        return account is not None and account.of(ANSWERS) >= self._most_of_client
