"""Signals that come at any moment from the first import on: the same end as later."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CODE = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background, it is ignored
moment, name, number, *sys.argv[1:] = sys.argv[1:]

def look(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_name == name and code.co_filename.endswith(moment):
        sys.setprofile(None)
        os.write(2, b"sent")
        os.kill(os.getpid(), int(number))

from mcp_nursery.supervisor.cli import main
sys.setprofile(look)
main()
"""
"""The command, which is sent a signal when the first function of that name in a file like that is called."""
MOMENTS = {
    "the commands are loaded": ("cli/app.py", "<module>"),
    "Trio is loaded": ("trio/__init__.py", "<module>"),
    "the command begins": ("cli/serve.py", "serve"),
    "Trio runs": ("cli/runtime.py", "_run_interruptibly"),
    "serving begins": ("cli/serve.py", "main"),
}


def signalled(number, moment, *args):
    """The exit code of the command, and what it wrote."""
    command = [sys.executable, "-c", CODE, *MOMENTS[moment], str(int(number)), *args]
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(command, **streams, env=os.environ, timeout=60, check=False)


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "servers.json"
    file.write_text('{"mcpServers": {}}')
    return ["--config", str(file)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_serve_is_ended_by_sigterm_with_0(moment, config):
    ran = signalled(signal.SIGTERM, moment, "serve", *config)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "sent")


@pytest.mark.parametrize("command", ["serve", "run"])
@pytest.mark.parametrize("moment", ["the commands are loaded", "Trio is loaded"])
def test_sigint_writes_no_traceback(moment, command, config):
    ran = signalled(signal.SIGINT, moment, command, *config)
    assert (ran.returncode, ran.stdout, ran.stderr) == (128 + signal.SIGINT, "", "sent")
