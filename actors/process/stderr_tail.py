"""The pipes of processes: read without waiting, pumped, and the last of their output remembered."""

import math
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Final

import trio

CHUNK = 64 << 10
"""Bytes asked of a pipe at once: what a pipe holds by default."""

KEPT = 64 << 10
"""Bytes of output that are remembered."""

_TAIL_LINES = 20

MOST_LINES = 1000
"""Lines that a reader may fall behind."""
Hear = Callable[[Sequence[str], int], None]
"""Called with lines, and how many before them were skipped, as more than `MOST_LINES` came at once."""

_LINE_TOO_LONG = f"[a line of more than {KEPT >> 10} KiB]"


def read_some(fd: int, size: int = CHUNK) -> bytes | None:
    """Read without waiting: None if nothing is there now, b"" if nothing will ever be."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:  # closed by us, or the kernel gave it up
        return b""


async def pump(stream: trio.lowlevel.FdStream, take: Callable[[bytes], None]) -> None:
    """Hand over all that is written until the pipe ends, so that no writer ever blocks."""
    while True:
        data = read_some(stream.fileno())
        if data == b"":
            return
        if data is None:
            await trio.lowlevel.wait_readable(stream.fileno())
        else:
            take(data)
            await trio.lowlevel.checkpoint()


def _forget(_tail: "Tail") -> None:
    """Do nothing: nobody follows it."""


TELL_TAIL: ContextVar[Callable[["Tail"], None]] = ContextVar("mcp_nursery_tail", default=_forget)
"""Called with the tail of each process that the current task and its children start."""


class Tail:
    """The last of what is written to a pipe. Its owner runs `pump`."""

    def __init__(self, pipe: trio.lowlevel.FdStream, secrets: Sequence[str]) -> None:
        self._pipe = pipe
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._kept = bytearray()
        self._written_at = -math.inf
        self._ended_at = math.inf
        """The time at which the pipe ended, with its last process: often long before anybody asks how that died."""
        self._cut = False
        """True if less is kept than was written."""
        self._hear: Hear | None = None
        """Called with lines when they are whole; None while nobody follows."""
        self._line = bytearray()
        """The part of the last line that has come so far, while somebody follows."""
        self._skips = False
        """True if the line is too long, and the rest of it is skipped."""
        self.ended: Final = trio.Event()
        """Set once the pipe has ended."""
        TELL_TAIL.get()(self)

    @property
    def text(self) -> str:
        """The last lines written so far, including those not pumped yet, without the secrets."""
        return "\n".join(self._lines()[-_TAIL_LINES:])

    def _lines(self) -> list[str]:
        """The lines that are kept, including those not pumped yet, without the secrets."""
        self._sweep()
        return self._shown(self._kept[self._torn() :]).splitlines()

    @property
    def age(self) -> float:
        """Seconds from the last output to the end of the pipe, or to now; `inf` if nothing ever came."""
        return min(trio.current_time(), self._ended_at) - self._written_at

    def _shown(self, data: bytes | bytearray) -> str:
        text = data.decode(errors="replace")
        for secret in self._secrets:
            text = text.replace(secret, "[REDACTED]")
        return text

    def follow(self, hear: Hear, *, whole: bool = False) -> list[str]:
        """The last lines written so far, or with `whole` all that are kept. Later lines are given to `hear`, and no
        longer to an earlier follower."""
        lines = self._lines() if whole else self._lines()[-_TAIL_LINES:]
        if self._hear is None:
            before, _, unfinished = self._kept.rpartition(b"\n")
            self._line = unfinished
            self._skips = self._cut and not before
        if self._line and not self.ended.is_set():
            del lines[-1:]
        self._hear = hear
        return lines

    def unfollow(self) -> None:
        """Give no lines to anybody."""
        self._hear = None

    async def pump(self) -> None:
        """Take all that is written, keeping the last of it."""
        await pump(self._pipe, self._keep)
        if not self.ended.is_set():
            self._ended_at = trio.current_time()
            self.ended.set()
            if self._line and self._hear is not None:
                self._tell(b"\n")

    def close(self) -> None:
        """Close the pipe; what is kept stays."""
        self._pipe.close()

    def _torn(self) -> int:
        """The number of bytes at the beginning that may be the rest of a secret, which redaction would not find."""
        if not self._cut:
            return 0
        whole = [secret.encode(errors="surrogateescape") for secret in self._secrets]
        rests = (secret[start:] for secret in whole for start in range(1, len(secret)))
        return max((len(rest) for rest in rests if self._kept.startswith(rest)), default=0)

    def _keep(self, data: bytes) -> None:
        self._kept += data
        self._written_at = trio.current_time()
        self._cut = self._cut or len(self._kept) > KEPT
        del self._kept[:-KEPT]
        if self._hear is not None:
            self._tell(data)

    def _tell(self, data: bytes) -> None:
        """Hand over the lines that are whole, but nothing of one that is too long: redaction does not find half a
        secret."""
        assert self._hear is not None  # the caller has checked
        first, *others = data.split(b"\n")
        self._line += first
        missed = max(len(others) - MOST_LINES, 0)  # an empty line is but one byte
        if missed:
            self._line, self._skips = bytearray(others[missed - 1]), False
        lines: list[str] = []
        for part in others[missed:]:
            lines.append(_LINE_TOO_LONG if self._skips else self._shown(self._line))
            self._line = bytearray(part)
            self._skips = False
        if lines:
            self._hear(lines, missed)
        if len(self._line) > KEPT:
            self._line = bytearray(b"?")
            self._skips = True

    def _sweep(self) -> None:
        for _ in range(KEPT // CHUNK + 1):
            data = read_some(self._pipe.fileno())
            if not data:
                return
            self._keep(data)
