"""The end of a task as it is recorded: its result as it came, or its error."""

import json
from collections.abc import Mapping
from typing import Any, cast

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import CallError, CallTimeout, InvalidResult, NurseryError, ServerError, TaskLost
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.outcomes import Answered
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.protocol import INTERNAL_ERROR, MODERN_PROTOCOL_VERSIONS, JsonRpcError
from mcp_nursery.actors.records import evolve
from mcp_nursery.actors.secrets import MAX_LINE
from mcp_nursery.actors.session.base import BadResult

from ..decisions.task_records import TaskRecord, finite
from ..decisions.task_states import TASK_TRANSITIONS, TaskStatus
from ..storage.task_rows import MOST_RESULT
from ..tools.tool_result import ToolResult, tool_result
from .kept_call import KeptCall, lost


def made_over(record: TaskRecord, ended: bytes | JsonRpcError | None, now: float, ttl: float) -> TaskRecord:
    """The record, for so many seconds, of a call of a gateway that has ended so; None: with its gateway."""
    record = evolve(record, info=evolve(record.info, expires=now + ttl))
    if ended is None:
        words = "the gateway that made this call has ended; the server may have acted"
        ended = JsonRpcError(INTERNAL_ERROR, words, {"delivery": Delivery.UNKNOWN.value})
    if isinstance(ended, bytes):
        outcome = {"result": json.loads(ended)} if len(ended) <= MOST_RESULT else None
        if outcome is not None and len(json.dumps(outcome)) <= MOST_RESULT:
            return record.over(now, TaskStatus.COMPLETED, outcome, None)
        words = f"its result has {len(ended)} bytes, and at most {MOST_RESULT} are kept; the server has acted"
        ended = JsonRpcError(INTERNAL_ERROR, words, {"delivery": Delivery.ANSWERED.value})
    error = {"type": "ServerError", "code": ended.code, "message": ended.message, "data": ended.data}
    return record.over(now, TaskStatus.FAILED, {"error": error}, ended.message[:MAX_LINE])


def status_of(ended: ToolResult | NurseryError) -> TaskStatus:
    """The status of a task that has ended so."""
    if isinstance(ended, ToolResult):
        return TaskStatus.COMPLETED
    if isinstance(ended, CallTimeout) or (isinstance(ended, TaskLost) and ended.status == TaskStatus.CANCELLED):
        return TaskStatus.CANCELLED
    return TaskStatus.FAILED


def outcome_of(ended: ToolResult | NurseryError, call: KeptCall) -> dict[str, Any] | None:
    """The outcome of a task, as it is recorded; None for one that is too large, or has no JSON form."""
    answer = call.slot.outcome
    match ended:
        case ToolResult():
            assert isinstance(answer, Answered)  # it was judged
            outcome = {"result": answer.result, "incarnation": ended.incarnation}
            if answer.size > MOST_RESULT:
                return None
        case ServerError():
            outcome = {"code": ended.code, "message": ended.message, "data": ended.data}
        case CallTimeout():
            outcome = {"timeout": ended.timeout}
        case TaskLost():
            outcome = {"why": ended.why, "status": ended.status}
        case _:
            outcome = {"why": ended.fact.removeprefix(f"{call.server_name}: {call.name}: ")}
    if isinstance(ended, NurseryError):
        outcome = {"error": {"type": type(ended).__name__, **outcome}}
    try:
        json.dumps(outcome)
    except (TypeError, ValueError, RecursionError):  # of an in-process server
        return None
    return outcome


async def restored(record: TaskRecord, outcome: Mapping[str, Any], *, max_chars: int) -> ToolResult | NurseryError:
    """The end of a finished task, as it is recorded."""
    info, result = record.info, outcome.get("result")
    if not isinstance(result, dict):
        return _error_in(record, outcome)
    await RESULT_TYPES.ensure_loaded()
    from mcp_nursery.actors.session.requests import PreparedRequest  # see `KeptCall.go_on`

    codec = PreparedRequest("tools/call", protocol_version=max(MODERN_PROTOCOL_VERSIONS), stamp={})
    incarnation = outcome.get("incarnation")
    try:
        typed = await by_turns(codec.result(cast("dict[str, Any]", result)))
    except BadResult:
        return lost(record, "its recorded result cannot be read")
    return await by_turns(
        tool_result(
            typed,
            server=info.server,
            tool=info.tool,
            max_chars=max_chars,
            duration=(info.finished or info.created) - info.created,
            incarnation=incarnation if isinstance(incarnation, int) else 0,
        )
    )


def _error_in(record: TaskRecord, outcome: Mapping[str, Any]) -> CallError:
    """The error that is recorded as the end of a task."""
    info, said = record.info, outcome.get("error")
    error = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    why = str(error.get("why"))
    match error:
        case {"type": "ServerError", "code": int(code), "message": str(message)}:
            return ServerError(
                server=info.server, tool=info.tool, incarnation=None, code=code, message=message, data=error.get("data")
            )
        case {"type": "CallTimeout"}:
            try:
                timeout = finite(error.get("timeout"))
            except ValueError:
                return lost(record, "its recorded error cannot be read")
            delivery = Delivery.UNKNOWN
            return CallTimeout(server=info.server, tool=info.tool, incarnation=None, delivery=delivery, timeout=timeout)
        case {"type": "InvalidResult"}:
            return InvalidResult(why, server=info.server, tool=info.tool, incarnation=None)
        case {"status": str(status)} if status in TASK_TRANSITIONS:
            return lost(record, why, status=status)
        case _:
            return lost(record, why)
