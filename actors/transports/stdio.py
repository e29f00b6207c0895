"""The stdio transport: a server in a subprocess."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from attrs import field, frozen

from ..jsonrpc.stream import FRAME_LIMIT, FrameStream
from ..nurseries import run_alongside
from ..process.command import Shown
from ..process.tree import start_process
from ..secrets import names_only
from .base import StreamConnector
from .stdio_stream import StdioStream


@frozen
class StdioConnector(StreamConnector):
    """Starts a server as a subprocess, once for every `open` or `connect`."""

    command: str
    """The program: a path, taken from `cwd` if it is relative, or a name looked up on the child's PATH."""
    args: tuple[str, ...] = field(repr=lambda args: f"<{len(args)} arguments>")
    """Its arguments. Only their number is shown: they may hold secrets."""
    env: Mapping[str, str] = field(repr=names_only)
    """Variables added to the few it inherits. Only their names are shown."""
    cwd: str | None
    """Its working directory; the host's if None."""
    close_grace: float
    """Seconds the close waits after the end of stdin, and again after SIGTERM."""
    frame_limit: int = FRAME_LIMIT
    """Bytes of one line before the connection counts as lost."""
    shown: Shown | None = None
    """What errors show instead of `command` and `cwd`; None for these."""

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
            async with run_alongside(tree.stderr.pump, stream.end_reading):
                yield stream
        finally:
            stream.retire()
            await tree.end(self.close_grace)
