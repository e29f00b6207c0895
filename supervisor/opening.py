"""Opening a supervisor: its settings, its nursery, and the exceptions that leave its block."""

import os
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from mcp_nursery.actors.argument_checks import (
    Check,
    check_setting,
    function_or_none,
    instance_of,
    one_of,
    seconds,
    several,
    true_or_false,
)
from mcp_nursery.actors.callbacks import NO_CALLBACKS, Callbacks, CurrentRoots, Roots
from mcp_nursery.actors.errors import ConfigError, NurseryError, leaves, unforeseen
from mcp_nursery.actors.extensions import Settings, checked_extensions
from mcp_nursery.actors.nurseries import open_service_nursery
from mcp_nursery.actors.records import Attribute, field, fields, frozen
from mcp_nursery.actors.roots import roots_or_none

from .config.specs import WANTED, ConfigSource, Docker, Given, add_gateway, specs_of
from .decisions.restart_policy import Lazy, RestartPolicy
from .login.vault import vault_of
from .preload import AHEAD, CALL_MODULES, SUPERVISOR_MODULES
from .security.trust import Trust
from .servers.settings import SupervisorSettings, WaitFor, modules_for
from .spec import ServerSpec, lazy_or_none
from .storage.named import store_named
from .storage.sqlite import SqliteStore
from .storage.store import Store
from .storage.tool_pins import PinMode
from .storage.worker import StoreWorker
from .tools.approval_rules import ApprovalRules, Approve
from .tools.naming import DEFAULT_TEMPLATE, check_template

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from mcp_nursery.actors.reply import ProgressCallback

    from .calls.approvals import Approvals
    from .calls.kept_tasks import KeptTasks
    from .decisions.restart_policy import WhenDown
    from .servers.borrowed import BorrowedServer
    from .servers.servers import Servers
    from .servers.view import ServerView
    from .supervisor import Supervisor
    from .tools.tool import Invoke, Tool
    from .tools.tool_result import ToolResult

S = TypeVar("S", bound="ServerView")

GATE = 0.25
"""Seconds a block waits at most for first attempts before it is entered."""

SHUTDOWN_TIMEOUT = 5.0
"""Seconds leaving a block takes at most: two grace periods of 2 s for servers that ignore a request to end, and 1 s
more."""


def _check_trio() -> None:
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "mcp-nursery runs on Trio, and this is no task of Trio's: start with trio.run(main); beside asyncio, run "
            "Trio as a guest (trio.lowlevel.start_guest_run); under anyio, anyio.run(main, backend='trio')"
        )


def _valid(check: Check) -> "Callable[[Any, Attribute[Any], Any], None]":
    return lambda _settings, attribute, value: check_setting(attribute.name, value, check)


@frozen(kw_only=True)
class _HostSettings:
    """The arguments of `open_supervisor` about the host, for servers that are kept or borrowed."""

    approve: Approve | None = field(validator=_valid(function_or_none))
    approval_rules: ApprovalRules | None = field(validator=_valid(instance_of(ApprovalRules, optional=True)))
    callbacks: Callbacks = field(validator=_valid(instance_of(Callbacks)))
    drop_placeholders: bool = field(validator=_valid(true_or_false))
    template: str = field(validator=lambda _settings, _attribute, template: check_template(template))
    reserved: frozenset[str]
    """The reserved names without those that servers may take over."""
    gate: float = field(validator=_valid(seconds))
    wait_for: WaitFor = field(validator=_valid(one_of(WaitFor)))

    def approvals(self) -> "Approvals":
        """The approval of a model's calls."""
        from .calls.approvals import Approvals

        return Approvals(self.approve, self.approval_rules, drop_placeholders=self.drop_placeholders)


@frozen(kw_only=True)
class _KeepingSettings:
    """The arguments of `open_supervisor` about the keeping of servers, with its defaults."""

    config_or_specs: Given | None = None
    policy: RestartPolicy | None = field(default=None, validator=_valid(instance_of(RestartPolicy, optional=True)))
    roots: Roots | None = field(default=None, validator=_valid(roots_or_none))
    extensions: Mapping[str, Any] | None = None
    trust: Trust | None = field(default=None, validator=_valid(function_or_none))
    state: str | os.PathLike[str] | Store | None = field(default=None, repr=False)
    pins: PinMode = field(default="report", validator=_valid(one_of(PinMode)))
    watch: bool = field(default=False, validator=_valid(true_or_false))
    control: bool = field(default=False, validator=_valid(true_or_false))
    docker: Docker | None = field(default=None, validator=_valid(one_of(Docker, optional=True)))
    lazy: Lazy | None = field(default=None, validator=_valid(lazy_or_none))
    drain: float = field(default=0.0, validator=_valid(seconds))
    shutdown_timeout: float = field(default=SHUTDOWN_TIMEOUT, validator=_valid(seconds))
    tracer_provider: "TracerProvider | None" = None
    meter_provider: "MeterProvider | None" = None

    def refuse(self) -> None:
        """Refuse all of them, for a supervisor that borrows its servers.

        Raises:
            ConfigError: One was given.
        """
        for each in fields(type(self)):
            if getattr(self, each.name) != each.default:
                problem = "cannot be set together with borrow=: it is configured on the lending supervisor"
                raise ConfigError(problem, field=each.name)


def _checked(extensions: Mapping[str, Settings] | None) -> Mapping[str, Settings] | None:
    try:
        return None if extensions is None else checked_extensions(extensions)
    except ValueError as error:
        problem = str(error)
    raise ConfigError(problem, field="extensions")


def _kept_names(reserved: Collection[str], override: bool | Collection[str]) -> frozenset[str]:  # noqa: FBT001
    """The reserved names without those that servers may take over."""
    given_up = reserved if override is True else override or ()
    return frozenset(several(reserved)) - frozenset(several(given_up))


@asynccontextmanager
async def open_supervisor(
    config_or_specs: Given | None = None,
    *,
    borrow: "Supervisor | None" = None,
    servers: "Iterable[str | BorrowedServer] | None" = None,
    policy: RestartPolicy | None = None,
    approve: Approve | None = None,
    approval_rules: ApprovalRules | None = None,
    callbacks: Callbacks = NO_CALLBACKS,
    roots: Roots | None = None,
    extensions: Mapping[str, Settings] | None = None,
    trust: Trust | None = None,
    state: str | os.PathLike[str] | Store | None = None,
    template: str = DEFAULT_TEMPLATE,
    reserved: Collection[str] = frozenset(),
    override: bool | Collection[str] = False,
    pins: PinMode = "report",
    drop_placeholders: bool = False,
    watch: bool = False,
    control: bool = False,
    docker: Docker | None = None,
    lazy: Lazy | None = None,
    gate: float = GATE,
    wait_for: WaitFor = "all",
    drain: float = 0.0,
    shutdown_timeout: float = SHUTDOWN_TIMEOUT,
    tracer_provider: "TracerProvider | None" = None,
    meter_provider: "MeterProvider | None" = None,
) -> "AsyncGenerator[Supervisor, None]":
    """Supervise servers while the block lasts.

    The block is entered when all first attempts are settled, or after `gate` seconds. Leaving it ends every server,
    also when the body raises or is cancelled. A single exception of the body is raised bare.

    Args:
        config_or_specs: Specs, the result of `load_config`, or the path of a file for it. Left out only with `borrow`.
        borrow: Another supervisor, whose servers are used. The lender keeps the servers; this supervisor starts, stops
            and closes none. Approval, names, filters and callbacks are this one's own. Settings for keeping servers
            (`policy`, `roots`, `trust`, `state`, `pins` and the like) are the other's, and cannot be given. When the
            other's block is left, this one is closed too.
        servers: The servers to borrow: names, or `BorrowedServer` for a part of one. Default: all there are now.
        policy: The restart ladder of servers that bring none of their own. Default `RestartPolicy()`.
        approve: Asked before a model's call: `await tool(arguments)`. Without it such calls raise `NotApproved`.
        approval_rules: Standing decisions that take precedence over `approve`.
        callbacks: The callbacks by which servers ask the host in the middle of a call, or ask their user for
            authorisation. Default: none.
        roots: Folders to work in, for servers that ask, as paths or `file://` URIs, or a function that returns them:
            see `Callbacks.roots`. Default: none, and servers are not offered to ask: some would use them instead of the
            folders in their arguments.
        extensions: The extensions of the protocol that the host handles, by identifier, each with its settings, such as
            `{"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}`. They are announced to all
            servers whose specs announce none of their own. Default: those of `Callbacks.capabilities`, if any.
        trust: `async (TrustRequest) -> bool`, asked about an entry of a project's file that was not agreed to yet; True
            is remembered. Calls of the server wait for the answer. Without this function such a server is `blocked`.
        state: The SQLite file for what outlasts the block: eras, processes, agreements, pins. Default: the one in the
            user's state folder. `MemoryStore()` for none. Tokens are in the keyring, or in a folder `tokens` beside the
            file. Or the URL of a PostgreSQL database, `postgresql://…`, which several machines may share (extra
            `postgres`); processes are then in the file in the user's state folder.
        template: How public tool names are made, with `{tool}` and, usually, `{server}`.
        reserved: Names of the host's own tools. A tool that would have one of them gets a hash after its name. So does
            one that would be called `list_mcp_resources`, `read_mcp_resource`, `find_tools` or `call_tool`: toolsets
            have tools of these names.
        override: Reserved names that servers may take over after all; True: all of them.
        pins: The consequence if a tool's title, description, schemas or hints differ from those at its first use with
            this server and spec, or the frontmatter or files of a skill. `"report"`: an event, a line in the log,
            `Tool.change`. `"block"`: it is held back as well, until `accept_change` or `mcp-nursery pins`; so is
            everything while the state file cannot be read or written.
        drop_placeholders: Whether empty optional arguments of a model's call (`null`, `""`, `[]`, `{}`) are left out.
        watch: Whether the files by which servers are given, and files of variables that these name, are watched, and
            read again when one of them changes: see `Supervisor.reload`. A broken file changes nothing.
        control: Whether `mcp-nursery status --attach`, `reconnect`, `logs` and so on can talk to this process, by a
            socket in the user's state folder that only this user can open.
        docker: `"auto"`: Docker's MCP gateway is added as a lazy server `docker` where it is found within 3 seconds,
            and no other server has it or the name. Nothing waits for the search. If the gateway cannot run, the log has
            the reason.
        lazy: The value of `ServerSpec.lazy` for all servers, whatever their specs say, also for those that are added
            later. Default: as each spec says.
        gate: Seconds after which the block is entered, even if first attempts are still under way. Servers that are not
            connected by then offer what they listed last, in this run or an earlier one; calls of that wait for the
            server.
        wait_for: `"uncached"`: the gate waits only for first attempts of servers of which nothing is cached.
        drain: Seconds that calls already sent may still take when the block is left; those not sent fail at once.
        shutdown_timeout: Seconds that leaving may take, `drain` not included. A server that ignores a request to end is
            asked twice within this time, and then killed.
        tracer_provider: The OpenTelemetry provider of spans of calls and connections. Default: the process's, if one is
            set by now; without one nothing is traced.
        meter_provider: The OpenTelemetry provider of metrics; like `tracer_provider`.

    Raises:
        ConfigError: Two servers of one name; an argument or an environment variable that cannot work; a file that
            cannot be read; or `config_or_specs` is none of these.
        RuntimeError: The block is entered by a task that is not Trio's.
        NurseryError: On leaving, when a task of the supervisor itself crashed: a bug of ours.
    """
    _check_trio()
    host = _HostSettings(
        approve=approve,
        approval_rules=approval_rules,
        callbacks=callbacks,
        drop_placeholders=drop_placeholders,
        template=template,
        reserved=_kept_names(reserved, override),
        gate=gate,
        wait_for=wait_for,
    )
    keeping = _KeepingSettings(
        config_or_specs=config_or_specs,
        policy=policy,
        roots=roots,
        extensions=_checked(extensions),
        trust=trust,
        state=state,
        pins=pins,
        watch=watch,
        control=control,
        docker=docker,
        lazy=lazy,
        drain=drain,
        shutdown_timeout=shutdown_timeout,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
    )
    opened = _keep(host, keeping, servers) if borrow is None else _borrow(host, keeping, borrow, servers)
    async with opened as supervisor:
        yield supervisor


@asynccontextmanager
async def _keep(
    host: "_HostSettings", keeping: "_KeepingSettings", borrowed: object
) -> "AsyncGenerator[Supervisor, None]":
    """A supervisor that keeps servers. `borrowed`: the argument `servers`, which is refused here."""
    given = keeping.config_or_specs
    if given is None:
        raise ConfigError(f"{WANTED}, not NoneType; or give borrow=, another supervisor")
    if borrowed is not None:
        raise ConfigError("says what to borrow, and there is no borrow=", field="servers")
    if keeping.roots is not None and host.callbacks.roots is not None:
        raise ConfigError("the callbacks have roots already", field="roots")
    source = ConfigSource(given)
    if keeping.watch and source.reader() is None:
        raise ConfigError("needs files: a path, or what load_config or discover_config returned", field="watch")
    specs = specs_of(given)
    await SUPERVISOR_MODULES.ensure_loaded()
    async with _in_nursery(partial(_supervise, host, keeping, source, specs)) as supervisor:
        yield supervisor


def _shared_settings(host: "_HostSettings", keeping: "_KeepingSettings") -> SupervisorSettings:
    """The settings that hold for all servers of a supervisor."""
    from .calls.host_tools import NAMES
    from .telemetry.providers import telemetry_of

    state = keeping.state
    store = store_named(state) if state is None or isinstance(state, str | os.PathLike) else state
    store_worker = StoreWorker(store)
    return SupervisorSettings(
        policy=keeping.policy or RestartPolicy(),
        template=host.template,
        reserved=host.reserved | NAMES,
        shutdown_timeout=keeping.shutdown_timeout,
        environ=dict(os.environ),
        callbacks=host.callbacks.announcing(keeping.extensions),
        roots=CurrentRoots(host.callbacks.roots if keeping.roots is None else keeping.roots),
        pins=keeping.pins,
        lazy=keeping.lazy,
        store_worker=store_worker,
        ledger=StoreWorker(SqliteStore()) if store.shared else store_worker,
        vault=vault_of(store),
        trust=keeping.trust,
        telemetry=telemetry_of(keeping.tracer_provider, keeping.meter_provider),
    )


@asynccontextmanager
async def _in_nursery(
    running: "Callable[[trio.Nursery], AbstractAsyncContextManager[Supervisor]]",
) -> "AsyncGenerator[Supervisor, None]":
    """A supervisor in a nursery of its own. What its body raises comes out bare, a crash of our own as a
    `NurseryError`."""
    raised: BaseException | None = None
    crashes: list[BaseException] = []
    entered = False
    try:
        async with open_service_nursery() as services:
            entered = True
            try:
                async with running(services) as supervisor:
                    yield supervisor
            except BaseException as error:
                raised = error  # raised below: the nursery would wrap it in a group
            services.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        crashes = [error for error in leaves(group) if not isinstance(error, trio.Cancelled)]
        if not entered:
            raise
    for crash in crashes:
        if isinstance(crash, KeyboardInterrupt):  # no fault of ours: it came while the block was left
            raise crash
    if crashes:
        crash = NurseryError(f"the supervisor has failed, please report it: {unforeseen(crashes[0])}")
        crash.__cause__ = crashes[0]
        if raised is None or all(isinstance(error, trio.Cancelled) for error in leaves(raised)):
            raise crash
        raise BaseExceptionGroup("the body and the supervisor both failed", [raised, crash])
    if raised is not None:
        raise raised


@asynccontextmanager
async def _supervise(
    host: _HostSettings,
    keeping: _KeepingSettings,
    source: ConfigSource,
    specs: Iterable[ServerSpec],
    nursery: trio.Nursery,
) -> "AsyncGenerator[Supervisor, None]":
    """Start everything, wait at the gate, and end everything, within a bound, however the block is left."""
    from .calls.kept_tasks import KeptTasks
    from .servers.servers import Servers

    make = partial(Servers, _shared_settings(host, keeping), nursery)
    keep = partial(KeptTasks, nursery=nursery)
    side = _host_side(make, host.approvals(), source, reserved=host.reserved, keep=keep)
    with side as (servers, supervisor, tasks):
        if keeping.control:  # before anything is started: if there can be no socket, nothing has to be ended
            from .control.server import serve_control

            await nursery.start(serve_control, supervisor)
        try:
            servers.start(specs)
            if AHEAD.get() and not all(spec.lazy for spec in servers.specs()):
                nursery.start_soon(_load_ahead, servers.specs())  # beside their processes, which take as long to start
            if keeping.watch:
                from .watch import ConfigWatch

                nursery.start_soon(ConfigWatch(supervisor, source, servers.specs).run)
            if keeping.docker is not None:
                nursery.start_soon(add_gateway, servers, source)
            if host.gate and AHEAD.get():
                await _load_ahead(servers.specs())
            with trio.move_on_after(host.gate):
                await servers.pass_gate(host.wait_for)
            yield supervisor
        finally:
            if tasks is not None:
                await tasks.stop()
            await servers.close(keeping.drain)


async def _load_ahead(specs: Iterable[ServerSpec]) -> None:
    """Load the modules for calls, and for the servers that are started at once: they connect within the gate."""
    for modules in dict.fromkeys([CALL_MODULES, *(modules_for(spec) for spec in specs if spec.lazy is not True)]):
        await modules.ensure_loaded()


@asynccontextmanager
async def _open_instance(
    first: "Servers", server: str, approvals: "Approvals", callbacks: Callbacks | None
) -> "AsyncGenerator[Supervisor, None]":
    """One more instance of a server, while the block lasts."""
    async with _in_nursery(partial(_supervise_instance, first, server, approvals, callbacks)) as supervisor:
        yield supervisor


@asynccontextmanager
async def _supervise_instance(
    first: "Servers", server: str, approvals: "Approvals", callbacks: Callbacks | None, nursery: trio.Nursery
) -> "AsyncGenerator[Supervisor, None]":
    from .servers.instances import InstanceServers

    make = partial(InstanceServers, first, server, callbacks, nursery)
    with _host_side(make, approvals, ConfigSource(()), reserved=()) as (servers, supervisor, _):
        servers.begin()
        try:
            yield supervisor
        finally:
            await servers.close(0)


@asynccontextmanager
async def _borrow(
    host: _HostSettings,
    keeping: _KeepingSettings,
    lender: "Supervisor",
    servers: "Iterable[str | BorrowedServer] | None",
) -> "AsyncGenerator[Supervisor, None]":
    """Show the borrowed servers, wait at the gate, and leave no trace, however the block is left."""
    await CALL_MODULES.ensure_loaded()
    from .calls.host_tools import NAMES
    from .servers.borrowed import BorrowedServer, BorrowedServers
    from .supervisor import Supervisor

    check_setting("borrow", lender, instance_of(Supervisor))
    keeping.refuse()
    callbacks = host.callbacks
    if callbacks.log or callbacks.roots or callbacks.authorize:
        raise ConfigError("who borrows has none but elicit and sample: the rest is the lender's", field="callbacks")
    lent = lender._servers  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    lent.check_open()
    there = [name for name in lent.snapshots if name not in lent.registry.leaving]
    wanted: Iterable[str | BorrowedServer] = there if servers is None else servers
    if isinstance(wanted, str | BorrowedServer):
        wanted = [wanted]
    make = partial(
        BorrowedServers,
        lent,
        [each if isinstance(each, BorrowedServer) else BorrowedServer(each) for each in wanted],
        callbacks=None if callbacks is NO_CALLBACKS else callbacks,
        template=host.template,
        reserved=host.reserved | NAMES,
    )
    with _host_side(make, host.approvals(), ConfigSource(()), reserved=host.reserved) as (borrowed, supervisor, _):
        try:
            await borrowed.begin()
            with trio.move_on_after(host.gate):
                await borrowed.pass_gate(host.wait_for)
            yield supervisor
        finally:
            borrowed.end()


@contextmanager
def _host_side(
    make: "Callable[[Invoke], S]",
    approvals: "Approvals",
    source: ConfigSource,
    *,
    reserved: Collection[str],
    keep: "Callable[[S], KeptTasks] | None" = None,
) -> "Generator[tuple[S, Supervisor, KeptTasks | None], None, None]":
    """Servers, a supervisor of them, and its tasks that outlive their callers, if it may have any, while the block
    lasts."""
    from .calls.attempts import deliver
    from .calls.call import Call
    from .calls.resource_tools import ResourceTools
    from .calls.search_tools import SearchTools
    from .calls.tool_call import ToolCall
    from .supervisor import Supervisor

    async def call_for_model(
        tool: "Tool",
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None,
        on_progress: "ProgressCallback | None",
        meta: Mapping[str, Any] | None,
        when_down: "WhenDown | None",
    ) -> "ToolResult":
        agreed, arguments = await approvals.approved(tool, arguments, servers)
        call = Call(
            tool.tool,
            arguments,
            server=tool.server,
            timeout=timeout,
            when_down=when_down,
            on_progress=on_progress,
            meta=meta,
        )
        return await deliver(ToolCall(call, servers, agreed=agreed))

    servers = make(call_for_model)
    resource_tools = ResourceTools(servers, reserved, approvals)
    search_tools = SearchTools(servers, reserved, resource_tools)
    tasks = None if keep is None else keep(servers)
    supervisor = Supervisor(
        servers, resource_tools, search_tools, approvals, source, tasks=tasks, open_instance=_open_instance
    )
    try:
        yield servers, supervisor, tasks
    finally:
        search_tools.close()
