import gc
import json
import logging
import re
import sys
import time
from contextvars import copy_context
from datetime import datetime

import pytest
import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.cli import runtime
from mcp_nursery.supervisor.cli.output import warn
from mcp_nursery.supervisor.cli.runtime import COLLECTED_AFTER, Options, collect_later, execute, log_failures, run_async
from mcp_nursery.supervisor.testing import run_virtual

TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 ", re.MULTILINE)


@pytest.fixture
def log(monkeypatch):
    """Runs a command that logs, in what a new process has for a root logger, and in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def run(command, **options):
        with monkeypatch.context() as patch:
            patch.setattr(logging.root, "handlers", [])
            assert copy_context().run(execute, command, Options(**options)) == 0

    yield run
    monkeypatch.undo()
    time.tzset()


def test_a_keyboard_interrupt_before_anything_runs():
    def interrupted():
        raise KeyboardInterrupt

    assert execute(interrupted, Options()) == 130


def test_an_error_of_main_is_not_wrapped():
    async def main():
        await trio.lowlevel.checkpoint()
        raise ConfigError("x")

    with pytest.raises(ConfigError, match=r"^x$"):
        run_async(main)


def test_a_bug_is_not_swallowed():
    def buggy():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(buggy, Options())


@pytest.mark.parametrize("verbose", [False, True])
def test_the_log(log, capsys, verbose):
    """L17: what libraries log is shown with `--verbose` only, and their tracebacks never."""

    def command():
        logging.getLogger("mcp_nursery.x").info("information")
        logging.getLogger("mcp_nursery.x").warning("warn\x1b[2Jing")
        logging.getLogger("other").info("chatter")
        logging.getLogger("mcp_nurserymen").warning("trouble")
        try:
            raise ValueError("hunter2")
        except ValueError:
            logging.getLogger("mcp.client").exception("trouble\x1b[2J")
            logging.getLogger("mcp_nursery.x").exception("ours")
        return 0

    log(command, verbose=verbose)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [TIME.sub("", line) for line in captured.err.splitlines()]
    assert captured.err.count("+00:00 ") == len(lines) - 4  # all but the traceback
    if verbose:
        assert lines.pop(0) == "INFO mcp_nursery.x: information"
        assert lines[1:3] == ["WARNING mcp_nurserymen: trouble", "ERROR mcp.client: trouble"]
        del lines[1:3]
    assert lines[:3] == [
        "WARNING mcp_nursery.x: warning",
        "ERROR mcp_nursery.x: ours",
        "Traceback (most recent call last):",
    ]
    assert lines[-1] == "ValueError: hunter2"
    assert len(lines) == 6


def test_the_log_follows_a_replaced_stderr(log, capsys, monkeypatch):
    def command():
        monkeypatch.setattr(sys, "stderr", sys.stdout)
        logging.getLogger("mcp_nursery").warning("here")
        return 0

    log(command)
    assert TIME.sub("", capsys.readouterr().out) == "WARNING mcp_nursery: here\n"


def test_the_log_as_json(log, capsys):
    """An object a line, whatever is said, also by the command itself."""

    def command():
        logger = logging.getLogger("mcp_nursery.x")
        logger.warning("%s: it is\n\x1b[2J %s", "my-server", "down")
        logger.warning("nothing about a server", extra={"server": None})
        try:
            raise ValueError("hunter2")
        except ValueError:
            logging.getLogger("mcp_nursery.x").exception("ours")
        warn("take\ncare")
        return 0

    log(command, log_format="json")
    lines = capsys.readouterr().err.splitlines()
    said = [json.loads(line) for line in lines]
    for each, line in zip(said, lines, strict=True):
        assert line.isascii()
        assert datetime.fromisoformat(each.pop("time")).tzinfo is not None
    traceback = said[2].pop("traceback")
    assert traceback.startswith("Traceback")
    assert traceback.endswith("ValueError: hunter2")
    about = {"level": "WARNING", "logger": "mcp_nursery.x"}
    assert said == [
        {**about, "message": "my-server: it is\n\x1b[2J down", "server": "my-server"},
        {**about, "message": "nothing about a server"},
        {**about, "level": "ERROR", "message": "ours"},
        {**about, "logger": "mcp_nursery.cli", "message": "take\ncare"},
    ]


def test_nothing_named_and_nothing_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="name a file with"):
        runtime.read_config(Options())


def test_the_handlers_of_a_host_are_left_as_they_are():
    """Who runs a command in a process of theirs has handlers of their own, which outlast it."""
    theirs = logging.Handler()
    logging.getLogger().addHandler(theirs)
    try:
        log_failures()
        assert theirs.filters == []
    finally:
        logging.getLogger().removeHandler(theirs)


def test_garbage_is_collected_again_after_the_start():
    """The command line switches it off: what is loaded meanwhile is none."""

    async def started():
        await collect_later()
        return trio.current_time(), gc.isenabled(), gc.get_freeze_count() > 0

    gc.disable()
    try:
        assert run_virtual(started) == (COLLECTED_AFTER, True, True)
        gc.unfreeze()
        assert run_virtual(started) == (0, True, False)  # where it was on all the time
    finally:
        gc.unfreeze()
        gc.enable()
