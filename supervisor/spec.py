"""What to run: one server of the configuration, unresolved. Secrets in it are shown nowhere."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from attrs import Factory, field, frozen

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.liveness import Liveness

from .policy import RestartMode, RestartPolicy, Revive
from .tools.filters import is_offered
from .tools.truncation import MAX_RESULT_CHARS

if TYPE_CHECKING:
    from mcp_nursery.actors.server import Connector

    from .config.trust import TrustRequest

TransportKind = Literal["stdio", "in-process", "http", "sse", "ws"]
"""The transports' names as users see them."""


REMOTE_KINDS = frozenset({"http", "sse", "ws"})
"""Transports whose server is reached over a network, which can fall silent without an end."""


def _names_only(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}=…" for name in values) + "}"


def _strings(values: Sequence[str]) -> Sequence[str]:
    return tuple(values)


def _mapping(values: Mapping[str, str]) -> Mapping[str, str]:
    return dict(values)


@frozen
class StdioTransport:
    """A subprocess that speaks MCP on its standard streams."""

    command: str
    """The program: a path, or a name looked up on PATH (the server's own, if `env` sets one)."""
    args: Sequence[str] = field(default=(), converter=_strings, repr=lambda args: f"<{len(args)} arguments>")
    """Its arguments. Only their number is shown: they may hold secrets."""
    env: Mapping[str, str] = field(factory=dict[str, str], converter=_mapping, repr=_names_only)
    """Variables added to the few it inherits (PATH, HOME and the like); nothing else of the host's is passed on."""
    cwd: str | Path | None = None
    """Its working directory; the host's by default."""

    @property
    def kind(self) -> TransportKind:
        """`stdio`."""
        return "stdio"

    def connector(self, *, close_grace: float) -> "Connector":
        """How an incarnation starts it. `close_grace` is the wait, in seconds, at each step of its close."""
        from mcp_nursery.actors.transports.stdio import StdioConnector

        return StdioConnector(
            command=self.command,
            args=tuple(self.args),
            env=self.env,
            cwd=None if self.cwd is None else str(self.cwd),
            close_grace=close_grace,
        )


@frozen
class InProcessTransport:
    """A server object of the MCP SDK in this process: an `MCPServer` or a low-level `Server`."""

    server: Any = field(repr=False)

    @property
    def kind(self) -> TransportKind:
        """`in-process`."""
        return "in-process"

    def connector(self, *, close_grace: float) -> "Connector":
        """How an incarnation reaches it. `close_grace` bounds, in seconds, the end of its lifespan."""
        from mcp_nursery.actors.transports.in_process import InProcessConnector

        return InProcessConnector(self.server, close_grace=close_grace)


Headers = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers of requests: fixed, or a function, async or not, that computes them anew at each connect."""


def problem_with_url(url: str, *schemes: str) -> str | None:
    """What is wrong with a server's URL, in words that do not show it; None if nothing is."""
    wanted = f"a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)} wanted"
    if "${" in url:
        return None  # not known before it is expanded
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        usable = False
        parts = None
    if parts is None or parts.scheme not in schemes:
        return wanted
    return None if usable else f"{wanted}, with a host"


def _url_of(*schemes: str) -> Callable[[object, Any, str], None]:
    def check(_transport: object, attribute: Any, url: str) -> None:
        problem = problem_with_url(url, *schemes)
        if problem is not None:
            raise ConfigError(problem, field=attribute.name)

    return check


def _shown_url(url: str) -> str:
    """Without user, password, query and fragment, any of which may be secret."""
    try:
        parts = urlsplit(url)
        return repr(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl())
    except ValueError:
        return "…"


def _shown_headers(headers: Headers) -> str:
    return "<computed>" if callable(headers) else _names_only(headers)


def _headers(headers: Headers) -> Headers:
    return headers if callable(headers) else dict(headers)


@frozen
class HttpTransport:
    """A remote server on streamable HTTP.

    Raises:
        ConfigError: The URL is not one of http or https.
    """

    url: str = field(validator=_url_of("http", "https"), repr=_shown_url)
    """Its endpoint, often ending in `/mcp`. Only scheme, host, port and path are ever shown."""
    headers: Headers = field(factory=dict[str, str], converter=_headers, repr=_shown_headers)
    """Sent with each request to this origin and to no other, over those of authorisation and under those of the
    protocol. Only names are ever shown."""

    @property
    def kind(self) -> TransportKind:
        """`http`."""
        return "http"

    def connector(self, *, close_grace: float) -> "Connector":
        """How an incarnation reaches it. `close_grace` bounds, in seconds, the end of its session."""
        from mcp_nursery.actors.transports.streamable_http import StreamableHttpConnector

        return StreamableHttpConnector(self.url, self.headers, close_grace=close_grace)


@frozen
class SseTransport:
    """A remote server on HTTP with server-sent events, the transport of 2024-11-05.

    Raises:
        ConfigError: The URL is not one of http or https.
    """

    url: str = field(validator=_url_of("http", "https"), repr=_shown_url)
    """Where its stream is, often ending in `/sse`. Only scheme, host, port and path are ever shown."""
    headers: Headers = field(factory=dict[str, str], converter=_headers, repr=_shown_headers)
    """As of `HttpTransport`."""

    @property
    def kind(self) -> TransportKind:
        """`sse`."""
        return "sse"

    def connector(self, *, close_grace: float) -> "Connector":
        """How an incarnation reaches it. `close_grace` bounds, in seconds, its end."""
        from mcp_nursery.actors.transports.sse import SseConnector

        return SseConnector(self.url, self.headers, close_grace=close_grace)


@frozen
class WebSocketTransport:
    """A remote server on a WebSocket.

    Raises:
        ConfigError: The URL is not one of ws or wss.
    """

    url: str = field(validator=_url_of("ws", "wss"), repr=_shown_url)
    """Its endpoint. Only scheme, host, port and path are ever shown."""
    headers: Headers = field(factory=dict[str, str], converter=_headers, repr=_shown_headers)
    """Sent with the request that opens it. Only names are ever shown."""

    @property
    def kind(self) -> TransportKind:
        """`ws`."""
        return "ws"

    def connector(self, *, close_grace: float) -> "Connector":
        """How an incarnation reaches it. `close_grace` bounds, in seconds, the closing handshake."""
        from mcp_nursery.actors.transports.headers import WithHeaders
        from mcp_nursery.actors.transports.websocket import WebSocketConnector

        return WithHeaders(
            self.headers, lambda headers: WebSocketConnector(url=self.url, headers=headers, close_grace=close_grace)
        )


@frozen
class UnusableTransport:
    """An entry of a configuration that cannot work. Its server is `failed` with this error and never started."""

    error: ConfigError
    kind: str | None = None
    """The transport the entry asked for, where that much is known."""

    def connector(self, *, close_grace: float) -> "Connector":
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        del close_grace
        raise self.error


Transport = (
    StdioTransport | InProcessTransport | HttpTransport | SseTransport | WebSocketTransport | UnusableTransport | Any
)
"""How a server is reached: one of ours, or any object with the same `kind` and `connector`."""


def _seconds_or_none(spec: "ServerSpec", attribute: Any, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"seconds >= 0 wanted, not {value}", server=spec.name, field=attribute.name)


def _positive(spec: "ServerSpec", attribute: Any, value: int) -> None:
    if value < 1:
        raise ConfigError(f"at least 1 wanted, not {value}", server=spec.name, field=attribute.name)


def _revives(spec: "ServerSpec", _attribute: object, value: Revive | None) -> None:
    if value is None or value == "on_call":
        return
    if not (type(value) in (int, float) and math.isfinite(value) and value > 0):
        raise ConfigError(f"'on_call' or finite seconds > 0 wanted, not {value!r}", server=spec.name, field="revive")


def _watched(spec: "ServerSpec") -> Liveness | None:
    return Liveness() if spec.transport.kind in REMOTE_KINDS else None


def _nonempty(_spec: object, _attribute: object, value: str) -> None:
    if not value:
        raise ConfigError("a server needs a name")


@frozen
class ServerSpec:
    """One server. Compared by value: a reload restarts what differs.

    Raises:
        ConfigError: A value out of its range.
    """

    name: str = field(validator=_nonempty)
    """Unique among the servers of one supervisor."""
    transport: Transport
    """How it is reached."""
    policy: RestartPolicy | None = field(default=None, kw_only=True)
    """Its restart ladder; None takes the supervisor's."""
    restart: RestartMode = field(default="permanent", kw_only=True)
    """`permanent`: restarted however it ends. `transient`: not after exit code 0 with nothing pending. `temporary`:
    never."""
    revive: Revive | None = field(default=None, kw_only=True, validator=_revives)
    """What ends `failed` besides a person. `"on_call"`: a call of one of its tools starts it afresh, once a call, and
    waits. Seconds: it is started afresh so long after it failed. None: nothing. What cannot work is never revived."""
    liveness: Liveness | None = field(default=Factory(_watched, takes_self=True), kw_only=True)
    """How it is found to be dead when it is silent; None: only by the end of its connection. Default `Liveness()` over
    http, sse and ws, where a link can go without an end; None elsewhere."""
    lazy: bool = field(default=False, kw_only=True)
    """Not started before the first call or list."""
    enabled: bool = field(default=True, kw_only=True)
    """False: `disabled` until somebody starts it."""
    connect_timeout: float | None = field(default=None, kw_only=True, validator=_seconds_or_none)
    """Seconds from the start to `connected`; 0 for no limit. Default 30; `MCP_TIMEOUT` (ms) in the environment goes
    first."""
    call_timeout: float | None = field(default=None, kw_only=True, validator=_seconds_or_none)
    """Seconds for a call that names no timeout of its own. Default `MCP_TOOL_TIMEOUT` (ms), or none."""
    trust_hints: bool = field(default=True, kw_only=True)
    """Whether its tools' read-only and idempotent hints may decide that a lost call is sent again. True for specs
    given by code and user configuration."""
    max_in_flight: int = field(default=256, kw_only=True, validator=_positive)
    """Calls the server works on at once; more wait in its mailbox."""
    mailbox_size: int = field(default=256, kw_only=True, validator=_positive)
    """Calls that may wait; beyond it callers get `ServerBusy`."""
    allow: Sequence[str] = field(default=("*",), kw_only=True, converter=_strings)
    """Globs on its own names of tools: only those that match one are offered."""
    deny: Sequence[str] = field(default=(), kw_only=True, converter=_strings)
    """Globs: tools that match one are not offered, whatever `allow` says."""
    disabled_tools: Sequence[str] = field(default=(), kw_only=True, converter=_strings)
    """Tools that are switched off, by name."""
    max_result_chars: int = field(default=MAX_RESULT_CHARS, kw_only=True, validator=_positive)
    """Characters of a result that a model is shown; the rest stays on the result object."""
    description: str | None = field(default=None, kw_only=True)
    """For people."""
    source: str | None = field(default=None, kw_only=True, eq=False)
    """Where it was configured: a file's path, or None for code."""
    extra: Mapping[str, Any] = field(factory=dict[str, Any], kw_only=True, eq=False, repr=_names_only)
    """What its entry says that means nothing here; for the host."""
    consent: "TrustRequest | None" = field(default=None, kw_only=True)
    """What its user has to agree to before it starts; None for specs given by code and by trusted files."""

    def offers(self, tool: str) -> bool:
        """Whether its user wants this tool, by the server's own name of it."""
        return is_offered(tool, allow=self.allow, deny=self.deny, disabled=self.disabled_tools)

    @property
    def label(self) -> str:
        """`mcp:<name> via <source>`."""
        return f"mcp:{self.name} via {self.source or 'code'}"
