"""The PostgreSQL database that several machines share: how it is reached, its tables, and its errors.

It holds the agreements of a user, as the state file does: anybody who can write there can agree in the user's place. So
a connection to another machine is encrypted unless the URL says otherwise, and names are looked up in our schema alone.

Every statement is whole by itself, or in a short transaction that begins and ends in one method: replicas that write
the same rows in another order never wait for each other, and one that is frozen between two jobs holds up nobody.
"""

import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from mcp_nursery.actors.errors import ConfigError, one_line

from ..extras import needs_extra
from ..security.redaction import Redactor
from .store import StoreUnreadable

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = "psycopg.Connection[Any]"

T = TypeVar("T")

CONNECTING: Final = 2
"""Seconds that connecting may take; libpq allows no shorter time."""
STATEMENT: Final = 1.0
"""Seconds that a statement may take, and that it may wait for a lock."""
UNDER_WAY: Final = 5.0
"""Seconds after which the database ends a transaction that its client has forgotten, and the kernel a connection whose
other end does not answer."""
MIGRATING: Final = 30.0
"""Seconds that new tables may take to make, waiting for other processes that are making them included."""
RETRY: Final = 1.0
"""Seconds after a connection that failed until the next is tried: queries meanwhile are refused at once."""

_LOOK: Final = 0.5
"""Seconds between checks of whether a connection still answers."""
_LOCAL: Final = ("", "localhost", "127.0.0.1", "::1")
_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_PORTS: Final = re.compile(r"[0-9,]*")

MIGRATIONS: Final[tuple[tuple[int, tuple[str, ...]], ...]] = (
    (
        1,
        (
            "CREATE TABLE mcp_nursery.eras (server text NOT NULL, spec text NOT NULL, era text NOT NULL,"
            " at double precision NOT NULL, answered boolean NOT NULL, PRIMARY KEY (spec, server))",
            "CREATE TABLE mcp_nursery.consents (digest text PRIMARY KEY, server text NOT NULL, file text NOT NULL,"
            " at double precision NOT NULL)",
            "CREATE TABLE mcp_nursery.pinned (key text PRIMARY KEY, server text NOT NULL, spec text NOT NULL,"
            " tool text NOT NULL, text text NOT NULL, differs text, at double precision NOT NULL)",
            "CREATE INDEX pinned_spec ON mcp_nursery.pinned (spec)",
            "CREATE TABLE mcp_nursery.definitions (server text NOT NULL, spec text NOT NULL, format integer NOT NULL,"
            " at double precision NOT NULL, declared bytea NOT NULL, PRIMARY KEY (spec, server, format))",
        ),
    ),
    (
        1,
        (
            "CREATE TABLE mcp_nursery.tokens (key text PRIMARY KEY, login text NOT NULL, document text NOT NULL,"
            " at double precision NOT NULL)",
        ),
    ),
    (
        1,
        (
            "CREATE TABLE mcp_nursery.sessions (session text PRIMARY KEY, at double precision NOT NULL,"
            " until double precision NOT NULL, ended boolean NOT NULL, version bigint NOT NULL, said text NOT NULL)",
            "CREATE INDEX sessions_at ON mcp_nursery.sessions (at)",
        ),
    ),
    (
        1,
        (
            "CREATE TABLE mcp_nursery.replicas (replica text PRIMARY KEY, at double precision NOT NULL,"
            " report text NOT NULL)",
        ),
    ),
    (
        1,
        (
            "CREATE TABLE mcp_nursery.tasks (id text PRIMARY KEY, created double precision NOT NULL,"
            " finished double precision, owner text, until double precision, about text NOT NULL,"
            " state text NOT NULL, outcome text, size integer NOT NULL,"
            " unwanted integer NOT NULL)",
            "CREATE INDEX tasks_owner ON mcp_nursery.tasks (owner)",
        ),
    ),
)
"""The statements of each migration, in order, with the least number that a program must know to use its result.

They are applied in order and never changed. Replicas are upgraded one by one: one that knows fewer goes on beside
those that know more, as long as no migration needs it to know more.
"""


def lock_key(*names: str) -> int:
    """The number of an advisory lock: 64 bits of a digest, so that no other program's locks are ours."""
    digest = sha256("\0".join(("mcp-nursery", *names)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], signed=True)


class StateDatabase:
    """One connection to a database, opened when first needed, and again after it was lost. Used by one thread at a
    time. The URL is `postgresql://…`, as libpq takes it.

    Raises:
        ConfigError: It is no such URL, or psycopg is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._settings = _settings_of(url)
        self.label: Final = _label_of(self._settings)
        """The database, in words that hold no secret."""
        secrets = [self._settings[name] for name in _SECRETS if name in self._settings]
        self._secrets = [secret for secret in secrets if secret]
        self._connection: Connection | None = None
        self._guard: _Guard | None = None
        self.problem: str | None = None
        """The reason why it could not be used last; None if it could."""
        self._refusing_until = -math.inf

    def __repr__(self) -> str:
        return f"StateDatabase({self.label!r})"

    def run(self, work: "Callable[[Connection], T]") -> T:
        """Run `work` with the connection. It must do no harm if it is done twice: if the connection turns out to be
        lost, another is opened, and the work is tried again.

        Raises:
            StoreUnreadable: The work was not done, or that is unknown.
        """
        was_open = self._connection is not None
        try:
            done = self._do(work)
        except _ConnectionLost:
            if not was_open:
                raise
            done = self._do(work)
        self.problem = None
        return done

    def _do(self, work: "Callable[[Connection], T]") -> T:
        import psycopg

        if self.problem is not None and time.monotonic() < self._refusing_until:
            raise StoreUnreadable(self.problem)
        connection, guard = self._connected()
        try:
            with guard.patience(UNDER_WAY):
                return work(connection)
        except psycopg.Error as error:
            unusable = self._unusable(self._words_of(error))
            if connection.closed:
                lasted = guard.ended_it
                self._let_go()
                if lasted:
                    raise self._unusable(f"no answer within {UNDER_WAY:g} s", pause=True) from None
                raise _ConnectionLost(str(unusable)) from None
            if isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
                raise self._unusable(self._words_of(error), pause=True) from None
        except ValueError as error:  # no text that PostgreSQL can hold, or a row that cannot be read
            unusable = self._unusable(one_line(str(error)))
        raise unusable

    def connect(self) -> "Connection":
        """Open another connection, for uses that outlast a statement.

        Raises:
            psycopg.Error: It cannot be opened.
        """
        import psycopg

        connection: Connection = psycopg.connect(**self._settings, autocommit=True)
        try:
            limits = {
                "statement_timeout": STATEMENT,
                "lock_timeout": STATEMENT,
                "idle_in_transaction_session_timeout": UNDER_WAY,
            }
            connection.execute("; ".join(f"SET {name} = {s * 1000:.0f}" for name, s in limits.items()).encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def another(self) -> "StateDatabase":
        """The same database, with a connection of its own."""
        return StateDatabase(self._url)

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._let_go()

    def _let_go(self) -> None:
        if self._guard is not None:
            self._guard.end()
            self._guard = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> "tuple[Connection, _Guard]":
        import psycopg

        if self._connection is not None and self._guard is not None:
            return self._connection, self._guard
        try:
            self._connection = self.connect()
            self._guard = _Guard(self._connection)
            with self._guard.patience(MIGRATING + UNDER_WAY):
                migrate(self._connection)
        except (psycopg.Error, UnusableDatabase) as error:
            self._let_go()
            raise self._unusable(self._words_of(error), pause=True) from None
        except BaseException:
            self._let_go()
            raise
        return self._connection, self._guard

    def _unusable(self, problem: str, *, pause: bool = False) -> StoreUnreadable:
        """The refusal for a reason; with `pause`, all work is refused at once for a while: it would wait in the same
        thread."""
        self.problem = f"{self.label}: the state database cannot be used: {problem}"
        if pause:
            self._refusing_until = time.monotonic() + RETRY
        return StoreUnreadable(self.problem)

    def _words_of(self, error: Exception) -> str:
        """The words of an error, without secrets of the URL."""
        said = str(getattr(getattr(error, "diag", None), "message_primary", None) or error)
        said = Redactor.of(self._secrets).text(said)
        for secret in self._secrets:  # also those too short for a redactor
            said = said.replace(secret, "[REDACTED]")
        return one_line(said) or type(error).__name__


class _Guard:
    """A guard that ends a connection whose other end has stopped answering in the middle of a statement. A frozen
    PostgreSQL process enforces no statement timeout, but its kernel still acknowledges packets. The guard has a thread
    of its own, because the thread that waits for the answer cannot end the wait."""

    def __init__(self, connection: "Connection") -> None:
        self.ended_it = False
        """True if it has ended the connection."""
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._until = math.inf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mcp-nursery state", daemon=True)
        self._thread.start()

    @contextmanager
    def patience(self, seconds: float) -> Generator[None, None, None]:
        """A block that may take this long."""
        self._until = time.monotonic() + seconds
        try:
            yield
        finally:
            self._until = math.inf

    def end(self) -> None:
        """Stop guarding the connection."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with self._socket:
            while not self._over.wait(_LOOK):
                if time.monotonic() > self._until:
                    self.ended_it = True
                    with suppress(OSError):  # it has ended by itself
                        self._socket.shutdown(socket.SHUT_RDWR)


class _ConnectionLost(StoreUnreadable):
    """The error of a connection that has ended while it was used."""


class UnusableDatabase(Exception):
    """The error of a database whose tables cannot be used."""


def _settings_of(url: str) -> dict[str, Any]:
    """The settings of a URL, with our own where it has none."""
    with needs_extra("postgres", "state"):
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
    try:
        settings: dict[str, Any] = dict(conninfo_to_dict(url))
    except (Error, ValueError):  # their words quote the URL
        settings = {}
    if not settings or _is_torn(settings):
        problem = "is no URL as PostgreSQL has them: postgresql://USER@HOST/DATABASE, a password in it percent-encoded"
        raise ConfigError(problem, field="state")
    ours: dict[str, Any] = {
        "connect_timeout": CONNECTING,
        "tcp_user_timeout": int(UNDER_WAY * 1000),
        "application_name": "mcp-nursery",
        "client_encoding": "utf8",
    }
    if not _is_local(settings) and "PGSSLMODE" not in os.environ and "service" not in settings:
        ours["sslmode"] = "require"
    return {**ours, **settings, "client_encoding": "utf8"}


def _is_torn(settings: dict[str, Any]) -> bool:
    """True if a password that was not encoded ends up in parts of the URL that are shown."""
    host, port, name = (str(settings.get(key) or "") for key in ("host", "port", "dbname"))
    return "@" in host[1:] or "@" in name or _PORTS.fullmatch(port) is None


def _is_local(settings: dict[str, Any]) -> bool:
    hosts = [*str(settings.get("host") or os.environ.get("PGHOST", "")).split(",")]
    addresses = str(settings.get("hostaddr") or os.environ.get("PGHOSTADDR", "")).split(",")
    return all(host in _LOCAL or host.startswith(("/", "@")) for host in [*hosts, *addresses])


def _label_of(settings: dict[str, Any]) -> str:
    host, port, name = (str(settings.get(key) or "") for key in ("host", "port", "dbname"))
    where = f"{host}:{port}" if port else host
    return f"postgresql://{where}/{name}" if not host.startswith("/") else f"postgresql:///{name}"


# -- what stands in it ------------------------------------------------------------------------------------------------


_HAS_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'mcp_nursery')"
_HAS_TABLES: Final = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS tables JOIN pg_catalog.pg_namespace AS spaces ON spaces.oid = relnamespace
    WHERE nspname = 'mcp_nursery' AND relname = 'migrations'
)
"""
"""Read from the tables of the catalogue: `to_regclass` answers from a cache, which in the middle of a transaction may
lack a table that another process has just made."""


def migrate(db: "Connection") -> None:
    """Bring the tables up to the last migration that this version knows. One of several processes does so; the others
    wait.

    Raises:
        UnusableDatabase: A newer version has made it unusable for this one.
        psycopg.Error: It could not be done; then nothing of it was.
    """
    if _number_of(db) >= len(MIGRATIONS):
        return
    with db.transaction():
        db.execute(f"SET LOCAL lock_timeout = {MIGRATING * 1000:.0f}".encode())
        db.execute(f"SET LOCAL statement_timeout = {MIGRATING * 1000:.0f}".encode())
        db.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("migrations"),))
        found = _number_of(db)  # looked at again: another process may have been quicker
        if not found:
            if not _one(db, _HAS_SCHEMA):  # an administrator may have made it
                db.execute("CREATE SCHEMA mcp_nursery")
            db.execute(
                "CREATE TABLE mcp_nursery.migrations"
                " (number integer PRIMARY KEY, needs integer NOT NULL, at timestamptz NOT NULL DEFAULT now())"
            )
        for number, (needs, statements) in enumerate(MIGRATIONS[found:], found + 1):
            for statement in statements:
                db.execute(statement.encode())
            db.execute("INSERT INTO mcp_nursery.migrations (number, needs) VALUES (%s, %s)", (number, needs))


def _number_of(db: "Connection") -> int:
    """The number of the last migration that was applied; 0 for a database without our tables."""
    if not _one(db, _HAS_TABLES):
        return 0
    row: Any = db.execute("SELECT coalesce(max(number), 0), coalesce(max(needs), 0) FROM mcp_nursery.migrations")
    number, needs = row.fetchone()
    if needs > len(MIGRATIONS):
        raise UnusableDatabase("a newer version of mcp-nursery has changed its tables; upgrade this one")
    return int(number)


def _one(db: "Connection", query: str) -> Any:
    row: Any = db.execute(query.encode()).fetchone()
    return row[0]
