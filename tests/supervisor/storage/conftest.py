"""Stores that know nothing yet: a state file, a database, and one in memory."""

from contextlib import closing

import pytest

from mcp_nursery.supervisor import MemoryStore
from mcp_nursery.supervisor.storage.postgres import PostgresStore
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from .places import DatabasePlace, FilePlace

DATABASE = pytest.param("database", marks=pytest.mark.push)
"""A server is started for the first test that needs it."""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "folder" / "state.sqlite3"


@pytest.fixture
def store(file):
    with closing(SqliteStore(file)) as store:
        yield store


@pytest.fixture
def shared_store(database):
    with closing(PostgresStore(database)) as store:
        yield store


@pytest.fixture(params=["memory", "file", DATABASE])
def any_store(request):
    """A store of each kind, which the contract is held against."""
    if request.param == "memory":
        return MemoryStore()
    return request.getfixturevalue("store" if request.param == "file" else "shared_store")


@pytest.fixture(params=["file", DATABASE])
def place(request):
    """Where stores that last keep what they know."""
    if request.param == "file":
        return FilePlace(request.getfixturevalue("file"))
    return DatabasePlace(request.getfixturevalue("database"))


@pytest.fixture
def lasting(place):
    """A store of each kind that outlasts a run."""
    with closing(place.open()) as store:
        yield store
