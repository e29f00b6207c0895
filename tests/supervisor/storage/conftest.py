"""A state file that is not there yet, and a store that keeps it."""

from contextlib import closing

import pytest

from mcp_nursery.supervisor.storage.sqlite import SqliteStore


@pytest.fixture
def file(tmp_path):
    return tmp_path / "folder" / "state.sqlite3"


@pytest.fixture
def store(file):
    with closing(SqliteStore(file)) as store:
        yield store
