"""Fixtures for tests of agents and hosts, where `mcp-nursery` is installed beside pytest.

`mcp_supervisor` opens supervisors, `mcp_server` makes scripted servers, `mcp_faults` makes them fail, and `mcp_virtual`
runs a test in virtual time. Nothing of this package is loaded before a test asks for one of them.
"""

import os
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest

if TYPE_CHECKING:
    from .portal import BlockingSupervisor, ThreadSupervisor
    from .supervisor import Supervisor
    from .testing import ScriptedServer

    AnySupervisor: TypeAlias = Supervisor | ThreadSupervisor | BlockingSupervisor


class SupervisorBlock:
    """The block of a supervisor in a test: `with` in a plain test, `async with` in one on Trio, asyncio or anyio. On
    Trio the supervisor runs in the same loop, elsewhere in a thread of its own."""

    def __init__(self, servers: Any, options: Mapping[str, Any]) -> None:
        self._servers = servers
        self._options = options
        self._plain: AbstractContextManager[BlockingSupervisor] | None = None
        self._block: AbstractAsyncContextManager[Supervisor | ThreadSupervisor]

    def __enter__(self) -> "BlockingSupervisor":
        from .portal import open_supervisor_thread

        self._plain = open_supervisor_thread(self._servers, **self._options)
        return self._plain.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        plain, self._plain = self._plain, None
        if plain is not None:
            plain.__exit__(kind, error, traceback)

    async def __aenter__(self) -> "Supervisor | ThreadSupervisor":
        import trio

        from .opening import open_supervisor
        from .portal import open_supervisor_thread

        opened = open_supervisor if trio.lowlevel.in_trio_task() else open_supervisor_thread
        self._block = opened(self._servers, **self._options)
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._block.__aexit__(kind, error, traceback)


class Faults:
    """The faults of a test's servers, caused on demand. Each raises `ValueError` if the server is not running now."""

    def __init__(self) -> None:
        self._stopped: set[int] = set()

    def kill(self, supervisor: "AnySupervisor", server: str) -> None:
        """End a server's process with all that it has started, or the life of a scripted server, as a crash does."""
        scripted = _scripted(supervisor, server)
        if scripted is None:
            os.killpg(_pid(supervisor, server), signal.SIGKILL)
        else:
            scripted.crash()

    def hang(self, supervisor: "AnySupervisor", server: str) -> None:
        """Make a server stop answering. A process is suspended with all that it has started, until it is killed or the
        test ends: behind `npx` or `uv run` the server is a child process."""
        scripted = _scripted(supervisor, server)
        if scripted is None:
            pid = _pid(supervisor, server)
            os.killpg(pid, signal.SIGSTOP)
            self._stopped.add(pid)
        else:
            scripted.hang()

    def garbage(self, supervisor: "AnySupervisor", server: str) -> None:
        """Make a server send a line that is no message, such as a traceback.

        Raises:
            ValueError: The server is a process: only a scripted server does that on demand.
        """
        scripted = _scripted(supervisor, server)
        if scripted is None:
            raise ValueError(f"{server}: garbage is for scripted servers")
        scripted.garble()

    def end(self) -> None:
        """Resume the suspended processes, so that they end with their supervisor."""
        for pid in self._stopped:
            try:
                os.killpg(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


def _scripted(supervisor: "AnySupervisor", server: str) -> "ScriptedServer | None":
    from .testing.scripted import ScriptedTransport

    transport = supervisor.spec(server).transport
    if not isinstance(transport, ScriptedTransport):
        return None
    if not transport.server.alive:
        raise ValueError(f"{server} has no incarnation now")
    return transport.server


def _pid(supervisor: "AnySupervisor", server: str) -> int:
    """The pid of a server's process, which leads a group: each is started in a session of its own."""
    pid = next((status.pid for status in supervisor.status() if status.name == server), None)
    if pid is None:
        raise ValueError(f"{server} has no process now")
    return pid


@pytest.fixture
def mcp_supervisor() -> Generator[Callable[..., SupervisorBlock], None, None]:
    """A function that opens supervisors: `with mcp_supervisor({"lab": server}) as supervisor`.

    Its argument is what `open_supervisor` takes, or a mapping of names to scripted servers and transports. Its options
    are those of `open_supervisor`. Unless they say otherwise state is kept in memory, and `gate` is the 30 seconds that
    connecting may take: all first attempts are settled when a test goes on, on a slow machine as well.
    """
    from .servers.settings import DEFAULT_CONNECT_TIMEOUT
    from .storage.store import MemoryStore

    blocks: list[SupervisorBlock] = []

    def opening(servers: Any, **options: Any) -> SupervisorBlock:
        given = _specs(cast("Mapping[str, Any]", servers)) if isinstance(servers, Mapping) else servers
        blocks.append(SupervisorBlock(given, {"state": MemoryStore(), "gate": DEFAULT_CONNECT_TIMEOUT, **options}))
        return blocks[-1]

    yield opening
    for block in blocks:
        block.__exit__(None, None, None)  # if a plain test has not left it


def _specs(servers: Mapping[str, Any]) -> list[Any]:
    from .spec import ServerSpec
    from .testing import ScriptedServer

    return [
        ServerSpec(name, server.transport if isinstance(server, ScriptedServer) else server)
        for name, server in servers.items()
    ]


@pytest.fixture
def mcp_server() -> "Callable[..., ScriptedServer]":
    """A function that makes scripted servers: it takes the arguments of `ScriptedServer`."""
    from .testing import ScriptedServer

    return ScriptedServer


@pytest.fixture
def mcp_faults() -> Generator[Faults, None, None]:
    """The faults that servers can have: `mcp_faults.kill(supervisor, "lab")`, `hang`, `garbage`."""
    faults = Faults()
    yield faults
    faults.end()


@pytest.fixture
def mcp_virtual() -> Callable[..., Any]:
    """A function that runs an async function in virtual time, on Trio: see `run_virtual`. For scripted servers
    alone."""
    from .testing import run_virtual

    return run_virtual
