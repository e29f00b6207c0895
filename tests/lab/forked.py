"""Programs of the SDK in processes of their own, forked by one that has loaded the SDK already."""

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from . import PROGRAMS


class Forked:
    """A process that another has forked, like a `Popen`."""

    def __init__(self, program: Path, *arguments: str) -> None:
        self.process = psutil.Process(_forker().fork([str(program), *arguments]))
        self.pid = self.process.pid

    def is_running(self) -> bool:
        """Whether it runs, and may have files open: a zombie has while another of its threads has not ended."""
        with suppress(psutil.NoSuchProcess):
            is_zombie = self.process.status() == psutil.STATUS_ZOMBIE
            return bool(self.process.is_running() and not (is_zombie and self.process.num_threads() <= 1))
        return False

    def send_signal(self, number: int) -> None:
        with suppress(psutil.NoSuchProcess):
            self.process.send_signal(number)

    def kill(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.process.kill()
        self.wait()

    def wait(self, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while self.is_running():
            assert time.monotonic() < until, f"process {self.pid} has not ended within {seconds} s"
            time.sleep(0.005)


class _Forker:
    """The process that forks. It ends with this one, or at the end of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, PROGRAMS / "forking.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fork(self, command: list[str]) -> int:
        """Have a program run. Returns the pid of its process."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def end(self) -> None:
        """End the process. The programs go on."""
        self._process.communicate()


@cache
def _forker() -> _Forker:
    return _Forker()


def end_forking() -> None:
    """End the process that forks, if there is one."""
    if _forker.cache_info().currsize:
        _forker().end()
        _forker.cache_clear()
