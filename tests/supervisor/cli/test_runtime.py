import logging
import sys

import pytest
import trio

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.cli import runtime
from mcp_nursery.supervisor.cli.runtime import Options, execute, run_async


@pytest.fixture
def log(monkeypatch):
    """Runs a command that logs, in what a new process has for a root logger."""
    logger = logging.getLogger("mcp_nursery")
    before = logging.root.level, logger.level

    def run(command, **options):
        with monkeypatch.context() as patch:
            patch.setattr(logging.root, "handlers", [])
            assert execute(command, Options(**options)) == 0

    yield run
    logging.root.setLevel(before[0])
    logger.setLevel(before[1])


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
    def command():
        logging.getLogger("mcp_nursery.x").info("information")
        logging.getLogger("mcp_nursery.x").warning("warn\x1b[2Jing")
        logging.getLogger("other").info("chatter")
        return 0

    log(command, verbose=verbose)
    captured = capsys.readouterr()
    assert captured.out == ""
    expected = ["INFO mcp_nursery.x: information"] if verbose else []
    assert captured.err.splitlines() == [*expected, "WARNING mcp_nursery.x: warning"]


def test_the_log_follows_a_replaced_stderr(log, capsys, monkeypatch):
    def command():
        monkeypatch.setattr(sys, "stderr", sys.stdout)
        logging.getLogger("mcp_nursery").warning("here")
        return 0

    log(command)
    assert capsys.readouterr().out == "WARNING mcp_nursery: here\n"


def test_nothing_named_and_nothing_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="name a file with"):
        runtime.found(Options())
