"""Transports whose text is resolved at each connect: variables, files of variables, the output of commands.

`defer` puts a `DeferredTransport` in the place of a transport whose text is not complete. When an incarnation connects,
a `Resolver` finds the values that the text stands for now, and with these the connection is opened. They are stored
nowhere and shown to nobody: errors quote the file.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mcp_nursery.actors.callbacks import NO_HOST, Host
from mcp_nursery.actors.errors import ConfigError, StartFailed, one_line
from mcp_nursery.actors.http.header_rules import check_headers, problem_with_header
from mcp_nursery.actors.json_parsing import parse_json
from mcp_nursery.actors.oauth.settings import OAuth
from mcp_nursery.actors.process.command import INHERITED, ShownCommand, child_environment, find_program
from mcp_nursery.actors.records import asdict, define, evolve, field, frozen
from mcp_nursery.actors.secrets import SECRETS, names_only
from mcp_nursery.actors.threads import SLOW_THREADS
from mcp_nursery.supervisor.security.secret_values import secrets_in, secrets_of, secrets_of_value
from mcp_nursery.supervisor.security.trust import AGREED_FILE, FileRead
from mcp_nursery.supervisor.spec import ServerSpec
from mcp_nursery.supervisor.transports import DockerGatewayTransport, DockerTransport, RemoteTransport, StdioTransport

from .document import as_object
from .value_sources import CommandFailed, EnvFileError, output_of, read_env_file
from .variables import (
    PLACE_VARIABLES,
    Find,
    Surroundings,
    UnresolvedVariable,
    as_variables,
    command_of,
    expand,
    expand_header,
    has_variables,
    how_to_pass_on,
    inputs_in,
    is_input,
    unresolved_in_header,
)

if TYPE_CHECKING:
    from mcp_nursery.actors.server_actor import Connector
    from mcp_nursery.actors.session.connection import Connection

    from .discovery import EntryOrigin

TEXTS = ("command", "image", "cwd", "url", "ca_file")
"""Fields of transports that hold one text. `args` holds several, `env` and `headers` hold them by name."""

_LEAST_SECRET = 4
"""Characters of a secret: replacing shorter values everywhere would make text unreadable and keep no secret."""


@frozen
class DeferredTransport:
    """A transport with variables or commands in its text. The values that replace them are never stored."""

    transport: Any
    """The transport as written: any that has some of the fields above."""
    env: Mapping[str, str] = field(repr=names_only)
    """The entry's `env` block as written, even if the transport has none: headers take their variables from there."""
    workspace: str | None
    server: str = field(eq=False)
    file: str = field(eq=False)
    env_file: str | None = None
    """A file with more variables for `env`, as written."""
    headers_helper: str | None = field(default=None, repr=False)
    """A command that prints more headers, as written."""
    inputs: Mapping[str, str] = field(factory=dict[str, str], repr=names_only)
    """The host's values for `${input:ID}`, by ID; only those that this server asks for."""

    @property
    def kind(self) -> Any:
        """The kind of the transport."""
        return self.transport.kind

    @property
    def literals(self) -> set[str]:
        """The secret literals of the entry: the value of a variable or a command is not known before the server
        connects."""
        auth = getattr(self.transport, "auth", None)
        words = set(_drop_computed({text: text for text in auth.secrets})) if isinstance(auth, OAuth) else set[str]()
        return words | secrets_in(
            env=_drop_computed(self.env),
            headers=_drop_computed(getattr(self.transport, "headers", {})),
            args=["" if has_variables(arg) else arg for arg in getattr(self.transport, "args", ())],
            url="" if has_variables(url := getattr(self.transport, "url", "")) else url,
        )

    def env_file_path(self) -> str | None:
        """The path of the file with more variables for `env`, as it would be found now; None if there is none."""
        if self.env_file is None:
            return None
        workspace = self.workspace or _here()
        outside = Surroundings(as_variables(self.inputs), os.environ, workspace, _home())
        try:
            return os.path.join(workspace, expand(self.env_file, outside.find))
        except UnresolvedVariable:
            return None

    def look_at_env_file(self) -> FileRead:
        """The names of the variables that the file sets now, for the person who has to agree to it. Blocks."""
        path = self.env_file_path()
        if path is None:
            return FileRead(self.env_file or "", problem="a variable in its name has no value")
        try:
            found = read_env_file(path)
        except EnvFileError as error:
            return FileRead(path, problem=str(error))
        return FileRead(path, found.digest, tuple(sorted(found.variables)))

    def empty_headers(self) -> list[tuple[str, str]]:
        """The headers with a variable that is certain to be empty, each with that variable."""
        if self.env_file is not None:
            return []
        known = {**self.env, **as_variables(self.inputs)}
        headers: Mapping[str, str] = getattr(self.transport, "headers", {})
        return [(name, variable) for name, text in headers.items() for variable in unresolved_in_header(text, known)]

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector of an incarnation: variables are replaced when it connects."""
        return DeferredConnector(self, close_grace=close_grace)


def defer(
    transport: Any,
    *,
    env: Mapping[str, str],
    server: str,
    origin: "EntryOrigin",
    env_file: str | None = None,
    headers_helper: str | None = None,
    inputs: Mapping[str, str] | None = None,
) -> Any:
    """The transport itself if its text is complete; otherwise one that is resolved at each connect."""
    texts = [str(text) for name in TEXTS if (text := getattr(transport, name, None)) is not None]
    named = [*env.values(), *getattr(transport, "env", {}).values(), *getattr(transport, "headers", {}).values()]
    if (auth := getattr(transport, "auth", None)) is not None:
        named += _texts_of(auth).values()
    texts += [*getattr(transport, "args", ()), *named]
    reads = env_file is not None or headers_helper is not None or any(map(has_variables, texts))
    reads = reads or getattr(transport, "ca_file", None) is not None  # errors about it name the entry
    if not reads and all(command_of(text) is None for text in named):
        return transport if origin.workspace is None else in_workspace(transport, origin.workspace)
    used = {name: inputs[name] for name in inputs_in([*texts, env_file]) if inputs}
    return DeferredTransport(
        transport,
        env,
        origin.workspace,
        server=server,
        file=origin.file,
        env_file=env_file,
        headers_helper=headers_helper,
        inputs=used,
    )


def in_workspace(transport: Any, workspace: str | None) -> Any:
    """The resolved transport, with the relative paths of a project's entry in the folder of the project."""
    if workspace is None:
        return transport
    paths = {name: path for name in ("cwd", "ca_file") if (path := getattr(transport, name, None)) is not None}
    changed: dict[str, Any] = {name: os.path.join(workspace, path) for name, path in paths.items()}
    auth = getattr(transport, "auth", None)
    if isinstance(auth, OAuth) and auth.assertion_file is not None:
        changed["auth"] = evolve(auth, assertion_file=os.path.join(workspace, auth.assertion_file))
    return evolve(transport, **changed) if changed else transport


def _texts_of(auth: object) -> dict[str, str]:
    """The texts of the authorisation that come from the file."""
    said = asdict(auth, recurse=False) if isinstance(auth, OAuth) else {}
    return {name: text for name, text in said.items() if isinstance(text, str) and name != "grant"}


def _drop_computed(values: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in values.items() if not has_variables(text) and command_of(text) is None}


@frozen
class DeferredConnector:
    """The connector that resolves a transport's text, connects, and forgets the values."""

    deferred: DeferredTransport
    close_grace: float

    @asynccontextmanager
    async def connect(self, host: Host = NO_HOST) -> "AsyncGenerator[Connection, None]":
        """Resolve the text, then open one connection.

        Raises:
            StartFailed: On entering: a variable has no value, a command failed, or the transport raises this.
        """
        connector = await self._resolve()
        async with connector.connect(host) as connection:
            yield connection

    async def _resolve(self) -> Any:
        resolver = Resolver(self.deferred)
        try:
            transport = await resolver.transport()
            SECRETS.get().learn(resolver.secrets | self.deferred.literals | secrets_of(transport))
            connector = transport.connector(close_grace=self.close_grace)
        except ConfigError as error:
            problem = str(error)
        else:
            return self._hide_values(connector, tuple(sorted(resolver.secrets)))
        raise StartFailed(problem, retriable=False)

    def _hide_values(self, connector: Any, secrets: tuple[str, ...]) -> Any:
        """The connector, with errors about a process that quote the file in place of values."""
        from mcp_nursery.actors.transports.docker import DockerConnector, DockerGatewayConnector
        from mcp_nursery.actors.transports.stdio import StdioConnector

        written = self.deferred.transport
        match connector:
            case StdioConnector():
                shown = ShownCommand(written.command, getattr(written, "cwd", None), secrets)
                return evolve(connector, shown=shown)
            case DockerConnector() | DockerGatewayConnector():
                return evolve(connector, client=self._hide_values(connector.client, secrets))
            case _:
                return connector


@define
class Resolver:
    """The resolver of one transport, which resolves each variable and command once."""

    deferred: DeferredTransport
    run: Callable[[str, str], Awaitable[str]] | None = None
    """The function that returns the output of a command that is run in a folder; None for `output_of`."""
    secrets: set[str] = field(factory=set[str], repr=False)
    """The values found so far that may not be shown."""

    async def transport(self) -> Any:
        """The transport with all its text resolved.

        Raises:
            StartFailed: A variable has no value, or a command failed; only the latter is worth another try.
        """
        written = self.deferred.transport
        inputs = as_variables(self.deferred.inputs)
        outside = Surroundings(inputs, os.environ, self._workspace, _home())
        env = await self._env_file(outside)
        for name, value in self.deferred.env.items():
            env[name] = await self._value(f"env.{name}", value, outside)
        own = {**env, **inputs}
        inside = self._record_secrets(evolve(outside, own=own))
        found: dict[str, Any] = {}
        for name in TEXTS:
            text = getattr(written, name, None)
            if text is not None:
                found[name] = self._text("caFile" if name == "ca_file" else name, str(text), inside)
        if hasattr(written, "args"):
            found["args"] = tuple(self._text("args", text, inside) for text in written.args)
        if hasattr(written, "env"):
            found["env"] = env
        if hasattr(written, "headers"):
            found["headers"] = {name: await self._header(name, text, own) for name, text in written.headers.items()}
        if self.deferred.headers_helper is not None:
            found["headers"] = await self._add_helper_headers(found["headers"], self.deferred.headers_helper)
        if words := _texts_of(getattr(written, "auth", None)):
            surroundings = evolve(outside, own=own)
            words = {name: await self._value(f"auth.{name}", text, surroundings) for name, text in words.items()}
            found["auth"] = evolve(written.auth, **words)
        resolved = in_workspace(evolve(written, **found), self.deferred.workspace)
        if getattr(resolved, "ca_file", None) is not None:
            await self._check_authorities(resolved.ca_file)
        return resolved

    async def _check_authorities(self, ca_file: str) -> None:
        from mcp_nursery.actors.http.environment import EnvironmentUnusable, authorities

        try:
            await authorities(ca_file)
        except EnvironmentUnusable as error:
            named = error.shown == ca_file
            problem = f"{one_line(ca_file, 200)}: {error.problem}" if named else str(error)
        else:
            return
        raise self._failure("caFile", problem, retriable=False)

    @property
    def _workspace(self) -> str:
        return self.deferred.workspace or _here()

    def _record_secrets(self, surroundings: Surroundings) -> Find:
        def find(name: str) -> str | None:
            value, variable = surroundings.find(name), name.removeprefix("env:")
            if value is not None and variable not in (*INHERITED, *PLACE_VARIABLES):
                self._keep_secrets({value} if is_input(name) else secrets_of_value(variable, value))
            return value

        return find

    def _keep_secrets(self, values: Iterable[str]) -> None:
        self.secrets.update(value for value in values if len(value) >= _LEAST_SECRET)

    async def _env_file(self, outside: Surroundings) -> dict[str, str]:
        if self.deferred.env_file is None:
            return {}
        written = self._text("envFile", self.deferred.env_file, self._record_secrets(outside))
        path = os.path.join(self._workspace, written)
        try:
            found = await SLOW_THREADS.run(read_env_file, path, abandon_on_cancel=True)
        except EnvFileError as error:
            problem = str(error)
        else:
            if AGREED_FILE.get() not in (None, found.digest):
                raise self._failure("envFile", "it has changed since it was agreed to", retriable=True)
            self._keep_secrets(secrets_in(env=found.variables, headers={}))
            return found.variables
        raise self._failure("envFile", problem, retriable=False)

    async def _value(self, where: str, text: str, outside: Surroundings) -> str:
        command = command_of(text)
        if command is None:
            return self._text(where, text, self._record_secrets(outside))
        return await self._output(where, command)

    def _text(self, where: str, text: str, find: Find) -> str:
        try:
            found = expand(text, find)
        except UnresolvedVariable as error:
            problem = str(error)
        else:
            return found
        raise self._failure(where, problem, retriable=False)

    async def _header(self, name: str, text: str, own: Mapping[str, str]) -> str:
        where = f"headers.{name}"
        command = command_of(text)
        found = expand_header(text, own) if command is None else await self._output(where, command)
        if not found.isprintable():  # a library's error about this value would show it
            raise self._failure(where, "the value is not one line of text", retriable=False)
        problem = problem_with_header(name, found)
        if problem is not None:
            empty = unresolved_in_header(text, own) if command is None else []
            cause = f", where {' and '.join(empty)} has no value" if empty else ""
            way_out = next(filter(None, map(how_to_pass_on, empty)), None)
            raise self._failure(where, f"{problem}{cause}{f': {way_out}' if way_out else ''}", retriable=False)
        self._keep_secrets(secrets_of_value(name, found))
        return found

    async def _add_helper_headers(self, headers: Mapping[str, str], command: str) -> dict[str, str]:
        """The headers, and over them those that a command prints."""
        output = await self._output("headersHelper", command)
        try:
            said = as_object(parse_json(output))
        except (ValueError, RecursionError):
            said = None
        problem = "the command did not print a JSON object" if said is None else None
        for name, text in (said or {}).items():
            problem = problem or problem_with_header(name, text)
            self._keep_secrets([str(text)])
        if said is None or problem is not None:
            raise self._failure("headersHelper", problem or "", retriable=True)
        given = {name.lower() for name in said}
        return {**{name: text for name, text in headers.items() if name.lower() not in given}, **said}

    async def _output(self, where: str, command: str) -> str:
        try:
            output = await (self.run or output_of)(command, self._workspace)
        except CommandFailed as error:
            problem = str(error)
        else:
            self._keep_secrets([output])
            return output
        raise self._failure(where, problem, retriable=True)

    def _failure(self, where: str, problem: str, *, retriable: bool) -> StartFailed:
        # Not as a field: in `'env.API_KEY': variable` redaction would take the text after the name for a secret.
        said = f"field {where!r} is unusable: {problem}"
        error = ConfigError(said, file=self.deferred.file, server=self.deferred.server)
        return StartFailed(str(error), retriable=retriable)


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed: only what needs it fails
        return os.curdir


def _home() -> str:
    return os.path.expanduser("~")


# -- what would prevent a server from starting here and now, as far as it can be found without starting anything -------
#
# No part of reading a file: the environment and the disk may have changed when the server starts.

_UNKNOWN = "unknown"
"""The text in the place of the output of a command that is not run."""


async def problem_with(spec: ServerSpec, *, trusted: bool) -> ConfigError | None:
    """The first problem found: a variable without value, an `envFile` that cannot be used, a program or working
    directory that does not exist, a header that cannot be sent, a proxy or certificate authorities of the environment
    that cannot be used; None if there is none. No file is read for a server that its user has not agreed to."""
    transport = spec.transport
    written: Any = transport.transport if isinstance(transport, DeferredTransport) else transport
    try:
        if isinstance(transport, DeferredTransport):
            if not trusted and (transport.env_file is not None or getattr(written, "ca_file", None) is not None):
                return None
            # Nothing is known of a command that prints headers before it runs.
            transport = await Resolver(evolve(transport, headers_helper=None), run=_not_run).transport()
        if isinstance(transport, StdioTransport | DockerTransport | DockerGatewayTransport):
            cwd = getattr(transport, "cwd", None)
            shown = ShownCommand(written.command, getattr(written, "cwd", None))
            find_program(transport.command, child_environment(transport.env), cwd and str(cwd), shown)
        elif isinstance(transport, RemoteTransport):
            await _check_requests(transport)
    except StartFailed as error:
        problem = str(error)
    except ConfigError as error:  # with its variables, the URL is invalid
        problem = error.problem
    else:
        return None
    where = f"{spec.source}: server {spec.name!r}: "
    return ConfigError(problem.removeprefix(where), file=spec.source, server=spec.name)


async def _check_requests(transport: RemoteTransport) -> None:
    """Check what requests to a server would need: the headers that are known, and the environment.

    Raises:
        StartFailed: A header is not valid, or a variable cannot be used.
    """
    from mcp_nursery.actors.http.environment import EnvironmentUnusable, context_for, proxy_for

    if not callable(transport.headers):
        check_headers(transport.headers)
    try:
        await context_for(urlsplit(transport.url).scheme, proxy_for(transport.url), transport.ca_file)
    except EnvironmentUnusable as error:
        raise StartFailed(str(error), retriable=False) from None


async def _not_run(_command: str, _folder: str) -> str:
    return _UNKNOWN
