"""What processes write to their pipes: read without waiting, pumped, and the last of it remembered."""

import os
from collections.abc import Callable, Sequence
from typing import Final

import trio

CHUNK = 64 << 10
"""Bytes asked of a pipe at once: what a pipe holds by default."""

KEPT = 64 << 10
"""Bytes that are remembered."""

_TAIL_LINES = 20


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


class Tail:
    """The last of what is written to a pipe. Its owner runs `pump`."""

    def __init__(self, pipe: trio.lowlevel.FdStream, secrets: Sequence[str]) -> None:
        self._pipe = pipe
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._kept = bytearray()
        self._cut = False
        """Whether what is kept is not all that was written."""
        self.ended: Final = trio.Event()
        """Set once the pipe has ended."""

    @property
    def text(self) -> str:
        """The last lines written so far, including those not pumped yet, without the secrets."""
        self._sweep()
        text = self._kept[self._torn() :].decode(errors="replace")
        for secret in self._secrets:
            text = text.replace(secret, "[REDACTED]")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    async def pump(self) -> None:
        """Take all that is written, keeping the last of it."""
        await pump(self._pipe, self._keep)
        self.ended.set()

    def close(self) -> None:
        """Close the pipe; what is kept stays."""
        self._pipe.close()

    def _torn(self) -> int:
        """How many bytes at the beginning may be the rest of a secret, which redaction would not find."""
        if not self._cut:
            return 0
        whole = [secret.encode(errors="surrogateescape") for secret in self._secrets]
        rests = (secret[start:] for secret in whole for start in range(1, len(secret)))
        return max((len(rest) for rest in rests if self._kept.startswith(rest)), default=0)

    def _keep(self, data: bytes) -> None:
        self._kept += data
        self._cut = self._cut or len(self._kept) > KEPT
        del self._kept[:-KEPT]

    def _sweep(self) -> None:
        for _ in range(KEPT // CHUNK + 1):
            data = read_some(self._pipe.fileno())
            if not data:
                return
            self._keep(data)
