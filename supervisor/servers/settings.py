"""Settings: what holds for all servers, what a keeper takes of it for one, and the time limits that the host's
environment sets: milliseconds there, seconds everywhere else."""

import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

import trio
from attrs import Factory, evolve, field, frozen

from mcp_nursery.actors.callbacks import NO_CALLBACKS, Callbacks, CurrentRoots
from mcp_nursery.actors.errors import AuthorizationFailed, ConfigError
from mcp_nursery.actors.server import Permit
from mcp_nursery.actors.start_limiter import UNLIMITED, StartLimiter
from mcp_nursery.actors.transports.http.tokens import MemoryVault, Tokens, Vault

from ..auth.vault import ServerVault, words_of
from ..restart_policy import Lazy, RestartPolicy
from ..security.redaction import Redactor
from ..security.trust import Trust, TrustGate
from ..spec import ServerSpec
from ..storage.definitions import DefinitionCache
from ..storage.eras import EraMemory
from ..storage.pins import PinMode, ToolPins
from ..storage.store import spec_digest
from ..storage.worker import StoreWorker
from ..transports import LOCAL_KINDS, REMOTE_KINDS

if TYPE_CHECKING:
    from ..telemetry.telemetry import Telemetry

WaitFor = Literal["all", "uncached"]
"""Whose first attempts the gate waits for: all servers', or only those of which nothing is cached."""

LOCAL_STARTS = 3
"""Local servers that may be starting at once: more than that on two cores only slow each other down."""

REMOTE_STARTS = 20
"""Remote servers that may be starting at once: their work is done elsewhere."""

IN_PROCESS_STARTS = 20
"""Servers of this process that may be starting at once: a thousand of them would do it in one turn of the loop."""

DEFAULT_CONNECT_TIMEOUT = 30.0
"""Seconds."""

_MILLISECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")

_GRACE_SHARE = 2.5
"""The shutdown timeout over one grace period: closing waits twice, and the rest is for reaping."""


def _start_limiters() -> dict[str | None, StartLimiter]:
    """By the kind of transport."""
    local, remote = StartLimiter(LOCAL_STARTS), StartLimiter(REMOTE_STARTS)
    return {
        **dict.fromkeys(LOCAL_KINDS, local),
        **dict.fromkeys(REMOTE_KINDS, remote),
        "in-process": StartLimiter(IN_PROCESS_STARTS),
    }


def _login(spec: ServerSpec, settings: "SupervisorSettings") -> Callable[[], Awaitable[Tokens]] | None:
    authorize = settings.callbacks.authorize
    if authorize is None or (words := words_of(spec)) is None or not words.needs_person:
        return None

    async def log_in() -> Tokens:
        from ..auth import login

        request = spec.trust_request
        refusal = None if request is None else await settings.trust_gate.permit(request)
        if refusal is not None:
            raise AuthorizationFailed(spec.name, refusal)
        return await login.log_in(spec, settings.vault, authorize)

    return log_in


@frozen
class SupervisorSettings:
    """What holds for all servers."""

    policy: RestartPolicy
    """For servers that bring none of their own."""
    template: str
    """How public tool names are made."""
    reserved: Collection[str]
    """Public names that the host keeps for itself."""
    shutdown_timeout: float
    """Seconds that closing everything may take."""
    environ: Mapping[str, str] = field(repr=False)
    """The host's environment, for `MCP_TIMEOUT` and `MCP_TOOL_TIMEOUT`."""
    store_worker: StoreWorker = field(repr=False)
    """What earlier runs found, what the user agreed to, and where processes are recorded."""
    callbacks: Callbacks = NO_CALLBACKS
    """What servers may ask of the host, but for roots."""
    roots: CurrentRoots = field(factory=CurrentRoots)
    """Where they are told to work."""
    vault: Vault = field(factory=MemoryVault, repr=False)
    """Where tokens are kept."""
    trust: Trust | None = field(default=None, repr=False)
    """Asked about an entry of a project's file that is not trusted yet."""
    pins: PinMode = "report"
    """What is done with tools that differ from what they were when they were first used."""
    lazy: Lazy | None = None
    """Which servers are lazy, whatever their specs say; None: as these say."""
    telemetry: "Telemetry | None" = field(default=None, repr=False)
    """Measures servers and calls; None if nothing is measured."""
    limiters: Mapping[str | None, StartLimiter] = field(factory=_start_limiters, init=False, repr=False)
    """Where first starts wait for their turn, by the kind of transport."""
    trust_gate: TrustGate = field(
        default=Factory(lambda self: TrustGate(self.store_worker, self.trust, trio.Lock()), takes_self=True),
        init=False,
        repr=False,
    )
    """Where such entries are stopped."""

    def applied(self, specs: Iterable[ServerSpec]) -> list[ServerSpec]:
        """These, with what goes before what they say."""
        return [spec if self.lazy is None else evolve(spec, lazy=self.lazy) for spec in specs]


@frozen(kw_only=True)
class KeeperSettings:
    """What a keeper takes from the supervisor, for one server."""

    policy: RestartPolicy
    """If its spec brings none."""
    connect_timeout: float
    """Seconds; `inf` for no limit."""
    close_grace: float
    """Seconds at each step of closing a transport."""
    redact: Callable[[str], str]
    """Takes the server's secrets out of a text."""
    definitions: DefinitionCache
    """What it declared in earlier runs, and where what it declares is written down for later ones."""
    limiter: StartLimiter
    """Where a fresh start waits for its turn; restarts never wait."""
    number: int
    """Its place among fresh starts, as servers are configured."""
    callbacks: Callbacks
    """What the server may ask of the host, but for roots."""
    roots: CurrentRoots
    """Where it is told to work."""
    permit: Permit | None
    """Asked before every start; None: it may always start."""
    notes: EraMemory
    """What is known of its era, and where that is written down for later runs."""
    pins: ToolPins
    """What holds its tools against what they were when they were first used."""
    idle_since: Callable[[], float]
    """When it was last used, on Trio's clock; `inf` while it is being used, `-inf` if it never was."""
    tokens: ServerVault
    """What authorises it."""
    log_in: Callable[[], Awaitable[Tokens]] | None
    """Asks a person to authorise it; None: no person is asked."""

    @classmethod
    def of(
        cls,
        spec: ServerSpec,
        settings: SupervisorSettings,
        *,
        redactor: Callable[[], Redactor],
        idle_since: Callable[[], float],
        tokens: ServerVault,
        number: int,
    ) -> "KeeperSettings":
        """What holds for this server.

        Raises:
            ConfigError: `MCP_TIMEOUT` is no number.
        """
        timeout = connect_timeout(spec.connect_timeout, settings.environ)
        digest, request = spec_digest(spec), spec.trust_request
        return cls(
            policy=settings.policy,
            redact=lambda text: redactor().said(text),
            definitions=DefinitionCache(settings.store_worker, spec, digest, redactor),
            connect_timeout=timeout,
            close_grace=settings.shutdown_timeout / _GRACE_SHARE,
            limiter=settings.limiters.get(spec.transport.kind, UNLIMITED),
            number=number,
            callbacks=settings.callbacks,
            roots=settings.roots if spec.roots is None else CurrentRoots(spec.roots or None),
            permit=None if request is None else partial(settings.trust_gate.permit, request),
            notes=EraMemory(settings.store_worker, spec.name, digest),
            pins=ToolPins(settings.store_worker, spec, digest, settings.pins),
            idle_since=idle_since,
            tokens=tokens,
            log_in=_login(spec, settings),
        )

    @property
    def offered(self) -> Callbacks:
        """What the server is offered if it connects now: it may ask for roots only where there are some to tell of."""
        return evolve(self.callbacks, roots=None if self.roots.given is None else self.roots)


def connect_timeout(spec_value: float | None, environ: Mapping[str, str]) -> float:
    """Seconds a server may take to connect: `MCP_TIMEOUT` (ms), else the server's own, else 30.

    Args:
        spec_value: `ServerSpec.connect_timeout`. 0, here and in the environment, means no limit.
        environ: The host's environment. An empty variable counts as absent.

    Returns:
        Seconds, `math.inf` for no limit.

    Raises:
        ConfigError: `MCP_TIMEOUT` is not a number of milliseconds.
    """
    seconds = _from_environment("MCP_TIMEOUT", environ)
    if seconds is None:
        seconds = DEFAULT_CONNECT_TIMEOUT if spec_value is None else spec_value
    return seconds or math.inf


def call_timeout(call: float | None, server: float | None, environ: Mapping[str, str]) -> float:
    """Seconds a call may take: its own limit, else the server's, else `MCP_TOOL_TIMEOUT` (ms), else none.

    Args:
        call: The limit given with the call. 0 is no time at all, `math.inf` no limit.
        server: `ServerSpec.call_timeout`. 0, here and in the environment, means no limit.
        environ: The host's environment, read only when the first two are None. An empty variable counts as absent.

    Returns:
        Seconds, `math.inf` for no limit.

    Raises:
        ValueError: `call` is negative or not a number.
        ConfigError: `MCP_TOOL_TIMEOUT` is not a number of milliseconds.
    """
    if call is not None:
        if not call >= 0:
            raise ValueError(f"timeout must be seconds >= 0, not {call}")
        return float(call)
    seconds = _from_environment("MCP_TOOL_TIMEOUT", environ) if server is None else server
    return seconds or math.inf


def _from_environment(name: str, environ: Mapping[str, str]) -> float | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    seconds = float(text) / 1000 if _MILLISECONDS.fullmatch(text) else math.inf
    if math.isinf(seconds):
        raise ConfigError(f"the environment variable {name} must be milliseconds >= 0, or 0 for no limit", field=name)
    return seconds
