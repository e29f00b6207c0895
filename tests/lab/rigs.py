"""A server of each transport that can be broken in the ways of the fault matrix, and mended in place."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from mcp.server.mcpserver import MCPServer

from mcp_nursery.supervisor import (
    HttpTransport,
    InProcessTransport,
    ServerSpec,
    SseTransport,
    StdioTransport,
    Supervisor,
    ToolResult,
    WebSocketTransport,
)

from .processes import LAB, Journal, eventually, status_of
from .remote import Remote, free_port
from .websockets import LAB as WS_LAB
from .websockets import Proxy

ANY: dict[str, Any] = {"times": 1000}
CALL: dict[str, Any] = {"method": "tools/call", "times": 1}


class Rig:
    """Calls go to `slow`, with its seconds."""

    slow = "sleep"
    proxy: Proxy | None = None
    """What calls go through, if anything."""
    journal: Any

    def transport(self) -> Any:
        raise NotImplementedError

    def spec(self, name: str = "lab", /, **settings: Any) -> ServerSpec:
        return ServerSpec(name, self.transport(), **settings)

    async def call(self, supervisor: Supervisor, seconds: float, timeout: float | None = None) -> ToolResult:
        return await supervisor.call_tool(self.slow, {"seconds": seconds}, server="lab", timeout=timeout)

    async def cut(self, _: Supervisor) -> None:
        assert self.proxy is not None
        self.proxy.cut()

    @property
    def listed(self) -> int:
        """How often its tools were listed."""
        return int(self.journal.count("list"))


class StdioRig(Rig):
    """A script that is the lab server, with flags or none, or is not there."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "server"
        self.journal = Journal(folder / "journal")
        self.stopped: list[int] = []
        self.write()

    def write(self, flags: str = "") -> None:
        self.program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -I -S "{LAB}" journal={self.journal.path} {flags}\n'
        )
        self.program.chmod(stat.S_IRWXU)

    def transport(self) -> StdioTransport:
        return StdioTransport(str(self.program))

    async def arrived(self, supervisor: Supervisor) -> None:
        await supervisor.call_tool("sleeping", {"count": 1}, server="lab")

    async def call_beside_garbage(self, supervisor: Supervisor) -> ToolResult:
        return await supervisor.call_tool("garbage", {"lines": 1000}, server="lab")

    async def killed(self, supervisor: Supervisor) -> None:
        os.kill(pid_of(supervisor), signal.SIGKILL)

    async def frozen(self, supervisor: Supervisor) -> None:
        self.stopped.append(pid_of(supervisor))
        os.kill(self.stopped[0], signal.SIGSTOP)

    async def changed(self, supervisor: Supervisor, more: str) -> None:
        self.write(f"more={more}")
        await self.killed(supervisor)

    async def slow_to_close(self) -> None:
        self.write("ignore=eof,term")

    async def hangs(self, _: Supervisor) -> None:
        self.write("mute=yes")

    async def exits(self, _: Supervisor) -> None:
        self.write("exit=3")

    async def refuses(self, _: Supervisor) -> None:
        self.program.unlink()

    async def garbage(self, _: Supervisor) -> None:
        """By its own tool."""

    async def mend(self) -> None:
        self.write()
        while self.stopped:
            os.kill(self.stopped.pop(), signal.SIGCONT)

    async def close(self) -> None:
        await self.mend()


class RemoteRig(Rig):
    """The SDK's server on loopback."""

    slow = "hang"

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    @property
    def port(self) -> int:
        return self.remote.port

    def transport(self) -> HttpTransport | SseTransport:
        url = self.remote.url
        return self.remote.transport(url if self.proxy is None else url.replace(str(self.port), str(self.proxy.port)))

    async def arrived(self, _: Supervisor) -> None:
        await eventually(lambda: self.remote.journal.count("hang") == 1)

    async def call_beside_garbage(self, supervisor: Supervisor) -> ToolResult:
        return await self.call(supervisor, 0)

    async def killed(self, _: Supervisor) -> None:
        self.remote.kill()

    async def frozen(self, _: Supervisor) -> None:
        self.remote.freeze()

    @property
    def journal(self) -> Journal:
        return self.remote.journal

    @property
    def listed(self) -> int:
        return self.journal.count("POST_tools/list")

    async def changed(self, _: Supervisor, more: str) -> None:
        self.remote.kill()
        await trio.to_thread.run_sync(lambda: self.remote.start(more=more))

    async def slow_to_close(self) -> None:
        self.remote.faults({"http": "DELETE", "method": "", "hang": 3600, "status": 200})

    def always(self, **fault: Any) -> None:
        self.remote.faults({**ANY, **fault}, {**ANY, "http": "GET", "method": "", **fault})

    async def hangs(self, _: Supervisor) -> None:
        self.always(hang=3600, status=200)

    async def exits(self, _: Supervisor) -> None:
        self.always(exit=3)

    async def refuses(self, _: Supervisor) -> None:
        self.remote.kill()

    async def refused(self, _: Supervisor, status: int) -> None:
        self.always(status=status)

    async def status(self, _: Supervisor, status: int) -> None:
        self.remote.faults({**CALL, "status": status})

    async def garbage(self, _: Supervisor) -> None:
        self.always(junk=True)

    async def nonsense(self, _: Supervisor) -> None:
        self.remote.faults({**CALL, "status": 200, "type": "application/json", "body": "no JSON"})

    async def mend(self) -> None:
        if self.proxy is not None:
            self.proxy.mend()
        await trio.to_thread.run_sync(self.remote.reset)

    async def close(self) -> None:
        await self.mend()


class WebSocketRig(Rig):
    """The lab server in a process that is started anew for each fault it begins with."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "journal")
        self.port = free_port()
        self.process: Any = None

    async def start(self, **flags: Any) -> None:
        settings = {"port": self.port, "journal": self.journal.path, **flags}
        command = [sys.executable, str(WS_LAB), *(f"{key}={value}" for key, value in settings.items())]
        self.process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        self.whole = not flags
        assert int(await self.process.stdout.receive_some()) == self.port

    async def stop(self) -> None:
        with trio.CancelScope(shield=True):
            self.process.kill()
            await self.process.wait()
            await self.process.stdout.aclose()

    def transport(self) -> WebSocketTransport:
        return WebSocketTransport(f"ws://127.0.0.1:{self.port if self.proxy is None else self.proxy.port}/mcp")

    async def arrived(self, supervisor: Supervisor) -> None:
        await supervisor.call_tool("echo", server="lab")  # frames are taken in order

    async def call_beside_garbage(self, supervisor: Supervisor) -> ToolResult:
        return await supervisor.call_tool("babble", server="lab")

    async def changed(self, _: Supervisor, more: str) -> None:
        await self.restarted(more=more)

    async def restarted(self, **flags: Any) -> None:
        await self.stop()
        await self.start(**flags)

    async def killed(self, _: Supervisor) -> None:
        self.whole = False
        self.process.kill()

    async def frozen(self, _: Supervisor) -> None:
        self.process.send_signal(signal.SIGSTOP)

    async def hangs(self, _: Supervisor) -> None:
        await self.restarted(mute="yes")

    async def exits(self, _: Supervisor) -> None:
        await self.restarted(exit="yes")

    async def refuses(self, _: Supervisor) -> None:
        self.whole = False
        await self.stop()

    async def refused(self, _: Supervisor, status: int) -> None:
        await self.restarted(status=status)

    async def garbage(self, _: Supervisor) -> None:
        """By its own tool."""

    async def mend(self) -> None:
        if self.proxy is not None:
            self.proxy.mend()
        self.process.send_signal(signal.SIGCONT)
        if not self.whole:
            await self.restarted()

    async def close(self) -> None:
        await self.stop()


class InProcessRig(Rig):
    """An object whose lifespan is as told."""

    def __init__(self) -> None:
        self.way: str | None = None
        self.death = trio.Event()
        self.asleep = trio.Event()
        self.server = MCPServer("lab", lifespan=self.lifespan)
        self.server.add_tool(self.sleep, name="sleep")

    async def sleep(self, seconds: float) -> str:
        self.asleep.set()
        await trio.sleep(seconds)
        return "rested"

    @asynccontextmanager
    async def lifespan(self, _server: object) -> AsyncGenerator[None, None]:
        if self.way == "hangs":
            await trio.sleep_forever()
        if self.way == "exits":
            raise SystemExit(3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.die)
            yield
            nursery.cancel_scope.cancel()

    async def die(self) -> None:
        await self.death.wait()
        raise RuntimeError("dead")

    def transport(self) -> InProcessTransport:
        return InProcessTransport(self.server)

    async def arrived(self, _: Supervisor) -> None:
        await self.asleep.wait()

    async def killed(self, _: Supervisor) -> None:
        self.death.set()

    async def frozen(self, _: Supervisor) -> None:
        """A tool that does not answer is all that can freeze of it."""

    async def hangs(self, _: Supervisor) -> None:
        self.way = "hangs"

    async def exits(self, _: Supervisor) -> None:
        self.way = "exits"

    async def mend(self) -> None:
        self.way, self.death = None, trio.Event()

    async def close(self) -> None:
        """It has no process."""


def pid_of(supervisor: Supervisor) -> int:
    pid = status_of(supervisor).pid
    assert pid is not None
    return pid


@asynccontextmanager
async def open_rig(
    column: str, remotes: Callable[[str], Remote], folder: Path, *, stateless: bool = False, cut: bool = False
) -> AsyncGenerator[Any, None]:
    """A rig of the column, whole again when it is left, however it is left."""
    async with trio.open_nursery() as nursery:
        rig = await made(column, remotes, folder, stateless=stateless)
        if cut:
            rig.proxy = Proxy(rig.port)
            await rig.proxy.listen(nursery)
        try:
            yield rig
        finally:
            with trio.CancelScope(shield=True):
                await rig.close()
            nursery.cancel_scope.cancel()


async def made(column: str, remotes: Callable[[str], Remote], folder: Path, *, stateless: bool) -> Any:
    match column:
        case "stdio":
            return StdioRig(folder)
        case "in_process":
            return InProcessRig()
        case "ws":
            lab = WebSocketRig(folder)
            await lab.start()
            return lab
    rig = RemoteRig(remotes("stateless" if stateless else column))
    await rig.mend()
    return rig
