"""Programs of the SDK in processes of their own, forked by one that has loaded the SDK already."""

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from . import PROGRAMS


class Forked:
    """A process that another has forked, like a `Popen`."""

    def __init__(self, program: Path, *arguments: str) -> None:
        given, taken = _forking()
        given.write(json.dumps([str(program), *arguments]) + "\n")
        given.flush()
        self.pid = int(taken.readline())
        self._ended = os.pidfd_open(self.pid)

    def is_running(self, seconds: float = 0) -> bool:
        """Whether it runs, this many seconds from now at the latest."""
        return not select.select([self._ended], [], [], seconds)[0]

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = 60) -> None:
        assert not self.is_running(seconds), f"process {self.pid} has not ended within {seconds} s"


@cache
def _forking() -> tuple[IO[str], IO[str]]:
    """The streams of the process that forks. It ends with this one."""
    process = subprocess.Popen(
        [sys.executable, PROGRAMS / "forking.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
