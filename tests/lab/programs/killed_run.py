"""A test that never ends, with all that tests start, and writes down the numbers of these processes."""

import os
import sys

import pytest
import trio

from ..processes import lab, supervised


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_never_ends(database_server):
    """A database server, a supervised server that ignores SIGTERM and the end of its input, and a bare process."""
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    bare = await trio.lowlevel.open_process(command, start_new_session=True)
    async with supervised(lab(flags={"ignore": "eof,term"})) as supervisor:
        pid = (await supervisor.call_tool("pid", server="lab")).full_text
        await trio.Path(os.environ["PIDS"]).write_text(f"{database_server.pid} {pid} {bare.pid}\n")
        await trio.sleep_forever()
