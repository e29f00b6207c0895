import sys
from contextlib import asynccontextmanager

import psutil
import pytest
import trio

from mcp_nursery.actors.http import environment
from mcp_nursery.actors.transports.stdio import StdioConnector

from ..lab import PROGRAMS

CHILD = PROGRAMS / "stdio_child.py"


@pytest.fixture
def child():
    """Opens a child that behaves as told: `child("leaves", 3, grace=0.2)`."""

    @asynccontextmanager
    async def open_child(*behaviour, grace=1.0, **kwargs):
        args = ("-I", "-S", str(CHILD), *map(str, behaviour))
        connector = StdioConnector(sys.executable, args, env={}, cwd=None, close_grace=grace, **kwargs)
        with trio.fail_after(60):
            async with connector.open() as stream:
                yield stream

    return open_child


@pytest.fixture
def gone():
    """Whether a process runs no more; a zombie does not."""

    def is_gone(pid):
        try:
            return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return is_gone


@pytest.fixture
def authorities_not_loaded():
    """The certificate authorities are loaded by this test, as it says, and by the next one again."""
    for each in (environment._load, environment._nobody):
        each.cache_clear()
    yield
    environment._load.cache_clear()
