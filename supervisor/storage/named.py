"""The store that a user names: a file, or the URL of a database. Nothing is opened yet."""

import os
from typing import Final

from mcp_nursery.actors.errors import ConfigError

from .sqlite import SqliteStore
from .store import Store

SCHEMES: Final = ("postgresql://", "postgres://")
"""The beginnings of a URL of a database."""


def store_named(state: str | os.PathLike[str] | None) -> Store:
    """The store at a path, at the URL of a PostgreSQL database, or, with None, in the user's state folder.

    Raises:
        ConfigError: It is a URL of something else, or cannot be one, or psycopg is not installed.
    """
    if isinstance(state, str) and state.startswith(SCHEMES):
        from .postgres import PostgresStore

        return PostgresStore(state)
    if isinstance(state, str) and "://" in state:
        raise ConfigError("must be a file, or a database as postgresql://HOST/DATABASE", field="state")
    return SqliteStore(state)
