"""What to run: one server of the configuration, unresolved. Secrets in it are shown nowhere."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

from mcp_nursery.actors.errors import ConfigError

from .policy import RestartMode, RestartPolicy
from .tools.truncation import MAX_RESULT_CHARS

if TYPE_CHECKING:
    from mcp_nursery.actors.server import Connector

TransportKind = Literal["stdio", "in-process"]
"""The transports' names as users see them."""


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


Transport = StdioTransport | InProcessTransport | UnusableTransport | Any
"""How a server is reached: one of ours, or any object with the same `kind` and `connector`."""


def _seconds_or_none(spec: "ServerSpec", attribute: Any, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"seconds >= 0 wanted, not {value}", server=spec.name, field=attribute.name)


def _positive(spec: "ServerSpec", attribute: Any, value: int) -> None:
    if value < 1:
        raise ConfigError(f"at least 1 wanted, not {value}", server=spec.name, field=attribute.name)


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
