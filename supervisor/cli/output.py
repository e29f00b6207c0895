"""What reaches the user: JSON documents, plain lines and tables. Nothing a server says can steer a terminal."""

import json
import math
import os
import re
import select
import sys
from contextlib import suppress
from typing import Any, NoReturn

import trio

from mcp_nursery.actors.json_depth import with_each

# Well-formed sequences as a whole; then C0 without tab and newline, DEL, C1, and the marks that reorder text, with
# which one name can look like another.
_STEERING = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


_SOON = 50
"""Milliseconds in which somebody who reads the log takes a line of it."""


class StdoutClosed(Exception):
    """Standard output was closed by its reader: `| head`."""


def safe_text(text: str) -> str:
    """The text without anything that a terminal obeys; lines and tabs stay."""
    return _STEERING.sub("", text)


def safe_line(text: object) -> str:
    """The text on one line, without anything that a terminal obeys. None is empty."""
    return "" if text is None else " ".join(safe_text(str(text)).split())


def stdout_is_terminal() -> bool:
    """Whether a person reads standard output, on a terminal that can redraw."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def write_line(text: str) -> None:
    """Print the text as it is, at once.

    Raises:
        StdoutClosed: The reader has closed it.
    """
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_stdout()


def write_answer(text: str) -> None:
    """Print what a server answered: as it is for a program, and for a person without anything that a terminal obeys,
    be it one that cannot redraw."""
    write_line(safe_text(text) if sys.stdout.isatty() else text)


async def send_line(text: str) -> None:
    """Print the text as it is. Whoever reads it slowly is waited for, and holds up nothing else meanwhile.

    Raises:
        StdoutClosed: The reader has closed it.
    """
    line = text if text.endswith("\n") else text + "\n"
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):  # a program has put something else in its place
        write_line(line)
        return
    sys.stdout.flush()
    left = memoryview(line.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    try:
        while left:
            with suppress(PermissionError):  # a file, which takes everything
                await trio.lowlevel.wait_writable(fd)
            left = left[os.write(fd, left[: select.PIPE_BUF]) :]  # so much is taken at once by what takes anything
    except BrokenPipeError:
        give_up_stdout()


async def send_json_line(document: Any) -> None:
    """Print one JSON document on one line, of several, as `send_line` does."""
    await send_line(_json(document))


def write_json(document: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document, without `indent` on one line. Non-ASCII is escaped: with it, every character a terminal
    could obey. Numbers that JSON does not know become null: servers send them all the same."""
    write_line(_json(document, indent))


def _json(document: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(document, indent=indent, ensure_ascii=True, allow_nan=False)
    except ValueError:
        return json.dumps(with_each(document, _finite), indent=indent, ensure_ascii=True, allow_nan=False)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def warn(text: object) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"mcp-nursery: {safe_line(text)}\n")
    sys.stderr.flush()


class LogStream:
    """Standard error for a log. Whoever does not read it loses lines, and is told how many; nothing waits for him."""

    def __init__(self) -> None:
        self._lost = 0

    def write(self, text: str) -> None:
        """Write a line, if it is taken now or soon."""
        stream = sys.__stderr__
        if stream is None or sys.stderr is not stream:  # a live table, while it is shown, or a test
            sys.stderr.write(text)
            return
        lost = f"({self._lost} lines are missing here: nobody read them)\n" if self._lost else ""
        left = memoryview((lost + text).encode(stream.encoding, "backslashreplace"))
        fd = stream.fileno()
        try:
            while left and self._is_taken(fd):
                left = left[os.write(fd, left[: select.PIPE_BUF]) :]
        except OSError:
            pass  # nobody reads it any more: as lost as the rest
        self._lost = self._lost + 1 if left else 0

    def _is_taken(self, fd: int) -> bool:
        end = select.poll()
        end.register(fd, select.POLLOUT)
        return bool(end.poll(0 if self._lost else _SOON))

    def flush(self) -> None:
        """Nothing is kept."""


def give_up_stdout() -> NoReturn:
    """Write nothing more: nobody reads it.

    Raises:
        StdoutClosed: Always.
    """
    # What is still buffered would be flushed at exit and fail there, out of anyone's reach.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    raise StdoutClosed
