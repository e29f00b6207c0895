"""Settings: those for all servers, those that a keeper takes for one, and the time limits that the host's environment
sets: milliseconds there, seconds everywhere else."""

import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import trio

from mcp_nursery.actors.callbacks import NO_CALLBACKS, Callbacks, CurrentRoots, told_of_tasks
from mcp_nursery.actors.errors import AuthorizationFailed, ConfigError
from mcp_nursery.actors.extensions import TASKS, Settings
from mcp_nursery.actors.oauth.tokens import MemoryVault, Tokens, Vault
from mcp_nursery.actors.preload import CONNECTION_MODULES, REMOTE_MODULES, SDK_MODULES, Stage
from mcp_nursery.actors.records import Factory, evolve, field, frozen
from mcp_nursery.actors.server_actor import Permit
from mcp_nursery.actors.start_limiter import UNLIMITED, StartLimiter

from ..decisions.installers import installer_of
from ..decisions.restart_policy import Lazy, RestartPolicy
from ..login.vault import ServerVault, words_of
from ..security.redaction import ServerSecrets
from ..security.trust import Trust, TrustGate
from ..spec import ServerSpec, spec_digest
from ..storage.definition_cache import DefinitionCache
from ..storage.era_memory import EraMemory
from ..storage.tool_pins import PinMode, ToolPins
from ..storage.worker import StoreWorker
from ..transports import LOCAL_KINDS, REMOTE_KINDS, argv_of
from .call_counter import CallCounter

if TYPE_CHECKING:
    from ..telemetry.telemetry import Telemetry

WaitFor = Literal["all", "uncached"]
"""The first attempts that the gate waits for: those of all servers, or only of those without cached definitions."""

LOCAL_STARTS = 3
"""Local servers that may be starting at once: more than that on two cores only slow each other down."""

REMOTE_STARTS = 20
"""Remote servers that may be starting at once: their work is done elsewhere."""

IN_PROCESS_STARTS = 20
"""Servers of this process that may be starting at once: a thousand of them would start in one turn of the loop."""

DEFAULT_CONNECT_TIMEOUT = 30.0
"""Seconds to connect."""

DEFAULT_INSTALL_TIMEOUT = 300.0
"""Seconds to connect while a command installs what it starts."""

_MILLISECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")

_GRACES_PER_SHUTDOWN = 2.5
"""The shutdown timeout over one grace period: closing waits twice, and the rest is for reaping."""


def _start_limiters() -> dict[str | None, StartLimiter]:
    """The limiters of first starts, by the kind of transport."""
    local, remote = StartLimiter(LOCAL_STARTS), StartLimiter(REMOTE_STARTS)
    return {
        **dict.fromkeys(LOCAL_KINDS, local),
        **dict.fromkeys(REMOTE_KINDS, remote),
        "in-process": StartLimiter(IN_PROCESS_STARTS),
    }


def modules_for(spec: ServerSpec) -> Stage:
    """The modules that it takes to connect the server of this spec."""
    kind = spec.transport.kind
    if kind in LOCAL_KINDS:
        return CONNECTION_MODULES
    return REMOTE_MODULES if kind in REMOTE_KINDS and words_of(spec) is None else SDK_MODULES


def _login(spec: ServerSpec, settings: "SupervisorSettings") -> Callable[[], Awaitable[Tokens]] | None:
    authorize = settings.callbacks.authorize
    if authorize is None or (words := words_of(spec)) is None or not words.needs_person:
        return None

    async def log_in() -> Tokens:
        from ..login import login

        request = spec.trust_request
        refusal = None if request is None else await settings.trust_gate.permit(request)
        if refusal is not None:
            raise AuthorizationFailed(spec.name, refusal)
        return await login.log_in(spec, settings.vault, authorize)

    return log_in


@frozen
class SupervisorSettings:
    """The settings that hold for all servers."""

    policy: RestartPolicy
    """The policy for servers that bring none of their own."""
    template: str
    """The template of public tool names."""
    reserved: Collection[str]
    """Public names that the host keeps for itself."""
    shutdown_timeout: float
    """Seconds that closing everything may take."""
    environ: Mapping[str, str] = field(repr=False)
    """The host's environment, for `MCP_TIMEOUT` and `MCP_TOOL_TIMEOUT`."""
    store_worker: StoreWorker = field(repr=False)
    """The store of the findings of earlier runs, and of the user's agreements."""
    callbacks: Callbacks = NO_CALLBACKS
    """The callbacks for servers' questions, except for roots."""
    roots: CurrentRoots = field(factory=CurrentRoots)
    """The folders in which they are to work."""
    vault: Vault = field(factory=MemoryVault, repr=False)
    """The vault of tokens."""
    trust: Trust | None = field(default=None, repr=False)
    """The function that is asked about an entry of a project's file that is not trusted yet."""
    pins: PinMode = "report"
    """The treatment of tools that differ from what they were at first use."""
    lazy: Lazy | None = None
    """The laziness of servers, whatever their specs say; None: as these say."""
    telemetry: "Telemetry | None" = field(default=None, repr=False)
    """The telemetry of servers and calls; None if nothing is measured."""
    ledger: StoreWorker = field(
        default=Factory(lambda self: self.store_worker, takes_self=True), repr=False, kw_only=True
    )
    """The store of the processes of this machine."""
    limiters: Mapping[str | None, StartLimiter] = field(factory=_start_limiters, init=False, repr=False)
    """The limiters of first starts, by the kind of transport."""
    trust_gate: TrustGate = field(
        default=Factory(lambda self: TrustGate(self.store_worker, self.trust, trio.Lock()), takes_self=True),
        init=False,
        repr=False,
    )
    """The gate at which entries that are not trusted are stopped."""

    def applied(self, specs: Iterable[ServerSpec]) -> list[ServerSpec]:
        """The specs with the overriding settings."""
        return [spec if self.lazy is None else evolve(spec, lazy=self.lazy) for spec in specs]


@frozen(kw_only=True)
class KeeperSettings:
    """The settings that a keeper takes from the supervisor, for one server."""

    policy: RestartPolicy
    """The policy, if its spec brings none."""
    connect_timeout: float
    """Seconds to connect; `inf` for no limit."""
    installer: str | None
    """The command that installs what it starts; None if the server's command installs nothing."""
    install_timeout: float
    """Seconds to connect while that may take place; `inf` for no limit."""
    close_grace: float
    """Seconds at each step of closing a transport."""
    secrets: ServerSecrets
    """The secrets of the server."""
    definitions: DefinitionCache
    """The definitions of earlier runs, and the place where the present ones are stored for later runs."""
    limiter: StartLimiter
    """The limiter in which a fresh start waits for its turn; restarts never wait."""
    number: int
    """The place among fresh starts, as servers are configured."""
    callbacks: Callbacks
    """The callbacks for the server's questions, except for roots."""
    roots: CurrentRoots
    """The folders in which it is to work."""
    extensions: Mapping[str, Settings] | None
    """The extensions that its spec has announced to it; None: those of the callbacks."""
    permit: Permit | None
    """The function that is asked before every start; None: it may always start."""
    notes: EraMemory
    """The memory of its era, also for later runs."""
    pins: ToolPins
    """The comparison of its tools with what they were at first use."""
    counter: CallCounter
    """The counts of its calls."""
    tokens: ServerVault
    """The vault of its tokens."""
    log_in: Callable[[], Awaitable[Tokens]] | None
    """The function that asks a person to authorise it; None: no person is asked."""

    @classmethod
    def of(
        cls,
        spec: ServerSpec,
        settings: SupervisorSettings,
        *,
        secrets: ServerSecrets,
        counter: CallCounter,
        tokens: ServerVault,
        number: int,
    ) -> "KeeperSettings":
        """The settings for this server.

        Raises:
            ConfigError: `MCP_TIMEOUT` is no number.
        """
        timeout = connect_timeout(spec.connect_timeout, settings.environ)
        digest, request = spec_digest(spec), spec.trust_request
        return cls(
            policy=settings.policy,
            secrets=secrets,
            definitions=DefinitionCache(settings.store_worker, spec, digest, secrets),
            connect_timeout=timeout,
            installer=_installer(spec),
            install_timeout=max(timeout, _install_timeout(spec.install_timeout)),
            close_grace=settings.shutdown_timeout / _GRACES_PER_SHUTDOWN,
            limiter=settings.limiters.get(spec.transport.kind, UNLIMITED),
            number=number,
            callbacks=settings.callbacks,
            roots=settings.roots if spec.roots is None else CurrentRoots(spec.roots or None),
            extensions=spec.extensions,
            permit=None if request is None else partial(settings.trust_gate.permit, request),
            notes=EraMemory(settings.store_worker, spec.name, _asked_digest(spec, digest)),
            pins=ToolPins(settings.store_worker, spec, digest, settings.pins),
            counter=counter,
            tokens=tokens,
            log_in=_login(spec, settings),
        )

    @property
    def offered(self) -> Callbacks:
        """The callbacks that the server is offered if it connects now: roots only where there are some."""
        callbacks = self.callbacks.announcing(self.extensions)
        roots = None if self.roots.given is None else self.roots
        return callbacks if callbacks.roots is roots else evolve(callbacks, roots=roots)

    @property
    def told(self) -> dict[str, Any]:
        """The capabilities of the host as the server is told of them since 2026-07-28: with Tasks, unless it is to be
        told of other extensions alone."""
        declared = self.offered.declared
        return told_of_tasks(declared) if self.extensions is None or TASKS in self.extensions else declared


def connect_timeout(spec_value: float | None, environ: Mapping[str, str]) -> float:
    """Seconds a server may take to connect: `MCP_TIMEOUT` (ms), else the server's own, else 30. 0 in either means no
    limit, which is `math.inf` here; an empty variable counts as absent.

    Raises:
        ConfigError: `MCP_TIMEOUT` is not a number of milliseconds.
    """
    seconds = _from_environment("MCP_TIMEOUT", environ)
    if seconds is None:
        seconds = DEFAULT_CONNECT_TIMEOUT if spec_value is None else spec_value
    return seconds or math.inf


def _asked_digest(spec: ServerSpec, digest: str | None) -> str | None:
    """The digest of how a server is reached and asked: what another protocol finds says nothing about `auto`."""
    return digest if digest is None or spec.protocol == "auto" else f"{digest}/{spec.protocol}"


def _installer(spec: ServerSpec) -> str | None:
    transport = spec.transport
    return installer_of(argv_of(transport)) if transport.kind in ("stdio", "docker") else None


def _install_timeout(spec_value: float | None) -> float:
    return DEFAULT_INSTALL_TIMEOUT if spec_value is None else spec_value or math.inf


def default_call_timeout(environ: Mapping[str, str]) -> float:
    """Seconds for a call without a limit of its own, to a server without one: `MCP_TOOL_TIMEOUT` (ms), or `math.inf`.
    An empty variable counts as absent, and 0 means no limit.

    Raises:
        ConfigError: It is not a number of milliseconds.
    """
    return _from_environment("MCP_TOOL_TIMEOUT", environ) or math.inf


def _from_environment(name: str, environ: Mapping[str, str]) -> float | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    seconds = float(text) / 1000 if _MILLISECONDS.fullmatch(text) else math.inf
    if math.isinf(seconds):
        raise ConfigError(f"the environment variable {name} must be milliseconds >= 0, or 0 for no limit", field=name)
    return seconds
