"""A server of somebody else on a port of its own."""

import os
import signal
import subprocess
from contextlib import contextmanager

from ..lab.remote import await_answer


@contextmanager
def listening(command, environment, port):
    """It, in a process group of its own, from the moment that it can be reached."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True, **quiet)
    try:
        await_answer(port, lambda: process.poll() is None)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
