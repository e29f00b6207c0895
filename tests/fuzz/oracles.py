"""What holds whatever is said: words for a person, no secret in them, no bug of ours in the log, no long turn."""

import gc
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from mcp_nursery.actors.pieces import Steps

from ..attack.figures import TURN, Turns
from ..lab.plain_words import UNWANTED, unwanted

T = TypeVar("T")


def bound() -> float:
    """Seconds of CPU that a turn of the loop may take: twice as much on a machine that is busy elsewhere."""
    return TURN * (1 if os.getloadavg()[0] < (os.cpu_count() or 1) else 2)


def check_words(text: str, secrets: Iterable[str] = ()) -> None:
    assert unwanted([text]) == []
    assert [secret for secret in secrets if secret in text] == [], text


class _Log(logging.Handler):
    """Formats every record, as a real handler would, and keeps what no record may have."""

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__()
        self._secrets = [*secrets]
        self.wrong: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        is_bug = record.exc_info or "please report" in text
        is_secret = any(secret in text for secret in self._secrets)
        is_unwanted = record.levelno >= logging.INFO and UNWANTED.search(record.getMessage())
        if is_bug or is_secret or is_unwanted:
            self.wrong.append(text)


@contextmanager
def clean_log(*secrets: str) -> Iterator[None]:
    """Check all that is logged meanwhile."""
    log, logger = _Log(secrets), logging.getLogger("mcp_nursery")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(log)
    try:
        yield
    finally:
        logger.removeHandler(log)
        logger.setLevel(before)
    assert not log.wrong, "\n".join(log.wrong)


class _OurTurns(Turns):
    """Those of this task and of the library's own: the peers of the tests work in the same loop."""

    def __init__(self) -> None:
        super().__init__()
        self._own = trio.lowlevel.current_task()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._own or not task.name.startswith(("tests.", "trio._highlevel_serve")):
            super().after_task_step(task)


@contextmanager
def short_turns() -> Iterator[None]:
    """Check the turns of the loop meanwhile. The garbage here is the fuzzer's."""
    gc.disable()
    turns = _OurTurns()
    trio.lowlevel.add_instrument(turns)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(turns)
        gc.enable()
    assert turns.cpu < bound(), f"a turn of {turns.cpu * 1e3:.0f} ms: {turns.slowest}"


def in_short_pieces(work: Steps[T], what: str) -> T:
    """Do work that is made in pieces, each of which is a turn of the loop at most."""
    gc.disable()
    try:
        while True:
            began = time.thread_time()
            try:
                next(work)
            except StopIteration as done:
                return done.value
            finally:
                took = time.thread_time() - began
                assert took < bound(), f"a piece of {took * 1e3:.0f} ms: {what}"
    finally:
        gc.enable()
