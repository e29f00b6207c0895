"""Opening a supervisor: its settings, its nursery, and what comes out of its block."""

import os
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from tricycle import open_service_nursery

from mcp_nursery.actors.argument_checks import (
    check_setting,
    function_or_none,
    instance_of,
    one_of,
    seconds,
    several,
    true_or_false,
)
from mcp_nursery.actors.callbacks import NO_CALLBACKS, Callbacks, CurrentRoots, Roots
from mcp_nursery.actors.errors import ConfigError, NurseryError, leaves, one_line
from mcp_nursery.actors.roots import roots_or_none

from .auth.vault import vault_of
from .config.specs import WANTED, ConfigSource, Given, specs_of
from .docker_gateway import Docker, add_gateway
from .preload import AHEAD, loaded, own_loaded
from .restart_policy import Lazy, RestartPolicy
from .security.trust import Trust
from .servers.settings import SupervisorSettings, WaitFor
from .spec import ServerSpec, lazy_or_none
from .storage.pins import PinMode
from .storage.sqlite import SqliteStore
from .storage.store import Store
from .storage.worker import StoreWorker
from .tools.approval import ApprovalRules, Approve
from .tools.naming import DEFAULT_TEMPLATE, check_template

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from mcp_nursery.actors.reply import ProgressCallback

    from .calls.approval import Approvals
    from .servers.borrowed import BorrowedServer
    from .servers.servers import Servers
    from .servers.view import ServerView
    from .supervisor import Supervisor
    from .tools.results import ToolResult
    from .tools.tool import Invoke, Tool

S = TypeVar("S", bound="ServerView")

GATE = 0.25
"""Seconds a block waits at most for first attempts before it is entered."""

SHUTDOWN_TIMEOUT = 5.0
"""Seconds leaving a block takes at most: two grace periods of 2 s for servers that ignore a request to end, and 1."""


def _check_trio() -> None:
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "mcp-nursery runs on Trio, and this is no task of Trio's: start with trio.run(main); beside asyncio, run "
            "Trio as a guest (trio.lowlevel.start_guest_run); under anyio, anyio.run(main, backend='trio')"
        )


def _source_of(given: Given, *, watch: bool) -> ConfigSource:
    check_setting("watch", watch, true_or_false)
    source = ConfigSource(given)
    if watch and source.reader() is None:
        raise ConfigError("needs files: a path, or what load_config or discover_config returned", field="watch")
    return source


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
    """Supervise servers for as long as the block lasts.

    The block is entered when all first attempts are settled, or after `gate` seconds. Leaving it ends every server,
    also when the body raises or is cancelled. A sole exception of the body comes out bare.

    Args:
        config_or_specs: Specs, what `load_config` returned, or the path of a file for it. Left out with `borrow` alone.
        borrow: Another supervisor, whose servers are used: it keeps them, and this one starts, stops and closes none.
            Approval, names, filters and callbacks are this one's own. What concerns the keeping of servers (`policy`,
            `roots`, `trust`, `state`, `pins` and the like) is the other's, and cannot be given. When the other's block
            is left, this one is closed too.
        servers: What is borrowed: names, or `BorrowedServer`, which says how much of one. Default: all there are now.
        policy: The restart ladder of servers that bring none of their own. Default `RestartPolicy()`.
        approve: Asked before a model's call: `await tool(arguments)`. Without it such calls raise `NotApproved`.
        approval_rules: Standing decisions that go before `approve`.
        callbacks: What servers may ask of the host: in the middle of a call, or that their user authorises them.
            Default: nothing.
        roots: Folders that servers are told to work in if they ask, as paths or `file://` URIs, or who says which: see
            `Callbacks.roots`. Default: none, and servers are not offered to ask: some take them in the place of the
            folders in their arguments.
        trust: `async (TrustRequest) -> bool`, asked about an entry of a project's file that nobody has agreed to yet;
            True is remembered. Calls of the server wait for the answer. Without it such a server is `blocked`.
        state: The SQLite file for what outlasts the block: eras, processes, agreements, pins. Default: the one in the
            user's state folder. `MemoryStore()` for none. Tokens are in the keyring, or in a folder `tokens` there.
        template: How public tool names are made, with `{tool}` and, usually, `{server}`.
        reserved: Names of the host's own tools. A tool that would have one of them gets a hash after its name. So does
            one that would be called `list_mcp_resources`, `read_mcp_resource`, `find_tools` or `call_tool`, as toolsets
            have them.
        override: Reserved names that servers may take over after all; True: all of them.
        pins: What becomes of a tool whose title, description, schemas or hints are not what they were when it was first
            used, with this server and spec. `"report"`: an event, a line in the log, `Tool.change`. `"block"`: it is
            held back as well, until `accept_change` or `mcp-nursery pins`; so is everything while the state file cannot
            be read or written.
        drop_placeholders: Whether empty optional arguments of a model's call (`null`, `""`, `[]`, `{}`) are left out.
        watch: Whether the files by which servers are given, and files of variables that these name, are watched, and
            read again when one of them changes: see `Supervisor.reload`. What is broken changes nothing.
        control: Whether `mcp-nursery status --attach`, `reconnect`, `logs` and so on can talk to this process, by a
            socket in the user's state folder that is this user's alone.
        docker: `"auto"`: Docker's MCP gateway is added as a lazy server `docker` where it is found within 3 seconds,
            and no other server has it or the name. Nothing waits for that. If it cannot run, the log says why.
        lazy: Which servers are lazy: all, or none, whatever their specs say, also those that are added later; see
            `ServerSpec.lazy`. Default: those whose specs say so.
        gate: Seconds after which the block is entered, whatever first attempts are still under way. Servers that are
            not connected by then offer what they had when they were listed last, in this run or an earlier one; a call
            of that waits for its server.
        wait_for: `"uncached"`: of first attempts, the gate waits only for those of servers of which nothing is cached.
        drain: Seconds that calls already sent may still take when the block is left; those not sent fail at once.
        shutdown_timeout: Seconds that leaving may take, `drain` not included. A server that ignores a request to end is
            told twice within it, and then killed.
        tracer_provider: OpenTelemetry's, for spans of calls and connections. Default: the process's, if one is set by
            now; without one nothing is traced.
        meter_provider: OpenTelemetry's, for metrics; like `tracer_provider`.

    Raises:
        ConfigError: Two servers of one name; an argument or an environment variable that cannot work; a file that
            cannot be read; or `config_or_specs` is none of these.
        RuntimeError: It is entered by a task that is not Trio's.
        NurseryError: On leaving, when a task of the supervisor itself crashed: a bug of ours.
    """
    passed = locals()
    _check_trio()
    check_setting("policy", policy, instance_of(RestartPolicy, optional=True))
    check_setting("approve", approve, function_or_none)
    check_setting("approval_rules", approval_rules, instance_of(ApprovalRules, optional=True))
    check_setting("callbacks", callbacks, instance_of(Callbacks))
    check_setting("roots", roots, roots_or_none)
    check_setting("drop_placeholders", drop_placeholders, true_or_false)
    for name, limit in (("gate", gate), ("drain", drain), ("shutdown_timeout", shutdown_timeout)):
        check_setting(name, limit, seconds)
    given_up = reserved if override is True else override or ()
    kept_names = frozenset(several(reserved)) - frozenset(several(given_up))
    check_template(template)
    if borrow is not None:
        _check_borrowing(passed)
        check_setting("wait_for", wait_for, one_of(WaitFor))
        await loaded()
        from .calls.approval import Approvals

        approvals = Approvals(approve, approval_rules, drop_placeholders=drop_placeholders)
        async with _borrowing(
            borrow,
            servers,
            approvals,
            callbacks,
            template=template,
            reserved=kept_names,
            gate=gate,
            wait_for=wait_for,
        ) as supervisor:
            yield supervisor
        return
    if config_or_specs is None:
        raise ConfigError(f"{WANTED}, not NoneType; or give borrow=, another supervisor")
    if servers is not None:
        raise ConfigError("says what to borrow, and there is no borrow=", field="servers")
    if roots is not None and callbacks.roots is not None:
        raise ConfigError("the callbacks have roots already", field="roots")
    check_setting("trust", trust, function_or_none)
    check_setting("wait_for", wait_for, one_of(WaitFor))
    check_setting("pins", pins, one_of(PinMode))
    check_setting("control", control, true_or_false)
    check_setting("docker", docker, one_of(Docker, optional=True))
    check_setting("lazy", lazy, lazy_or_none)
    source = _source_of(config_or_specs, watch=watch)
    specs = specs_of(config_or_specs)
    await own_loaded()
    from .calls.approval import Approvals
    from .calls.host_tools import NAMES
    from .telemetry.telemetry import telemetry_of

    store = SqliteStore(state) if state is None or isinstance(state, str | os.PathLike) else state
    settings = SupervisorSettings(
        policy=policy or RestartPolicy(),
        template=template,
        reserved=kept_names | NAMES,
        shutdown_timeout=shutdown_timeout,
        environ=dict(os.environ),
        callbacks=callbacks,
        roots=CurrentRoots(callbacks.roots if roots is None else roots),
        pins=pins,
        lazy=lazy,
        store_worker=StoreWorker(store),
        vault=vault_of(store),
        trust=trust,
        telemetry=telemetry_of(tracer_provider, meter_provider),
    )
    approvals = Approvals(approve, approval_rules, drop_placeholders=drop_placeholders)
    running = partial(
        _running,
        settings,
        approvals,
        source,
        specs,
        reserved=kept_names,
        watch=watch,
        control=control,
        docker=docker,
        gate=gate,
        wait_for=wait_for,
        drain=drain,
    )
    async with _in_nursery(running) as supervisor:
        yield supervisor


@asynccontextmanager
async def _in_nursery(
    running: "Callable[[trio.Nursery], AbstractAsyncContextManager[Supervisor]]",
) -> "AsyncGenerator[Supervisor, None]":
    """A supervisor in a nursery of its own. What its body raises comes out bare, a crash of ours as what it is."""
    raised: BaseException | None = None
    crashes: list[BaseException] = []
    try:
        async with open_service_nursery() as services:
            try:
                async with running(services) as supervisor:
                    yield supervisor
            except BaseException as error:
                raised = error  # comes out below: through the nursery it would come out in a group
            services.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        crashes = [error for error in leaves(group) if not isinstance(error, trio.Cancelled)]
    if crashes:
        crash = NurseryError(one_line(f"the supervisor crashed, please report it: {crashes[0]!r}"))
        crash.__cause__ = crashes[0]
        if raised is None or all(isinstance(error, trio.Cancelled) for error in leaves(raised)):
            raise crash
        raise BaseExceptionGroup("the body and the supervisor both failed", [raised, crash])
    if raised is not None:
        raise raised


@asynccontextmanager
async def _running(
    settings: SupervisorSettings,
    approvals: "Approvals",
    source: ConfigSource,
    specs: Iterable[ServerSpec],
    nursery: trio.Nursery,
    *,
    reserved: Collection[str],
    watch: bool,
    control: bool,
    docker: Docker | None,
    gate: float,
    wait_for: WaitFor,
    drain: float,
) -> "AsyncGenerator[Supervisor, None]":
    """Start everything, wait at the gate, and end everything, within a bound, however the block is left."""
    from .servers.servers import Servers

    with _host_side(partial(Servers, settings, nursery), approvals, source, reserved=reserved) as (servers, supervisor):
        if control:  # before anything is started: nothing is to be ended if there can be no socket
            from .control.server import serve_control

            await nursery.start(serve_control, supervisor)
        try:
            servers.start(specs)
            if AHEAD.get() and not all(spec.lazy for spec in servers.specs()):
                nursery.start_soon(loaded)  # beside their processes, which take as long to start
            if watch:
                from .watch import ConfigWatch

                nursery.start_soon(ConfigWatch(supervisor, source, servers.specs).run)
            if docker is not None:
                nursery.start_soon(add_gateway, servers, source)
            if gate and AHEAD.get():
                await loaded()
            with trio.move_on_after(gate):
                await servers.pass_gate(wait_for)
            yield supervisor
        finally:
            await servers.close(drain)


@asynccontextmanager
async def _open_instance(
    first: "Servers", server: str, approvals: "Approvals", callbacks: Callbacks | None
) -> "AsyncGenerator[Supervisor, None]":
    """See `Supervisor.open_instance`."""
    async with _in_nursery(partial(_running_instance, first, server, approvals, callbacks)) as supervisor:
        yield supervisor


@asynccontextmanager
async def _running_instance(
    first: "Servers", server: str, approvals: "Approvals", callbacks: Callbacks | None, nursery: trio.Nursery
) -> "AsyncGenerator[Supervisor, None]":
    from .servers.instances import InstanceServers

    make = partial(InstanceServers, first, server, callbacks, nursery)
    with _host_side(make, approvals, ConfigSource(()), reserved=()) as (servers, supervisor):
        servers.begin()
        try:
            yield supervisor
        finally:
            await servers.close(0)


@asynccontextmanager
async def _borrowing(
    lender: "Supervisor",
    servers: "Iterable[str | BorrowedServer] | None",
    approvals: "Approvals",
    callbacks: Callbacks,
    *,
    template: str,
    reserved: Collection[str],
    gate: float,
    wait_for: WaitFor,
) -> "AsyncGenerator[Supervisor, None]":
    """Show what is borrowed, wait at the gate, and end without a trace, however the block is left."""
    from .calls.host_tools import NAMES
    from .servers.borrowed import BorrowedServer, BorrowedServers

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
        template=template,
        reserved=frozenset(reserved) | NAMES,
    )
    with _host_side(make, approvals, ConfigSource(()), reserved=reserved) as (borrowed, supervisor):
        try:
            await borrowed.begin()
            with trio.move_on_after(gate):
                await borrowed.pass_gate(wait_for)
            yield supervisor
        finally:
            borrowed.end()


_OF_A_BORROWER = frozenset(
    {
        *("borrow", "servers", "gate", "wait_for"),
        *("approve", "approval_rules", "callbacks", "drop_placeholders"),
        *("template", "reserved", "override"),
    }
)
"""The arguments of `open_supervisor` that one may give who keeps no servers."""


def _check_borrowing(passed: Mapping[str, Any]) -> None:
    """Refuse what is the lender's affair.

    Raises:
        ConfigError: One of the arguments is.
    """
    from .supervisor import Supervisor

    check_setting("borrow", passed["borrow"], instance_of(Supervisor))
    for name, parameter in signature(open_supervisor).parameters.items():
        if name not in _OF_A_BORROWER and passed[name] != parameter.default:
            raise ConfigError("is the affair of the supervisor that is borrowed from: leave it out", field=name)
    own: Callbacks = passed["callbacks"]
    if own.log or own.roots or own.authorize:
        raise ConfigError("who borrows has none but elicit and sample: the rest is the lender's", field="callbacks")


@contextmanager
def _host_side(
    make: "Callable[[Invoke], S]", approvals: "Approvals", source: ConfigSource, *, reserved: Collection[str]
) -> "Generator[tuple[S, Supervisor], None, None]":
    """Servers, and a supervisor of them, for as long as the block lasts."""
    from .calls.attempts import Attempts
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
    ) -> "ToolResult":
        tool, arguments = await approvals.approved(tool, arguments, servers)
        call = Call(tool.tool, arguments, server=tool.server, timeout=timeout, on_progress=on_progress, meta=meta)
        return await Attempts(ToolCall(call, servers, agreed=tool.definition_hash)).run()

    servers = make(call_for_model)
    resource_tools = ResourceTools(servers, approvals, reserved)
    search_tools = SearchTools(servers, resource_tools, reserved)
    supervisor = Supervisor(servers, resource_tools, search_tools, approvals, source, open_instance=_open_instance)
    try:
        yield servers, supervisor
    finally:
        search_tools.close()
