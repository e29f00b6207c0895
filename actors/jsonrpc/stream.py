"""The stream that a transport opens: whole frames in and out, and a report of how it ended."""

from collections.abc import Sequence
from typing import Protocol

from ..outcomes import Loss

FRAME_LIMIT = 64 << 20
"""Bytes of one frame before the connection counts as lost: a server that never ends a line must not eat the memory."""


class FrameStream(Protocol):
    """One connection that carries whole frames. Used by one reader and one writer task; closed by who opened it."""

    @property
    def pid(self) -> int | None:
        """The process behind it, where there is one."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether a frame was begun whose rest waits for `writable()`."""
        ...

    def write_nowait(self, frames: Sequence[bytes]) -> int:
        """Take as many frames as the peer takes now and say how many were begun. Never waits.

        A frame that was begun is whole for the caller: its rest is written by `writable()`. The frames not counted
        were not touched.

        Raises:
            trio.BrokenResourceError: The peer reads no more. No frame of this call was begun.
        """
        ...

    async def writable(self) -> None:
        """Finish a frame that was begun, then wait until the peer takes more.

        Raises:
            trio.BrokenResourceError: The peer reads no more.
        """
        ...

    async def taken(self) -> None:
        """Wait until something was written and the peer has read all of it; returns at once where that is unknown."""
        ...

    async def read(self) -> list[bytes]:
        """The next whole frames, in order, never none; an empty list once the peer is gone, and from then on.

        The peer's loss is an end, not an error: the process's exit and the end of its output count alike, and what
        was written before either is still delivered.
        """
        ...

    async def loss(self) -> Loss:
        """How it ended. Waits at most 0.05 s for evidence that is still under way, such as an exit code."""
        ...
