"""Servers behind a WebSocket for a whole supervisor: a process to be killed and frozen, a proxy to be cut."""

import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio

from mcp_nursery.supervisor import ServerSpec, WebSocketTransport

from . import PROGRAMS
from .processes import AT_ONCE

LAB = PROGRAMS / "websocket_lab.py"


def at(url: str, name: str = "lab", **settings: Any) -> ServerSpec:
    return ServerSpec(name, WebSocketTransport(url), **{"policy": AT_ONCE, **settings})


class LabProcess:
    """The lab server in a process; a later one may take the port of an earlier one."""

    def __init__(self, process: trio.Process, port: int) -> None:
        self.port = port
        self.url = f"ws://127.0.0.1:{port}/mcp"
        self._process = process

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)


@asynccontextmanager
async def lab_process(**flags: Any) -> AsyncGenerator[LabProcess, None]:
    command = [sys.executable, str(LAB), *(f"{key}={value}" for key, value in flags.items())]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield LabProcess(process, int(await process.stdout.receive_some()))
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()


class Proxy:
    """Passes bytes on, until it is cut: then it takes and gives nothing, and closes nothing, until it is mended."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._is_cut = False
        self._scopes: list[trio.CancelScope] = []
        self.port = 0

    def cut(self) -> None:
        self._is_cut = True
        for scope in self._scopes:
            scope.cancel()

    def mend(self) -> None:
        """For connections to come."""
        self._is_cut = False

    async def listen(self, nursery: trio.Nursery) -> None:
        (listener,) = await nursery.start(partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1"))
        self.port = listener.socket.getsockname()[1]

    async def _serve(self, client: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            if self._is_cut:
                scope.cancel()
            async with await trio.open_tcp_stream("127.0.0.1", self._target) as server, trio.open_nursery() as nursery:
                nursery.start_soon(self._pass, client, server, nursery.cancel_scope)
                nursery.start_soon(self._pass, server, client, nursery.cancel_scope)
        if scope.cancelled_caught:
            await trio.sleep_forever()

    async def _pass(self, source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError):
            async for data in source:
                await target.send_all(data)
        both.cancel()
