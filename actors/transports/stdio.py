"""The stdio transport: a server in a subprocess, and newline-delimited frames on its standard streams."""

import fcntl
import os
import select
import signal
import sys
import termios
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from mcp_nursery.actors.records import field, frozen

from ..jsonrpc.carrier import FRAME_LIMIT, FrameStream
from ..limits import size_text
from ..nurseries import run_alongside
from ..outcomes import Loss
from ..process.command import ShownCommand
from ..process.stderr_tail import CHUNK, read_some
from ..process.tree import ProcessTree, start_process
from ..secrets import names_only
from .base import StreamConnector

DRAIN = 0.05
"""Seconds that reading goes on after the process has exited: a descendant may hold the pipe open for ever."""

EVIDENCE = 0.05
"""Seconds that a loss report waits for the exit code and the rest of stderr."""

_WRITE_MOST = 256 << 10
"""Bytes joined for one write: a pipe takes 64 KiB by default, and what it does not take was joined for nothing."""

_READ_MOST = 1 << 20
"""Bytes read in one go; no less than a pipe can hold, so that one go empties the pipe of a dead process."""

_LOOK_FIRST, _LOOK_MOST = 0.01, 0.25
"""Seconds between two looks at what is left in a pipe."""

_NO_BYTES = memoryview(b"")

_BEGINNING = 1024
"""Bytes kept of the beginning of an overlong line, which says what it is about."""


class LineStream:
    """Lines over two pipes of this process: one that is read, and one that is written. A line that comes in and has
    more than `frame_limit` bytes is the end, or, with `cut`, is cut to its beginning, which is not JSON. With
    `never_waits`, the input is no pipe but a file, say, for which the system refuses to wait."""

    def __init__(self, *, frame_limit: int = FRAME_LIMIT, cut: bool = False, never_waits: bool = False) -> None:
        self._never_waits = never_waits
        self._lines = _LineBuffer(frame_limit, cut=cut)
        self._torn = _NO_BYTES
        self._first_size = 0
        self._written = 0
        self._deaf = False
        self._ending = False
        self._ended = False

    @property
    def pid(self) -> int | None:
        """None: the process is not known."""
        return None

    def _read_fd(self) -> int:
        """The file descriptor of the pipe that is read."""
        raise NotImplementedError

    def _write_fd(self) -> int:
        """The file descriptor of the pipe that is written."""
        raise NotImplementedError

    def _refused(self) -> None:
        """Note that the peer reads no more."""

    @property
    def unfinished(self) -> bool:
        """True if a frame was begun whose rest waits for `writable()`."""
        return bool(self._torn)

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        """Write as many frames as the pipe takes now, and return how many were begun. Never waits.

        Raises:
            trio.BrokenResourceError: The peer reads no more. No frame of this call was begun.
        """
        if self._deaf:
            raise trio.BrokenResourceError("the peer reads no more")
        if self._torn or not frames:
            return 0
        batch = frames if len(frames) == 1 else _worth_joining(frames)
        data = b"\n".join([*batch, b""])
        written = self._write(data)
        if written and not self._first_size:
            self._first_size = len(batch[0]) + 1
        end = 0
        for begun, frame in enumerate(batch):
            if end >= written:
                return begun
            end += len(frame) + 1
            if end > written:
                self._torn = memoryview(data)[written:end]
        return len(batch)

    async def writable(self) -> None:
        """Finish the frame that was begun, then wait until the pipe takes more.

        Raises:
            trio.BrokenResourceError: The peer reads no more.
        """
        await self._room()
        while self._torn:
            self._torn = self._torn[self._write(self._torn) :] or _NO_BYTES  # an empty view keeps the frame
            await self._room()

    async def _room(self) -> None:
        if self._deaf:
            raise trio.BrokenResourceError("the peer reads no more")
        try:
            await trio.lowlevel.wait_writable(self._write_fd())
        except trio.ClosedResourceError as error:
            raise trio.BrokenResourceError("the connection was closed") from error

    def _write(self, data: bytes | memoryview) -> int:
        try:
            written = os.write(self._write_fd(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._deaf = True
            self._refused()
            raise trio.BrokenResourceError("the peer reads no more") from error
        self._written += written
        return written

    async def read(self) -> list[bytes]:
        """Wait for the next whole lines, in order. The list is empty once the peer is gone, and only then.

        A carriage return before the newline is taken off and blank lines are left out. A last line without a newline is
        not a frame.
        """
        if self._ended:
            await trio.lowlevel.checkpoint()
        while not self._ended:
            if self._never_waits:
                await trio.lowlevel.checkpoint()
            elif not self._ending:
                try:
                    await trio.lowlevel.wait_readable(self._read_fd())
                except trio.ClosedResourceError:  # by `end_reading`
                    self._ending = True
            lines = self._lines.split(self._take())
            self._ended = self._ended or self._ending or self._lines.overlong
            if lines:
                return lines
        return []

    def _take(self) -> bytes:
        """All that is in the pipe, as far as it is read in one go."""
        pipe = self._read_fd()  # now: it may have been closed in the wait
        chunks: list[bytes] = []
        while len(chunks) * CHUNK < _READ_MOST:
            data = read_some(pipe)
            if data == b"":
                self._ended = True
            chunks.append(data or b"")
            if len(chunks[-1]) < CHUNK:
                break
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class StdioStream(LineStream):
    """A `FrameStream` over the stdin and stdout of a process. Its opener runs `end_reading`."""

    def __init__(self, tree: ProcessTree, *, frame_limit: int = FRAME_LIMIT) -> None:
        super().__init__(frame_limit=frame_limit)
        self._tree = tree
        self._retired = False
        self._unheard = False
        self._trusted = trio.CancelScope()
        """The wait for the exit; cancelled when the process has refused its input."""

    @property
    def pid(self) -> int | None:
        """The process."""
        return self._tree.pid

    @property
    def stderr_tail(self) -> str:
        """The last lines the process wrote to stderr so far."""
        return self._tree.stderr.text

    def _read_fd(self) -> int:
        return self._tree.stdout.fileno()

    def _write_fd(self) -> int:
        return self._tree.stdin.fileno()

    def _refused(self) -> None:
        self._trusted.cancel()

    async def taken(self) -> None:
        """Wait until something was written and all of it was read, or cannot be any more. See `FrameStream`."""
        pause = _LOOK_FIRST
        while not self._retired and self._has_reader() and not (self._written and not self._unread()):
            await trio.sleep(pause)  # there is no event for the reading of a pipe
            pause = min(2 * pause, _LOOK_MOST)
        await trio.lowlevel.checkpoint()

    async def loss(self) -> Loss:
        """The reason for its end. Waits at most 0.05 s for the exit code and the rest of stderr."""
        # Once reading was ended for an exit, the time for evidence has gone by.
        with trio.move_on_after(0 if self._ending else EVIDENCE):
            await self._tree.wait()
            if not self._tree.stderr.ended.is_set():
                await self._tree.stderr.ended.wait()
        code = self._tree.exit_code
        return Loss(
            message=self._what_happened(code),
            exit_code=code,
            stderr_tail=self._tree.stderr.text,
            stderr_age=self._tree.stderr.age,
            unheard=self._unheard if self._retired else self._ask_unheard(),
        )

    def _what_happened(self, code: int | None) -> str:
        if self._lines.overlong:
            return f"sent a line of more than {size_text(self._lines.limit)}"
        if code is not None:
            return f"exited with code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
        if self._deaf:
            return "closed its input"
        return "closed its output" if self._ended else "closed"

    def _ask_unheard(self) -> bool:
        if not self._written:
            return True
        if sys.platform != "linux" or self._has_reader():
            return False  # a descendant may read on
        return self._written - self._unread() < self._first_size

    def _has_reader(self) -> bool:
        end = select.poll()
        end.register(self._tree.stdin.fileno(), 0)
        return not end.poll(0)

    def _unread(self) -> int:
        """Bytes that are left in the pipe; 0 except on Linux: elsewhere the writing end cannot know."""
        if sys.platform != "linux":
            return 0
        answer = fcntl.ioctl(self._tree.stdin.fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(answer, sys.byteorder)

    async def end_reading(self) -> None:
        """End `read()`, and whatever waits for the process to read, soon after it has exited or refused its input. To
        be run while the stream is used."""
        with self._trusted:
            await self._tree.wait()
        await trio.sleep(DRAIN)
        self._ending = True
        for pipe in (self._tree.stdin, self._tree.stdout):
            trio.lowlevel.notify_closing(pipe.fileno())

    def retire(self) -> None:
        """Refuse to write and to read from now on. Called before the pipes are closed."""
        self._unheard = self._ask_unheard()
        self._retired = self._deaf = self._ended = True


class _LineBuffer:
    """A buffer that cuts its input at newlines; looks at every byte once, however long a line gets."""

    def __init__(self, limit: int, *, cut: bool = False) -> None:
        self.limit = limit
        self._cut = cut
        self.overlong = False
        self._begun: list[bytes] = []
        self._size = 0

    def split(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, except blank ones; none from an overlong one on, unless those are cut."""
        longest = self._size + len(data)
        lines = data.split(b"\n") if b"\n" in data else [data]  # not copied if it is a part of a long line
        first = self._size + len(lines[0])
        self._begun.append(lines[0])
        if len(lines) == 1:
            self._size, lines = longest, []
        else:
            lines[0] = b"".join(self._begun)
            self._begun = [lines.pop()]
            self._size = len(self._begun[0])
        if longest > self.limit:
            lines = self._with_beginnings(lines, first) if self._cut else self._up_to_overlong(lines)
        return [frame for line in lines if (frame := line.removesuffix(b"\r")) and not frame.isspace()]

    def _with_beginnings(self, lines: list[bytes], first: int) -> list[bytes]:
        """The lines, overlong ones cut to their beginnings; `first`: the size of the first."""
        if self._size > self.limit:
            self._begun = [b"".join(self._begun)[:_BEGINNING]]
        sizes = [first, *map(len, lines[1:])]
        return [
            line if size <= self.limit else line[:_BEGINNING] + b"..." for line, size in zip(lines, sizes, strict=False)
        ]

    def _up_to_overlong(self, lines: list[bytes]) -> list[bytes]:
        sizes = [*map(len, lines), self._size]
        fine = next((index for index, size in enumerate(sizes) if size > self.limit), None)
        if fine is None:
            return lines
        self.overlong = True
        self._begun.clear()
        return lines[:fine]


def _worth_joining(frames: Sequence[bytes]) -> Sequence[bytes]:
    size = 0
    for count, frame in enumerate(frames):
        size += len(frame)
        if size > _WRITE_MOST:
            return frames[: count + 1]
    return frames


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


@frozen
class StdioConnector(StreamConnector):
    """A connector that starts a subprocess for every `open` or `connect`."""

    command: str
    """The program: a path, taken from `cwd` if it is relative, or a name looked up on the child's PATH."""
    args: tuple[str, ...] = field(repr=lambda args: f"<{len(args)} arguments>")
    """The arguments. Only their number is shown: they may hold secrets."""
    env: Mapping[str, str] = field(repr=names_only)
    """Variables added to the few inherited ones. Only their names are shown."""
    cwd: str | None
    """The working directory; the host's if None."""
    close_grace: float
    """Seconds the close waits after the end of stdin, and again after SIGTERM."""
    frame_limit: int = FRAME_LIMIT
    """Bytes of one line before the connection counts as lost."""
    shown: ShownCommand | None = None
    """The words that errors show instead of `command` and `cwd`; None for these."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[FrameStream, None]:
        """Start the process; leaving the block ends its whole tree.

        Leaving takes as long as `ProcessTree.end`, also when cancelled. The block's exception is not wrapped.

        Raises:
            StartFailed: On entering: the process could not be started.
        """
        tree = await start_process(self.command, self.args, env=self.env, cwd=self.cwd, shown=self.shown)
        stream = StdioStream(tree, frame_limit=self.frame_limit)
        try:
            async with run_alongside(tree.stderr.pump, tree.mark_late_forks, stream.end_reading):
                yield stream
        finally:
            stream.retire()
            await tree.end(self.close_grace)
