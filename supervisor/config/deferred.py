"""What unresolved text stands for, found out at each connect: variables, and the output of commands."""

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, evolve, field, frozen

from mcp_nursery.actors.callbacks import NO_HOST, Host
from mcp_nursery.actors.errors import ConfigError, StartFailed
from mcp_nursery.actors.process.command import INHERITED, Shown
from mcp_nursery.actors.process.table import ProcessId, signal_group
from mcp_nursery.actors.secrets import TELL_SECRETS
from mcp_nursery.actors.transports.docker import DockerConnector
from mcp_nursery.actors.transports.stdio import StdioConnector
from mcp_nursery.supervisor.security.secret_values import secrets_of

from .env_file import EnvFileError, read_env_file
from .unresolved import SEQUENCES, TEXTS, Unresolved, in_workspace
from .variables import PLACES, Find, Surroundings, UnresolvedVariable, command_of, expand, expand_header

if TYPE_CHECKING:
    from mcp_nursery.actors.session.base import Connection

COMMAND_SECONDS = 10.0
"""How long a command whose output is a value may take."""

OUTPUT_LIMIT = 64 << 10
"""Bytes of a command's output: more is no value that anybody could use."""

_KILL_SLACK = 1.0
"""Seconds that a killed command gets to vanish."""

_LEAST_SECRET = 4
"""Characters: replacing shorter values everywhere would make text unreadable and keep no secret."""


@frozen
class ResolvingConnector:
    """Resolves a transport's text, connects, and forgets what it found."""

    unresolved: Unresolved
    close_grace: float

    def connect(self, host: Host = NO_HOST) -> "AbstractAsyncContextManager[Connection]":
        """Resolve, then open one connection.

        Raises:
            StartFailed: On entering: a variable without value, a command that failed, or what the transport raises.
        """
        return self._connected(host)

    @asynccontextmanager
    async def _connected(self, host: Host) -> "AsyncGenerator[Connection, None]":
        connector = await self._resolved()
        async with connector.connect(host) as connection:
            yield connection

    async def _resolved(self) -> Any:
        resolver = Resolver(self.unresolved)
        try:
            transport = await resolver.transport()
            TELL_SECRETS.get()(resolver.secrets | self.unresolved.literals | secrets_of(transport))
            connector = transport.connector(close_grace=self.close_grace)
        except ConfigError as error:
            problem = str(error)
        else:
            return self._discreet(connector, tuple(sorted(resolver.secrets)))
        raise StartFailed(problem, retriable=False)

    def _discreet(self, connector: Any, secrets: tuple[str, ...]) -> Any:
        """The connector so that a process it starts is told of in the words of the file."""
        written = self.unresolved.transport
        match connector:
            case StdioConnector():
                shown = Shown(written.command, getattr(written, "cwd", None), secrets)
                return evolve(connector, shown=shown)
            case DockerConnector():
                return evolve(connector, client=self._discreet(connector.client, secrets))
            case _:
                return connector


@define
class Resolver:
    """Resolves one transport, each variable and command once."""

    unresolved: Unresolved
    run: Callable[[str, str], Awaitable[str]] | None = None
    """Gives the output of a command that is run in a folder; None for `output_of`."""
    secrets: set[str] = field(factory=set[str], repr=False)
    """The values found so far that nobody may be shown."""

    async def transport(self) -> Any:
        """The transport with all its text resolved.

        Raises:
            StartFailed: A variable has no value, or a command failed; only the latter is worth another try.
        """
        written = self.unresolved.transport
        inputs = self.unresolved.inputs_as_variables
        outside = Surroundings(inputs, os.environ, self._workspace, _home())
        env = await self._env_file(outside)
        for name, value in self.unresolved.env.items():
            env[name] = await self._value(f"env.{name}", value, outside)
        own = {**env, **inputs}
        inside = self._recorded(evolve(outside, own=own))
        found: dict[str, Any] = {}
        for name in TEXTS:
            text = getattr(written, name, None)
            if text is not None:
                found[name] = self._text(name, str(text), inside)
        for name in SEQUENCES:
            if hasattr(written, name):
                found[name] = tuple(self._text(name, text, inside) for text in getattr(written, name))
        if hasattr(written, "env"):
            found["env"] = env
        if hasattr(written, "headers"):
            found["headers"] = {name: await self._header(name, text, own) for name, text in written.headers.items()}
        return in_workspace(evolve(written, **found), self.unresolved.workspace)

    @property
    def _workspace(self) -> str:
        return self.unresolved.workspace or _here()

    def _recorded(self, surroundings: Surroundings) -> Find:
        def find(name: str) -> str | None:
            value = surroundings.find(name)
            if value is not None and name.removeprefix("env:") not in (*INHERITED, *PLACES):
                self._keep_secret(value)
            return value

        return find

    def _keep_secret(self, value: str) -> None:
        if len(value) >= _LEAST_SECRET:
            self.secrets.add(value)

    async def _env_file(self, outside: Surroundings) -> dict[str, str]:
        if self.unresolved.env_file is None:
            return {}
        written = self._text("envFile", self.unresolved.env_file, self._recorded(outside))
        path = os.path.join(self._workspace, written)
        try:
            found = await trio.to_thread.run_sync(read_env_file, path, abandon_on_cancel=True)
        except EnvFileError as error:
            problem = str(error)
        else:
            for value in found.values():
                self._keep_secret(value)
            return found
        raise self._failed("envFile", problem, retriable=False)

    async def _value(self, where: str, text: str, outside: Surroundings) -> str:
        command = command_of(text)
        if command is None:
            return self._text(where, text, self._recorded(outside))
        return await self._output(where, command)

    def _text(self, where: str, text: str, find: Find) -> str:
        try:
            found = expand(text, find)
        except UnresolvedVariable as error:
            problem = str(error)
        else:
            return found
        raise self._failed(where, problem, retriable=False)

    async def _header(self, name: str, text: str, own: Mapping[str, str]) -> str:
        where = f"headers.{name}"
        command = command_of(text)
        found = expand_header(text, own) if command is None else await self._output(where, command)
        if not found.isprintable():  # a library's error about it would show it
            raise self._failed(where, "the value is not one line of text", retriable=False)
        self._keep_secret(found)
        return found

    async def _output(self, where: str, command: str) -> str:
        try:
            output = await (self.run or output_of)(command, self._workspace)
        except CommandFailed as error:
            problem = str(error)
        else:
            self._keep_secret(output)
            return output
        raise self._failed(where, problem, retriable=True)

    def _failed(self, where: str, problem: str, *, retriable: bool) -> StartFailed:
        # Not as a field: of `'env.API_KEY': variable` redaction would make a secret of what follows the name.
        said = f"field {where!r} is unusable: {problem}"
        error = ConfigError(said, file=self.unresolved.file, server=self.unresolved.server)
        return StartFailed(str(error), retriable=retriable)


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed; what needs it fails, and nothing else
        return os.curdir


def _home() -> str:
    return os.path.expanduser("~")


class CommandFailed(Exception):
    """A command gave no value. Says nothing of what it printed."""


async def output_of(command: str, folder: str) -> str:
    """What a shell command prints, without its last newline. It gets the host's environment and no input.

    Raises:
        CommandFailed: It failed, took more than 10 s, or printed what is no text.
    """
    try:
        process = await trio.lowlevel.open_process(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        problem = f"the command cannot be started: {getattr(error, 'strerror', None) or 'not a command'}"
    else:
        return _value_of(await _heard(process), process.returncode)
    raise CommandFailed(problem)


async def _heard(process: trio.Process) -> bytes | None:
    """All that it prints until it exits; None if it is too slow or prints too much: then it is killed, as on cancel."""
    assert process.stdout is not None
    output = bytearray()
    whole = False
    try:
        with trio.move_on_after(COMMAND_SECONDS):
            async for chunk in process.stdout:
                output += chunk
                if len(output) > OUTPUT_LIMIT:
                    return None
            await process.wait()
            whole = True
    finally:
        if not whole:
            signal_group(ProcessId(process.pid, 0), signal.SIGKILL, reaped=process.returncode is not None)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_SLACK):
                await process.wait()
        await process.stdout.aclose()
    return bytes(output) if whole else None


def _value_of(output: bytes | None, code: int | None) -> str:
    if output is None:
        raise CommandFailed(f"the command did not end within {COMMAND_SECONDS:g} s and {OUTPUT_LIMIT >> 10} KiB")
    if code:
        raise CommandFailed(f"the command ended with exit code {code}")
    try:
        text = output.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CommandFailed("the command's output is not text")
    return text.removesuffix("\n").removesuffix("\r")
