"""The supervisor: one keeper a server, one router, the state cells, and the public surface over them."""

import os
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, final, get_args

import trio
from attrs import frozen

from mcp_nursery.actors.errors import ConfigError, NotApproved, NurseryError, UnknownTool, leaves, one_line
from mcp_nursery.actors.host import NO_CALLBACKS, Callbacks
from mcp_nursery.actors.mailbox import MailboxStatistics, ProgressCallback
from mcp_nursery.actors.messages import ServerState

from .config import Config
from .delivery import deliver
from .events import EventStream
from .fan_out import Call, FanOut, Until, open_fan_out
from .fleet import Fleet, FleetSettings
from .lifecycle import LEFT_BY_NOBODY
from .orders import Order
from .pinning import PinMode
from .policy import RestartPolicy
from .registrar import Registrar, Trust
from .request import Request, Resend, WhenDown, encode_arguments
from .service import open_service_nursery
from .spec import ServerSpec
from .status import CallCounts, ServerStatus, Snapshot, server_down
from .store import SqliteStore, Store
from .tools.approval import Approval, ApprovalRequest, ApprovalRules, Approve
from .tools.arguments import without_placeholders
from .tools.naming import DEFAULT_TEMPLATE, check_template
from .tools.pins import DefinitionChange
from .tools.results import ToolResult
from .tools.tool import Tool
from .toolset import Toolset

GATE = 0.25
"""Seconds a block waits at most for first attempts before it is entered."""

SHUTDOWN_TIMEOUT = 5.0
"""Seconds leaving a block takes at most: two grace periods of 2 s for servers that ignore a request to end, and 1."""


@frozen
class SupervisorStatistics:
    """A supervisor at one moment, for debugging and metrics."""

    servers: int
    connected: int
    """Servers in `connected`."""
    tools: int
    """Tools with a public name."""
    calls: CallCounts
    """Of all servers together."""
    router: MailboxStatistics
    """How full the router's mailbox is."""


@final
class Supervisor:
    """Keeps MCP servers running and brings calls to them. Made by `open_supervisor`."""

    def __init__(
        self,
        settings: FleetSettings,
        nursery: trio.Nursery,
        *,
        approve: Approve | None,
        approval_rules: ApprovalRules,
        drop_placeholders: bool,
    ) -> None:
        self._fleet = Fleet(settings, nursery, self._call_approved)
        self._approve = approve
        self._approval_rules = approval_rules
        self._drop_placeholders = drop_placeholders
        self._allowed: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def running(self, specs: Iterable[ServerSpec], *, gate: float, drain: float) -> AsyncGenerator[None, None]:
        """Start everything, wait at the gate, and end everything, within a bound, however the block is left."""
        try:
            self._fleet.start(specs)
            with trio.move_on_after(gate):
                cells = self._fleet.cells.items()
                await self._fleet.first_attempts(
                    [name for name, cell in cells if cell.value.state is not ServerState.IDLE]
                )
            yield
        finally:
            await self._fleet.close(drain)

    # -- tools ----------------------------------------------------------------------------------------------------

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The catalogue now, sorted by name: tools of servers that are connected or may be again by themselves."""
        return self._fleet.catalogue.value.tools

    def tool(self, name: str) -> Tool:
        """The tool of that public name.

        Raises:
            UnknownTool: There is none now.
        """
        tool = self._fleet.catalogue.value.find(name)
        if tool is None:
            raise UnknownTool(name, near=self._fleet.catalogue.value.near(name))
        return tool

    async def list_tools(self, server: str | None = None, *, refresh: bool = False) -> tuple[Tool, ...]:
        """The tools, after starting lazy servers and waiting until first attempts are settled.

        Args:
            server: Only this server's.
            refresh: Ask connected servers for their tools again first. One that fails to answer keeps its old ones.

        Raises:
            UnknownServer: No server of that name.
            ServerDown: The server that was named is in a state nobody will leave.
        """
        fleet = self._fleet
        fleet.check_open()
        if server is not None:
            fleet.cell(server)
        names = list(fleet.cells) if server is None else [server]
        for name in names:
            fleet.wake(name)
        await fleet.first_attempts(names)
        if refresh:
            await fleet.relist(names)
        if server is None:
            return self.tools
        snapshot = fleet.cell(server).value
        if snapshot.state in LEFT_BY_NOBODY:
            raise server_down(snapshot, now=trio.current_time())
        return tuple(tool for tool in self.tools if tool.server == server)

    def as_toolset(self) -> Toolset:
        """The tools as the loop of a model's host uses them; follows every change of the catalogue."""
        return Toolset(self._fleet)

    # -- calls ----------------------------------------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        when_down: WhenDown | None = None,
        resend: Resend = "safe",
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        """Call a tool. The caller's own Trio deadline and cancellation hold as well, and the server hears of both.

        Args:
            name: The public name; with `server`, that server's own name of the tool.
            arguments: A JSON object.
            server: Whose tool it is.
            timeout: Seconds for all of it, waiting for the server included. Default: the server's `call_timeout`,
                then `MCP_TOOL_TIMEOUT` (ms) in the environment, then none.
            idle_timeout: Seconds without progress, from the moment it is handed on. Default: none.
            when_down: `"wait"` waits for a server until nobody would bring it back; `"fail"` waits for none. Default:
                wait while it is `connecting` or `idle`, fail while it is `waiting`.
            resend: Whether a call whose connection was lost is sent once more: `"safe"` if it was not sent, or the tool
                is read-only or idempotent by hints that are trusted; `"always"`; `"never"`. A timeout never is.
            on_progress: `async (progress, total, message)`, called in order, before the result.
            meta: More for the request's `_meta`.

        Raises:
            InvalidArguments: `arguments` is no JSON object.
            UnknownServer, UnknownTool: Nothing of that name, now that all first attempts are settled.
            NotApproved: The tool is held back: see `open_supervisor(pins=…)`.
            ServerDown, ServerBusy: Not sent.
            ConnectionLost, CallTimeout: See their `delivery`.
            ServerError, InvalidResult: The server answered, and not with a result; or it asked the host for something
                and was refused, or asked too often.
            SupervisorClosed: The block was left.
        """
        self._fleet.check_open()
        request = Request(
            key=name if server is None else (server, name),
            arguments=encode_arguments(arguments),
            timeout=timeout,
            idle_timeout=idle_timeout,
            when_down=when_down,
            resend=resend,
            on_progress=on_progress,
            meta=meta,
        )
        return await deliver(request, self._fleet)

    def fan_out(
        self, calls: Iterable[Call], *, until: Until = "all", limit: int | None = None
    ) -> AbstractAsyncContextManager[FanOut]:
        """Make many calls at once; outcomes come as they finish, and no slow or dead server delays another's.

            async with supervisor.fan_out([Call("mcp_a_echo", {"n": 1}), Call("mcp_b_echo", {"n": 1})]) as outcomes:
                async for outcome in outcomes: ...

        The iteration ends with the last outcome, or when `until` holds. Then, or when the block is left, calls without
        an outcome are taken back, and their servers are told. Errors are outcomes; none is raised.

        Args:
            calls: Each as `call_tool` would be called.
            until: `"all"`, `"first"` (the first success), or how many successes: results without `is_error`.
            limit: How many calls may be under way at once; a call's time begins when it does. Default: all of them.

        Raises:
            ValueError: On entering: `until` or `limit` is none of what it may be, or a call's `timeout` is negative.
            SupervisorClosed: The block was left.
        """
        self._fleet.check_open()
        return open_fan_out(calls, self._fleet, until=until, limit=limit)

    async def gather(self, calls: Iterable[Call], *, limit: int | None = None) -> list[ToolResult | NurseryError]:
        """Make many calls at once; their results in the order of the calls, errors in place.

        Args:
            calls: Each as `call_tool` would be called.
            limit: How many may be under way at once. Default: all of them.
        """
        made = list(calls)
        gathered: dict[int, ToolResult | NurseryError] = {}
        async with self.fan_out(made, limit=limit) as outcomes:
            async for outcome in outcomes:
                answer = outcome.result or outcome.error
                assert answer is not None  # an outcome is one or the other
                gathered[outcome.index] = answer
        return [gathered[index] for index in range(len(made))]

    def broadcast(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        until: Until = "all",
        limit: int | None = None,
    ) -> AbstractAsyncContextManager[FanOut]:
        """Call the tool of this name, the servers' own, on every server that is known to have it. See `fan_out`."""
        parts = self._fleet.catalogue.value.parts
        owners = [server for server, part in parts.items() if any(one.tool == tool for one in part.tools)]
        return self.fan_out(
            (Call(tool, arguments, server=server, timeout=timeout) for server in owners),
            until=until,
            limit=limit,
        )

    async def _call_approved(self, tool: Tool, arguments: Mapping[str, Any] | None) -> ToolResult:
        """A model's call: asked for first, then made."""
        encode_arguments(arguments)  # nobody is asked about what cannot be sent
        tool = self._as_declared_now(tool)
        if arguments and self._drop_placeholders:
            arguments = without_placeholders(arguments, tool.input_schema)
        remembered = (tool.server, tool.definition_hash) in self._allowed
        decision = self._approval_rules.decide(tool.name, remembered=remembered)
        if decision is None:
            decision = await self._ask(tool, arguments)
            if self._as_declared_now(tool).definition_hash != tool.definition_hash:
                raise NotApproved(tool.server, tool.tool, "its definition changed while it was asked about")
        if decision is Approval.DENY:
            raise NotApproved(tool.server, tool.tool, "denied")
        if decision is Approval.ALLOW_ALWAYS:
            self._allowed.add((tool.server, tool.definition_hash))
        return await self.call_tool(tool.tool, arguments, server=tool.server)

    def _as_declared_now(self, tool: Tool) -> Tool:
        """What the server has under this name now: what would be called, and so what is asked about.

        Raises:
            NotApproved: It is held back.
        """
        catalogue, key = self._fleet.catalogue.value, (tool.server, tool.tool)
        if held := catalogue.held_back(key):
            raise NotApproved(held.server, held.tool, held.why)
        return catalogue.find(key) or tool

    async def _ask(self, tool: Tool, arguments: Mapping[str, Any] | None) -> Approval:
        approve = self._approve
        if approve is None:
            raise NotApproved(tool.server, tool.tool, "nobody to ask: open_supervisor was given no approve=")
        given = dict(arguments or {})
        shown = self._fleet.redactor(tool.server).value(given)
        return Approval(await approve(ApprovalRequest(tool, given, shown)))

    # -- pinned definitions ---------------------------------------------------------------------------------------

    @property
    def definition_changes(self) -> tuple[DefinitionChange, ...]:
        """The tools that are not what they were when they were first used, sorted by server and tool."""
        reviews = [cell.value.review for cell in self._fleet.cells.values()]
        changes = [change for review in reviews for change in review.changes.values()]
        return tuple(sorted(changes, key=lambda change: (change.server, change.tool)))

    async def accept_change(self, change: DefinitionChange) -> None:
        """Accept how a tool has changed: it is pinned as it is after the change, and no longer held back.

        What was shown is accepted, and no more: if the tool has changed again meanwhile, it still differs.

        Raises:
            UnknownServer: No server of that name.
            NurseryError: It cannot be written down.
            SupervisorClosed: The block was left.
        """
        await self._fleet.accept(change)

    # -- servers --------------------------------------------------------------------------------------------------

    def status(self) -> tuple[ServerStatus, ...]:
        """Where every server stands now, in the order they were configured."""
        return self._fleet.status()

    def events(self) -> AbstractAsyncContextManager[EventStream]:
        """A receive channel of everything that happens from now on, for as long as the block lasts.

        A reader that falls more than 100 events behind gets `Lagged(n)` and a snapshot of each server instead.
        """
        return self._fleet.events.open()

    async def wait_connected(self, server: str) -> ServerStatus:
        """Wait until the server is `connected`.

        Raises:
            UnknownServer: No server of that name.
            ServerDown: It is in a state that nobody will leave.
        """

        def connected(snapshot: Snapshot) -> Snapshot | None:
            self._fleet.check_open()
            if snapshot.abandoned:
                raise server_down(snapshot, now=trio.current_time())
            return snapshot if snapshot.state is ServerState.CONNECTED else None

        cell = self._fleet.cell(server)
        self._fleet.wake(server)
        await cell.wait(connected)
        return self._fleet.status_of(server)

    async def reconnect(self, server: str) -> None:
        """Start it afresh now, whatever it does, and wait for the outcome. Many callers share one attempt.

        Raises:
            UnknownServer: No server of that name.
            ServerDown: The attempt failed.
        """
        command = await self._fleet.order(server, Order.RECONNECT)
        self._fleet.check_open()
        assert command.outcome is not None
        if command.outcome.state is not ServerState.CONNECTED:
            raise server_down(command.outcome, now=trio.current_time())

    async def start_server(self, server: str) -> None:
        """Start it if it neither runs nor is being started; a fresh start. Returns in `connecting`.

        Raises:
            UnknownServer: No server of that name.
        """
        await self._fleet.order(server, Order.START)

    async def stop_server(self, server: str, *, drain: float = 0.0) -> None:
        """End it and leave it `stopped`. Returns when everything it owned is closed.

        Args:
            server: Its name.
            drain: Seconds that calls already sent may still take; those not sent fail at once.

        Raises:
            UnknownServer: No server of that name.
        """
        await self._fleet.order(server, Order.STOP, drain=drain)

    async def add_server(self, spec: ServerSpec) -> None:
        """Keep one more server. Returns in `connecting`, or whatever state its spec begins in.

        Raises:
            ConfigError: There is a server of that name, or a setting cannot work.
            SupervisorClosed: The block was left.
        """
        await trio.lowlevel.checkpoint()
        self._fleet.add(spec)

    async def remove_server(self, server: str, *, drain: float = 0.0) -> None:
        """End it and forget it. Its tools are gone at once; returns when everything it owned is closed.

        Args:
            server: Its name.
            drain: Seconds that calls already sent may still take; those not sent fail at once.

        Raises:
            UnknownServer: No server of that name.
        """
        await self._fleet.order(server, Order.LEAVE, drain=drain)

    def statistics(self) -> SupervisorStatistics:
        """Figures for debugging and metrics."""
        counts = [self._fleet.counts(name) for name in self._fleet.cells]
        return SupervisorStatistics(
            servers=len(self._fleet.cells),
            connected=sum(cell.value.state is ServerState.CONNECTED for cell in self._fleet.cells.values()),
            tools=len(self.tools),
            calls=CallCounts(
                in_flight=sum(count.in_flight for count in counts),
                done=sum(count.done for count in counts),
                failed=sum(count.failed for count in counts),
            ),
            router=self._fleet.router.statistics(),
        )


def _kept_names(reserved: Collection[str], *, override: bool | Collection[str]) -> frozenset[str]:
    given_up = reserved if override is True else override or ()
    return frozenset(reserved) - frozenset(given_up)


def _checked(pins: PinMode) -> PinMode:
    if pins not in get_args(PinMode):
        raise ConfigError(f"'report' or 'block' wanted, not {pins!r}", field="pins")
    return pins


def _store(state: str | os.PathLike[str] | Store | None) -> Store:
    return SqliteStore(state) if state is None or isinstance(state, str | os.PathLike) else state


@asynccontextmanager
async def open_supervisor(
    config_or_specs: Config | Iterable[ServerSpec],
    *,
    policy: RestartPolicy | None = None,
    approve: Approve | None = None,
    approval_rules: ApprovalRules | None = None,
    callbacks: Callbacks = NO_CALLBACKS,
    trust: Trust | None = None,
    state: str | os.PathLike[str] | Store | None = None,
    template: str = DEFAULT_TEMPLATE,
    reserved: Collection[str] = frozenset(),
    override: bool | Collection[str] = False,
    pins: PinMode = "report",
    drop_placeholders: bool = False,
    gate: float = GATE,
    drain: float = 0.0,
    shutdown_timeout: float = SHUTDOWN_TIMEOUT,
) -> AsyncGenerator[Supervisor, None]:
    """Supervise servers for as long as the block lasts.

    The block is entered when all first attempts are settled, or after `gate` seconds. Leaving it ends every server,
    also when the body raises or is cancelled. A sole exception of the body comes out bare.

    Args:
        config_or_specs: What `load_config` returned, or specs.
        policy: The restart ladder of servers that bring none of their own. Default `RestartPolicy()`.
        approve: Asked before a model's call: `await tool(arguments)`. Without it such calls raise `NotApproved`.
        approval_rules: Standing decisions that go before `approve`.
        callbacks: What servers may ask of the host in the middle of a call. Default: nothing.
        trust: `async (TrustRequest) -> bool`, asked about an entry of a project's file that nobody has agreed to yet;
            True is remembered. Calls of the server wait for the answer. Without it such a server is `blocked`.
        state: The SQLite file for what outlasts the block: eras, processes, consents. Default: the one in the user's
            state folder. `MemoryStore()` for none.
        template: How public tool names are made, with `{tool}` and, usually, `{server}`.
        reserved: Names of the host's own tools. A tool that would have one of them gets a hash after its name.
        override: Reserved names that servers may take over after all; True: all of them.
        pins: What becomes of a tool whose title, description, schemas or hints are not what they were when it was first
            used, with this server and spec. `"report"`: an event, a line in the log, `Tool.change`. `"block"`: it is
            held back as well, until `accept_change` or `mcp-nursery pins`; so is everything while the state file cannot
            be read or written.
        drop_placeholders: Whether empty optional arguments of a model's call (`null`, `""`, `[]`, `{}`) are left out.
        gate: Seconds.
        drain: Seconds that calls already sent may still take when the block is left; those not sent fail at once.
        shutdown_timeout: Seconds that leaving may take, drain not included; a server that ignores a polite request
            to end is told twice and then killed within it.

    Raises:
        ConfigError: Two servers of one name; a template, `pins` or an environment variable that cannot work.
        NurseryError: On leaving, when a task of the supervisor itself crashed: a bug of ours.
    """
    specs = config_or_specs.servers if isinstance(config_or_specs, Config) else tuple(config_or_specs)
    check_template(template)
    settings = FleetSettings(
        policy=policy or RestartPolicy(),
        template=template,
        reserved=_kept_names(reserved, override=override),
        shutdown_timeout=shutdown_timeout,
        environ=dict(os.environ),
        callbacks=callbacks,
        pins=_checked(pins),
        registrar=Registrar(_store(state), trust),
    )
    raised: BaseException | None = None
    crashes: list[BaseException] = []
    try:
        async with open_service_nursery() as services:
            supervisor = Supervisor(
                settings,
                services,
                approve=approve,
                approval_rules=approval_rules or ApprovalRules(),
                drop_placeholders=drop_placeholders,
            )
            try:
                async with supervisor.running(specs, gate=gate, drain=drain):
                    yield supervisor
            except BaseException as error:
                raised = error  # comes out below: through the nursery it would come out in a group
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
