"""What the command line's tests share: the command as a process, and a terminal."""

import json
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

from attrs import frozen

LAB = {"command": sys.executable, "args": [str(Path(__file__).with_name("lab_server.py"))]}
BROKEN = {"command": sys.executable, "args": [*LAB["args"], "--broken"], "restartDelays": []}
MISSING = {"command": "/nonexistent/command"}
COMMAND = [sys.executable, "-c", "from mcp_nursery.supervisor.cli import main; main()"]


@frozen
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def process(*args, env=None, **options):
    """Starts the command as a process of its own."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONWARNINGS": "error", **(env or {})}
    return subprocess.Popen([*COMMAND, *map(str, args)], env=environment, **{**streams, **options})


def until(holds, seconds=60, problem=lambda: "it never came to that"):
    """Waits for what another process does, of which no event of ours tells."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, problem()
        time.sleep(0.01)


class Screen:
    """A terminal: what is shown on it, and somebody to type."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.master, 4096)
            except OSError:
                return
            self.text += data.decode(errors="replace")

    def type(self, text):
        os.write(self.master, text.encode())

    def wait_for(self, text, seconds=60):
        until(lambda: text in self.text, seconds, lambda: f"{text!r} not in {self.text!r}")

    def when(self, text, act):
        """Calls `act` as soon as the text is shown."""

        def watch():
            self.wait_for(text)
            act()

        threading.Thread(target=watch, daemon=True).start()

    def settle(self):
        """Waits until everything written so far is in `text`."""
        os.write(self.slave, b"\0")
        self.wait_for("\0")
        self.text = self.text.replace("\0", "")

    def close(self):
        os.close(self.slave)
        self._reader.join(5)
        os.close(self.master)
