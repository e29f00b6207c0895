"""P1 over every transport, from servers of the SDK in processes of their own."""

import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_nursery.supervisor import (
    HttpTransport,
    RestartPolicy,
    ServerSpec,
    SseTransport,
    StdioTransport,
    WebSocketTransport,
    open_supervisor,
)

from ..lab import PROGRAMS

pytestmark = pytest.mark.slow

LIBRARY = PROGRAMS / "nursery_library.py"


@asynccontextmanager
async def library(transport):
    """A transport to a library of its own."""
    if transport == "stdio":
        yield StdioTransport(sys.executable, args=[str(LIBRARY), "stdio"])
        return
    process = await trio.lowlevel.open_process([sys.executable, str(LIBRARY), transport], stdout=subprocess.PIPE)
    try:
        port = int(await process.stdout.receive_some())
        match transport:
            case "http":
                yield HttpTransport(f"http://127.0.0.1:{port}/mcp")
            case "sse":
                yield SseTransport(f"http://127.0.0.1:{port}/sse")
            case "ws":
                yield WebSocketTransport(f"ws://127.0.0.1:{port}/mcp")
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()


@pytest.mark.parametrize("transport", ["stdio", "http", "sse", "ws"])
async def test_resources_prompts_and_completion_over_every_transport(transport):
    async with (
        library(transport) as reached,
        open_supervisor([ServerSpec("library", reached)], gate=30) as supervisor,
    ):
        assert [resource.uri for resource in supervisor.resources] == ["note://file", "note://picture", "note://today"]
        assert supervisor.resources[1].mime_type == "image/png"
        (template,) = supervisor.resource_templates
        (prompt,) = supervisor.prompts
        with trio.fail_after(30):
            assert (await supervisor.read_resource("note://today")).full_text == "Buy milk."
            assert (await supervisor.read_resource("note://picture")).contents[0].blob == "iVBORw=="
            assert (await supervisor.read_resource("note://day/monday")).full_text == "Nothing on monday."
            filled = await supervisor.get_prompt(prompt.name, {"topic": "milk"})
            assert [one.content.text for one in filled.messages] == ["Summarise milk."]
            assert (await supervisor.complete(prompt, "topic", "mi")).values == ("milk", "mice")
            assert (await supervisor.complete(template, "day", "b")).values == ("bread",)


async def test_a_subscriber_hears_of_a_change_made_while_its_server_was_down(tmp_path):
    """P2: killed, changed, restarted."""
    note = tmp_path / "note"
    note.write_text("one")
    transport = StdioTransport(sys.executable, args=[str(LIBRARY), "stdio"], env={"NOTE": str(note)})
    one = ServerSpec("library", transport, policy=RestartPolicy(delays=[0.2] * 5))
    async with (
        open_supervisor([one], gate=30) as supervisor,
        supervisor.subscribe("note://file") as updates,
        supervisor.events() as events,
    ):
        with trio.fail_after(60):
            while True:  # until the server has begun to listen
                await supervisor.call_tool("write", {"text": "two"}, server="library")
                with trio.move_on_after(0.2):
                    assert (await updates.receive()).certain
                    break
            os.kill(supervisor.status()[0].pid, signal.SIGKILL)
            async for event in events:
                if getattr(event, "new", None) == "waiting":
                    break
            note.write_text("three")
            while (await updates.receive()).certain:
                pass
            assert supervisor.status()[0].incarnation == 2
            assert (await supervisor.read_resource("note://file")).full_text == "three"
