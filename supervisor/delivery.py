"""One call from its name to its result, in the caller's task: route, submit, await the slot, judge, resend once."""

import math
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, assert_never

import trio
from attrs import field, frozen
from opentelemetry.context import get_current
from opentelemetry.propagate import inject

from mcp_nursery.actors.connection.tool_calls import BadResult
from mcp_nursery.actors.errors import (
    CallError,
    CallTimeout,
    ConnectionLost,
    InvalidArguments,
    InvalidResult,
    NurseryError,
    ServerBusy,
    ServerDown,
    ServerError,
    SupervisorClosed,
    UnknownTool,
)
from mcp_nursery.actors.mailbox import IdleLimit, ProgressCallback, ReplySlot
from mcp_nursery.actors.messages import (
    Answered,
    Busy,
    CallTool,
    Delivery,
    Loss,
    Malformed,
    Outcome,
    Rejected,
    RouteKey,
    ServerState,
    Unrouted,
    Unsendable,
)
from mcp_nursery.actors.wire.frames import encode

from .catalogue import Catalogue
from .fleet import Fleet
from .lifecycle import CALLS_WAIT
from .status import Snapshot, retry_in
from .tools.results import ToolResult, tool_result
from .tools.signals import scan
from .tools.tool import Tool

WhenDown = Literal["wait", "fail"]
Resend = Literal["safe", "always", "never"]


@frozen
class Request:
    """What a caller asked for."""

    key: RouteKey
    arguments: bytes | None = field(repr=False)
    timeout: float | None
    """Seconds for all of it; None takes the server's."""
    idle_timeout: float | None
    when_down: WhenDown | None
    resend: Resend
    on_progress: ProgressCallback | None
    meta: Mapping[str, Any] | None = field(repr=False)

    @property
    def server(self) -> str | None:
        """The server that was named, if one was."""
        return None if isinstance(self.key, str) else self.key[0]

    @property
    def name(self) -> str:
        """The tool as it was named."""
        return self.key if isinstance(self.key, str) else self.key[1]


def encode_arguments(arguments: object) -> bytes | None:
    """Arguments as they go over the wire; None for none.

    Raises:
        InvalidArguments: They are no JSON object.
    """
    if arguments is None:
        return None
    if not isinstance(arguments, Mapping):
        raise InvalidArguments(f"the arguments of a tool are an object, not {type(arguments).__name__}")
    try:
        return encode(dict(arguments))  # pyright: ignore[reportUnknownArgumentType]
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"the arguments cannot be sent as JSON: {error}") from None


async def deliver(request: Request, fleet: Fleet) -> ToolResult:
    """Bring one call to its result.

    Raises:
        NurseryError: See `Supervisor.call_tool`.
    """
    return await CallDelivery(request, fleet).run()


_NO_SLOT = ReplySlot()
"""Of a call that was not handed on yet."""


class CallDelivery:
    """The state of one call: what was tried so far.

    `run` is all of it, in the caller's task. Who has many calls and one task takes the steps apart: `start` what can be
    sent at once, `conclude` when its slot is decided, and `resume` what needs another attempt.
    """

    def __init__(self, request: Request, fleet: Fleet) -> None:
        self._request = request
        self._fleet = fleet
        self._started = trio.current_time()
        self._timeout = math.inf
        self._hard = trio.CancelScope()
        self._tool: Tool | None = None
        self._slot = _NO_SLOT
        self._lost_incarnation = 0
        self._sent_before = False

    async def run(self) -> ToolResult:
        """Bring the call to its result.

        Raises:
            NurseryError: See `Supervisor.call_tool`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        tool = self._found(self._fleet.catalogue.value)
        if tool is None:
            self._limit(None)
        elif self._limit(self._fleet.cells[tool.server].value.spec.call_timeout) == math.inf:
            return await self._deliver(tool)  # no limit, no scope
        with self._hard:
            if tool is None:
                tool = await self._find()
                self._limit(self._fleet.cells[tool.server].value.spec.call_timeout)
            return await self._deliver(tool)
        raise self._timed_out(self._timeout)

    def start(self, slot: ReplySlot) -> CallTool | None:
        """The message to submit, if the call can be sent at once and needs no task of its own; None otherwise.

        Raises:
            ValueError: The call's timeout is negative.
        """
        request, fleet = self._request, self._fleet
        self._limit(None)
        if request.on_progress is not None or request.idle_timeout is not None or fleet.closed:
            return None
        tool = fleet.catalogue.value.find(request.key)
        if tool is None or not tool.available:
            return None
        self._limit(fleet.cells[tool.server].value.spec.call_timeout)
        if self._timeout == 0:
            return None
        self._slot = slot
        message = self._message(tool)
        self._begin(tool)
        return message

    @property
    def deadline(self) -> float:
        """When the call's own time is over, on Trio's clock."""
        return self._hard.deadline

    def conclude(self) -> ToolResult | None:
        """The result, now that the slot of `start` is decided; None if `resume` must bring it.

        Raises:
            NurseryError: The call failed. See `Supervisor.call_tool`.
        """
        tool, outcome = self._tool, self._slot.outcome
        assert tool is not None
        assert outcome is not None  # `start` came first, and the slot is decided
        if isinstance(outcome, (Unrouted, Loss)):
            return None
        failed = True
        try:
            result = self._judge(tool, outcome)
            failed = False
        finally:
            self._fleet.finish_call(tool.server, failed=failed)
        return result

    async def resume(self) -> ToolResult:
        """Go on from an outcome that may not be the last.

        Raises:
            NurseryError: See `Supervisor.call_tool`.
        """
        assert self._tool is not None  # `start` came first
        with self._hard:
            return await self._counted(self._attempts(self._tool, self._slot.outcome))
        raise self._timed_out(self._timeout)

    def give_up(self) -> CallError:
        """Take back what `start` began, or have the server told; what the caller gets instead of a result."""
        assert self._tool is not None  # `start` came first
        self._slot.abandon()
        self._fleet.finish_call(self._tool.server, failed=not isinstance(self._slot.outcome, Answered))
        return self._timed_out(self._timeout)

    def _limit(self, servers_own: float | None) -> float:
        self._timeout = self._fleet.call_timeout(self._request.timeout, servers_own)
        self._hard.deadline = self._started + self._timeout
        return self._timeout

    async def _deliver(self, tool: Tool) -> ToolResult:
        self._begin(tool)
        return await self._counted(self._attempts(tool, None))

    def _begin(self, tool: Tool) -> None:
        self._tool = tool
        self._fleet.begin_call(tool.server)

    async def _counted(self, attempts: Awaitable[ToolResult]) -> ToolResult:
        assert self._tool is not None  # `_begin` came first
        server, failed = self._tool.server, True
        try:
            result = await attempts
            failed = False
        finally:
            self._fleet.finish_call(server, failed=failed)
        return result

    # -- which tool -----------------------------------------------------------------------------------------------

    async def _find(self) -> Tool:
        """The tool; a name nobody knows yet waits until every first attempt is settled."""
        return await self._fleet.catalogue.wait(self._found)

    def _found(self, catalogue: Catalogue) -> Tool | None:
        self._fleet.check_open()
        request = self._request
        tool = catalogue.find(request.key)
        if tool is not None:
            self._tool = tool
            return tool
        owner = request.server or catalogue.departed_from(request.key)
        if owner is not None and not self._is_connected(self._fleet.cell(owner).value, self._waits(patient=False)):
            return None
        if owner is None and self._tools_may_come():
            return None
        raise UnknownTool(
            request.name,
            server=request.server,
            near=catalogue.near(request.name, request.server),
            down=[] if owner else [name for name, cell in self._fleet.cells.items() if not _connected(cell.value)],
        )

    def _tools_may_come(self) -> bool:
        """Whether a first attempt is under way, or was now begun, that may bring tools nobody knows yet."""
        snapshots = [cell.value for cell in self._fleet.cells.values()]
        unlisted = [one for one in snapshots if one.state is ServerState.IDLE and not one.definitions]
        for one in unlisted:
            self._fleet.wake(one.spec.name)
        return bool(unlisted) or not all(one.settled for one in snapshots)

    def _is_connected(self, snapshot: Snapshot, waits: frozenset[ServerState]) -> bool:
        """Whether it is; False if it is not and the call waits for it, which wakes an idle one.

        Raises:
            ServerDown: It is not, and the call does not wait in this state.
        """
        if _connected(snapshot):
            return True
        self._fleet.wake(snapshot.spec.name)
        if snapshot.state not in waits:
            raise self._down(snapshot)
        return False

    def _waits(self, *, patient: bool) -> frozenset[ServerState]:
        """The states in which this call waits for its server."""
        if self._request.when_down == "fail":
            return frozenset()
        if self._request.when_down == "wait" or patient:
            return CALLS_WAIT | {ServerState.WAITING}
        return CALLS_WAIT

    # -- attempts -------------------------------------------------------------------------------------------------

    async def _attempts(self, tool: Tool, outcome: Outcome | None) -> ToolResult:
        """Try, and once more if that is allowed; `outcome` is that of an attempt already made."""
        lost: ConnectionLost | None = None
        while True:
            if outcome is None:
                if lost is not None or not tool.available:
                    tool = await self._ready(tool.server, lost)
                outcome = await self._submit(tool)
            match outcome:
                case Unrouted():
                    self._lost_incarnation = self._slot.incarnation or 0
                    tool = await self._ready(tool.server, lost)
                case Loss():
                    await self._noticed(tool.server)
                    error = self._lost(tool, outcome)
                    if lost is not None or not self._may_resend(tool):
                        raise error
                    lost = error
                    self._lost_incarnation = self._slot.incarnation or 0
                case _:
                    return self._judge(tool, outcome)
            outcome = None

    async def _ready(self, server: str, lost: ConnectionLost | None) -> Tool:
        """Wait until a live incarnation can take the call, as long as the caller wants to wait."""
        try:
            await self._connected(server, patient=lost is not None and lost.delivery is Delivery.UNKNOWN)
            return await self._find()
        except NurseryError:
            if lost is not None:
                raise lost from None  # what became of the call goes before where the server stands now
            raise

    async def _connected(self, server: str, *, patient: bool) -> None:
        waits = self._waits(patient=patient)

        def ready(snapshot: Snapshot) -> bool | None:
            self._fleet.check_open()
            connected = self._is_connected(snapshot, waits)
            return True if connected and snapshot.incarnation != self._lost_incarnation else None

        await self._fleet.cell(server).wait(ready)

    async def _noticed(self, server: str) -> None:
        """Wait until the keeper knows of a loss too: who was told of it must not see the server as connected."""
        cell, lost = self._fleet.cells.get(server), self._slot.incarnation
        if cell is not None:
            await cell.wait(lambda snapshot: snapshot.incarnation != lost or not _connected(snapshot) or None)

    def _delivery(self) -> Delivery:
        """Whether a server may have acted on any attempt."""
        delivery = self._slot.delivery
        return Delivery.UNKNOWN if self._sent_before and delivery is Delivery.NOT_SENT else delivery

    async def _submit(self, tool: Tool) -> Outcome:
        """Hand the call to the router and wait in its slot."""
        request = self._request
        self._sent_before = self._sent_before or self._slot.sent
        if request.idle_timeout is None:
            self._slot = ReplySlot(wants_progress=request.on_progress is not None)
            return await self._exchange(tool)
        idle = IdleLimit(request.idle_timeout)
        self._slot = ReplySlot(wants_progress=True, idle=idle)
        with idle.scope:
            return await self._exchange(tool)
        raise self._timed_out(idle.seconds, idle=True)

    async def _exchange(self, tool: Tool) -> Outcome:
        try:
            await self._fleet.router.submit(self._message(tool))
        except trio.BrokenResourceError:
            raise SupervisorClosed from None
        return await self._slot.wait(self._request.on_progress or _no_progress)

    def _message(self, tool: Tool) -> CallTool:
        request = self._request
        meta = dict(request.meta or {})
        if get_current():  # an empty context has nothing to inject, and finding that out takes the propagators longer
            inject(meta)
        return CallTool(request.key, tool.tool, request.arguments, meta, self._slot)

    def _may_resend(self, tool: Tool) -> bool:
        if self._request.resend == "never":
            return False
        if self._slot.delivery is Delivery.NOT_SENT:
            return True
        return self._request.resend == "always" or tool.hints.repeatable

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _judge(self, tool: Tool, outcome: Answered | Rejected | Malformed | Unsendable | Busy) -> ToolResult:
        incarnation = self._slot.incarnation
        match outcome:
            case Answered():
                return self._result(tool, outcome)
            case Rejected():
                raise self._rejected(tool, outcome)
            case Malformed():
                raise self._invalid(tool, outcome.problem)
            case Unsendable():
                raise InvalidArguments(f"the call cannot be sent as JSON: {outcome.problem}")
            case Busy():
                raise ServerBusy(server=tool.server, tool=tool.tool, incarnation=incarnation, delivery=self._delivery())
            case _:
                assert_never(outcome)

    def _result(self, tool: Tool, answer: Answered) -> ToolResult:
        slot = self._slot
        assert slot.tool is not None  # who answers
        assert slot.incarnation is not None  # has noted both
        try:
            result = slot.tool.result(answer.result)
        except BadResult as error:
            raise self._invalid(tool, str(error)) from None
        duration = trio.current_time() - self._started
        given = tool_result(result, tool, duration=duration, incarnation=slot.incarnation)
        if given.signals:
            self._fleet.suspect(tool, given.signals)
        return given

    def _rejected(self, tool: Tool, outcome: Rejected) -> ServerError:
        if signals := scan(f"{outcome.message}\n{outcome.data or ''}"):
            self._fleet.suspect(tool, signals)
        redactor = self._fleet.redactor(tool.server)
        return ServerError(
            server=tool.server,
            tool=tool.tool,
            incarnation=self._slot.incarnation,
            code=outcome.code,
            message=redactor.text(outcome.message),
            data=redactor.value(outcome.data),
        )

    def _invalid(self, tool: Tool, problem: str) -> InvalidResult:
        problem = self._fleet.redactor(tool.server).text(problem)
        return InvalidResult(problem, server=tool.server, tool=tool.tool, incarnation=self._slot.incarnation)

    def _lost(self, tool: Tool, loss: Loss) -> ConnectionLost:
        redactor = self._fleet.redactor(tool.server)
        return ConnectionLost(
            redactor.text(loss.message),
            server=tool.server,
            tool=tool.tool,
            incarnation=self._slot.incarnation,
            delivery=self._delivery(),
            exit_code=loss.exit_code,
            stderr_tail=redactor.text(loss.stderr_tail),
        )

    def _down(self, snapshot: Snapshot) -> ServerDown:
        return ServerDown(
            server=snapshot.spec.name,
            tool=self._request.name if self._tool is None else self._tool.tool,
            state=snapshot.state,
            retry_in=retry_in(snapshot, trio.current_time()),
            error=snapshot.error,
        )

    def _timed_out(self, timeout: float, *, idle: bool = False) -> CallError:
        tool = self._tool
        return CallTimeout(
            server=self._request.server or "" if tool is None else tool.server,
            tool=self._request.name if tool is None else tool.tool,
            incarnation=self._slot.incarnation,
            delivery=self._delivery(),
            timeout=timeout,
            idle=idle,
        )


def _connected(snapshot: Snapshot) -> bool:
    return snapshot.state is ServerState.CONNECTED


async def _no_progress(progress: float, total: float | None, message: str | None) -> None:
    """For callers that want none, or only its timing."""
