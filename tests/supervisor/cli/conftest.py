import contextlib
import json
import os
import sys

import pytest

from mcp_nursery.supervisor.cli import main

from ...lab.command_line import LAB, Run, Screen


@pytest.fixture
def cli(capsys):
    """Runs the command in this process, its streams piped."""

    def invoke(*args):
        with pytest.raises(SystemExit) as caught:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Run(caught.value.code, captured.out, captured.err)

    return invoke


@pytest.fixture
def config(tmp_path):
    """Writes a configuration file."""

    def write(name="servers.json", /, **servers):
        file = tmp_path / name
        file.write_text(json.dumps({"mcpServers": servers}))
        return file

    return write


@pytest.fixture
def lab(config):
    return config(lab=LAB)


@pytest.fixture
def screen(monkeypatch):
    """Puts this process's streams on a terminal. Used with `tty`."""
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "40")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    yield screen
    screen.close()


@pytest.fixture
def tty(screen, monkeypatch, capsys):
    """Runs the command in this process on the screen."""

    def invoke(*args, stdout=None):
        streams = {
            "stdin": os.fdopen(os.dup(screen.slave), "r"),
            "stdout": os.fdopen(os.dup(screen.slave), "w") if stdout is None else stdout.open("w"),
            "stderr": os.fdopen(os.dup(screen.slave), "w"),
        }
        with capsys.disabled(), monkeypatch.context() as patch, contextlib.ExitStack() as stack:
            for name, stream in streams.items():
                patch.setattr(sys, name, stack.enter_context(stream))
            with pytest.raises(SystemExit) as caught:
                main([str(arg) for arg in args])
        screen.settle()
        return Run(caught.value.code, screen.text, "")

    return invoke
