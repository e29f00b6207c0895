"""The outcome of an attempt as its caller gets it: the result, or an error that says what may have happened."""

import json
from typing import Any, TypeVar, assert_never, cast

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import (
    CallError,
    ConnectionLost,
    InvalidArguments,
    InvalidResult,
    RawError,
    ServerBusy,
    ServerError,
    UnknownTool,
)
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.json_depth import levels_of, texts_in
from mcp_nursery.actors.outcomes import (
    Answered,
    Busy,
    Dropped,
    Expired,
    Loss,
    Malformed,
    Rejected,
    Unlisted,
    Unsendable,
)
from mcp_nursery.actors.pieces import SMALL, Steps, at_once
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.protocol import MODERN_PROTOCOL_VERSIONS
from mcp_nursery.actors.records import evolve
from mcp_nursery.actors.session.base import BadResult

from ..security.injection import scan, scan_in_pieces
from ..security.redaction import MAX_SAID, Redactor
from ..tools.tool_result import ToolResult, write
from .call import ActiveCall, R

T = TypeVar("T")

Final = Answered | Rejected | Malformed | Unsendable | Busy | Unlisted | Expired
"""The outcomes that no other attempt could change."""


async def judge(outcome: Final, call: ActiveCall[Any, R]) -> R:
    """The result that the outcome means. A large message is processed in pieces, within the call's time.

    Raises:
        InputWanted: There is no result yet: the answer is a request for input.
        CallError: The call failed.
        InvalidArguments: The call has no JSON form.
        UnknownTool: Its server has just dropped the tool, or whatever else was asked for.
    """
    match outcome:
        case Answered():
            if not RESULT_TYPES.is_loaded:
                await _have_types(call)
            work = _result(outcome, call)
            return at_once(work) if outcome.size <= SMALL else await _in_pieces(work, outcome.size, call)
        case Rejected():
            await _have_types(call)
            raise await refused(outcome, call)
        case Malformed():
            raise _invalid(outcome.problem, call)
        case Unsendable():
            problem = f"the call cannot be sent as JSON: {outcome.problem}"
            raise InvalidArguments(problem, server=call.server_name, tool=call.name)
        case Busy():
            raise _busy(call)
        case Unlisted():
            raise UnknownTool(call.name, server=call.server_name)
        case Expired():
            raise call.timed_out()
        case _:
            assert_never(outcome)


async def _have_types(call: ActiveCall[Any, Any]) -> None:
    """Load the SDK's types for the result, unless it is relayed and stays as it came.

    Raises:
        CallTimeout: The call's time was over before they were loaded.
    """
    if call.slot.relay is None and not RESULT_TYPES.is_loaded:
        with call.in_time():
            await RESULT_TYPES.ensure_loaded()


async def _in_pieces(work: Steps[T], size: int, call: ActiveCall[Any, Any]) -> T:
    """The result of the work on an answer of `size` bytes.

    Raises:
        CallTimeout: The call's time was over before that.
    """
    if size <= SMALL:
        return at_once(work)
    with call.in_time():
        return await by_turns(work)


def lost(outcome: Loss | Dropped, call: ActiveCall[Any, Any]) -> CallError:
    """The error of an attempt that got no answer, whether or not another may follow."""
    if isinstance(outcome, Loss):
        return _connection_lost(outcome, call)
    if outcome.status is None:
        return _connection_lost(Loss(outcome.problem), call)
    refusal = Rejected(outcome.status, outcome.problem, status=outcome.status, retry_in=outcome.retry_in)
    return at_once(_refused(refusal, call, delivery=call.delivery))


async def refused(refusal: Rejected, call: ActiveCall[Any, Any]) -> ServerError:
    """The error of a call that its server answered with an error.

    Raises:
        CallTimeout: The call's time was over before that.
    """
    return await _in_pieces(_refused(refusal, call), refusal.size, call)


def _refused(
    refusal: Rejected, call: ActiveCall[Any, Any], *, delivery: Delivery = Delivery.ANSWERED
) -> Steps[ServerError]:
    """The error of `refused`, in steps; `delivery`: unknown if it may be a gateway's."""
    written = _written(refusal.data) if refusal.size <= SMALL else (yield from write(refusal.data))
    signals = yield from scan_in_pieces(f"{refusal.message}\n{written}")
    if signals:
        call.servers.report_injection(call.server_name, call.name, signals)
    redactor = call.redactor
    is_relayed = call.relay is not None and refusal.status is None and written is not None
    return ServerError(
        server=call.server_name,
        tool=call.name,
        incarnation=call.slot.incarnation,
        code=refusal.code,
        message=(yield from redactor.said_in_pieces(refusal.message)),
        data=(yield from _shown(refusal.data, redactor))
        if written is not None
        else "<a value that cannot be written as JSON>",
        delivery=delivery,
        way_out=_way_out(refusal.message, call),
        raw=RawError(refusal.message, refusal.data) if is_relayed else None,
        retry_in=refusal.retry_in,
    )


_ASKED_BY_REQUEST = "server-initiated requests"
"""The words of servers on SDK 2.x (no back-channel for such requests) and on FastMCP 4 (they are unavailable) that
tried to ask the host in the middle of a call in a way that only the older protocol allows."""


def _way_out(words: str, call: ActiveCall[Any, Any]) -> str:
    """The advice about a server's words on a failure; empty if nothing is known."""
    observable = call.servers.snapshots.get(call.server_name)
    if _ASKED_BY_REQUEST not in words or observable is None:
        return ""
    spec, said = observable.value.spec, observable.value.introduction
    if spec.transport.kind == "in-process" or said is None or said.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return ""
    return (
        f"it asks the host by requests, which {said.protocol_version} has not: "
        'the setting "protocol": "handshake" of this server lets it'
    )


def _written(data: object) -> str | None:
    """The data as JSON; None if it has no such form: an in-process server may return integers too long to be
    written."""
    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return None


def _shown(data: object, redactor: Redactor) -> Steps[Any]:
    yield
    if not _is_short(data):
        return f"<more than {MAX_SAID} characters>"
    return (yield from redactor.value_in_pieces(data))


def _suspect(words: str, call: ActiveCall[Any, Any]) -> None:
    """Report injection signals: errors quote servers too, and reach models as results do."""
    if signals := scan(words):
        call.servers.report_injection(call.server_name, call.name, signals)


def _is_short(data: object) -> bool:
    """True if a JSON value holds no more than `MAX_SAID` characters, each value counted as one more."""
    room = MAX_SAID
    for level in levels_of(data):
        room -= len(level) + sum(len(text) for text in texts_in(level))
        if room < 0:
            return False
    return True


def _result(answer: Answered, call: ActiveCall[Any, R]) -> Steps[R]:
    slot = call.slot
    assert slot.codec is not None
    assert slot.incarnation is not None  # both are set before an answer comes
    small = answer.size <= SMALL
    try:
        result = yield from slot.codec.result(answer.result, small=small, on_unchecked=call.count_unchecked)
        call.duration = call.elapsed
        given = yield from call.given(result, slot.incarnation, small=small)
    except (BadResult, ValueError) as error:  # an in-process server may return integers too long to be written
        raise _invalid(str(error), call) from None
    signals: tuple[str, ...] = getattr(
        given, "signals", ()
    )  # completions have none: a user picks, and no model sees them
    if signals:
        call.servers.report_injection(call.server_name, call.name, signals)
    if isinstance(given, ToolResult) and given.is_error and (way_out := _way_out(given.full_text, call)):
        return cast("R", evolve(given, full_text=f"{given.full_text}\n{way_out}"))
    return given


def _invalid(problem: str, call: ActiveCall[Any, Any]) -> InvalidResult:
    _suspect(problem, call)
    problem = call.redactor.said(problem)
    return InvalidResult(problem, server=call.server_name, tool=call.name, incarnation=call.slot.incarnation)


def _busy(call: ActiveCall[Any, Any]) -> ServerBusy:
    incarnation, delivery = call.slot.incarnation, call.delivery
    return ServerBusy(server=call.server_name, tool=call.name, incarnation=incarnation, delivery=delivery)


def _connection_lost(loss: Loss, call: ActiveCall[Any, Any]) -> ConnectionLost:
    _suspect(f"{loss.message}\n{loss.stderr_tail}", call)
    redactor = call.redactor
    return ConnectionLost(
        redactor.said(loss.message),
        server=call.server_name,
        tool=call.name,
        incarnation=call.slot.incarnation,
        delivery=call.delivery,
        exit_code=loss.exit_code,
        stderr_tail=redactor.text(loss.stderr_tail),
        retry_in=loss.retry_in,
    )
