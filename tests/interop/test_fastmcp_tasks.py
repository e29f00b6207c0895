"""Tools that need tasks, of a server built with FastMCP, over stdio and HTTP: the calls have their results."""

from contextlib import contextmanager
from functools import partial

import pytest
import trio
from mcp_types import ElicitResult

from mcp_nursery.supervisor import HttpTransport, ServerSpec, StdioTransport, open_supervisor
from mcp_nursery.supervisor.callbacks import Callbacks

from ..lab import PROGRAMS
from ..lab.remote import free_port
from . import installing
from .listening import listening

pytestmark = pytest.mark.interop

TASKS = "fastmcp[tasks]==4.1.2"
SCRIPT = PROGRAMS / "nursery_tasks.py"


@contextmanager
def running(transport):
    with installing.needed_by_test(TASKS):
        python = str(installing.python_with(TASKS))
    if transport == "stdio":
        yield ServerSpec("tasks", StdioTransport(python, ["-I", str(SCRIPT)]))
        return
    port = free_port()
    with listening([python, "-I", str(SCRIPT), str(port)], {}, port):
        yield ServerSpec("tasks", HttpTransport(f"http://127.0.0.1:{port}/mcp"))


async def elicit(message):
    return ElicitResult(action="accept", content={"name": "Ann"})


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_tools_that_need_tasks(transport, tmp_path):
    note = tmp_path / "note"
    with running(transport) as spec, trio.fail_after(180):
        async with open_supervisor([spec], callbacks=Callbacks(elicit=elicit)) as supervisor:
            assert "io.modelcontextprotocol/tasks" in (await supervisor.wait_connected("tasks")).extensions
            added = await supervisor.call_tool("add", {"a": 2, "b": 3}, server="tasks")
            assert (added.structured, added.is_error) == ({"result": 5}, False)
            failed = await supervisor.call_tool("fail", server="tasks")
            assert failed.is_error
            assert "not today" in failed.full_text
            assert (await supervisor.call_tool("greet", server="tasks")).full_text == "hello Ann"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(supervisor.call_tool, server="tasks"), "wait", {"note": str(note)})
                while not note.exists():  # noqa: ASYNC110 - another process writes it
                    await trio.sleep(0.02)
                nursery.cancel_scope.cancel()
            while note.read_text() != "cancelled":  # noqa: ASYNC110 - likewise
                await trio.sleep(0.02)
