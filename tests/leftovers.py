"""Processes that a run of tests has left: a run that is killed leaves none, and a run that ends with some has failed.

Each run has a folder of its own for temporary files, named by `TMPDIR`. Every process of the run inherits this
variable: the workers, what tests start, and the servers of a supervisor too, whose environment is cleaned of all but a
few variables. So the folder is the mark of the run. A watcher holds the reading end of a pipe; when the run has gone,
in whatever way, the watcher kills all that have the mark, and removes the folder. Linux only: elsewhere nobody can look
at the environment of a process.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENCE = 5
"""Seconds that processes have to vanish after the last test: they may have been told to end a moment ago."""


def marked_with(folder):
    """The command lines of the processes that have this folder for temporary files, by their numbers."""
    mark = b"TMPDIR=" + os.fsencode(folder)
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile, or belongs to a user whose processes nobody else looks at
    return found


class Leftovers:
    """The plugin of pytest that gives a run its folder and its watcher, and looks for what is left at the end."""

    def __init__(self):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest keeps folders of failed tests
        self._folder = tempfile.mkdtemp(prefix="mn-")
        os.chmod(self._folder, 0o711)  # a database server runs as another user
        os.environ["TMPDIR"] = tempfile.tempdir = self._folder
        self._left = {}
        command = [sys.executable, "-I", "-S", __file__, self._folder]
        self._watcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, env={"PATH": os.environ["PATH"]}
        )

    def look(self, session):
        """Fail the run if a process is left. To be called when the workers have ended."""
        limit = time.monotonic() + PATIENCE
        while (left := marked_with(self._folder)) and time.monotonic() < limit:
            time.sleep(0.1)
        self._left = left
        if left:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        if self._left:
            terminalreporter.section("left running, and killed now")
            for pid, command in self._left.items():
                terminalreporter.line(f"FAILED process {pid}: {command}")

    def pytest_unconfigure(self):
        self._watcher.stdin.close()
        self._watcher.wait()


def main(folder):
    """Wait for the end of the run, and end what it has left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends the run, and perhaps its group, does not end its watcher
    sys.stdin.buffer.read()
    limit = time.monotonic() + PATIENCE
    while (left := marked_with(folder)) and time.monotonic() < limit:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
