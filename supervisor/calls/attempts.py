"""One call from its name to its result, attempt after attempt: find what it goes to, send it, judge the outcome, and
decide whether it may be sent again.

A call is sent again at most once, and only if that cannot make its server act twice: it was not sent, or the tool may
run twice and the connection was lost before an answer came. A timeout or a cancelled caller ends it.
"""

from collections.abc import Coroutine
from functools import cached_property
from typing import Any, Generic

import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import BreakerOpen, CallError, CallTimeout, NurseryError, SupervisorClosed
from mcp_nursery.actors.messages import Request
from mcp_nursery.actors.outcomes import Answered, Dropped, Loss, Outcome, Rejected, Unrouted
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.base import InputWanted

from ..telemetry.operation import Operation
from .call import ActiveCall, Found, R
from .input_rounds import Asked, InputRounds, may_be_question, wants_a_visit
from .result import judge, lost
from .target import Target


class Attempts(Generic[R]):
    """The attempts of one call.

    `run` is all of it, in the caller's task. Who has many calls and one task takes the steps apart: `start` what can be
    sent at once, `conclude` when its slot is decided, and `run` what needs more than that.
    """

    def __init__(self, call: ActiveCall[Any, R]) -> None:
        self._call = call
        self._servers = call.servers

    @cached_property
    def _target(self) -> Target:
        """Most calls are sent at once and need none."""
        return Target(self._call)

    def run(self) -> Coroutine[Any, Any, R]:
        """Bring the call to its result: from its name, or from the outcome of what `start` has sent.

        Tries, and once more if that is allowed.

        Raises:
            NurseryError: See `Supervisor.call_tool`.
        """
        return self._run() if self._servers.telemetry is None else self._run_told()

    async def _run_told(self) -> R:
        """The same, where somebody wants to know how it ends."""
        try:
            result = await self._run()
        except BaseException as error:
            self._call.end(None if isinstance(error, trio.Cancelled) else error)
            raise
        self._call.end(result)
        return result

    async def _run(self) -> R:
        call, outcome = self._call, self._call.slot.outcome
        error: CallError | None = None
        counted: str | None = None
        try:
            found = call.found or await self._begin()
            server = counted = found.server
            while True:
                if outcome is None:
                    if not found.available:
                        found = await self._ready(error)
                    outcome = await self._submit(error)
                ended = await self._ended(outcome)
                if not isinstance(ended, (Unrouted, Loss, Dropped)):
                    self._servers.usage.finish_call(server, call.tool_name, call.elapsed)
                    return ended
                if isinstance(ended, Unrouted):
                    call.end_attempt(None)
                    self._target.leave(call.slot.incarnation)
                else:
                    error = await self._failed(ended, final=error is not None)
                found, outcome = await self._ready(error), None
        except BaseException as raised:
            if counted is not None:
                call.count_failure(counted, raised)
            if isinstance(raised, NurseryError):  # it may have failed at once: who tries again holds up nobody else
                await trio.lowlevel.cancel_shielded_checkpoint()
            raise

    async def _begin(self) -> Found:
        """Find what is called, and count the call."""
        await trio.lowlevel.checkpoint_if_cancelled()
        call, servers = self._call, self._servers
        if servers.closed:
            raise SupervisorClosed
        found = call.find() or await self._find()
        call.begin(found)
        servers.usage.begin_call(found.server)
        return found

    async def _find(self) -> Found:
        """What nobody knows now, if it comes in time."""
        self._call.begin(None)
        self._target.look()  # refuses, whatever the call's time, if it cannot come
        with self._call.in_time():
            return await self._target.find()

    # -- attempts -------------------------------------------------------------------------------------------------

    async def _submit(self, error: CallError | None) -> Outcome:
        try:
            return await self._call.submit()
        except BreakerOpen:
            if error is not None:
                raise error from None  # as in `_ready`
            raise

    async def _ended(self, outcome: Outcome) -> R | Unrouted | Loss | Dropped:
        """How one attempt ends, after all the rounds in which its server asks before it answers."""
        call = self._call
        rounds: InputRounds | None = None
        while True:
            match outcome:
                case Unrouted() | Loss() | Dropped():
                    return outcome
                case Rejected() if call.answers_questions and wants_a_visit(outcome):
                    question: Asked = outcome
                case _:
                    try:
                        return await judge(outcome, call)
                    except InputWanted as asked:
                        question = asked.wanted
            rounds = rounds or InputRounds(call)
            with call.in_time():
                outcome = await rounds.go_on(question)

    async def _failed(self, outcome: Loss | Dropped, *, final: bool) -> CallError:
        """The error of a failed attempt after which there may be another.

        Raises:
            CallError: There may be none.
        """
        call = self._call
        if isinstance(outcome, Loss):
            incarnation = call.slot.incarnation
            with call.in_time():
                await self._target.noticed(incarnation)
            self._target.leave(incarnation)
        error = lost(outcome, call)
        call.end_attempt(error)
        if final or not self._may_send_again(outcome):
            raise error
        return error

    def _may_send_again(self, outcome: Loss | Dropped) -> bool:
        resend = self._call.asked.resend
        if resend == "never" or (isinstance(outcome, Dropped) and not outcome.again):
            return False
        if self._call.delivery is Delivery.NOT_SENT:
            return True
        return resend == "always" or self._call.repeatable

    async def _ready(self, error: CallError | None) -> Found:
        """Wait until a live incarnation can take the call, as long as the caller wants to wait."""
        patient = error is not None and error.delivery is Delivery.UNKNOWN
        try:
            with self._call.in_time():
                found = await self._target.ready(patient=patient)
        except CallTimeout:
            raise
        except NurseryError:
            if error is not None:
                raise error from None  # what became of the call goes before where the server stands now
            raise
        self._call.found = found
        return found

    # -- its steps, for who has many calls ------------------------------------------------------------------------

    def start(self, slot: ReplySlot) -> Request | None:
        """The message to submit, if the call can be sent at once and needs no task of its own; None otherwise."""
        call, servers = self._call, self._servers
        asked = call.asked
        attentive = asked.on_progress is not None or asked.idle_timeout is not None
        if attentive or asked.timeout == 0 or servers.closed:
            return None
        found = call.find()
        if found is None or not found.available or not servers.breakers.is_closed(found.server):
            return None
        call.begin(found)
        message = call.message(slot)
        servers.usage.begin_call(found.server)
        return message

    @property
    def elapsed(self) -> float:
        """Seconds since the call began."""
        return self._call.elapsed

    @property
    def operation(self) -> Operation | None:
        """What is traced and measured of it."""
        return self._call.operation

    def settle(self) -> None:
        """The slot of `start` is decided."""
        call = self._call
        self._servers.breakers.settle(call, call.server_name, call.slot)

    @property
    def needs_more(self) -> bool:
        """Whether the outcome of `start` may not be the last: `run` brings that."""
        outcome = self._call.slot.outcome
        return isinstance(outcome, (Unrouted, Loss, Dropped)) or may_be_question(outcome)

    async def conclude(self, duration: float) -> R:
        """The result, now that the slot of `start` is decided, after so many seconds, and needs no more. Cancelled, it
        can be asked again.

        Raises:
            NurseryError: The call failed. See `Supervisor.call_tool`.
        """
        call, outcome = self._call, self._call.slot.outcome
        assert outcome is not None  # the slot is decided
        assert not isinstance(outcome, (Unrouted, Loss, Dropped))  # or it would need more
        try:
            result = await judge(outcome, call)
        except trio.Cancelled:
            raise
        except BaseException as error:
            call.count_failure(call.server_name, error)
            call.end(error)
            raise
        self._servers.usage.finish_call(call.server_name, call.tool_name, duration)
        if call.operation is not None:
            call.end(result)
        return result

    def give_up(self, duration: float) -> None:
        """Take back what `start` began, or have the server told; `duration`: as for `conclude`, if it is decided."""
        call = self._call
        call.slot.abandon()
        if isinstance(call.slot.outcome, Answered):
            self._servers.usage.finish_call(call.server_name, call.tool_name, duration)
        else:
            call.count_failure(call.server_name, None)
        call.end(None)
