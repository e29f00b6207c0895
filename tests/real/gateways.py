"""Gateways as processes of their own, and clients of the MCP SDK in front of them."""

import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitResult

from mcp_nursery.supervisor import MemoryStore, open_supervisor
from mcp_nursery.supervisor.gateway import gateway_callbacks, open_gateway, open_http
from mcp_nursery.supervisor.gateway.web_server import bound, serve_http

PROGRAM = str(Path(sys.executable).with_name("mcp-nursery"))
SERVERS = Path(__file__).parents[1] / "servers"
ASKING = [sys.executable, "-I", str(SERVERS / "nursery_asking.py")]


class Answers:
    """A client's user, who answers every form and hears every log."""

    def __init__(self, name="Ann"):
        self.name = name
        self.asked = []
        self.heard = []
        self.changed = trio.Event()

    async def elicit(self, context, params):
        self.asked.append(params.message)
        wanted = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={"name": self.name} if "name" in wanted else {"age": 7})

    async def log(self, params):
        self.heard.append(params.data)

    async def message(self, message):
        if "list_changed" in getattr(message, "method", ""):
            self.changed.set()

    @property
    def options(self):
        return {
            "elicitation_callback": self.elicit,
            "logging_callback": self.log,
            "message_handler": self.message,
        }


@asynccontextmanager
async def served_over_http(*args, env=None, scheme="http"):
    """A gateway on a port of its own: its process, and its URL."""
    run = partial(trio.run_process, stderr=subprocess.PIPE, check=False, env=env)
    async with trio.open_nursery() as nursery:
        process = await nursery.start(run, [PROGRAM, "serve", "--http", "127.0.0.1:0", *args])
        try:
            line = b""
            with trio.fail_after(60):
                while b"\n" not in line:
                    line += await process.stderr.receive_some()
            assert line.startswith(f"serving on {scheme}://127.0.0.1:".encode()), line
            yield process, line.split()[2].decode()
        finally:
            process.terminate()
            with trio.CancelScope(shield=True), trio.move_on_after(30):
                await process.wait()


@asynccontextmanager
async def served(specs, *, only=None, http=None, limits=None, **options):
    """A gateway in this loop, on a port of its own: it, and its URL. All servers are connected. `http` are options of
    `open_http`."""
    listening = bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    options = {"callbacks": gateway_callbacks(), "template": "{server}_{tool}", "state": MemoryStore()} | options
    async with (
        open_supervisor(specs, **options) as supervisor,
        open_gateway(supervisor) as gateway,
        open_http(gateway, server=only, limits=limits, **(http or {})) as application,
        trio.open_nursery() as nursery,
    ):
        for spec in specs:
            await supervisor.wait_connected(spec.name)
        stop = trio.Event()
        nursery.start_soon(partial(serve_http, gateway, application, listening, drain=1, stop=stop.wait))
        yield gateway, f"http://127.0.0.1:{port}/mcp"
        stop.set()


@asynccontextmanager
async def client_on(front, args, mode, answers=None):
    """A client of the SDK, and the gateway that it talks to."""
    options = (answers or Answers()).options | {"mode": mode}
    if front == "stdio":
        parameters = StdioServerParameters(command=PROGRAM, args=["serve", *args])
        async with Client(stdio_client(parameters), **options) as client:
            yield client
    else:
        async with served_over_http(*args) as (_, url), Client(url, **options) as client:
            yield client
