"""The docker transports: a server in a container, with the client of docker as the process that holds its streams, and
docker's MCP gateway as one server."""

import logging
import re
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePath
from secrets import token_hex
from typing import Final

import trio

from mcp_nursery.actors.records import evolve, frozen

from ..errors import StartFailed
from ..jsonrpc.carrier import FrameStream
from ..nurseries import open_bare_nursery
from ..process.command import CONTAINER_CLIENTS, child_environment
from ..process.table import kill_group
from ..threads import open_process
from .base import StreamConnector
from .stdio import StdioConnector

logger: Final = logging.getLogger(__name__)

CONTAINER_PREFIX = "mcp-nursery-"
"""The prefix of the names of all our containers."""

_GRACE_SHARE = 2 / 3
"""The share of the grace period that each step of the close gets: there are three, where other processes have two."""

_NOT_RUN = 125
"""The exit code of a client that could not run the container."""

_MOST_SAID = 64 << 10
"""Bytes kept of a client's output, about: more says nothing that is looked for."""

_CONTAINER_GONE = ("no such container", "is already in progress", "is not running")
"""The client's words if the container does not exist, is being removed, or has ended."""

_ITS_OWN = re.compile(r"(?:--name|--detach|-[a-zA-Z]*d[a-zA-Z]*)(?:=.*)?")
"""Options of a container that is named, or goes on, by its user's wish."""


def runs_container(argv: Sequence[str]) -> bool:
    """True if a command line is `docker run` or that of another client, for a container that ends with its server: not
    if it has a `--name` of its own, or is detached."""
    name, *args = argv
    is_client = PurePath(name).name in CONTAINER_CLIENTS and args[:1] == ["run"]
    return is_client and not any(map(_ITS_OWN.fullmatch, args))


@frozen
class DockerConnector(StreamConnector):
    """A connector that runs a container for every `open` or `connect`.

    A container ends with its input, and on SIGTERM, which the client forwards, but not with the client: so after every
    close it is removed by its name, by force if it still runs.
    """

    client: StdioConnector
    """The docker client; the first of its arguments is `run`."""
    removes: bool = True
    """True if the container is removed; False if it is only killed, because its user keeps it."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[FrameStream, None]:
        """Run the container; leaving the block ends it.

        Leaving takes at most 2 * `close_grace` + 0.5 s, also when cancelled. The block's exception is not wrapped.

        Raises:
            StartFailed: On entering: the client could not be started.
        """
        name = CONTAINER_PREFIX + token_hex(8)
        run, *rest = self.client.args
        grace = self.client.close_grace * _GRACE_SHARE
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
            how = ["rm", "--force"] if self.removes else ["kill"]
            ended = await run_client(self.client.command, [*how, name], self.client.env)
        except OSError as error:
            return error.strerror or type(error).__name__
        # If the container is not there, some clients say so and some fail; old ones do not fail for other reasons.
        said = ended.stderr.decode(errors="replace").lower()
        gone = name in ended.stdout.decode(errors="replace") or any(words in said for words in _CONTAINER_GONE)
        return None if gone else f"docker ended with exit code {ended.returncode}"


async def run_client(command: str, args: Sequence[str], env: Mapping[str, str]) -> "subprocess.CompletedProcess[bytes]":
    """Run the client to its end, and keep the beginning of its output; a cancelled caller kills it.

    Raises:
        OSError: It cannot be started.
    """
    client = await open_process(
        [command, *args],
        env=child_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C at the terminal must not reach it
    )
    assert client.stdout is not None  # it was asked for
    assert client.stderr is not None
    said, complained = bytearray(), bytearray()
    try:
        async with open_bare_nursery() as nursery:
            nursery.start_soon(_keep, client.stdout, said)
            nursery.start_soon(_keep, client.stderr, complained)
            await client.wait()
    finally:
        if client.returncode is None:
            await kill_group(client)
    return subprocess.CompletedProcess(client.args, client.returncode or 0, bytes(said), bytes(complained))


async def _keep(stream: trio.abc.ReceiveStream, data: bytearray) -> None:
    """Read a stream, up to a limit: a writer may write without end."""
    async with stream:
        async for chunk in stream:
            data += chunk
            if len(data) > _MOST_SAID:
                return


DETECTION: Final = 3.0
"""Seconds that it may take to find out whether there is a gateway."""


async def problem_with_gateway(command: str, env: Mapping[str, str]) -> str | None:
    """The reason why docker's MCP gateway cannot run here, in one line; None if it can. The command of docker's client
    gets `env` besides the inherited few variables. Takes `DETECTION` seconds at most."""
    said = f"docker's MCP gateway cannot run here: {command!r}"
    with trio.move_on_after(DETECTION):
        try:
            words = await run_client(command, ["mcp", "--help"], env)
            if words.returncode != 0 or b"gateway" not in words.stdout:
                return f"{said} has no command `mcp gateway`"
            version = await run_client(command, ["info", "--format", "{{.ServerVersion}}"], env)
            if version.returncode != 0 or not version.stdout.strip():
                return f"{said} reaches no daemon"
        except OSError as error:
            return f"{said}: {error.strerror or type(error).__name__}"
        return None
    return f"{said} did not answer within {DETECTION:g} s"


@frozen
class DockerGatewayConnector(StreamConnector):
    """A connector that runs docker's MCP gateway for every `open` or `connect`. It ends like any process, and removes
    its containers."""

    client: StdioConnector
    """The docker client, whose arguments run the gateway."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[FrameStream, None]:
        """Check that there is a gateway, and run it; leaving the block ends it, as a `StdioConnector` does.

        Raises:
            StartFailed: On entering: the gateway cannot run here. It is not tried again.
        """
        problem = await problem_with_gateway(self.client.command, self.client.env)
        if problem is not None:
            raise StartFailed(problem, retriable=False)
        async with self.client.open() as stream:
            yield stream
