"""One call from its name to its result, in the caller's task: route, submit, await the slot, judge, resend once."""

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeGuard, TypeVar, assert_never

import trio
from attrs import field, frozen
from mcp_types import URL_ELICITATION_REQUIRED, InputRequest
from opentelemetry.context import get_current
from opentelemetry.propagate import inject

from mcp_nursery.actors.connection.tool_calls import BadResult, InputWanted
from mcp_nursery.actors.errors import (
    CallError,
    CallTimeout,
    ConnectionLost,
    InvalidArguments,
    InvalidResult,
    NotApproved,
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
    Dropped,
    Expired,
    Loss,
    Malformed,
    Outcome,
    Owner,
    Question,
    Rejected,
    Round,
    RouteKey,
    ServerState,
    Unrouted,
    Unsendable,
)
from mcp_nursery.actors.wire.frames import encode

from .catalogue import Catalogue
from .fleet import Fleet
from .input_rounds import InputRounds, follow_up
from .lifecycle import CALLS_WAIT
from .status import Snapshot, retry_in
from .tools.results import ToolResult, tool_result
from .tools.signals import scan
from .tools.tool import Tool

T = TypeVar("T")

WhenDown = Literal["wait", "fail"]
Resend = Literal["safe", "always", "never"]
HandOn = Callable[[CallTool], None]


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
        self._deadline = math.inf
        self._tool: Tool | None = None
        self._slot = _NO_SLOT
        self._lost_incarnation = 0
        self._revived: int | None = None
        """The incarnation that had failed when this call had the server started afresh."""
        self._sent_before = False
        self._rounds: InputRounds | None = None

    async def run(self) -> ToolResult:
        """Bring the call to its result.

        Raises:
            NurseryError: See `Supervisor.call_tool`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        tool = self._found(self._fleet.catalogue.value)
        if tool is None:
            self._limit(None)
            tool = await self._in_time(self._find())
        self._limit(self._fleet.cells[tool.server].value.spec.call_timeout)
        self._begin(tool)
        return await self._counted(self._attempts(tool, None))

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
        fleet.timer.watch(slot, self._deadline)
        return message

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return trio.current_time() - self._started

    @property
    def needs_more(self) -> bool:
        """Whether the outcome of `start` may not be the last: `resume` brings that."""
        outcome = self._slot.outcome
        return isinstance(outcome, (Unrouted, Loss, Dropped)) or _asks_for_input(outcome)

    def conclude(self) -> ToolResult:
        """The result, now that the slot of `start` is decided and needs no more.

        Raises:
            NurseryError: The call failed. See `Supervisor.call_tool`.
        """
        tool, outcome = self._tool, self._slot.outcome
        assert tool is not None  # `start` came first
        assert outcome is not None  # and the slot is decided
        assert not isinstance(outcome, (Unrouted, Loss, Dropped))  # or it would need more
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
        return await self._counted(self._attempts(self._tool, self._slot.outcome))

    def give_up(self) -> None:
        """Take back what `start` began, or have the server told."""
        assert self._tool is not None  # `start` came first
        self._slot.abandon()
        self._fleet.finish_call(self._tool.server, failed=not isinstance(self._slot.outcome, Answered))

    def _limit(self, servers_own: float | None) -> None:
        self._timeout = self._fleet.call_timeout(self._request.timeout, servers_own)
        self._deadline = self._started + self._timeout

    async def _in_time(self, waiting: Awaitable[T]) -> T:
        """What it brings, if that comes before the call's time is over."""
        with trio.move_on_at(self._deadline):
            return await waiting
        raise self._timed_out(self._timeout)

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
        if held := catalogue.held_back(request.key):
            raise NotApproved(held.server, held.tool, held.why)
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
        """Whether it is; False if it is not and the call waits for it, which starts one that calls start.

        Raises:
            ServerDown: It is not, and the call does not wait in this state.
        """
        if _connected(snapshot):
            return True
        self._fleet.wake(snapshot.spec.name)
        if waits and self._revives(snapshot):
            return False
        if snapshot.state not in waits or snapshot.abandoned:
            raise self._down(snapshot)
        return False

    def _revives(self, snapshot: Snapshot) -> bool:
        """Whether this call has a failed server started, and that start has not begun yet. A call does so once."""
        if not snapshot.revives_on_call:
            return False
        if self._revived is None:
            self._revived = snapshot.incarnation
            self._fleet.revive(snapshot.spec.name)
        return self._revived == snapshot.incarnation

    def _waits(self, *, patient: bool) -> frozenset[ServerState]:
        """The states in which this call waits for its server."""
        if self._request.when_down == "fail":
            return frozenset()
        if self._request.when_down == "wait":
            return CALLS_WAIT | {ServerState.WAITING, ServerState.FAILED}
        if patient:
            return CALLS_WAIT | {ServerState.WAITING}
        return CALLS_WAIT

    # -- attempts -------------------------------------------------------------------------------------------------

    async def _attempts(self, tool: Tool, outcome: Outcome | None) -> ToolResult:
        """Try, and once more if that is allowed; `outcome` is that of an attempt already made."""
        lost: CallError | None = None
        while True:
            if outcome is None:
                if lost is not None or not tool.available:
                    tool = await self._ready(tool.server, lost)
                outcome = await self._submit(tool)
            match outcome:
                case Answered():
                    try:
                        return self._judge(tool, outcome)
                    except InputWanted as asked:
                        wanted = asked.wanted
                    outcome = await self._in_time(self._input_rounds(tool).bring(wanted))
                    continue
                case Unrouted():
                    self._lost_incarnation = self._slot.incarnation or 0
                    tool = await self._ready(tool.server, lost)
                case Loss() | Dropped():
                    error = await self._failed(tool, outcome)
                    if lost is not None or not self._may_resend(tool, outcome):
                        raise error
                    lost = error
                    self._rounds = None  # sent again, it begins with its first round
                case Rejected() if _wants_a_visit(outcome):
                    outcome = await self._visit(tool, outcome)
                    continue
                case _:
                    return self._judge(tool, outcome)
            outcome = None

    async def _ready(self, server: str, lost: CallError | None) -> Tool:
        """Wait until a live incarnation can take the call, as long as the caller wants to wait."""
        patient = lost is not None and lost.delivery is Delivery.UNKNOWN
        try:
            return await self._in_time(self._found_again(server, patient=patient))
        except CallTimeout:
            raise
        except NurseryError:
            if lost is not None:
                raise lost from None  # what became of the call goes before where the server stands now
            raise

    async def _found_again(self, server: str, *, patient: bool) -> Tool:
        await self._connected(server, patient=patient)
        return await self._find()

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

    async def _failed(self, tool: Tool, outcome: Loss | Dropped) -> CallError:
        """What the caller gets if this attempt was the last."""
        if isinstance(outcome, Dropped):
            return self._dropped(tool, outcome)
        await self._in_time(self._noticed(tool.server))
        self._lost_incarnation = self._slot.incarnation or 0
        return self._lost(tool, outcome)

    def _delivery(self) -> Delivery:
        """Whether a server may have acted on any attempt."""
        delivery = self._slot.delivery
        return Delivery.UNKNOWN if self._sent_before and delivery is Delivery.NOT_SENT else delivery

    async def _submit(self, tool: Tool, hand_on: HandOn | None = None) -> Outcome:
        """Give the call to `hand_on`, or else to the router, and wait in its slot, as long as the call has time."""
        request = self._request
        self._sent_before = self._sent_before or self._slot.sent
        if self._timeout == 0:
            raise self._timed_out(0)
        if request.on_progress is not None or request.idle_timeout is not None:
            return await self._in_time(self._exchange_attentively(tool, hand_on))
        self._slot = ReplySlot()
        self._fleet.timer.watch(self._slot, self._deadline)
        return await self._exchange(tool, hand_on)

    async def _exchange_attentively(self, tool: Tool, hand_on: HandOn | None) -> Outcome:
        """With a caller who hears of progress: its callback runs on the call's time, and no timer could end that."""
        request = self._request
        if request.idle_timeout is None:
            self._slot = ReplySlot(wants_progress=True)
            return await self._exchange(tool, hand_on)
        idle = IdleLimit(request.idle_timeout)
        self._slot = ReplySlot(wants_progress=True, idle=idle)
        with idle.scope:
            return await self._exchange(tool, hand_on)
        raise self._timed_out(idle.seconds, idle=True)

    async def _exchange(self, tool: Tool, hand_on: HandOn | None) -> Outcome:
        if hand_on is not None:
            hand_on(self._message(tool))
        else:
            try:
                await self._fleet.router.submit(self._message(tool))
            except trio.BrokenResourceError:
                raise SupervisorClosed from None
        return await self._slot.wait(self._request.on_progress or _no_progress)

    def _message(self, tool: Tool) -> CallTool:
        request = self._request
        meta = {key: value for key, value in request.meta.items() if value is not None} if request.meta else {}
        if get_current():  # an empty context has nothing to inject, and finding that out takes the propagators longer
            inject(meta)
        limited = request.idle_timeout is not None or self._timeout < math.inf
        return CallTool(request.key, tool.tool, request.arguments, meta, self._slot, limited)

    def _may_resend(self, tool: Tool, outcome: Loss | Dropped) -> bool:
        if self._request.resend == "never" or (isinstance(outcome, Dropped) and not outcome.again):
            return False
        if self._delivery() is Delivery.NOT_SENT:
            return True
        return self._request.resend == "always" or tool.hints.repeatable

    # -- a server that asks ---------------------------------------------------------------------------------------

    def _input_rounds(self, tool: Tool) -> InputRounds:
        """For an answer that is a question: whether the server has acted is unknown until it gives another."""
        self._renew_slot()
        if self._rounds is None:
            self._rounds = InputRounds(partial(self._ask, tool), partial(self._send_round, tool))
        return self._rounds

    async def _visit(self, tool: Tool, refused: Rejected) -> Outcome:
        visited = await self._in_time(self._input_rounds(tool).visit(refused))
        if visited is None:
            raise self._refused(tool, refused)
        return visited

    async def _ask(self, tool: Tool, key: str, request: InputRequest) -> Outcome:
        """Have a callback of the host's answer. The time that takes is the host's: no idle limit holds."""
        self._renew_slot()
        follow_up(self._owner(tool), self._slot.incarnation, Question(tool.tool, key, request, self._slot))
        return await self._slot.wait(_no_progress)

    def _renew_slot(self) -> None:
        before, self._slot = self._slot, ReplySlot()
        self._sent_before = self._sent_before or before.sent
        self._slot.incarnation, self._slot.tool = before.incarnation, before.tool

    async def _send_round(self, tool: Tool, responses: dict[str, Any] | None, state: str | None) -> Outcome:
        """Send the call once more, as its server wants it: a part of the same attempt."""
        asker = self._slot.incarnation
        return await self._submit(tool, lambda call: follow_up(self._owner(tool), asker, Round(call, responses, state)))

    def _owner(self, tool: Tool) -> Owner | None:
        cell = self._fleet.cells.get(tool.server)
        return None if cell is None else cell.value.owner

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _judge(self, tool: Tool, outcome: Answered | Rejected | Malformed | Unsendable | Busy | Expired) -> ToolResult:
        incarnation = self._slot.incarnation
        match outcome:
            case Answered():
                return self._result(tool, outcome)
            case Rejected():
                raise self._refused(tool, outcome)
            case Malformed():
                raise self._invalid(tool, outcome.problem)
            case Unsendable():
                raise InvalidArguments(f"the call cannot be sent as JSON: {outcome.problem}")
            case Busy():
                raise ServerBusy(server=tool.server, tool=tool.tool, incarnation=incarnation, delivery=self._delivery())
            case Expired():
                raise self._timed_out(self._timeout)
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
        given = tool_result(result, tool, duration=self.elapsed, incarnation=slot.incarnation)
        if given.signals:
            self._fleet.suspect(tool, given.signals)
        return given

    def _refused(self, tool: Tool, refused: Rejected) -> ServerError:
        if signals := scan(f"{refused.message}\n{refused.data or ''}"):
            self._fleet.suspect(tool, signals)
        redactor = self._fleet.redactor(tool.server)
        return ServerError(
            server=tool.server,
            tool=tool.tool,
            incarnation=self._slot.incarnation,
            code=refused.code,
            message=redactor.text(refused.message),
            data=redactor.value(refused.data),
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

    def _dropped(self, tool: Tool, drop: Dropped) -> CallError:
        """The server's connection goes on: this is the error of one call."""
        if drop.status is None:
            return self._lost(tool, Loss(drop.problem))
        return ServerError(
            server=tool.server,
            tool=tool.tool,
            incarnation=self._slot.incarnation,
            code=drop.status,
            message=self._fleet.redactor(tool.server).text(drop.problem),
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


def _asks_for_input(outcome: Outcome | None) -> bool:
    """Whether it may be a question of the server's instead of an answer."""
    if isinstance(outcome, Answered):
        return outcome.result.get("resultType") == "input_required"
    return outcome is not None and _wants_a_visit(outcome)


def _wants_a_visit(outcome: Outcome) -> TypeGuard[Rejected]:
    """Whether a server refuses until its user has visited a page."""
    return isinstance(outcome, Rejected) and outcome.code == URL_ELICITATION_REQUIRED


def _connected(snapshot: Snapshot) -> bool:
    return snapshot.state is ServerState.CONNECTED


async def _no_progress(progress: float, total: float | None, message: str | None) -> None:
    """For callers that want none, or only its timing."""
