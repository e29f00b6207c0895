"""The standard error of servers' processes, for readers that follow it: line by line, across restarts."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, final

from mcp_nursery.actors.process.stderr_tail import MOST_LINES, Tail
from mcp_nursery.actors.queues import BoundedQueue, QueueReader, WhenFull
from mcp_nursery.actors.records import define, field

__all__ = ["StderrLines"]

MOST_CHARACTERS: Final = 1 << 20
"""Characters of lines that may wait for a reader: one line alone may have 64 Ki."""
LONGEST_LINE: Final = 4000
"""Characters of a line that are shown."""
_GAP: Final = "[{} lines were missed]".format


@final
class StderrLines(QueueReader[str]):
    """Lines that a server's process writes to standard error, without secrets: see `Supervisor.stderr`, which makes it.
    A reader that falls 1,000 lines or a million characters behind loses the oldest, and gets their number in a line.
    The channel ends when the server is removed, or the supervisor is closed."""

    def __init__(self, lines: BoundedQueue[str], redact: Callable[[str], str]) -> None:
        super().__init__(lines)
        self._redact = redact

    async def receive(self) -> str:
        """The next line.

        Raises:
            trio.EndOfChannel: The server was removed, or the supervisor is closed.
            trio.ClosedResourceError: The channel is closed.
        """
        return self._redact(await super().receive())[:LONGEST_LINE]

    def receive_nowait(self) -> str:
        """The next line, if there is one.

        Raises:
            trio.WouldBlock: There is none now.
            trio.EndOfChannel: The server was removed, or the supervisor is closed.
            trio.ClosedResourceError: The channel is closed.
        """
        return self._redact(self._queue.receive_nowait())[:LONGEST_LINE]


def _put(reader: BoundedQueue[str], lines: Sequence[str], missed: int = 0) -> None:
    """Queue lines for a reader; `missed` lines before them are missing."""
    reader.lose(missed)
    for line in lines:
        reader.put(line, len(line))


@define(eq=False)
class StderrLogs:
    """The latest tail of each server, and its followers."""

    _tails: dict[str, Tail] = field(factory=dict[str, Tail], init=False)
    _open: dict[str, set[BoundedQueue[str]]] = field(factory=dict[str, set[BoundedQueue[str]]], init=False)

    def begin(self, server: str, tail: Tail) -> None:
        """Follow a process of this server that was started."""
        self._tails[server] = tail
        if server in self._open:
            # It may have written more than a tail before it is known here. Its followers get all of that.
            self._deliver(server, self._follow(server, tail, whole=True))

    def _deliver(self, server: str, lines: Sequence[str], missed: int = 0) -> None:
        for reader in self._open.get(server, ()):
            _put(reader, lines, missed)

    def _follow(self, server: str, tail: Tail, *, whole: bool = False) -> list[str]:
        return tail.follow(partial(self._deliver, server), whole=whole)

    @contextmanager
    def open(self, server: str) -> Generator[BoundedQueue[str], None, None]:
        """The last lines of a server, and those that follow while the block lasts."""
        lines = BoundedQueue[str](MOST_LINES, MOST_CHARACTERS, when_full=WhenFull.LOSE_OLDEST, gap=_GAP)
        readers = self._open.setdefault(server, set())
        if server in self._tails:
            _put(lines, self._follow(server, self._tails[server]))
        readers.add(lines)
        try:
            yield lines
        finally:
            lines.close()
            readers.discard(lines)
            if not readers and self._open.get(server) is readers:
                del self._open[server]
                if server in self._tails:
                    self._tails[server].unfollow()

    def end(self, server: str) -> None:
        """Forget a server, and end its channels."""
        self._tails.pop(server, None)
        for lines in self._open.pop(server, ()):
            lines.finish()

    def end_all(self) -> None:
        """Forget all servers, and end their channels."""
        for server in {*self._tails, *self._open}:
            self.end(server)
