"""A WebSocket server that nobody here wrote: the MCP SDK's 1.x line, served by uvicorn."""

import subprocess
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.supervisor import RestartPolicy, open_supervisor
from mcp_nursery.supervisor.status import ServerState

from ..lab import PROGRAMS
from ..lab.timely import in_time, timely
from ..lab.websockets import at
from . import installing

pytestmark = pytest.mark.interop

POLICY = RestartPolicy(delays=[0.1] * 600)
"""For as long as it may take to start the server again."""
SERVER = PROGRAMS / "nursery_websocket.py"


@pytest.fixture(scope="session")
def python():
    with installing.needed_by_test("mcp"):
        return installing.python_with("mcp[ws]==1.30.0")


@asynccontextmanager
async def first_line(python, port=0):
    """The server, as a process and its port."""
    process = await trio.lowlevel.open_process([python, "-I", SERVER, str(port)], stdout=subprocess.PIPE)
    try:
        yield process, int(await process.stdout.receive_some())
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()


@timely
async def test_called_killed_and_called_again(python):
    """L6, R5, P7: its era is found, progress is in order, a death while idle is noticed and mended."""
    reports = []

    async def on_progress(progress, total, message):
        reports.append(progress)

    with trio.fail_after(120):
        async with first_line(python) as (process, port):
            url = f"ws://127.0.0.1:{port}/anything"
            async with open_supervisor([at(url, policy=POLICY)]) as supervisor, supervisor.events() as events:
                status = await supervisor.wait_connected("lab")
                assert (status.protocol_version, status.server_info["name"]) == ("2025-11-25", "first line")
                result = await supervisor.call_tool("add", {"a": 2, "b": 40}, server="lab", on_progress=on_progress)
                assert (result.full_text, reports) == ("42", [0, 1, 2])
                killed = trio.current_time()
                process.kill()
                async for event in events:
                    if getattr(event, "new", None) is ServerState.WAITING:
                        break
                async with first_line(python, port):
                    status = await supervisor.wait_connected("lab")
                    assert status.incarnation > 1
                    assert (await supervisor.call_tool("add", {"a": 1, "b": 1}, server="lab")).full_text == "2"
        in_time(event.at - killed, 0.5)
