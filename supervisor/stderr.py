"""What servers' processes write to standard error, for those who follow it: line by line, across restarts."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, final

import trio
from attrs import define, field

from mcp_nursery.actors.process.pipes import MOST_LINES, Tail

__all__ = ["StderrLines"]

MOST_CHARACTERS: Final = 1 << 20
"""Characters of the lines that a reader may fall behind: one alone may have 64 Ki."""
LONGEST_LINE: Final = 4000
"""Characters of a line that are shown."""


@final
class StderrLines(trio.abc.ReceiveChannel[str]):
    """What a server's process writes to standard error, line by line, without secrets: see `Supervisor.stderr`, which
    makes it. A reader that falls 1,000 lines or a million characters behind reads how many lines it has missed."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._lines: deque[str] = deque()
        self._size = 0
        """Their characters."""
        self._missed = 0
        self._readers = trio.lowlevel.ParkingLot()
        self._finished = False
        self._closed = False

    def add(self, lines: Sequence[str], missed: int = 0) -> None:
        """They were written, and so many before them are missing."""
        self._lines.extend(lines)
        self._size += sum(map(len, lines))
        self._missed += missed
        while len(self._lines) > MOST_LINES or self._size > MOST_CHARACTERS:
            self._take()
            self._missed += 1
        self._readers.unpark_all()

    def _take(self) -> str:
        line = self._lines.popleft()
        self._size -= len(line)
        return line

    def finish(self) -> None:
        """Nothing more comes."""
        self._finished = True
        self._readers.unpark_all()

    def receive_nowait(self) -> str:
        """The next line, if there is one.

        Raises:
            trio.WouldBlock: There is none now.
            trio.EndOfChannel: The server was removed, or the supervisor is closed.
            trio.ClosedResourceError: The channel is closed.
        """
        if self._closed:
            raise trio.ClosedResourceError
        if self._missed:
            missed, self._missed = self._missed, 0
            return f"[{missed} lines were missed]"
        if self._lines:
            return self._redact(self._take())[:LONGEST_LINE]
        raise trio.EndOfChannel if self._finished else trio.WouldBlock

    async def receive(self) -> str:
        """The next line.

        Raises:
            trio.EndOfChannel: The server was removed, or the supervisor is closed.
            trio.ClosedResourceError: The channel is closed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                line = self.receive_nowait()
            except trio.WouldBlock:
                await self._readers.park()
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return line

    async def aclose(self) -> None:
        """Read no more."""
        self._closed = True
        self._readers.unpark_all()
        await trio.lowlevel.checkpoint()


@define(eq=False)
class StderrLogs:
    """The latest tail of each server, and whoever follows it."""

    _tails: dict[str, Tail] = field(factory=dict[str, Tail], init=False)
    _open: dict[str, set[StderrLines]] = field(factory=dict[str, set[StderrLines]], init=False)

    def begin(self, server: str, tail: Tail) -> None:
        """A process of this server was started."""
        self._tails[server] = tail
        if server in self._open:
            self._tell(server, self._follow(server, tail))  # it may have written before it is known here

    def _tell(self, server: str, lines: Sequence[str], missed: int = 0) -> None:
        for each in self._open.get(server, ()):
            each.add(lines, missed)

    def _follow(self, server: str, tail: Tail) -> list[str]:
        return tail.follow(partial(self._tell, server))

    @contextmanager
    def open(self, server: str, redact: Callable[[str], str]) -> Generator[StderrLines, None, None]:
        """The last lines of a server, and those that follow while the block lasts."""
        lines, readers = StderrLines(redact), self._open.setdefault(server, set())
        if server in self._tails:
            lines.add(self._follow(server, self._tails[server]))
        readers.add(lines)
        try:
            yield lines
        finally:
            readers.discard(lines)
            if not readers and self._open.get(server) is readers:
                del self._open[server]
                if server in self._tails:
                    self._tails[server].unfollow()

    def end(self, server: str) -> None:
        """The server is gone."""
        self._tails.pop(server, None)
        for lines in self._open.pop(server, ()):
            lines.finish()

    def end_all(self) -> None:
        """Everything is over."""
        for server in {*self._tails, *self._open}:
            self.end(server)
