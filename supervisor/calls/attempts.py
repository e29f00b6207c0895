"""One call from its name to its result, attempt after attempt: find its object, send it, judge the outcome, and decide
whether it may be sent again.

A call is sent again at most once, and only if it was not sent, or if the connection was lost before an answer came and
the tool may run twice, by its definition when the call was sent first and by the one of now, or the caller says so. A
timeout or a cancelled caller ends it.

`deliver` does all of it, in the caller's task. A caller with many calls and one task takes the steps apart: `start` for
calls that can be sent at once, `conclude` when a slot is decided, and `deliver` for calls that need more than that. All
that is known of a call is in its `ActiveCall` and, once it has to wait for its server, in the `Target` of that.
"""

from typing import Any

import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import CallError, CallTimeout, NurseryError, SupervisorClosed
from mcp_nursery.actors.messages import Request
from mcp_nursery.actors.outcomes import Answered, Dropped, Loss, Malformed, Outcome, Rejected, Unrouted
from mcp_nursery.actors.reply import ReplySlot
from mcp_nursery.actors.session.base import InputWanted

from .call import ActiveCall, Found, R, target_of
from .followed_task import follow
from .input_rounds import Asked, InputRounds, may_be_question, wants_a_visit
from .outcome_to_result import judge, lost


async def deliver(call: ActiveCall[Any, R]) -> R:
    """Bring the call to its result: from its name, or from the outcome of the message that `start` made.

    Makes one attempt, and another if that is allowed.

    Raises:
        NurseryError: See `Supervisor.call_tool`.
    """
    servers, outcome = call.servers, call.slot.outcome
    error: CallError | None = None
    counted: str | None = None
    try:
        found = call.found or await _begin(call)
        server = counted = found.server
        while True:
            if outcome is None:
                if not found.available:
                    found = await _ready(call, error)
                outcome = await call.submit(earlier=error)
            ended = await _ended(call, outcome)
            if not isinstance(ended, (Unrouted, Loss, Dropped)):
                servers.counter.finish_call(server, call.tool_name, call.duration)
                break
            if isinstance(ended, Unrouted):
                call.end_attempt(None)
                target_of(call).leave(call.slot.incarnation)
            else:
                error = await _failed(call, ended, final=error is not None)
            found, outcome = await _ready(call, error), None
    except BaseException as raised:
        if counted is not None:
            call.count_failure(counted, raised)
        call.end(None if isinstance(raised, trio.Cancelled) else raised)
        if isinstance(raised, NurseryError):  # it may have failed at once: a caller that retries holds up nobody else
            await trio.lowlevel.cancel_shielded_checkpoint()
        raise
    if call.operation is not None:
        call.end(ended)
    return ended


async def _begin(call: ActiveCall[Any, Any]) -> Found:
    """Find the object of the call, and count the call."""
    await trio.lowlevel.checkpoint_if_cancelled()
    if call.servers.closed:
        raise SupervisorClosed
    found: Found = call.find() or await _find(call)
    call.begin(found)
    call.servers.counter.begin_call(found.server)
    return found


async def _find(call: ActiveCall[Any, Any]) -> Found:
    """Find an object that is not known yet, if it appears in time."""
    call.begin(None)
    target = target_of(call)
    target.look()  # raises if it cannot appear, whatever the time
    with call.in_time():
        return await target.find()


# -- attempts ---------------------------------------------------------------------------------------------------------


async def _ended(call: ActiveCall[Any, R], outcome: Outcome) -> R | Unrouted | Loss | Dropped:
    """The end of one attempt, after all the rounds in which its server asks before it answers, or once the task that
    its server has made of it is over."""
    rounds: InputRounds | None = None
    while True:
        match outcome:
            case Unrouted() | Loss() | Dropped():
                return outcome
            case Rejected() if call.answers_questions and wants_a_visit(outcome):
                question: Asked = outcome
            case Answered() if ("task" in outcome.result or outcome.result.get("resultType") == "task") and (
                made := call.made_task(outcome.result)
            ):
                task = follow(call, made)
                return await judge(task if isinstance(task, Malformed) else await task.result(), call)
            case _:
                try:
                    return await judge(outcome, call)
                except InputWanted as asked:
                    question = asked.wanted
        rounds = rounds or InputRounds(call)
        outcome = await rounds.go_on(question)


async def _failed(call: ActiveCall[Any, Any], outcome: Loss | Dropped, *, final: bool) -> CallError:
    """The error of a failed attempt that may be followed by another.

    Raises:
        CallError: No other attempt may follow.
    """
    if isinstance(outcome, Loss):
        target, incarnation = target_of(call), call.slot.incarnation
        with call.in_time():
            await target.noticed(incarnation)
        target.leave(incarnation)
    error = lost(outcome, call)
    call.end_attempt(error)
    if final or not _may_send_again(call, outcome):
        raise error
    return error


def _may_send_again(call: ActiveCall[Any, Any], outcome: Loss | Dropped) -> bool:
    resend = call.asked.resend
    if resend == "never" or (isinstance(outcome, Dropped) and not outcome.again):
        return False
    if call.delivery is Delivery.NOT_SENT:
        return True
    return _may_act_twice(call)


def _may_act_twice(call: ActiveCall[Any, Any]) -> bool:
    return call.asked.resend == "always" or call.repeatable


async def _ready(call: ActiveCall[Any, Any], error: CallError | None) -> Found:
    """Wait until a live incarnation can take the call, as long as the caller wants to wait.

    Raises:
        NurseryError: None can. It is the error of the earlier attempt, if any, also if the object may no longer be
            used twice.
    """
    patient = error is not None and error.delivery is Delivery.UNKNOWN
    try:
        with call.in_time():
            found = await target_of(call).ready(patient=patient)
    except CallTimeout:
        raise
    except NurseryError:
        if error is not None:
            raise error from None  # the fate of the call says more than the server's present state
        raise
    call.found = found
    if error is not None and patient and not _may_act_twice(call):
        raise error
    return found


# -- its steps, for a caller with many calls --------------------------------------------------------------------------


def start(call: ActiveCall[Any, Any], slot: ReplySlot) -> Request | None:
    """The message to submit, if the call can be sent at once and needs no task of its own; None otherwise."""
    servers, asked = call.servers, call.asked
    attentive = asked.on_progress is not None or asked.idle_timeout is not None
    if attentive or asked.timeout == 0 or servers.closed:
        return None
    found: Found | None = call.find()
    if found is None or not found.available or not servers.breakers.is_closed(found.server):
        return None
    call.begin(found)
    message = call.message(slot)
    servers.counter.begin_call(found.server)
    return message


def needs_more(call: ActiveCall[Any, Any]) -> bool:
    """True if the outcome of a started call may not be the last: `deliver` brings that."""
    outcome = call.slot.outcome
    return isinstance(outcome, (Unrouted, Loss, Dropped)) or may_be_question(outcome)


async def conclude(call: ActiveCall[Any, R], duration: float) -> R:
    """The result of a started call that needs no more: its slot was decided after `duration` seconds. If this is
    cancelled, it can be called again.

    Raises:
        NurseryError: The call failed. See `Supervisor.call_tool`.
    """
    outcome = call.slot.outcome
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
    call.servers.counter.finish_call(call.server_name, call.tool_name, duration)
    if call.operation is not None:
        call.end(result)
    return result


def cancel(call: ActiveCall[Any, Any], duration: float) -> None:
    """Withdraw a started call; its server is notified if it was sent. `duration`: as for `conclude`, if the slot is
    decided."""
    call.slot.cancel()
    if isinstance(call.slot.outcome, Answered):
        call.servers.counter.finish_call(call.server_name, call.tool_name, duration)
    else:
        call.count_failure(call.server_name, None)
    call.end(None)
