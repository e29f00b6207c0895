"""Gateways as processes of their own, and clients of the MCP SDK in front of them."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitResult

from mcp_nursery.supervisor import MemoryStore, ServerSpec, open_supervisor
from mcp_nursery.supervisor.gateway import Gateway, gateway_callbacks, open_gateway, open_http
from mcp_nursery.supervisor.gateway.http.application import serve_http
from mcp_nursery.supervisor.http_server.listening import bind_socket

from . import PROGRAMS

PROGRAM = str(Path(sys.executable).with_name("mcp-nursery"))
PASS_ON = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""
"""The program that starts another as systemd does, with a socket."""
ASKING = [sys.executable, "-I", "-S", str(PROGRAMS / "asking.py")]


def serving(*args: str) -> list[str]:
    """The command of a gateway on standard streams, with the state of this test's own user: not all clients hand on
    their environment."""
    return ["env", f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}", PROGRAM, "serve", *args]


class Answers:
    """A client's user, who answers every form and hears every log."""

    def __init__(self, name: str = "Ann") -> None:
        self.name = name
        self.asked: list[str] = []
        self.heard: list[Any] = []
        self.changed = trio.Event()

    async def elicit(self, context: object, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        wanted = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={"name": self.name} if "name" in wanted else {"age": 7})

    async def log(self, params: Any) -> None:
        self.heard.append(params.data)

    async def message(self, message: object) -> None:
        if "list_changed" in getattr(message, "method", ""):
            self.changed.set()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "logging_callback": self.log,
            "message_handler": self.message,
        }


@asynccontextmanager
async def served_over_http(
    *args: str, env: Mapping[str, str] | None = None, scheme: str = "http", listening: socket.socket | None = None
) -> AsyncGenerator[tuple[trio.Process, str], None]:
    """A gateway on a port of its own: its process, and its URL. `listening` is passed on to it as systemd does."""
    run = partial(trio.run_process, stderr=subprocess.PIPE, check=False, env=env)
    command, port = [PROGRAM, "serve"], 0
    if listening is not None:
        port = listening.getsockname()[1]
        command = [sys.executable, "-c", PASS_ON, str(listening.fileno()), *command]
        run = partial(run, pass_fds=[listening.fileno()])
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(run, [*command, "--http", f"127.0.0.1:{port}", *args])
        assert process.stderr is not None
        try:
            line = b""
            with trio.fail_after(60):
                while b"\n" not in line:
                    line += bytes(await process.stderr.receive_some())
            assert line.startswith(f"serving on {scheme}://127.0.0.1:".encode()), line
            yield process, line.split()[2].decode()
        finally:
            process.terminate()
            with trio.CancelScope(shield=True), trio.move_on_after(30):
                await process.wait()


@asynccontextmanager
async def served(
    specs: Sequence[ServerSpec],
    *,
    only: str | None = None,
    http: dict[str, Any] | None = None,
    limits: Any = None,
    **options: Any,
) -> AsyncGenerator[tuple[Gateway, str], None]:
    """A gateway in this loop, on a port of its own: it, and its URL. All servers are connected. `http` are options of
    `open_http`."""
    listening = bind_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    defaults: dict[str, Any] = {"template": "{server}_{tool}", "state": MemoryStore()}
    options = {"callbacks": gateway_callbacks(), **defaults} | options
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
async def client_on(
    front: str, args: Sequence[str], mode: str, answers: Answers | None = None
) -> AsyncGenerator[Client, None]:
    """A client of the SDK, and the gateway that it talks to."""
    options = (answers or Answers()).options | {"mode": mode}
    if front == "stdio":
        command, *rest = serving(*args)
        async with Client(stdio_client(StdioServerParameters(command=command, args=rest)), **options) as client:
            yield client
    else:
        async with served_over_http(*args) as (_, url), Client(url, **options) as client:
            yield client
