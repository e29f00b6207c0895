"""Real servers on loopback for a whole supervisor: started once, told to misbehave, killed and started again."""

import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from mcp_nursery.supervisor import HttpTransport, ServerSpec, SseTransport

from . import PROGRAMS
from .forked import Forked
from .processes import AT_ONCE, Journal

SERVER = PROGRAMS / "nursery_http.py"

KINDS = {
    "modern": {"transport": "http"},
    "handshake": {"transport": "http", "era": "old"},
    "json": {"transport": "http", "era": "old", "json": "1"},
    "sse": {"transport": "sse"},
}
"""How servers are reached, and what makes one so."""
STATELESS = {"transport": "http", "era": "old", "stateless": "1"}
"""One that gives out no session ids, for who asks for it by this name."""
IN_SESSION = ("handshake", "json")
"""Those that give out session ids."""


class Remote:
    """A server in a process of its own, always on the same port."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.port = free_port()
        self.journal = Journal(folder / "journal")
        self.headers = folder / "headers"
        self.more: dict[str, Any] = {}
        """What it was started with besides what makes its kind."""
        self.process = self._started()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/{'sse' if self.kind == 'sse' else 'mcp'}"

    def start(self, **more: Any) -> None:
        self.more = more
        self.process.wait()
        self.process = self._started()

    def _started(self) -> Forked:
        flags = {
            **self.more,
            **KINDS.get(self.kind, STATELESS),
            "port": self.port,
            "journal": self.journal.path,
            "headers": self.headers,
        }
        process = Forked(SERVER, *(f"{name}={value}" for name, value in flags.items()))
        await_answer(self.port, process.is_running)
        return process

    def kill(self) -> None:
        self.process.kill()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def faults(self, *faults: object) -> None:
        """What goes wrong from now on, and nothing else."""
        httpx2.post(f"{self.origin}/control", json=faults, timeout=30).raise_for_status()

    def reset(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        if self.more:
            self.kill()
        if not self.process.is_running():
            self.start()
        try:
            self.faults()
        except httpx2.TransportError:  # it was about to exit, as it had been told: a new one has no faults
            self.process.wait()
            self.start()
        for file in (self.journal.path, self.headers):
            file.unlink(missing_ok=True)

    def requests(self) -> list[Any]:
        """The headers and the queries that came, in order."""
        return [json.loads(line) for line in self.headers.read_text().splitlines()] if self.headers.exists() else []

    def transport(self, url: str | None = None, **settings: Any) -> HttpTransport | SseTransport:
        make = SseTransport if self.kind == "sse" else HttpTransport
        return make(url or self.url, **settings)

    def spec(self, name: str = "lab", /, *, headers: Any = None, **settings: Any) -> ServerSpec:
        return ServerSpec(name, self.transport(headers=headers or {}), **{"policy": AT_ONCE, **settings})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def await_answer(port: int, is_running: Callable[[], bool]) -> None:
    """Until the process that listens there can be reached."""
    until = time.monotonic() + 60
    while not answers(port):
        assert time.monotonic() < until
        assert is_running()
        time.sleep(0.02)
