"""The spec of one server of the configuration, unresolved. Secrets in it are shown nowhere."""

import json
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from attrs.validators import optional

from mcp_nursery.actors.argument_checks import (
    at_least_one,
    finite_seconds_or_none,
    instance_of,
    one_of,
    setting,
    several,
    true_or_false,
)
from mcp_nursery.actors.enums import Protocol
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.extensions import Settings, checked_extensions
from mcp_nursery.actors.limits import HUMAN_TIMEOUT, MOST_DEFINITIONS, MOST_KEPT, MOST_VALUES, CostLimits
from mcp_nursery.actors.liveness import Liveness
from mcp_nursery.actors.records import Factory, asdict, converters, field, frozen, has
from mcp_nursery.actors.roots import fixed_roots, folders_or_none
from mcp_nursery.actors.secrets import names_only

from .decisions.circuit_breaker import CircuitBreaker
from .decisions.installers import runs_containers
from .decisions.renewal_limits import Limits
from .decisions.restart_policy import Instances, Lazy, OnDisconnect, RestartMode, RestartPolicy, Revive, is_revive
from .decisions.task_records import MadeTasks
from .security.trust import TrustRequest
from .security.untrusted_marks import MAX_RESULT_CHARS
from .tools.naming import is_offered
from .transports import REMOTE_KINDS, DockerGatewayTransport, Transport, argv_of

__all__ = ["CircuitBreaker", "DockerGatewayTransport", "Limits", "Liveness", "MadeTasks", "ServerSpec"]

IDLE_LIMIT = 300.0
"""Seconds without a call or list after which a lazy server is stopped."""


MAX_INSTANCES = 16
"""Instances of a server that a gateway may have beside the one that is always there."""


def _revives(value: object) -> str | None:
    fits = value is None or is_revive(value)
    return None if fits else "'on_call', 'never', finite seconds > 0, or ('on_call', seconds)"


def _as_tuple(value: Any) -> Any:
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def _is_lazy(value: object) -> str | None:
    return None if isinstance(value, bool) or value == "cached" else "True, False or 'cached'"


def lazy_or_none(value: object) -> str | None:
    """The values allowed for a setting that overrides `ServerSpec.lazy`, if `value` is not one of them; else None."""
    return None if value is None or _is_lazy(value) is None else "True, False, 'cached' or None"


def _lazy(spec: "ServerSpec") -> Lazy:
    return getattr(spec.transport, "kind", None) == "docker-gateway"


def _default_liveness(spec: "ServerSpec") -> Liveness | None:
    kind = getattr(spec.transport, "kind", None)  # of any object: one that is no transport is refused later
    return Liveness() if kind in REMOTE_KINDS else None


def problem_with_memory_limit(transport: Any) -> str | None:
    """The reason why the memory of a server with this transport cannot be limited; None if it can."""
    kind = getattr(transport, "kind", None)
    if kind in REMOTE_KINDS or kind == "in-process":
        return f"must not be given: only of a process that is started here the memory is known, not of {kind}"
    if kind in ("docker", "docker-gateway") or runs_containers(argv_of(transport)):
        return "must not be given: the memory of a container is not known; --memory of docker run limits it"
    return None


def _limits(spec: "ServerSpec", attribute: Any, limits: object) -> None:
    setting(instance_of(Limits, optional=True))(spec, attribute, limits)
    if isinstance(limits, Limits) and limits.memory is not None:
        problem = problem_with_memory_limit(spec.transport)
        if problem is not None:
            raise ConfigError(problem, server=spec.name, field="limits.memory")


def _own_copy(extensions: Mapping[str, Settings] | None) -> Mapping[str, Settings] | None:
    try:
        return None if extensions is None else checked_extensions(extensions)
    except ValueError:
        return extensions  # which the validator refuses


def _extensions(spec: "ServerSpec", attribute: Any, value: object) -> None:
    try:
        checked_extensions({} if value is None else value)
    except ValueError as error:
        raise ConfigError(str(error), server=spec.name, field=attribute.name) from None


def _nonempty(_spec: object, _attribute: object, value: str) -> None:
    if not value:
        raise ConfigError("a server needs a name")


def _transport(spec: "ServerSpec", attribute: Any, value: Any) -> None:
    if not (hasattr(value, "kind") and hasattr(value, "connector")):
        problem = (
            f"must be a transport, such as StdioTransport(…) or InProcessTransport(server), not {type(value).__name__}"
        )
        raise ConfigError(problem, server=spec.name, field=attribute.name)


@frozen
class ServerSpec:
    """The spec of one server. Compared by value: a reload restarts what differs. Functions and server objects in it are
    compared by identity. The place of its configuration does not count, and neither do its `limits`: a reload changes
    them without a restart.

    Raises:
        ConfigError: A value out of its range.
    """

    name: str = field(validator=_nonempty)
    """Unique among the servers of one supervisor."""
    transport: Transport = field(validator=_transport)
    """The transport that reaches it."""
    policy: RestartPolicy | None = field(
        default=None, kw_only=True, validator=setting(instance_of(RestartPolicy, optional=True))
    )
    """The restart ladder; None takes the supervisor's."""
    restart: RestartMode = field(default="permanent", kw_only=True, validator=setting(one_of(RestartMode)))
    """`permanent`: restarted however it ends. `transient`: not after exit code 0 with nothing pending. `temporary`:
    never."""
    revive: Revive | None = field(
        default=None, kw_only=True, converter=converters.optional(_as_tuple), validator=optional(setting(_revives))
    )
    """The event, besides a person's act, that ends `failed`. `"on_call"`: a call of one of its tools starts it afresh,
    once a call, and waits. Seconds: it is started afresh this long after it failed. `("on_call", seconds)`: whichever
    comes first. None and `"never"`: no event; behind `mcp-nursery serve` None is `("on_call", 300)`. Until then its
    last known tools stay visible. A configuration that cannot work is never revived: only another configuration mends
    that."""
    liveness: Liveness | None = field(
        default=Factory(_default_liveness, takes_self=True),
        kw_only=True,
        validator=setting(instance_of(Liveness, optional=True)),
    )
    """The probes by which a silent server is found to be dead; None: only the end of its connection shows that. Default
    `Liveness()` over http, sse and ws, where a link can break unnoticed; None elsewhere."""
    breaker: CircuitBreaker | None = field(
        default=CircuitBreaker(), kw_only=True, validator=setting(instance_of(CircuitBreaker, optional=True))
    )
    """The circuit breaker, which refuses calls while the server is connected but does not answer; None: calls are
    always sent."""
    lazy: Lazy = field(default=Factory(_lazy, takes_self=True), kw_only=True, validator=setting(_is_lazy))
    """True if the server is not started before the first call or list. `"cached"`: the server offers the lists of its
    last run, and only the first call or a refresh starts it; if nothing is cached, it is started at once, and stopped
    when idle. Default False; True for docker's gateway."""
    stop_idle_after: float | None = field(
        default=None, kw_only=True, validator=optional(setting(finite_seconds_or_none))
    )
    """Seconds without a call or list after which it is stopped and `idle`; the next one starts it again. 0: never.
    None: 300 if it is lazy, else never."""
    limits: Limits | None = field(default=None, kw_only=True, eq=False, validator=_limits)
    """The limits of its memory and its age; None: it has none."""
    enabled: bool = field(default=True, kw_only=True, validator=setting(true_or_false))
    """False: `disabled` until a person starts it."""
    protocol: Protocol = field(default="auto", kw_only=True, validator=setting(one_of(Protocol)))
    """The protocol that is spoken with it. `auto`: the newest that it turns out to speak. `handshake`: only a version
    that `initialize` negotiates, for servers that can ask the host questions in no other way (`ctx.elicit()` of SDK 2.x
    and FastMCP 4). `handshake-first`: the same, and `server/discover` only if the server refuses `initialize`. A
    version: that one, or the server cannot work."""
    connect_timeout: float | None = field(
        default=None, kw_only=True, validator=optional(setting(finite_seconds_or_none))
    )
    """Seconds from the start to `connected`; 0 for no limit. Default 30; `MCP_TIMEOUT` (ms) in the environment
    overrides it."""
    install_timeout: float | None = field(
        default=None, kw_only=True, validator=optional(setting(finite_seconds_or_none))
    )
    """Seconds from the start to `connected`, if longer than `connect_timeout`, while its command may still install what
    it starts (`npx`, `uvx`, `docker run` and the like): until it has answered for the first time, and after an attempt
    that was cut off. 0 for no limit. Default 300."""
    call_timeout: float | None = field(default=None, kw_only=True, validator=optional(setting(finite_seconds_or_none)))
    """Seconds for a call that names no timeout of its own. Default `MCP_TOOL_TIMEOUT` (ms), or none. Time in which the
    server waits for an answer to a question of its own does not count."""
    human_timeout: float | None = field(default=None, kw_only=True, validator=optional(setting(finite_seconds_or_none)))
    """Seconds for the answer to one question of the server, and behind a gateway to a question about one of its calls.
    Then the question is cancelled. 0 for no limit. Default 600."""
    tasks: MadeTasks = field(default=MadeTasks(), kw_only=True, validator=setting(instance_of(MadeTasks)))
    """The tasks that a gateway makes of calls of it."""
    trust_hints: bool = field(default=True, kw_only=True, validator=setting(true_or_false))
    """True if its tools' read-only and idempotent hints may decide that a lost call is sent again. True for specs given
    by code and user configuration."""
    max_in_flight: int = field(default=256, kw_only=True, validator=setting(at_least_one))
    """Calls the server works on at once; more wait in its mailbox. A call that continues after a question of the server
    is admitted even if there is no room."""
    mailbox_size: int = field(default=256, kw_only=True, validator=setting(at_least_one))
    """Calls that may wait; any further ones get `ServerBusy`."""
    instances: Instances = field(default="shared", kw_only=True, validator=setting(one_of(Instances)))
    """Instances of it behind a gateway. `shared`: all clients share one, and there are more while it asks them
    questions without saying for which call. `session`: each session of a client has its own. `single`: all clients
    share the only instance, also while the server asks questions."""
    max_instances: int = field(default=MAX_INSTANCES, kw_only=True, validator=setting(at_least_one))
    """Instances that a gateway may have of it beside the one that is always there."""
    on_disconnect: OnDisconnect = field(default="cancel", kw_only=True, validator=setting(one_of(OnDisconnect)))
    """The fate of a task that a gateway follows for a client that does not follow tasks, if that client goes away:
    `cancel`, or `keep`: the task goes on, recorded as one of `Supervisor.submit`. Not with `instances="session"`."""
    allow: Sequence[str] = field(default=("*",), kw_only=True, converter=several)
    """Globs on its own names of tools: only those that match one are offered."""
    deny: Sequence[str] = field(default=(), kw_only=True, converter=several)
    """Globs: tools that match one are not offered, whatever `allow` says."""
    disabled_tools: Sequence[str] = field(default=(), kw_only=True, converter=several)
    """Tools that are switched off, by name."""
    subscribe: Sequence[str] = field(default=(), kw_only=True, converter=several, repr=False)
    """Globs on URIs: resources it lists that match one are subscribed at every connect, and each change of one is a
    `ResourceUpdated` event."""
    roots: Sequence[str] | None = field(
        default=None,
        kw_only=True,
        converter=converters.optional(fixed_roots),
        validator=optional(setting(folders_or_none)),
        repr=False,
    )
    """Folders to work in, given to the server if it asks, instead of the host's, as paths or `file://` URIs; `"cwd"`:
    the working directory. An empty list: no folders, and the server is not offered to ask. None: the host's folders."""
    extensions: Mapping[str, Settings] | None = field(
        default=None, kw_only=True, converter=_own_copy, validator=_extensions
    )
    """The extensions of the protocol that are announced to it, by identifier, each with its settings; none if empty.
    None: those that the host handles, and behind a gateway those of its client."""
    max_result_chars: int = field(default=MAX_RESULT_CHARS, kw_only=True, validator=setting(at_least_one))
    """Characters of a result that a model is shown; the rest stays on the result object."""
    max_message_values: int = field(default=MOST_VALUES, kw_only=True, validator=setting(at_least_one))
    """JSON values that one message of the server may have (commas, colons and opening brackets outside texts are
    counted); a call answered by a message with more fails. Reading as many as the default blocks everything else for
    about 30 ms."""
    max_kept_bytes: int = field(default=MOST_KEPT, kw_only=True, validator=setting(at_least_one))
    """Bytes that the server may make its host keep for each of: the definitions of its tools, waiting notifications,
    and its requests that wait for an answer. With larger definitions it is not `connected`, or keeps its last tools."""
    max_definitions: int = field(default=MOST_DEFINITIONS, kw_only=True, validator=setting(at_least_one))
    """Tools, resources, resource templates and prompts that it may list, together. With more tools it is not
    `connected`, or keeps its last ones; another list that has too many is refused, and the others stay."""
    description: str | None = field(default=None, kw_only=True)
    """The description for people."""
    source: str | None = field(default=None, kw_only=True, eq=False)
    """The path of the file that configures it, or None for code."""
    host: str | None = field(default=None, kw_only=True, eq=False)
    """The host whose file that is, such as `Cursor`; None for code, and for files of our own."""
    extra: Mapping[str, Any] = field(factory=dict[str, Any], kw_only=True, eq=False, repr=names_only)
    """Keys of its entry that mean nothing here; for the host."""
    trust_request: TrustRequest | None = field(default=None, kw_only=True)
    """The request for its user's agreement before it starts; None for specs given by code and by trusted files."""

    def offers(self, tool: str) -> bool:
        """True if its user wants this tool, by the server's own name of it."""
        return is_offered(tool, allow=self.allow, deny=self.deny, disabled=self.disabled_tools)

    @property
    def is_filtered(self) -> bool:
        """True if a filter may hide some of its tools."""
        return tuple(self.allow) != ("*",) or bool(self.deny) or bool(self.disabled_tools)

    def subscribes(self, uri: str) -> bool:
        """True if its user wants to be notified of changes of this resource."""
        return any(fnmatchcase(uri, glob) for glob in self.subscribe)

    @property
    def cost_limits(self) -> CostLimits:
        """The limits on its cost to the host."""
        return CostLimits(self.max_message_values, self.max_definitions, self.max_kept_bytes)

    @property
    def human_limit(self) -> float:
        """Seconds for the answer to a question; `inf` for no limit."""
        return HUMAN_TIMEOUT if self.human_timeout is None else self.human_timeout or math.inf

    @property
    def idle_limit(self) -> float:
        """Seconds without a call or list after which it is stopped; `inf` for never."""
        if self.stop_idle_after is None:
            return IDLE_LIMIT if self.lazy else math.inf
        return self.stop_idle_after or math.inf

    @property
    def origin(self) -> str:
        """The place of its configuration, for people: `code`, a file, or a file and its host, `Cursor (<file>)`."""
        file = self.source or "code"
        return file if self.host is None else f"{self.host} ({file})"

    @property
    def label(self) -> str:
        """`mcp:<name> via <origin>`."""
        return f"mcp:{self.name} via {self.origin}"


_KEPT_NAMES = {"DeferredTransport": "Unresolved"}
"""The names by which state files know a class: under another name everything known of its servers would be
forgotten."""


def spec_digest(spec: ServerSpec) -> str | None:
    """The digest of the transport of a server: see `transport_digest`."""
    return transport_digest(spec.transport)


def transport_digest(transport: Any) -> str | None:
    """SHA-256 of how a server is reached, unresolved; None if it is an object in memory, which has no lasting value."""
    try:
        fields = asdict(transport, filter=_lasts)
        if callable(fields.get("headers")):  # computed anew at each connect
            fields["headers"] = None
        name = type(transport).__name__
        value = [_KEPT_NAMES.get(name, name), fields]
        return sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError):  # no JSON, or no attrs class
        return None


def short_digest(spec: ServerSpec) -> str:
    """The same in 32 characters, for what is sent to clients; empty if there is none."""
    return (spec_digest(spec) or "")[:32]


def _lasts(attribute: Any, value: object) -> bool:
    """True for an attribute that belongs in the digest. Authorisation is no part of how a server is reached, unless it
    is given in words. Without words even its name is left out of the digest, so digests written before there were such
    words still hold."""
    if attribute.name == "inherit_env":
        return value is True
    if attribute.name in ("ca_file", "assertion_file"):
        return value is not None
    if attribute.name in ("require_pkce", "dpop"):
        return False  # no part of how it is reached
    return attribute.name not in ("auth", "headers_helper") or has(type(value)) or isinstance(value, str)


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError
