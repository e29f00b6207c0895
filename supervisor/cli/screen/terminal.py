"""The terminal while a program has all of it: keys are read, lines are drawn, and its state is restored at the end.

The terminal is opened a second time, and only the tasks that read or draw wait for it: a blocked terminal blocks no
server, and others that use it are not affected.
"""

import codecs
import os
import re
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TypeAlias

import trio
from rich.console import Console
from rich.text import Text

from mcp_nursery.actors.records import define, field

from ..output import stdout_is_terminal
from ..tables import terminal

_ENTER: Final = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The sequence for the alternate screen, without a cursor, and without wrapping of lines."""
_LEAVE: Final = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_LEAVE_TIMEOUT: Final = 0.5
"""Seconds in which a terminal has to take the sequence that restores it."""
_KEY_TIMEOUT: Final = 0.05
"""Seconds within which the rest of a key that begins with Escape has to arrive."""

_KEY_SEQUENCE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b|.", re.DOTALL)
_UNFINISHED: Final = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?\Z")
_NAMES: Final = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "down"),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), "end"),
    **dict.fromkeys(("\r", "\n"), "enter"),
    **dict.fromkeys(("\x7f", "\x08"), "backspace"),
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b": "escape",
}

_Decoder: Final = codecs.getincrementaldecoder("utf-8")
_Modes: TypeAlias = "list[int | list[bytes | int]]"


def keys_of(text: str) -> list[str]:
    """Split typed text into keys, under the names that `Screen.press` knows; other keys keep the terminal's text."""
    return [_NAMES.get(each, each) for each in (str(match[0]) for match in _KEY_SEQUENCE.finditer(text))]


def open_tty() -> int | None:
    """Open the terminal of a person a second time, for the screen alone; None if there is none that can redraw."""
    if not (stdout_is_terminal() and sys.stdin.isatty()):
        return None
    with suppress(OSError):
        return os.open(os.ttyname(sys.stdout.fileno()), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    with suppress(OSError):  # one that another user has lent, or another container
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    return None


@define(eq=False)
class Terminal:
    """A terminal that this program has for itself. One task reads, and one does the rest."""

    _fd: int
    _modes: _Modes
    """The former modes of the terminal."""
    _stream: trio.lowlevel.FdStream
    _console: Console = field(factory=terminal, init=False)
    _decoder: codecs.IncrementalDecoder = field(factory=lambda: _Decoder("replace"), init=False)
    _drawn: Sequence[str] = field(default=(), init=False)

    @property
    def size(self) -> tuple[int, int]:
        """The width and height, in characters."""
        return self._console.size

    async def keys(self) -> list[str]:
        """The next keys.

        Raises:
            trio.BrokenResourceError: The terminal has gone.
        """
        text = await self._receive()
        while _UNFINISHED.search(text):
            with trio.move_on_after(_KEY_TIMEOUT) as waiting:
                text += await self._receive()
            if waiting.cancelled_caught:
                break
        return keys_of(text)

    async def _receive(self) -> str:
        data = await self._stream.receive_some(4096)
        if not data:
            raise trio.BrokenResourceError("the terminal has gone")
        return self._decoder.decode(data)

    async def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines, from the top; only what has changed is written.

        Raises:
            trio.BrokenResourceError: The terminal has gone.
        """
        with self._console.capture() as captured:
            for line in lines:
                self._console.print(line, no_wrap=True, crop=False)
        drawn, before = captured.get().split("\n")[: len(lines)], self._drawn
        changed = [
            f"\x1b[{row};1H{line}"
            for row, line in enumerate(drawn, 1)
            if len(drawn) != len(before) or line != before[row - 1]
        ]
        self._drawn = drawn
        await self._stream.send_all("".join(changed).encode(self._console.encoding, "replace"))

    @property
    def is_plain(self) -> bool:
        """True if it has no characters but ASCII."""
        return self._console.options.ascii_only

    def forget(self) -> None:
        """Write all of the next drawing: the content of the terminal is unknown."""
        self._drawn = ()

    async def enter(self) -> None:
        """Take the terminal, or take it again."""
        tty.setcbreak(self._fd, termios.TCSANOW)
        self.forget()
        await self._stream.send_all(_ENTER)

    async def leave(self) -> None:
        """Restore the terminal."""
        with suppress(termios.error):  # it has gone
            termios.tcsetattr(self._fd, termios.TCSANOW, self._modes)
        with trio.move_on_after(_LEAVE_TIMEOUT, shield=True), suppress(trio.BrokenResourceError):
            await self._stream.send_all(_LEAVE)

    async def suspend(self) -> None:
        """Stop this process, as Ctrl-Z asks for, and take the terminal again when it continues."""
        await self.leave()
        with _default(signal.SIGTSTP):
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # it stops here, and not in another thread later
        await self.enter()


@contextmanager
def _default(signum: signal.Signals) -> Generator[None, None, None]:
    handler = signal.signal(signum, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signum, handler)


@asynccontextmanager
async def take_terminal(fd: int) -> AsyncGenerator[Terminal, None]:
    """Take the terminal of this descriptor for a block, and close the descriptor."""
    async with trio.lowlevel.FdStream(fd) as stream:
        held = Terminal(fd, termios.tcgetattr(fd), stream)
        try:
            await held.enter()
            yield held
        finally:
            await held.leave()
