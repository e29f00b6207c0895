"""What the command line's tests share: the command as a process, and a terminal."""

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from . import PROGRAMS

LAB = {"command": sys.executable, "args": [str(PROGRAMS / "lab_server.py")]}
BROKEN = {"command": sys.executable, "args": [*LAB["args"], "--broken"], "restartDelays": []}
MISSING = {"command": "/nonexistent/command"}
COMMAND = [sys.executable, "-c", "from mcp_nursery.supervisor.cli import main; main()"]


@frozen
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def process(*args: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Starts the command as a process of its own."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONWARNINGS": "error", **(env or {})}
    return subprocess.Popen([*COMMAND, *map(str, args)], env=environment, **{**streams, **options})


def until(
    holds: Callable[[], bool], seconds: float = 60, problem: Callable[[], str] = lambda: "it never came to that"
) -> None:
    """Waits for what another process does, of which no event of ours tells."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, problem()
        time.sleep(0.01)


class Screen:
    """A terminal: what is shown on it, and somebody to type."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 4096)
            except OSError:
                return
            self.text += data.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        until(lambda: text in self.text, seconds, lambda: f"{text!r} not in {self.text!r}")

    def when(self, text: str, act: Callable[[], None]) -> None:
        """Calls `act` as soon as the text is shown."""

        def watch() -> None:
            self.wait_for(text)
            act()

        threading.Thread(target=watch, daemon=True).start()

    def settle(self) -> None:
        """Waits until everything written so far is in `text`."""
        os.write(self.slave, b"\0")
        self.wait_for("\0")
        self.text = self.text.replace("\0", "")

    def close(self) -> None:
        os.close(self.slave)
        self._reader.join(5)
        os.close(self.master)
