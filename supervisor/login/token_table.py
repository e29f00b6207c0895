"""Tokens that several machines share: rows of the state database. They are secrets, unlike the rest of it.

Each access opens a connection of its own, and closes it: there are few, and no other code has to close them. A process
that renews tokens holds an advisory lock by the connection that took it; the lock ends with that process.
"""

import json
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from mcp_nursery.actors.oauth.tokens import TokenKey, Tokens, TokensDamaged, TokenStore, TokensUnreadable
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import asdict
from mcp_nursery.actors.threads import SLOW_THREADS

from ..storage.postgres_connection import StateDatabase, lock_key
from ..storage.store import StoreUnreadable
from .token_files import DISK_TIMEOUT, LONGEST_RENEWAL, Kept

if TYPE_CHECKING:
    from ..storage.postgres_connection import Connection

T = TypeVar("T")

_LOCK_INTERVAL: Final = 0.1
"""Seconds between checks of a lock that another machine holds."""
_INTERVAL: Final = 2.0
"""Seconds between checks of tokens whose change is waited for."""

_READ = "SELECT document FROM mcp_nursery.tokens WHERE key = %s"
_LOGIN = "SELECT login FROM mcp_nursery.tokens WHERE key = %s"
_WRITE = """
INSERT INTO mcp_nursery.tokens (key, login, document, at) VALUES (%s, %s, %s, %s)
ON CONFLICT (key) DO UPDATE SET login = excluded.login, document = excluded.document, at = excluded.at
"""
_HOLDS = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted AND objsubid = 1
    AND (classid::bigint << 32 | objid::bigint) = %s
)
"""
"""True if this connection holds an advisory lock. One that was opened anew, after a loss, does not."""
_REMOVE = "DELETE FROM mcp_nursery.tokens WHERE key = %s RETURNING key"


class TokenTable:
    """All tokens in a database. Each access uses another connection to it."""

    def __init__(self, database: StateDatabase) -> None:
        self._database = database

    def store(self, key: TokenKey) -> "TokenRow":
        """The store of these tokens."""
        return TokenRow(self._database, key)


class TokenRow(TokenStore):
    """The tokens of one key."""

    def __init__(self, database: StateDatabase, key: TokenKey) -> None:
        self._database = database
        self._key = key
        self._login: str | None = None
        self._lock: _Lock | None = None

    @override
    async def read(self) -> Tokens | None:
        tokens = await self._tokens()
        self._login = None if tokens is None else tokens.login
        return tokens

    @override
    async def write(self, tokens: Tokens) -> None:
        said = asdict(tokens, filter=lambda _, value: value is not None)  # others may not know all fields
        row = (self._key.digest, tokens.login, json.dumps(said), time.time())
        if self._lock is None:
            await self._run(lambda db: db.execute(_WRITE, row))
        else:  # what another process has renewed, once the lock was lost, stays
            await _in_thread(partial(self._lock.run, lambda db: db.execute(_WRITE, row)))
        self._login = tokens.login

    async def remove(self) -> bool:
        """Remove the tokens; False if there were none.

        Raises:
            TokensUnreadable: They may still be there.
        """
        async with self.locked():
            return await self._run(lambda db: db.execute(_REMOVE, (self._key.digest,)).fetchone()) is not None

    async def kept(self) -> Kept | None:
        """The facts about the tokens; None if there are none.

        Raises:
            TokensUnreadable: That cannot be found out.
        """
        tokens = await self._tokens()
        if tokens is None:
            return None
        renewable = tokens.refresh is not None
        return Kept(self._key, "database", tokens.issuer, tokens.scope, tokens.expires_at, renewable)

    async def changed(self) -> None:
        """Wait until the tokens come from another login than those that were last read or written here, or are gone."""
        while True:
            await trio.sleep(_INTERVAL)
            with suppress(TokensUnreadable):
                row: Any = await self._run(lambda db: db.execute(_LOGIN, (self._key.digest,)).fetchone())
                if (None if row is None else row[0]) != self._login:
                    return

    @override
    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None, None]:
        lock = _Lock(self._database.another(), lock_key("tokens", self._key.digest))
        try:
            with trio.move_on_after(LONGEST_RENEWAL) as patience:
                while not await _in_thread(lock.take):  # noqa: ASYNC110 - there is no event for what another machine does
                    await trio.sleep(_LOCK_INTERVAL)
            if patience.cancelled_caught:
                raise TokensUnreadable("another process is renewing them, and does not come to an end")
            self._lock = lock
            yield
        finally:
            self._lock = None
            lock.release()

    async def _tokens(self) -> Tokens | None:
        row: Any = await self._run(lambda db: db.execute(_READ, (self._key.digest,)).fetchone())
        if row is None:
            return None
        try:
            return Tokens(**json.loads(row[0]))
        except (ValueError, TypeError, RecursionError):
            raise TokensDamaged from None

    async def _run(self, work: "Callable[[Connection], T]") -> T:
        def run() -> T:
            with closing(self._database.another()) as database:
                return database.run(work)

        return await _in_thread(run)


class _Lock:
    """An advisory lock, which the connection that took it holds. Two threads may call its methods: a caller may be
    cancelled while it is being taken."""

    def __init__(self, database: StateDatabase, key: int) -> None:
        self._database = database
        self._key = key
        self._turn = threading.Lock()
        self._over = False

    def take(self) -> bool:
        """Take it if it is free."""
        try:
            with self._turn:
                row: Any = self._database.run(
                    lambda db: db.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone()
                )
                return bool(row[0])
        finally:
            if self._over:
                self.release()

    def run(self, work: "Callable[[Connection], T]") -> T:
        """Run `work` by the connection that holds it.

        Raises:
            StoreUnreadable: The work was not done, or the lock was lost.
        """

        def run(db: "Connection") -> T:
            row: Any = db.execute(_HOLDS, (self._key,)).fetchone()
            if not row[0]:
                raise StoreUnreadable("the lock on them was lost: another process may have renewed them")
            return work(db)

        with self._turn:
            return self._database.run(run)

    def release(self) -> None:
        """Release it; if it is being taken, as soon as that is over."""
        self._over = True
        if self._turn.acquire(blocking=False):
            try:
                self._database.close()
            finally:
                self._turn.release()


async def _in_thread(work: Callable[[], T]) -> T:
    """Do the work in a thread, which finishes even if its caller is cancelled: what it writes is written."""
    try:
        with trio.move_on_after(DISK_TIMEOUT):
            return await SLOW_THREADS.run(work, abandon_on_cancel=True)
    except StoreUnreadable as error:
        problem = str(error)
    else:
        problem = f"no answer within {DISK_TIMEOUT:g} s"
    raise TokensUnreadable(problem)
