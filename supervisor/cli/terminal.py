"""The terminal while a program has the whole of it: keys come in, lines go out, and in the end it is as it was.

It is opened a second time, and nothing waits for it but who reads or draws: a terminal that is held up holds up no
server, and what else uses it does not notice.
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
from attrs import define, field
from rich.console import Console
from rich.text import Text

from .output import stdout_is_terminal
from .tables import terminal

_ENTER: Final = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The alternate screen, no cursor, and no line goes on in the next."""
_LEAVE: Final = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_LEAVING: Final = 0.5
"""Seconds that a terminal may take to take that."""
_REST_OF_KEY: Final = 0.05
"""Seconds within which the rest of a key comes that begins with Escape."""

_KEY: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b|.", re.DOTALL)
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
    """The keys that were typed, by the names `Screen.press` knows; what it does not know has the terminal's own."""
    return [_NAMES.get(each, each) for each in (str(match[0]) for match in _KEY.finditer(text))]


def open_tty() -> int | None:
    """The terminal that a person reads and types on, opened for this alone; None if there is none that can redraw."""
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
    """As it was."""
    _stream: trio.lowlevel.FdStream
    _console: Console = field(factory=terminal, init=False)
    _decoder: codecs.IncrementalDecoder = field(factory=lambda: _Decoder("replace"), init=False)
    _drawn: Sequence[str] = field(default=(), init=False)

    @property
    def size(self) -> tuple[int, int]:
        """Its width and height, in characters."""
        return self._console.size

    async def keys(self) -> list[str]:
        """What is typed next.

        Raises:
            trio.BrokenResourceError: The terminal has gone.
        """
        text = await self._typed()
        while _UNFINISHED.search(text):
            with trio.move_on_after(_REST_OF_KEY) as waiting:
                text += await self._typed()
            if waiting.cancelled_caught:
                break
        return keys_of(text)

    async def _typed(self) -> str:
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

    def forget(self) -> None:
        """Nobody knows what is shown: the next drawing writes all of it."""
        self._drawn = ()

    async def enter(self) -> None:
        """Take it, or take it back."""
        tty.setcbreak(self._fd, termios.TCSANOW)
        self.forget()
        await self._stream.send_all(_ENTER)

    async def leave(self) -> None:
        """Have it be as it was."""
        with suppress(termios.error):  # it has gone
            termios.tcsetattr(self._fd, termios.TCSANOW, self._modes)
        with trio.move_on_after(_LEAVING, shield=True), suppress(trio.BrokenResourceError):
            await self._stream.send_all(_LEAVE)

    async def suspend(self) -> None:
        """What Ctrl-Z asks for: stop this process, and take the terminal again when it goes on."""
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
async def taken(fd: int) -> AsyncGenerator[Terminal, None]:
    """The terminal that this descriptor is of, which is closed, while the block lasts."""
    async with trio.lowlevel.FdStream(fd) as stream:
        held = Terminal(fd, termios.tcgetattr(fd), stream)
        try:
            await held.enter()
            yield held
        finally:
            await held.leave()
