"""One call from its name to its result, in the caller's task: find its tool, hand it on, judge, perhaps try again."""

from collections.abc import Awaitable
from functools import cached_property

import trio

from mcp_nursery.actors.errors import CallError, CallTimeout, NurseryError
from mcp_nursery.actors.messages import CallTool
from mcp_nursery.actors.outcomes import Answered, Dropped, Loss, Outcome, Rejected, Unrouted
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.tool_call import InputWanted
from mcp_nursery.actors.states import Delivery

from ..servers.servers import Fleet
from ..tools.results import ToolResult
from ..tools.tool import Tool
from .attempt import Handover
from .input_rounds import Asked, InputRounds, may_be_question, wants_a_visit
from .request import Request
from .result import judge, lost
from .target import Destination


async def deliver(request: Request, fleet: Fleet) -> ToolResult:
    """Bring one call to its result.

    Raises:
        NurseryError: See `Supervisor.call_tool`.
    """
    return await CallDelivery(request, fleet).run()


class CallDelivery:
    """One call, attempt after attempt.

    `run` is all of it, in the caller's task. Who has many calls and one task takes the steps apart: `start` what can be
    sent at once, `conclude` when its slot is decided, and `resume` what needs another attempt.
    """

    def __init__(self, request: Request, fleet: Fleet) -> None:
        self._request = request
        self._fleet = fleet
        self._handover = Handover(request, fleet)

    @cached_property
    def _destination(self) -> Destination:
        """Most calls are handed on at once and need none."""
        return Destination(self._request, self._fleet)

    async def run(self) -> ToolResult:
        """Bring the call to its result.

        Raises:
            NurseryError: See `Supervisor.call_tool`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        fleet, handover = self._fleet, self._handover
        fleet.check_open()
        tool = fleet.catalogue.value.find(self._request.key) or await self._find()
        handover.limit(fleet.cells[tool.server].value.spec.call_timeout)
        handover.tool = tool
        fleet.begin_call(tool.server)
        return await self._counted(self._attempts(tool, None), tool.server)

    async def _find(self) -> Tool:
        """The tool that nobody knows now, if it comes in time."""
        self._destination.find_in(self._fleet.catalogue.value)  # refuses, whatever the call's time, if it cannot come
        self._handover.limit(None)
        return await self._handover.in_time(self._destination.find())

    # -- attempts -------------------------------------------------------------------------------------------------

    async def _attempts(self, tool: Tool, outcome: Outcome | None) -> ToolResult:
        """Try, and once more if that is allowed; `outcome` is that of an attempt already handed on."""
        error: CallError | None = None
        while True:
            if outcome is None and not tool.available:
                tool = await self._ready(tool, error)
            ended = await self._attempt(tool, outcome)
            if isinstance(ended, ToolResult):
                return ended
            if isinstance(ended, Unrouted):
                self._destination.leave(self._handover.slot.incarnation)
            else:
                error = await self._failed(tool, ended, final=error is not None)
            tool, outcome = await self._ready(tool, error), None

    async def _attempt(self, tool: Tool, outcome: Outcome | None) -> ToolResult | Unrouted | Loss | Dropped:
        """One attempt, with all the rounds in which its server asks before it answers."""
        handover, fleet = self._handover, self._fleet
        rounds: InputRounds | None = None
        if outcome is None:
            outcome = await handover.submit(tool)
        while True:
            match outcome:
                case Unrouted() | Loss() | Dropped():
                    return outcome
                case Rejected() if wants_a_visit(outcome):
                    question: Asked = outcome
                case _:
                    try:
                        return await judge(outcome, tool, handover, fleet)
                    except InputWanted as asked:
                        question = asked.wanted
            rounds = rounds or InputRounds(tool, handover, fleet)
            outcome = await handover.in_time(rounds.go_on(question))

    async def _failed(self, tool: Tool, outcome: Loss | Dropped, *, final: bool) -> CallError:
        """The error of a failed attempt after which there may be another.

        Raises:
            CallError: There may be none.
        """
        handover = self._handover
        if isinstance(outcome, Loss):
            incarnation = handover.slot.incarnation
            await handover.in_time(self._destination.noticed(tool.server, incarnation))
            self._destination.leave(incarnation)
        error = lost(outcome, tool, handover, self._fleet)
        if final or not self._may_resend(tool, outcome):
            raise error
        return error

    def _may_resend(self, tool: Tool, outcome: Loss | Dropped) -> bool:
        if self._request.resend == "never" or (isinstance(outcome, Dropped) and not outcome.again):
            return False
        if self._handover.delivery is Delivery.NOT_SENT:
            return True
        return self._request.resend == "always" or tool.hints.repeatable

    async def _ready(self, tool: Tool, error: CallError | None) -> Tool:
        """Wait until a live incarnation can take the call, as long as the caller wants to wait."""
        patient = error is not None and error.delivery is Delivery.UNKNOWN
        try:
            tool = await self._handover.in_time(self._destination.ready(tool, patient=patient))
        except CallTimeout:
            raise
        except NurseryError:
            if error is not None:
                raise error from None  # what became of the call goes before where the server stands now
            raise
        self._handover.tool = tool
        return tool

    async def _counted(self, attempts: Awaitable[ToolResult], server: str) -> ToolResult:
        failed = True
        try:
            result = await attempts
            failed = False
        finally:
            self._fleet.finish_call(server, failed=failed)
        return result

    # -- its steps, for who has many calls ------------------------------------------------------------------------

    def start(self, slot: ReplySlot) -> CallTool | None:
        """The message to submit, if the call can be sent at once and needs no task of its own; None otherwise.

        Raises:
            ValueError: The call's timeout is negative.
        """
        request, fleet, handover = self._request, self._fleet, self._handover
        attentive = request.on_progress is not None or request.idle_timeout is not None
        tool = None if attentive or fleet.closed else fleet.catalogue.value.find(request.key)
        if tool is None or not tool.available:
            handover.limit(None)
            return None
        handover.limit(fleet.cells[tool.server].value.spec.call_timeout)
        if handover.timeout == 0:
            return None
        message = handover.start(tool, slot)
        fleet.begin_call(tool.server)
        return message

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._handover.elapsed

    @property
    def needs_more(self) -> bool:
        """Whether the outcome of `start` may not be the last: `resume` brings that."""
        outcome = self._handover.slot.outcome
        return isinstance(outcome, (Unrouted, Loss, Dropped)) or may_be_question(outcome)

    async def conclude(self) -> ToolResult:
        """The result, now that the slot of `start` is decided and needs no more. Cancelled, it can be asked again.

        Raises:
            NurseryError: The call failed. See `Supervisor.call_tool`.
        """
        tool, outcome = self._handover.tool, self._handover.slot.outcome
        assert tool is not None  # `start` came first
        assert outcome is not None  # and the slot is decided
        assert not isinstance(outcome, (Unrouted, Loss, Dropped))  # or it would need more
        try:
            result = await judge(outcome, tool, self._handover, self._fleet)
        except trio.Cancelled:
            raise
        except BaseException:
            self._fleet.finish_call(tool.server, failed=True)
            raise
        self._fleet.finish_call(tool.server, failed=False)
        return result

    async def resume(self) -> ToolResult:
        """Go on from an outcome that may not be the last.

        Raises:
            NurseryError: See `Supervisor.call_tool`.
        """
        tool, outcome = self._handover.tool, self._handover.slot.outcome
        assert tool is not None  # `start` came first
        return await self._counted(self._attempts(tool, outcome), tool.server)

    def give_up(self) -> None:
        """Take back what `start` began, or have the server told."""
        tool, slot = self._handover.tool, self._handover.slot
        assert tool is not None  # `start` came first
        slot.abandon()
        self._fleet.finish_call(tool.server, failed=not isinstance(slot.outcome, Answered))
