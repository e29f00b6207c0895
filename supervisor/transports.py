"""The transports that a spec can have: how a server is reached. Secrets in them are shown nowhere."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol
from urllib.parse import urlsplit

from mcp_nursery.actors.argument_checks import choice, copied, several, true_or_false
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.oauth.settings import OAuth
from mcp_nursery.actors.records import evolve, field, frozen
from mcp_nursery.actors.secrets import names_only, shown_url

if TYPE_CHECKING:
    import httpx2

    from mcp_nursery.actors.server_actor import Connector

TransportKind = Literal["stdio", "docker", "docker-gateway", "in-process", "http", "sse", "ws"]
"""The transports' names as users see them."""

LOCAL_KINDS = frozenset({"stdio", "docker", "docker-gateway"})
"""Transports whose server is a process of this machine."""

REMOTE_KINDS = frozenset({"http", "sse", "ws"})
"""Transports whose server is reached over a network, which can break without a sign."""


@frozen
class StdioTransport:
    """A subprocess that speaks MCP on its standard streams. If that is `docker run` without a `--name`, the container
    ends with it as that of a `DockerTransport` does."""

    kind: ClassVar[TransportKind] = "stdio"

    command: str
    """The program: a path, or a name looked up on PATH (the server's own, if `env` sets one)."""
    args: Sequence[str] = field(default=(), converter=several, repr=lambda args: f"<{len(args)} arguments>")
    """The arguments. Only their number is shown: they may hold secrets."""
    env: Mapping[str, str] = field(factory=dict[str, str], converter=copied, repr=names_only)
    """Variables added to those that the process inherits: `PATH`, `HOME` and the like, proxies, certificate authorities
    and package indexes. They take precedence."""
    cwd: str | Path | None = None
    """The working directory; the host's by default."""
    inherit_env: bool = field(default=False, validator=choice(true_or_false))
    """True if the process inherits the whole environment of the host."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return (self.command, *self.args)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables besides those that every process inherits."""
        from mcp_nursery.actors.process.command import host_environment

        return {**host_environment(self.env, whole=self.inherit_env), **self.env}

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector by which an incarnation starts it. `close_grace` is the wait, in seconds, at each step of its
        close."""
        from mcp_nursery.actors.transports.stdio import StdioConnector

        client = StdioConnector(
            command=self.command,
            args=tuple(self.args),
            env=self.environment,
            cwd=None if self.cwd is None else str(self.cwd),
            close_grace=close_grace,
        )
        if "run" not in self.args:
            return client
        from mcp_nursery.actors.transports.docker import DockerConnector, runs_container

        return DockerConnector(client, removes="--rm" in self.args) if runs_container(self.argv) else client


def argv_of(transport: object) -> Sequence[str]:
    """The command that a transport starts, with its arguments, as they are written: variables are not yet replaced.
    Empty if it starts none."""
    argv: Sequence[str] = getattr(getattr(transport, "transport", transport), "argv", ())
    return argv


_ANY_VARIABLE = re.compile(r"\$\{[^}]*\}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def problem_with_image(image: str) -> str | None:
    """The fault of an image's name, in words that do not show it; None if there is none."""
    if not image.strip():
        return "must not be empty"
    if _ANY_VARIABLE.search(image) or _IMAGE.fullmatch(image):
        return None  # not known before it is expanded, or fine
    return "must be the name of an image: letters, digits and . _ / : @ -, the first a letter or digit"


def run_arguments(image: str, args: Sequence[str], env: Iterable[str]) -> list[str]:
    """The arguments of a docker client that runs the image with `args`, in the foreground, removed at its end.

    Only the names of the variables in `env` are included: the client takes each value from its own environment, so that
    no process list shows it.
    """
    # `--init`: the server would not be ended by SIGTERM if it were the first process of the container. `--`: no image
    # can have a name that is taken for an option, and mounts a folder.
    return ["run", "-i", "--rm", "--init", *(f"--env={name}" for name in env), "--", image, *args]


def _an_image(_transport: object, attribute: Any, image: str) -> None:
    problem = problem_with_image(image)
    if problem is not None:
        raise ConfigError(problem, field=attribute.name)


@frozen
class DockerTransport:
    """A container that speaks MCP on its standard streams: `docker run -i --rm --init`, under a name of its own.

    The container ends with its connection: its input is closed, a while later the client gets SIGTERM, which it passes
    on, and at last the container is removed by force, whatever has become of the client. A missing image is pulled
    first; that time counts for `connect_timeout`.

    Raises:
        ConfigError: `image` is not the name of an image.
    """

    kind: ClassVar[TransportKind] = "docker"

    image: str = field(validator=_an_image)
    """The image, with tag or digest if it has one."""
    args: Sequence[str] = field(default=(), converter=several, repr=lambda args: f"<{len(args)} arguments>")
    """The arguments of the image's entry point. Only their number is shown."""
    env: Mapping[str, str] = field(factory=dict[str, str], converter=copied, repr=names_only)
    """Variables for the server. The client has them too, in order to pass them on: its own, such as `DOCKER_HOST`, can
    be set here as well."""
    command: str = "docker"
    """The docker client, or another with the same command line."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The client and its arguments."""
        return (self.command, *run_arguments(self.image, self.args, self.env))

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector by which an incarnation runs it. `close_grace`, in seconds, is what two of three steps of its
        close may take."""
        from mcp_nursery.actors.transports.docker import DockerConnector
        from mcp_nursery.actors.transports.stdio import StdioConnector

        client, *args = self.argv
        return DockerConnector(StdioConnector(client, tuple(args), self.env, cwd=None, close_grace=close_grace))


@frozen
class DockerGatewayTransport:
    """Docker's MCP gateway as one server: `docker mcp gateway run`. It has the tools of all servers that are enabled in
    docker. A spec with it is lazy by default.

    Where docker, its `mcp gateway` or its daemon is missing, or does not answer for 3 seconds, the server is `failed`,
    and a line in the log gives the reason.
    """

    kind: ClassVar[TransportKind] = "docker-gateway"

    args: Sequence[str] = field(default=(), converter=several, repr=lambda args: f"<{len(args)} arguments>")
    """The arguments of `docker mcp gateway run`. Only their number is shown: they may hold secrets."""
    env: Mapping[str, str] = field(factory=dict[str, str], converter=copied, repr=names_only)
    """Variables added to the few that the client inherits, such as `DOCKER_HOST`."""
    command: str = "docker"
    """The client."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The client and its arguments."""
        return (self.command, "mcp", "gateway", "run", *self.args)

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector by which an incarnation runs it. `close_grace` is the wait, in seconds, at each step of its
        close."""
        from mcp_nursery.actors.transports.docker import DockerGatewayConnector
        from mcp_nursery.actors.transports.stdio import StdioConnector

        client, *args = self.argv
        return DockerGatewayConnector(StdioConnector(client, tuple(args), self.env, cwd=None, close_grace=close_grace))


@frozen
class InProcessTransport:
    """A server object of the MCP SDK in this process: an `MCPServer` or a low-level `Server`.

    Trio ends no task that shields itself from cancellation: a handler or a lifespan that does so without a time limit
    delays a stop, and the end of the block, until it is done.
    """

    kind: ClassVar[TransportKind] = "in-process"

    server: Any = field(repr=False)
    """The server object. Each connection enters its lifespan anew."""

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector by which an incarnation reaches it. `close_grace` bounds, in seconds, the end of its
        lifespan."""
        from mcp_nursery.actors.transports.in_process import InProcessConnector

        return InProcessConnector(self.server, close_grace=close_grace)


ComputeHeaders = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""A function, async or not, that computes headers anew at each connect."""

Headers = Mapping[str, str] | ComputeHeaders | tuple[Mapping[str, str], ComputeHeaders]
"""Headers of requests: fixed, computed anew at each connect, or both; computed ones take precedence."""


def problem_with_url(url: str, *schemes: str) -> str | None:
    """The fault of a server's URL, in words that do not show it; None if there is none."""
    wanted = f"must be a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}"
    if _ANY_VARIABLE.search(url):
        return None  # not known before it is expanded
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
        if parts.hostname and parts.hostname.isascii():
            parts.hostname.encode("idna")  # as it is looked up: labels may be empty or too long
    except ValueError:
        usable = False
        parts = None
    if parts is None or parts.scheme not in schemes:
        return wanted
    return None if usable else f"{wanted} and names a host"


def _usable(transport: "RemoteTransport", attribute: Any, url: str) -> None:
    problem = problem_with_url(url, *transport.schemes)
    if problem is not None:
        raise ConfigError(problem, field=attribute.name)


@frozen
class BothHeaders:
    """Fixed and computed headers; the computed ones take precedence."""

    fixed: Mapping[str, str] = field(repr=names_only)
    compute: ComputeHeaders = field(repr=False)

    async def __call__(self) -> Mapping[str, str]:
        """All headers at this moment. Names that differ only in case are the same."""
        computed = self.compute()
        over = await computed if inspect.isawaitable(computed) else computed
        if not isinstance(over, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - it is the host's
            return over  # refused where headers are checked
        given = {str(name).lower() for name in over}
        return {**{name: text for name, text in self.fixed.items() if name.lower() not in given}, **over}


def _shown_headers(headers: Mapping[str, str] | ComputeHeaders) -> str:
    return "<computed>" if callable(headers) else names_only(headers)


def _headers(headers: Headers) -> Mapping[str, str] | ComputeHeaders:
    if callable(headers):
        return headers
    if isinstance(headers, Mapping):
        return dict(headers)
    fixed, compute = headers
    return BothHeaders(dict(fixed), compute)


def _as_path(path: "str | Path | None") -> str | None:
    return str(path) if isinstance(path, Path) else path


def _named_file(_transport: object, attribute: Any, path: object) -> None:
    if path is not None and not (isinstance(path, str) and path.strip()):
        raise ConfigError("must be the path of a file", field=attribute.name)


@frozen
class RemoteTransport:
    """A transport to a server with a URL.

    Raises:
        ConfigError: The URL is not of the transport's scheme, or has no host.
    """

    schemes: ClassVar[tuple[str, ...]] = ("http", "https")
    """The schemes that its URL may have."""

    url: str = field(validator=_usable, repr=lambda url: repr(shown_url(url)))
    """The endpoint. Only scheme, host, port and path are ever shown."""
    headers: Mapping[str, str] | ComputeHeaders = field(factory=dict[str, str], converter=_headers, repr=_shown_headers)
    """Headers of each request to this origin, and to no other. They override authorisation's, and the protocol's
    override them. Only names are ever shown."""
    ca_file: str | None = field(default=None, kw_only=True, converter=_as_path, validator=_named_file)
    """A file in PEM format with certificate authorities that are trusted for this server besides the usual ones. It is
    read at each connect."""


def _authorises(_transport: object, attribute: Any, auth: object) -> None:
    if not (auth is None or isinstance(auth, OAuth) or hasattr(auth, "async_auth_flow")):
        raise ConfigError("must be OAuth(…), or an httpx2.Auth", field=attribute.name)


def _shown_auth(auth: object) -> str:
    return repr(auth) if auth is None or isinstance(auth, OAuth) else f"<{type(auth).__name__}>"


@frozen
class AuthorisedTransport(RemoteTransport):
    """A transport whose requests can be authorised."""

    auth: "httpx2.Auth | OAuth | None" = field(default=None, kw_only=True, validator=_authorises, repr=_shown_auth)
    """The authorisation of its requests. It overrides user and password in the URL, and `headers` override it."""

    @property
    def authorisation(self) -> "httpx2.Auth | OAuth | None":
        """The authorisation, whose requests trust the authorities of `ca_file`, too."""
        auth = self.auth
        return evolve(auth, ca_file=auth.ca_file or self.ca_file) if isinstance(auth, OAuth) else auth


@frozen
class HttpTransport(AuthorisedTransport):
    """A remote server on streamable HTTP; its endpoint often ends in `/mcp`."""

    kind: ClassVar[TransportKind] = "http"

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector by which an incarnation reaches it. `close_grace` bounds, in seconds, the end of its
        session."""
        from mcp_nursery.actors.transports.http.connectors import StreamableHttpConnector

        return StreamableHttpConnector(self.url, self.headers, close_grace, self.authorisation, self.ca_file)


@frozen
class SseTransport(AuthorisedTransport):
    """A remote server on HTTP with server-sent events, the transport of 2024-11-05; its stream is often at `/sse`."""

    kind: ClassVar[TransportKind] = "sse"

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector by which an incarnation reaches it. `close_grace` bounds, in seconds, its end."""
        from mcp_nursery.actors.transports.http.connectors import SseConnector

        return SseConnector(self.url, self.headers, close_grace, self.authorisation, self.ca_file)


@frozen
class WebSocketTransport(RemoteTransport):
    """A remote server on a WebSocket; its headers go with the request that opens it."""

    kind: ClassVar[TransportKind] = "ws"

    schemes: ClassVar[tuple[str, ...]] = ("ws", "wss")

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector by which an incarnation reaches it. `close_grace` bounds, in seconds, the closing handshake."""
        from mcp_nursery.actors.transports.http.headers import WithHeaders
        from mcp_nursery.actors.transports.websocket.connector import WebSocketConnector

        return WithHeaders(
            self.headers,
            lambda headers: WebSocketConnector(self.url, headers, close_grace=close_grace, ca_file=self.ca_file),
        )


@frozen
class UnusableTransport:
    """An entry of a configuration that cannot work. Its server is `failed` with this error and never started."""

    error: ConfigError = field(eq=str)
    """Compared by its text: an entry that is broken in the same way has not changed."""
    kind: str | None = None
    """The transport the entry asked for, where that much is known."""

    def connector(self, *, close_grace: float) -> "Connector":
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        del close_grace
        raise self.error


class CustomTransport(Protocol):
    """Any other way to reach a server."""

    @property
    def kind(self) -> str | None:
        """The name of the kind for users."""
        ...

    def connector(self, *, close_grace: float) -> "Connector":
        """The connector by which an incarnation reaches it. `close_grace` is the wait, in seconds, at each step of its
        close.

        Raises:
            ConfigError: It cannot work: its server is `failed`, and not tried again. After any other error it is.
        """
        ...


Transport = (
    StdioTransport
    | DockerTransport
    | DockerGatewayTransport
    | InProcessTransport
    | HttpTransport
    | SseTransport
    | WebSocketTransport
    | UnusableTransport
    | CustomTransport
)
"""A transport: one of ours, or any object with the same `kind` and `connector`."""
