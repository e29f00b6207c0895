"""The docker transport: a server in a container, and the client of docker as the process that holds its streams."""

import logging
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Final

import trio
from attrs import evolve, frozen

from ..jsonrpc.stream import FrameStream
from ..process.command import child_environment
from ..process.table import ProcessId, signal_group
from .base import StreamConnector
from .stdio import StdioConnector

logger: Final = logging.getLogger(__name__)

NAME = "mcp-nursery-"
"""What the names of all our containers begin with."""

_SHARE = 2 / 3
"""The share of the grace period that each step of the close gets: there are three, where other processes have two."""

_NOT_RUN = 125
"""The exit code of a client that could not run the container."""

_GONE = ("no such container", "is already in progress")
"""What the client says if the container does not exist, and if it is just being removed."""


@frozen
class DockerConnector(StreamConnector):
    """Runs a container of its own for every `open` or `connect`.

    The end of its input ends a container, and so does SIGTERM, which the client forwards. The end of the client does
    not: so after every close the container is removed by its name, by force if it still runs.
    """

    client: StdioConnector
    """The docker client; the first of its arguments is `run`."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[FrameStream, None]:
        """Run the container; leaving the block ends it.

        Leaving takes at most 2 * `close_grace` + 0.5 s, also when cancelled. The block's exception is not wrapped.

        Raises:
            StartFailed: On entering: the client could not be started.
        """
        name = NAME + token_hex(8)
        run, *rest = self.client.args
        grace = self.client.close_grace * _SHARE
        client = evolve(self.client, args=(run, f"--name={name}", *rest), close_grace=grace)
        stream: FrameStream | None = None
        try:
            async with client.open() as stream:
                yield stream
        finally:
            if stream is not None:
                await self._remove(name, stream, grace)

    async def _remove(self, name: str, client: FrameStream, seconds: float) -> None:
        problem: str | None = f"docker took more than {seconds:.1f} s"
        with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
            ran = (await client.loss()).exit_code != _NOT_RUN
            problem = await self._problem_with_removing(name) if ran else None
        if problem is not None:
            logger.warning("a container may be left behind: %s; `docker rm -f %s` ends it", problem, name)

    async def _problem_with_removing(self, name: str) -> str | None:
        try:
            ended = await run_client(self.client.command, ["rm", "--force", name], self.client.env)
        except OSError as error:
            return error.strerror or type(error).__name__
        # Of a container that is not there, some clients say so and some fail; of other failures, old ones do not fail.
        said = ended.stderr.decode(errors="replace").lower()
        gone = name in ended.stdout.decode(errors="replace") or any(words in said for words in _GONE)
        return None if gone else f"docker ended with exit code {ended.returncode}"


async def run_client(command: str, args: Sequence[str], env: Mapping[str, str]) -> "subprocess.CompletedProcess[bytes]":
    """Run the client to its end, and keep what it says; a cancelled caller kills it.

    Raises:
        OSError: It cannot be started.
    """
    return await trio.run_process(
        [command, *args],
        env=child_environment(env),
        stdin=subprocess.DEVNULL,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        start_new_session=True,  # a Ctrl-C at the terminal must not reach it
        deliver_cancel=_kill,
    )


async def _kill(process: trio.Process) -> None:
    await trio.lowlevel.checkpoint()
    signal_group(ProcessId(process.pid, 0), signal.SIGKILL, reaped=process.returncode is not None)
