"""The output for the user: JSON documents, lines and rows. No text of a server can control a terminal."""

import json
import math
import os
import re
import select
import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Literal, NoReturn, TypeAlias

import trio

from mcp_nursery.actors.json_depth import with_each

# Well-formed sequences as a whole; then C0 without tab and newline, DEL, C1, and the marks that reorder text and can
# make one name look like another.
_CONTROL_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)

_LOG_TIMEOUT = 50
"""Milliseconds in which a reader of the log must take a line of it."""
_NUMBERS = re.compile("([0-9]+)")

Rank: TypeAlias = tuple[tuple[str, int, str], ...]


class StdoutClosed(Exception):
    """Standard output was closed by its reader: `| head`."""


def safe_text(text: str) -> str:
    """Remove from the text all that a terminal obeys; lines and tabs stay."""
    return _CONTROL_SEQUENCE.sub("", text)


def safe_line(text: object) -> str:
    """Put the text on one line, without anything that a terminal obeys. None is empty."""
    return "" if text is None else " ".join(safe_text(str(text)).split())


def stdout_is_terminal() -> bool:
    """True if a person reads standard output, on a terminal that can redraw."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def write_line(text: str) -> None:
    """Print the text unchanged, at once.

    Raises:
        StdoutClosed: The reader has closed it.
    """
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_stdout()


def write_answer(text: str) -> None:
    """Print the answer of a server: unchanged for a program, and on a terminal without the characters that terminals
    obey."""
    write_line(safe_text(text) if sys.stdout.isatty() else text)


async def send_line(text: str) -> None:
    """Print the text unchanged. Waits for a slow reader, without delaying anything else.

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
            left = left[os.write(fd, left[: select.PIPE_BUF]) :]  # a pipe that is writable takes this much at once
    except BrokenPipeError:
        give_up_stdout()


async def send_json_line(document: Any) -> None:
    """Print one JSON document of several on one line, as `send_line` does."""
    await send_line(_json(document))


def pick(value: object, *names: str) -> dict[str, Any]:
    """Make a JSON object of these attributes; tuples become arrays."""
    found: dict[str, Any] = {name: getattr(value, name) for name in names}
    return {name: [*each] if type(each) is tuple else each for name, each in found.items()}


def write_json(document: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document, without `indent` on one line. All but ASCII is escaped, and so is every character that a
    terminal obeys. Numbers that JSON does not have, but servers send, become null."""
    write_line(_json(document, indent))


def _json(document: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(document, indent=indent, ensure_ascii=True, allow_nan=False)
    except ValueError:
        return json.dumps(with_each(document, _finite), indent=indent, ensure_ascii=True, allow_nan=False)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def warn(text: object, level: str = "WARNING") -> None:
    """Print one line on standard error; in a log of JSON it has this level."""
    note(f"mcp-nursery: {safe_line(text)}", str(text), level)


def note(line: str, message: str | None = None, level: str = "INFO") -> None:
    """Print a line on standard error that is in no logger's log. In a log of JSON it is an object, with this message if
    that differs from the line."""
    if LOG_FORMAT.get() == "json":
        line = log_object(time.time(), level, _LOGGER, message or line)
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


LogFormat = Literal["text", "json"]
LOG_FORMAT: Final[ContextVar[LogFormat]] = ContextVar("mcp_nursery_log_format", default="text")
"""The format of all lines on standard error, as `--log-format` says."""
_LOGGER: Final = "mcp_nursery.cli"
"""The logger of lines that are in no logger's log."""


def log_object(at: float, level: str, logger: str, message: str, server: str | None = None, **more: str) -> str:
    """One line of a log of JSON; `at`: seconds since 1970."""
    about = {} if server is None else {"server": server}
    said = {"time": log_time(at), "level": level, "logger": logger, "message": message}
    return _json(said | about | more)


def log_time(at: float) -> str:
    """The time by ISO 8601, with milliseconds and the zone; `at`: seconds since 1970."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def natural(name: str) -> Rank:
    """Make a key that sorts names as people read them, `s2` before `s10`: letters of either case are equal, and numbers
    may have any length."""
    words = _NUMBERS.split(name)
    folded = [(word.casefold(), 0, "") for word in words[::2]]
    numbers = [("", len(digits), digits) for digits in (word.lstrip("0") for word in words[1::2])]
    paired = [part for pair in zip(folded, [*numbers, ("", 0, "")], strict=True) for part in pair]
    return (*paired, (name, 0, ""))


class LogStream:
    """Standard error for a log. A reader that falls behind loses lines, and is told how many; nothing waits for it."""

    def __init__(self) -> None:
        self._lost = 0

    def write(self, text: str) -> None:
        """Write a line, unless the reader is too slow."""
        stream = sys.__stderr__
        if stream is None or sys.stderr is not stream:  # a live table, while it is shown, or a test
            sys.stderr.write(text)
            return
        left = memoryview((self._say_lost() + text).encode(stream.encoding, "backslashreplace"))
        fd = stream.fileno()
        try:
            while left and self._is_writable(fd):
                left = left[os.write(fd, left[: select.PIPE_BUF]) :]
        except OSError:
            pass  # the reader has gone: the text is lost as well
        self._lost = self._lost + 1 if left else 0

    def _say_lost(self) -> str:
        if not self._lost:
            return ""
        said = f"{self._lost} lines are missing here: the reader was too slow"
        if LOG_FORMAT.get() == "json":
            return log_object(time.time(), "WARNING", _LOGGER, said) + "\n"
        return f"({said})\n"

    def _is_writable(self, fd: int) -> bool:
        end = select.poll()
        end.register(fd, select.POLLOUT)
        return bool(end.poll(0 if self._lost else _LOG_TIMEOUT))

    def flush(self) -> None:
        """Do nothing: no text is kept."""


def give_up_stdout() -> NoReturn:
    """Give up standard output, whose reader has gone.

    Raises:
        StdoutClosed: Always.
    """
    # Buffered text would be flushed at exit and fail there, where no handler is left.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    raise StdoutClosed
