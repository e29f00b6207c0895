"""Reading one entry of a file as one ServerSpec. No message shows a value: any value may be a secret."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeVar, cast

from mcp_nursery.actors.enums import Protocol
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.liveness import Liveness
from mcp_nursery.actors.oauth.settings import OAuth
from mcp_nursery.actors.records import asdict, evolve, field, fields, fields_dict, frozen
from mcp_nursery.actors.roots import CWD, root_uris
from mcp_nursery.supervisor.decisions.circuit_breaker import CircuitBreaker
from mcp_nursery.supervisor.decisions.restart_policy import (
    Instances,
    Lazy,
    OnDisconnect,
    RestartMode,
    RestartPolicy,
    Revive,
)
from mcp_nursery.supervisor.spec import Limits, MadeTasks, ServerSpec, problem_with_memory_limit
from mcp_nursery.supervisor.transports import (
    DockerGatewayTransport,
    DockerTransport,
    HttpTransport,
    RemoteTransport,
    SseTransport,
    StdioTransport,
    UnusableTransport,
    WebSocketTransport,
    problem_with_image,
    problem_with_url,
)

from ..decisions.suggestions import advice_for_key
from .deferred import defer
from .dialects import OWN, Dialect, Translation
from .discovery import EntryOrigin
from .document import as_object, json_type
from .effects import trust_request
from .values import Bytes, FieldError, WrittenExtensions, WrittenRoots, structurer
from .variables import has_variables, inputs_in

T = TypeVar("T")

NAMELESS = "(nameless)"
"""The name of a spec whose entry has an empty one. It never runs."""

_TRANSPORT_KINDS = {
    "stdio": "stdio",
    "local": "stdio",
    "docker": "docker",
    "docker-gateway": "docker-gateway",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "remote": "http",
    "sse": "sse",
    "sse-ide": "sse",
    "ws": "ws",
    "ws-ide": "ws",
    "websocket": "ws",
}
"""Transports, by the words for them that `type` may have."""

_WITH_INPUTS = ("command", "image", "args", "cwd", "url", "env", "envFile", "headers", "auth")
"""Keys of an entry whose texts may ask for inputs of the host."""

_IN_PROCESS = ("in-process", "sdk")

_REMOTE: dict[str | None, type[RemoteTransport]] = {
    "http": HttpTransport,
    "sse": SseTransport,
    "ws": WebSocketTransport,
}
"""Transports with a URL."""

_MEANT_BY = {"command": "stdio", "image": "docker", "url": "http"}
"""The transport that a key of an entry implies."""


@frozen(kw_only=True)
class _WrittenEntry:
    """An entry as written: a field's alias is its key in the file, and None stands for an absent one."""

    type: str | None = None
    command: str | None = None
    image: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(factory=dict[str, str])
    env_file: str | None = field(default=None, alias="envFile")
    inherit_env: bool = field(default=False, alias="inheritEnv")
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(factory=dict[str, str])
    headers_helper: str | None = field(default=None, alias="headersHelper")
    auth: Any = None
    ca_file: str | None = field(default=None, alias="caFile")
    enabled: bool = True
    disabled: bool = False
    restart_delays: tuple[float, ...] | None = field(default=None, alias="restartDelays")
    stable_after: float | None = field(default=None, alias="stableAfterSeconds")
    # The rest goes to the fields of the same names in ServerSpec, which has the defaults.
    description: str | None = None
    lazy: Lazy | None = None
    stop_idle_after: float | None = field(default=None, alias="idleSeconds")
    limits: Any = None
    tasks: Any = None
    liveness: Any = None
    breaker: Any = None
    restart: RestartMode | None = None
    revive: Revive | None = None
    protocol: Protocol | None = None
    connect_timeout: float | None = field(default=None, alias="connectSeconds")
    install_timeout: float | None = field(default=None, alias="installSeconds")
    call_timeout: float | None = field(default=None, alias="callSeconds")
    human_timeout: float | None = field(default=None, alias="humanSeconds")
    max_in_flight: int | None = field(default=None, alias="maxInFlight")
    mailbox_size: int | None = field(default=None, alias="mailboxSize")
    trust_hints: bool | None = field(default=None, alias="trustHints")
    max_result_chars: int | None = field(default=None, alias="maxResultChars")
    max_message_values: int | None = field(default=None, alias="maxMessageValues")
    max_kept_bytes: int | None = field(default=None, alias="maxKeptBytes")
    max_definitions: int | None = field(default=None, alias="maxDefinitions")
    instances: Instances | None = None
    max_instances: int | None = field(default=None, alias="maxInstances")
    on_disconnect: OnDisconnect | None = field(default=None, alias="onDisconnect")
    subscribe: tuple[str, ...] | None = None
    roots: WrittenRoots = None
    extensions: WrittenExtensions = None
    tools: Any = None


_structure_entry = structurer(_WrittenEntry)
ENTRY_KEYS = frozenset(str(attribute.alias) for attribute in fields(_WrittenEntry))
"""The keys that an entry may have in our words."""

_OWN_FIELDS = tuple(
    name
    for name in fields_dict(_WrittenEntry)
    if name in fields_dict(ServerSpec) and name not in ("enabled", "limits", "tasks", "liveness", "breaker", "roots")
)
"""The fields that go to `ServerSpec` as they are."""


@frozen(kw_only=True)
class _Tools:
    """The `tools` of an entry: which of the server's tools are offered."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None
    enabled: dict[str, bool] | None = None
    """The switches of tools, by the server's own names."""


@frozen(kw_only=True)
class _Limits:
    """The `limits` of an entry."""

    memory: Bytes | None = None
    age: float | None = None


@frozen(kw_only=True)
class _MadeTasks:
    """The `tasks` of an entry."""

    after: float | None = None
    ttl: float | None = None


@frozen(kw_only=True)
class _Liveness:
    """The `liveness` of an entry."""

    interval: float | None = field(default=None, alias="intervalSeconds")
    timeout: float | None = field(default=None, alias="timeoutSeconds")


@frozen(kw_only=True)
class _Breaker:
    """The `breaker` of an entry."""

    failures: int | None = None
    open_for: float | None = field(default=None, alias="openSeconds")


@frozen(kw_only=True)
class _OAuth:
    """The `auth` of an entry, for the fields of the same names in OAuth, which has the defaults."""

    type: str | None = None
    grant: str | None = None
    scopes: tuple[str, ...] | None = None
    client_id: str | None = field(default=None, alias="clientId")
    client_secret: str | None = field(default=None, alias="clientSecret")
    private_key: str | None = field(default=None, alias="privateKey")
    signing_algorithm: str | None = field(default=None, alias="signingAlgorithm")
    assertion: str | None = None
    assertion_file: str | None = field(default=None, alias="assertionFile")
    issuer: str | None = None
    client_metadata_url: str | None = field(default=None, alias="clientMetadataUrl")
    dpop: bool | None = None
    require_pkce: bool | None = field(default=None, alias="requirePkce")
    redirect_port: int | None = field(default=None, alias="redirectPort")
    redirect_uri: str | None = field(default=None, alias="redirectUri")


@frozen(kw_only=True)
class _OneTool:
    """One of the `tools` of an entry, by its name."""

    enabled: bool = True


_structure_tools = structurer(_Tools)
_structure_tool = structurer(_OneTool)
_structure_limits = structurer(_Limits)
_structure_made_tasks = structurer(_MadeTasks)
_structure_liveness = structurer(_Liveness)
_structure_breaker = structurer(_Breaker)
_structure_oauth = structurer(_OAuth)
_TOOL_KEYS = ("allow", "deny", "enabled")


@frozen
class Entry:
    """One server of a file that was read."""

    spec: ServerSpec
    own: Mapping[str, Any] = field(repr=False)
    """The entry in our words, unresolved."""

    def off(self) -> "Entry":
        """The same entry, switched off."""
        return evolve(self, spec=evolve(self.spec, enabled=False), own={**self.own, "enabled": False})


def read_entry(
    name: str,
    value: object,
    *,
    number: int,
    origin: EntryOrigin,
    dialect: Dialect = OWN,
    inputs: Mapping[str, str] | None = None,
) -> Entry:
    """The unresolved spec of one server, from an entry in the words of the dialect: the `number`th of its file, from 1.

    A key whose value is null counts as absent. The server is off if either `enabled` or `disabled` switches it off.
    `restartDelays` and `stableAfterSeconds` make a policy of its own; `RestartPolicy` has the default for a missing
    one.

    An entry that cannot work results in a spec with an `UnusableTransport`, which keeps nothing of the entry but its
    unknown keys and whether the server is off. The spec of a file that is not trusted carries what has to be agreed to
    before the server runs, and the server's hints are not trusted, whatever its `trustHints` says.
    """
    parts = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    written = {key: part for key, part in parts.items() if part is not None}
    said = Translation({})
    settings: dict[str, Any]
    try:
        if not name.strip():
            raise FieldError(f"entry {number} needs a name", origin.root)
        if not isinstance(value, dict):
            raise FieldError(f"must be an object, not {json_type(value)}")
        said = dialect.translate(written)
        settings = _settings(name, said.own, written, origin, inputs or {})
    except FieldError as error:
        where = said.words.get(error.key, error.key) if error.key is not None else None
        problem = ConfigError(str(error), file=origin.file, server=name, field=where)
        settings = {
            "transport": UnusableTransport(problem, _kind(said.own or written)),
            "enabled": written.get("enabled") is not False and written.get("disabled") is not True,
        }
    unknown = {key: part for key, part in said.own.items() if key not in ENTRY_KEYS}
    host = None if dialect is OWN else dialect.name
    spec = ServerSpec(name if name.strip() else NAMELESS, source=origin.file, host=host, extra=unknown, **settings)
    return Entry(spec, {key: part for key, part in said.own.items() if key in ENTRY_KEYS})


def _kind(written: dict[str, Any]) -> str | None:
    if "type" in written:
        named = written["type"]
        return _TRANSPORT_KINDS.get(named) if isinstance(named, str) else None
    if "command" in written:
        return "stdio"
    if "image" in written:
        return "docker"
    if "url" not in written:
        return None
    return "ws" if str(written["url"]).lower().startswith(("ws://", "wss://")) else "http"


def _settings(
    name: str, own: dict[str, Any], written: dict[str, Any], origin: EntryOrigin, inputs: Mapping[str, str]
) -> dict[str, Any]:
    """The keywords of ServerSpec for an entry in our words."""
    entry = _structure_entry(own)
    kind = _kind(own)
    transport = _transport(entry, kind)
    if entry.env_file is not None and not entry.env_file.strip():
        raise FieldError("must not be empty", "envFile")
    missing = {*inputs_in([own.get(key) for key in _WITH_INPUTS])} - inputs.keys()
    if missing:
        raise _no_value(own, missing)
    settings = {name: value for name in _OWN_FIELDS if (value := getattr(entry, name)) is not None}
    settings["transport"] = defer(
        transport,
        env=entry.env,
        env_file=entry.env_file,
        headers_helper=entry.headers_helper if kind in _REMOTE else None,
        inputs=inputs,
        server=name,
        origin=origin,
    )
    settings["enabled"] = entry.enabled and not entry.disabled
    ladder: dict[str, Any] = {"delays": entry.restart_delays, "stable_after": entry.stable_after}
    if given := {name: value for name, value in ladder.items() if value is not None}:
        settings["policy"] = RestartPolicy(**given)
    if entry.tools is not None:
        settings |= _filters(entry.tools)
    settings |= _objects(entry, transport)
    if entry.roots is not None:
        settings["roots"] = _roots(entry.roots, origin.workspace)
    if not origin.trusted:
        settings["trust_hints"] = False
        settings["trust_request"] = trust_request(
            name,
            own,
            file=origin.file,
            remote=kind in _REMOTE,
            known=ENTRY_KEYS,
            folder=origin.workspace,
            argv=getattr(transport, "argv", ()),
            written=written,
            reader=settings["transport"].look_at_env_file if entry.env_file is not None else None,
        )
    return settings


def _objects(entry: _WrittenEntry, transport: object) -> dict[str, Any]:
    """The keywords of ServerSpec that have objects of their own."""
    settings: dict[str, Any] = {}
    if entry.limits is not None:
        settings["limits"] = _limits(entry.limits, transport)
    if entry.tasks is not None:
        settings["tasks"] = _make("tasks", _object("tasks", entry.tasks), MadeTasks, _MadeTasks, _structure_made_tasks)
    if entry.liveness is not None:
        settings["liveness"] = _read_switch("liveness", entry.liveness, Liveness, _Liveness, _structure_liveness)
    if entry.breaker is not None:
        settings["breaker"] = _read_switch("breaker", entry.breaker, CircuitBreaker, _Breaker, _structure_breaker)
    return settings


def _object(key: str, written: object) -> dict[str, Any]:
    said = as_object(written)
    if said is None:
        raise FieldError(f"must be an object, not {json_type(written)}", key)
    return said


def _no_value(own: Mapping[str, Any], missing: Collection[str]) -> FieldError:
    """The error for the first input of the host that has no value."""
    key, name = next((key, name) for key in _WITH_INPUTS for name in inputs_in(own.get(key)) if name in missing)
    way = "write ${env:NAME} in its place to take it from the environment"
    return FieldError(f"the input {name[:80]!r} has no value; {way}", key)


def _limits(written: object, transport: object) -> Limits:
    said = _object("limits", written)

    def made(memory: int | None = None, age: float | None = None) -> Limits:
        problem = None if memory is None else problem_with_memory_limit(transport)
        if problem is not None:
            raise ConfigError(problem, field="memory")
        return Limits(memory=memory, age=age)

    return _make("limits", said, made, _Limits, _structure_limits)


def _make(
    key: str, said: dict[str, Any], made: Callable[..., T], words: Any, structure: Callable[[dict[str, Any]], Any]
) -> T:
    """The value that is made of the object under a key, which may have these words."""
    aliases = {one.name: str(one.alias) for one in fields(words)}
    _refuse_unknown(key, said, list(aliases.values()))
    values = asdict(_within(key, structure, said))
    try:
        return made(**{name: value for name, value in values.items() if value is not None})
    except ConfigError as error:
        problem, where = error.problem, f"{key}.{aliases[error.field or '']}"
    except ValueError as error:
        problem, where = str(error), key
    raise FieldError(problem, where)


def _read_switch(
    key: str, written: object, made: Callable[..., T], words: Any, structure: Callable[[dict[str, Any]], Any]
) -> T | None:
    """The object under a key, made of these words; the default one for true; None for false."""
    if isinstance(written, bool):
        return made() if written else None
    said = as_object(written)
    if said is None:
        raise FieldError(f"must be an object, true or false, not {json_type(written)}", key)
    return _make(key, said, made, words, structure)


def _roots(written: tuple[str, ...] | Literal["cwd"], workspace: str | None) -> tuple[str, ...]:
    """The roots as URIs. Paths in a project's file are relative to the project's folder."""
    if written != CWD and any(map(has_variables, written)):
        raise FieldError("must not hold variables: a path is taken from the project's folder", "roots")
    try:
        return root_uris(written, workspace or "")
    except ValueError as error:
        problem = str(error)
    except FileNotFoundError:
        problem = "the working directory, from which a path is taken, was removed"
    raise FieldError(problem, "roots")


def _filters(written: object) -> dict[str, Any]:
    """The filters of tools, as keywords of ServerSpec. A list, as some hosts write it, has the tools that are allowed;
    an object under a tool's name says whether that tool is enabled."""
    said: dict[str, Any] | None = {"allow": written} if json_type(written) == "a list" else as_object(written)
    if said is None:
        raise FieldError(f"must be an object or a list, not {json_type(written)}", "tools")
    by_name = {name: tool for name, tool in said.items() if name != "enabled" and as_object(tool) is not None}
    said = {key: value for key, value in said.items() if key not in by_name}
    _refuse_unknown("tools", said, _TOOL_KEYS)
    tools = _within("tools", _structure_tools, said)
    single = {name: _within(f"tools.{name[:80]}", _structure_tool, tool) for name, tool in by_name.items()}
    switches = {**(tools.enabled or {}), **{name: tool.enabled for name, tool in single.items()}}
    disabled = tuple(name for name, enabled in switches.items() if not enabled)
    filters: dict[str, Any] = {"allow": tools.allow, "deny": tools.deny, "disabled_tools": disabled or None}
    return {name: value for name, value in filters.items() if value is not None}


def _refuse_unknown(key: str, said: Mapping[str, Any], known: Collection[str]) -> None:
    if unknown := said.keys() - set(known):
        first = min(unknown)
        meant = advice_for_key(first, known)
        raise FieldError(f"unknown key; the known ones are {', '.join(known)}{meant}", f"{key}.{first[:80]}")


def _within(key: str, structure: Callable[[dict[str, Any]], T], said: Mapping[str, Any]) -> T:
    """The object under a key of the entry; nulls in it count as absent."""
    try:
        return structure({name: value for name, value in said.items() if value is not None})
    except FieldError as error:
        raise FieldError(str(error), f"{key}.{error.key}") from None


def _transport(
    entry: _WrittenEntry, kind: str | None
) -> StdioTransport | DockerTransport | DockerGatewayTransport | RemoteTransport:
    if entry.type in _IN_PROCESS:
        raise FieldError("a server in the host's process can be given in code only, not in a file", "type")
    if entry.type is not None and kind is None:
        raise FieldError(f"unknown transport; the known ones are {', '.join(_TRANSPORT_KINDS)}", "type")
    given = [(key, meant) for key, meant in _MEANT_BY.items() if getattr(entry, key) is not None]
    if len(given) > 1:
        (one, this), (other, that), *_ = given
        raise FieldError(f"both {one} ({this}) and {other} ({that}) are given; remove one of them", other)
    if kind in _REMOTE:
        return _remote(entry, kind)
    if kind == "docker-gateway":
        return _gateway(entry)
    return _container(entry) if kind == "docker" else _local(entry, kind)


def _remote(entry: _WrittenEntry, kind: str | None) -> RemoteTransport:
    transport = _REMOTE[kind]
    if entry.url is None:
        raise FieldError(f"missing url ({kind})", "url")
    problem = problem_with_url(entry.url, *transport.schemes)
    if problem is not None:
        raise FieldError(problem, "url")
    if entry.ca_file is not None and not entry.ca_file.strip():
        raise FieldError("must not be empty", "caFile")
    if entry.auth is None:
        return transport(entry.url, headers=entry.headers, ca_file=entry.ca_file)
    if transport is WebSocketTransport:
        raise FieldError("a WebSocket is authorised by its headers", "auth")
    authorised: Any = transport
    words = _oauth(entry.auth)
    return cast("RemoteTransport", authorised(entry.url, headers=entry.headers, auth=words, ca_file=entry.ca_file))


def _oauth(written: object) -> OAuth:
    """The authorisation of requests: `"oauth"`, or an object with details."""
    said = {"type": written} if isinstance(written, str) else as_object(written)
    if said is None or said.get("type") != "oauth":
        raise FieldError('must be "oauth", or an object with "type": "oauth"', "auth")

    def authorised(**words: Any) -> OAuth:
        return OAuth(**{name: value for name, value in words.items() if name != "type"})

    return _make("auth", said, authorised, _OAuth, _structure_oauth)


def _container(entry: _WrittenEntry) -> DockerTransport:
    if entry.image is None:
        raise FieldError("missing image (docker)", "image")
    problem = problem_with_image(entry.image)
    if problem is not None:
        raise FieldError(problem, "image")
    if entry.cwd is not None:
        raise FieldError("must not be given: a container uses the working directory of its image", "cwd")
    return DockerTransport(entry.image, args=entry.args, env=entry.env)


def _gateway(entry: _WrittenEntry) -> DockerGatewayTransport:
    for key in (*_MEANT_BY, "cwd"):
        if getattr(entry, key) is not None:
            raise FieldError("must not be given: docker's gateway has only args and env", key)
    return DockerGatewayTransport(args=entry.args, env=entry.env)


def _local(entry: _WrittenEntry, kind: str | None) -> StdioTransport:
    if entry.command is None:
        others = "" if kind else ", image (docker) or url (http)"
        raise FieldError(f"missing command (stdio){others}", "command")
    for key, text in (("command", entry.command), ("cwd", entry.cwd)):
        if text is not None and not text.strip():
            raise FieldError("must not be empty", key)
    return StdioTransport(entry.command, args=entry.args, env=entry.env, cwd=entry.cwd, inherit_env=entry.inherit_env)
