"""The requests of a server to its host: the host's callbacks in the shape that the SDK's session takes.

Since 2026-07-28 a server answers a call with a request for input: this goes to the callbacks, and the call is sent
again.
"""

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypedDict

import trio
from mcp.client import ClientRequestContext, ClientSession
from mcp.client.session import ElicitationFnT, ListRootsFnT, LoggingFnT, SamplingFnT
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    CreateMessageRequest,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitResult,
    ErrorData,
    InputRequest,
    ListRootsRequest,
    ListRootsResult,
    LoggingLevel,
    LoggingMessageNotificationParams,
    Root,
    SamplingCapability,
    SamplingToolsCapability,
)
from pydantic import BaseModel, FileUrl

from mcp_nursery.actors.records import evolve, frozen

from ..account import NOTICES, own_weight
from ..callbacks import Host, Log, Roots, ServerMessage
from ..jsonrpc.codec import encode
from ..limits import unanswered
from ..messages import Question
from ..nurseries import run_alongside
from ..outcomes import Answered, Rejected
from ..queues import BoundedQueue
from ..roots import root_uris

logger: Final = logging.getLogger(__name__)

_MOST_LOG_MESSAGES = 1024
"""Log messages that may wait for a slow callback."""


@dataclass(kw_only=True)
class CallContext(ClientRequestContext):
    """The context of a request for input that came as the result of a call."""

    tool: str
    """The server's own name of the tool that asks, of the prompt, or the URI."""


class SessionCallbacks(TypedDict, total=False):
    """Arguments of the SDK's session and client. Missing callbacks are not advertised, and their requests refused."""

    elicitation_callback: ElicitationFnT
    sampling_callback: SamplingFnT
    sampling_capabilities: SamplingCapability
    list_roots_callback: ListRootsFnT
    logging_callback: LoggingFnT
    log_level: LoggingLevel


@asynccontextmanager
async def open_callbacks(host: Host) -> AsyncGenerator[SessionCallbacks, None]:
    """The session's callbacks for this host, while the block lasts."""
    offered = _answering(host)
    if host.callbacks.log is None:
        if host.logger is not None:
            offered["logging_callback"] = host.logger.take
            if (level := host.logger.level) is not None:
                offered["log_level"] = level
        yield offered
        return
    logs = _Logs(host, host.callbacks.log)
    offered["logging_callback"] = logs.take
    offered["log_level"] = host.callbacks.log_level
    async with run_alongside(logs.deliver):
        yield offered


def _answering(host: Host) -> SessionCallbacks:
    offered = SessionCallbacks()
    if host.callbacks.elicit is not None:
        offered["elicitation_callback"] = _Answering(host, host.callbacks.elicit, (ElicitResult, ErrorData))
    if host.callbacks.sample is not None:
        results = (CreateMessageResult, CreateMessageResultWithTools, ErrorData)
        offered["sampling_callback"] = _Answering(host, host.callbacks.sample, results)
        offered["sampling_capabilities"] = SamplingCapability(tools=SamplingToolsCapability())
    if host.callbacks.roots is not None:
        named = partial(_list_roots, host.callbacks.roots)
        offered["list_roots_callback"] = _Answering(host, named, (ListRootsResult, ErrorData))
    return offered


async def _list_roots(roots: Roots, message: ServerMessage[None]) -> ListRootsResult | ErrorData:
    folders = await roots(message) if callable(roots) else roots
    if isinstance(folders, ErrorData):
        return folders
    return ListRootsResult(roots=[Root(uri=FileUrl(uri)) for uri in root_uris(folders)])


@frozen
class _Answering:
    """One callback of the host. Whatever it does, the server gets an answer."""

    host: Host
    callback: Callable[[ServerMessage[Any]], Awaitable[Any]]
    results: tuple[type[BaseModel], ...]

    async def __call__(self, context: ClientRequestContext, params: Any = None) -> Any:
        tool = context.tool if isinstance(context, CallContext) else None
        answer: object = None
        try:
            with trio.move_on_after(self.host.human_timeout) as limit:
                answer = await self.callback(ServerMessage(self.host.server, tool, params))
        except Exception:
            logger.exception("%s: the host's callback raised; the server gets an error", self.host.server)
            return ErrorData(code=INTERNAL_ERROR, message="the host's callback failed")
        if limit.cancelled_caught:
            return self._no_answer_in_time()
        if isinstance(answer, self.results):
            return answer if _can_be_written(answer) else self._no_answer("an answer that cannot be written as JSON")
        wanted = " or ".join(result.__name__ for result in self.results)
        return self._no_answer(f"{type(answer).__name__}, not {wanted}")

    def _no_answer_in_time(self) -> ElicitResult | ErrorData:
        """The protocol's answer of a user who dismisses the question, where there is one."""
        words = unanswered(self.host.human_timeout)
        logger.warning("%s: its question is cancelled: %s", self.host.server, words)
        if ElicitResult in self.results:
            return ElicitResult(action="cancel")
        return ErrorData(code=INTERNAL_ERROR, message=words)

    def _no_answer(self, what: str) -> ErrorData:
        logger.error("%s: the host's callback returned %s; the server gets an error", self.host.server, what)
        return ErrorData(code=INTERNAL_ERROR, message="the host's callback returned no answer")


def _can_be_written(answer: BaseModel) -> bool:
    """True if it has a JSON form: else the SDK would fail in a task that must not."""
    try:
        encode(answer.model_dump(by_alias=True, mode="json", exclude_none=True))
    except (TypeError, ValueError):
        return False
    return True


class _Logs:
    """Log messages on their way to the host: a slow callback must hold up neither the server nor other notices."""

    def __init__(self, host: Host, callback: Log) -> None:
        self._server = host.server
        self._callback = callback
        self._waiting = BoundedQueue[LoggingMessageNotificationParams](
            _MOST_LOG_MESSAGES, host.limits.kept, account=host.account, kind=NOTICES
        )

    async def take(self, params: LoggingMessageNotificationParams) -> None:
        """Queue a message; called by the session in order."""
        if not self._waiting.put(params, own_weight(params.model_dump())):
            lost = self._waiting.lost
            if math.log10(lost).is_integer():
                logger.warning("%s: the log callback is too slow; dropped %d messages", self._server, lost)

    async def deliver(self) -> None:
        """Hand messages to the host, one at a time."""
        while True:
            message = ServerMessage(self._server, None, await self._waiting.receive())
            try:
                await self._callback(message)
            except Exception:
                logger.exception("%s: the log callback raised", self._server)


async def answer(session: ClientSession, question: Question, host: Host) -> Answered | Rejected:
    """The answer of the host's callback, or of the session where the host has none; or of the callbacks that came with
    the question."""
    params = question.request.params
    context = CallContext(
        session=session, request_id=question.key, meta=params.meta if params else None, tool=question.name
    )
    if question.callbacks is None:
        said = await session.dispatch_input_request(context, question.request)
    else:
        said = await _said_by(_answering(evolve(host, callbacks=question.callbacks)), context, question.request)
    if isinstance(said, ErrorData):
        return Rejected(said.code, f"the server asked for input: {said.message}", said.data)
    return Answered(said.model_dump(by_alias=True, mode="json", exclude_none=True))


async def _said_by(offered: SessionCallbacks, context: CallContext, request: InputRequest) -> Any:
    """The answer of these callbacks. Roots are answered by the connection."""
    match request:
        case ElicitRequest(params=form) if "elicitation_callback" in offered:
            return await offered["elicitation_callback"](context, form)
        case CreateMessageRequest(params=messages) if "sampling_callback" in offered:
            return await offered["sampling_callback"](context, messages)
        case ListRootsRequest():
            return await context.session.dispatch_input_request(context, request)
        case _:
            return ErrorData(code=INVALID_REQUEST, message="this caller answers no such question")
