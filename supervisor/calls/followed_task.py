"""A call that its server answers with a task: the task is followed until it is over, and the call has its result.

Everything happens in the caller's task, step after step, one request at a time: the server is asked how the task is,
its questions are put to the host as those of any call, and the answers are sent. Each request is sent and waited for
like a call. A lost connection, a restart or an idle stop is therefore a pause: the next incarnation is asked, because a
server may keep its tasks longer than its connections. The answers to questions stay here, and are sent until the server
does not ask any more: so nobody is asked twice.

When the caller gives up, the server is sent `tasks/cancel`. Nobody waits for the answer to that.
"""

import math
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final, cast

import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import (
    BreakerOpen,
    CallError,
    CallTimeout,
    ConnectionLost,
    InvalidResult,
    ServerBusy,
    ServerDown,
    ServerError,
    SupervisorClosed,
    TaskLost,
    UnknownServer,
)
from mcp_nursery.actors.json_depth import more_values_than
from mcp_nursery.actors.jsonrpc.incoming import MOST_ASKED
from mcp_nursery.actors.jsonrpc.relays import asked_peer
from mcp_nursery.actors.outcomes import Answered, Dropped, Loss, Malformed, Outcome, Rejected, Unrouted
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.protocol import INVALID_PARAMS, METHOD_NOT_FOUND, JsonRpcError
from mcp_nursery.actors.records import define, evolve, field
from mcp_nursery.actors.reply import IdleLimit, report_to
from mcp_nursery.actors.session.base import InputWanted

from ..decisions.task_states import SHORTEST_INTERVAL, TASK_TRANSITIONS, BadTask, TaskState, TaskStatus, task_made
from ..servers.task_news import LISTEN_AFTER, TaskEar, Turns
from ..spec import ServerSpec
from ..transports import Transport
from .call import ActiveCall, Call, target_of
from .destination import Destination, ServerRequest
from .input_rounds import ask_host, owner_of
from .outcome_to_result import judge, lost

ANSWER_WITHIN = 20.0
"""Seconds that a server may take to answer a request about a task, its restart included."""
LAST_ANSWER_WITHIN = 10.0
"""Seconds for the same at least, however soon the task's time is over."""
MOST_FAILURES = 5
"""Requests about a task in a row that may fail at a server that is connected."""
TOLD_EVERY = 10.0
"""Seconds after which the caller is told of progress again, although nothing is new."""
_TIME_IS_OVER: Final = "its time is over (ttlMs)"
_JITTER: Final = 0.1
"""The part of an interval by which it may be longer, so that many tasks are not asked about in one moment."""
_Reply = dict[str, Any] | ServerError | None
_UNDER_WAY: Final = (TaskStatus.WORKING, TaskStatus.INPUT_REQUIRED)
_UNKNOWN: Final = (INVALID_PARAMS, METHOD_NOT_FOUND)
"""The errors of a server that knows no such task, or no tasks at all."""


def follow(call: ActiveCall[Any, Any], made: dict[str, Any]) -> "FollowedTask | Malformed":
    """The task that a server has made of a call. Nothing else is kept of the server's answer, `made`: the task may take
    hours, and be one of thousands."""
    call.renew_slot()
    is_old = "resultType" not in made
    try:
        task = task_made(_renamed(made) if is_old else made, trio.current_time())
    except BadTask as error:
        return Malformed(str(error))
    made.clear()
    return FollowedTask(call, task, is_old=is_old)


@define(eq=False, repr=False)
class TaskRequest(ServerRequest):
    """One request about a task, to whatever incarnation of its server is connected, or is connected next. It changes
    nothing if it is made twice."""

    transport: Transport | None

    @override
    def find(self) -> Destination | None:
        """The place of its server.

        Raises:
            ServerReplaced: There is another in its place, for which the id of a task is not meant.
        """
        if self.asked.server in self.servers.snapshots and _transport_of(self) != self.transport:
            raise ServerReplaced
        return super().find()

    @override
    def _begin_operation(self, telemetry: object) -> None:
        """Nothing: it is a part of the call that the task was made of."""

    async def answer(self) -> dict[str, Any]:
        """Make the request once, as soon as its server is connected. Returns the answer.

        Raises:
            NurseryError: There is none.
        """
        found = self.find()
        self.begin(found)
        if found is None or not found.available:
            with self.in_time():
                await target_of(self).ready(patient=True)
            self.found: Destination | None = self.find()
        outcome = await self.submit()
        if isinstance(outcome, Unrouted):
            outcome = Loss("it was just ending")
        if isinstance(outcome, (Loss, Dropped)):
            raise lost(outcome, self)
        try:
            return await judge(outcome, self)
        except InputWanted:
            raise InvalidResult(
                "asked about a task, it asks for input", server=self.server_name, tool=self.name, incarnation=None
            ) from None

    @property
    def failed(self) -> bool:
        """True if it has failed at a server that was there."""
        return self.slot.sent and not isinstance(self.slot.outcome, Loss)


class ServerReplaced(Exception):
    """The server of a task was configured anew, and is not the one that made it."""


def _spec_of(call: ActiveCall[Any, Any]) -> ServerSpec | None:
    observable = call.servers.snapshots.get(call.server_name)
    return None if observable is None else observable.value.spec


def _transport_of(call: ActiveCall[Any, Any]) -> Transport | None:
    spec = _spec_of(call)
    return None if spec is None else spec.transport


def give_up(call: ActiveCall[Any, Any], task: str, transport: Transport | None) -> None:
    """Have the server of a task told to cancel it, now or when it is connected again, unless there is another server in
    its place. Never waits."""
    if _transport_of(call) == transport:
        call.servers.registry.given_up_tasks.cancel(call.server_name, owner_of(call), task, call.servers.timer)


@define(eq=False, repr=False)
class FollowedTask:
    """One task that a call waits for."""

    _call: ActiveCall[Any, Any]
    _task: TaskState
    _is_old: bool = field(alias="is_old", default=False, kw_only=True)
    """True if it is a task of 2025-11-25, where these were an experiment."""
    _transport: Transport | None = field(init=False)
    _is_over: bool = field(default=False, init=False)
    """True if its server needs not be told that nobody waits for it."""
    _counted: str | None = field(default=None, init=False)
    """The status as which it is counted."""
    _asked_at: float = field(init=False)
    """The time at which it was asked about last; `-inf`: it is over, and its server has not said how."""
    _rest: float = field(default=0.0, init=False)
    """Seconds for which its server wants to be asked nothing, after a failure."""
    _answered_since: float = field(default=-math.inf, init=False)
    """The time at which it was asked about last, if that was answered: changes before that are known."""
    _failures: int = field(default=0, init=False)
    """Failures since the last answer."""
    _refusal: ServerError | None = field(default=None, init=False)
    """The refusal of answers to its questions, since one was taken."""
    _told: str | None = field(default=None, init=False)
    """The message that the caller was told last."""
    _tells: bool = field(init=False)
    """True if the caller wants to be told of progress."""
    _told_at: float = field(init=False)
    _times_told: int = field(default=0, init=False)
    _idle: IdleLimit | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        asked = self._call.asked
        self._transport = self._call.sent_to
        self._asked_at = trio.current_time() if TASK_TRANSITIONS[self._task.status] else -math.inf
        self._tells = asked.on_progress is not None or "progressToken" in (asked.meta or {})
        self._told_at = -math.inf if self._tells else math.inf
        self._idle = None if asked.idle_timeout is None else IdleLimit(asked.idle_timeout)

    async def result(self) -> Answered | Rejected | Malformed:
        """The outcome of the call, once the task is over.

        Raises:
            TaskLost: Nobody can say any more what becomes of it.
            CallTimeout: The call's time is over, or there was no progress in time.
            SupervisorClosed: The block is being left.
        """
        outcome: Answered | Rejected | Malformed
        try:
            self._task = await self._call.task_made(self._task)
            self._count(self._task.status)
            news = self._call.servers.registry.task_news
            with (
                news.ear(self._call.server_name, self._task.id, _spec_of(self._call)) as ear,
                self._call.in_time(),
                nullcontext() if self._idle is None else self._idle.scope,
            ):
                outcome = await self._follow(ear)
        except BadTask as error:
            self._count("lost")
            outcome = Malformed(str(error))
        except (trio.Cancelled, SupervisorClosed) as ended:
            self._is_over = self._is_over or self._call.outlived
            if not self._is_over and isinstance(ended, trio.Cancelled):
                self._is_over = self._call.hand_over(self._task)
            raise
        except TaskLost as lost:
            self._is_over = self._is_over or not lost.for_good
            if not self._task.is_over:
                self._count("lost" if lost.for_good or not self._call.outlived else "given_up")
            raise
        finally:
            if not self._is_over:
                give_up(self._call, self._task.id, self._transport)
            if self._counted in _UNDER_WAY:
                self._count("given_up")
        if self._idle is not None and self._idle.scope.cancelled_caught:
            raise self._call.timed_out(self._idle.seconds)
        if self._is_old and isinstance(outcome, Answered):
            outcome.result.pop("resultType", None)  # no such key before 2026-07-28
        self._call.slot.resolve(outcome)
        return outcome

    def _count(self, status: str) -> None:
        if status != self._counted:
            self._call.count_task(self._counted, status)
            self._counted = status

    async def _follow(self, ear: TaskEar) -> Answered | Rejected | Malformed:
        await self._tell_progress()
        while not self._task.is_over:
            while (key := self._task.unanswered) is not None:
                said = await self._ask(key)
                if isinstance(said, (Rejected, Malformed)):
                    return said
                if not isinstance(said, Answered):
                    break  # its connection was lost, and with it somebody's answer
                self._task = self._task.answered(key, said.result)
                await self._call.task_changed(self._task)  # before it is sent: nobody is asked twice
            if unheard := self._task.unheard:
                await self._send_answers(ear, unheard)
            await self._wait(ear)
            await self._look(ear)
        self._is_over = True
        if self._task.outcome is None:
            raise self._lost("it was cancelled")
        return self._task.outcome

    # -- its server -----------------------------------------------------------------------------------------------

    async def _wait(self, ear: TaskEar) -> None:
        """Wait until it is to be asked about. The caller is told of it meanwhile: it may end a call that is silent."""
        interval = self._task.interval * (1 + random.random() * _JITTER)  # noqa: S311
        if not self._is_old and trio.current_time() >= self._task.begun_at + LISTEN_AFTER:
            ear.want(owner_of(self._call), self._call.servers.timer)
        while trio.current_time() < (until := self._due_at(ear, interval)):
            await self._nap(ear, until)
            if self._told_at + TOLD_EVERY < until:
                await self._tell_progress()

    async def _nap(self, ear: TaskEar, until: float) -> None:
        """Wait until there is news, at most until this time or until the caller is to be told of progress.

        Raises:
            SupervisorClosed: The block is being left.
        """
        self._call.servers.check_open()
        await ear.woken(min(until, self._told_at + TOLD_EVERY), self._call.servers.timer)

    @asynccontextmanager
    async def _turn(self, ear: TaskEar, turns: Turns) -> AsyncGenerator[None, None]:
        """The right to send its server a request, while the block lasts. A task whose time is over goes first.

        Raises:
            TaskLost: Its turn did not come in time.
        """
        expires, first = self._task.expires_at, False
        try:
            while not turns.take(ear, first=first or trio.current_time() >= expires):
                if trio.current_time() >= expires + LAST_ANSWER_WITHIN:
                    raise self._lost(_TIME_IS_OVER)
                await self._nap(ear, expires + (0 if trio.current_time() < expires else LAST_ANSWER_WITHIN))
                if trio.current_time() >= self._told_at + TOLD_EVERY:
                    turns.leave(ear)  # the caller may take its time
                    await self._tell_progress()
                    first = True
        except BaseException:
            turns.leave(ear)
            raise
        try:
            yield
        finally:
            turns.give_back()

    def _due_at(self, ear: TaskEar, interval: float) -> float:
        """The time at which it is to be asked about, as far as that is known."""
        soonest = self._asked_at + max(SHORTEST_INTERVAL, self._rest)
        if ear.changed:
            return soonest
        if self._answered_since >= ear.agreed_at and not self._task.questions:
            due = self._asked_at + max(interval, ear.seldom)
        else:
            due = max(self._asked_at, ear.lost_at) + interval
        return min(max(due, soonest), max(self._task.expires_at, self._asked_at + SHORTEST_INTERVAL))

    async def _look(self, ear: TaskEar) -> None:
        """Ask how it is.

        Raises:
            BadTask: The answer cannot be true, or cannot be read.
            TaskLost: Nobody can say any more what becomes of it.
        """
        async with self._turn(ear, ear.turns):
            ear.changed = False
            began = trio.current_time()
            raw, size = await self._request("tasks/get", {})
        self._asked_at = trio.current_time()
        self._answered_since = began if isinstance(raw, dict) else -math.inf
        if isinstance(raw, ServerError):
            if raw.code in _UNKNOWN:
                self._is_over = True
                raise self._lost(f"its server does not know it: {raw.message:.200}")
            self._fail(raw)
        elif raw is not None:
            self._failures = 0
            self._rest = 0.0
            if self._is_old:
                raw, size = await self._with_result(ear, _renamed(raw))
            if raw:
                self._take(self._task.seen(raw, size))
            if not self._task.is_over:
                await self._call.task_changed(self._task)
        await self._tell_progress()
        if not self._task.is_over and trio.current_time() >= self._task.expires_at:
            raise self._lost(_TIME_IS_OVER)

    async def _with_result(self, ear: TaskEar, raw: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The word of a server of 2025-11-25 in the form of later ones: the result comes by a request of its own, which
        waits for it, and in which its questions are asked meanwhile. Empty if it does not come, and the bytes of it."""
        if raw.get("status") not in ("input_required", "completed", "failed"):
            return raw, 0
        is_for_people = raw["status"] == "input_required"
        async with self._turn(ear, ear.turns_of_people if is_for_people else ear.turns):
            said, size = await self._request("tasks/result", {}, patient=is_for_people)
        if isinstance(said, ServerError):
            error = {"code": said.code, "message": said.message, "data": said.data}
            return raw | {"status": "failed", "error": error}, size
        return ({} if said is None else raw | {"status": "completed", "result": said}), size

    def _take(self, task: TaskState) -> None:
        before, self._task = self._task, task
        self._count(task.status)
        is_new = (task.status, task.message, task.updated) != (before.status, before.message, before.updated)
        if is_new and self._idle is not None:
            self._idle.restart()

    async def _send_answers(self, ear: TaskEar, answers: Mapping[str, Any]) -> None:
        """Send answers to its questions. If they do not arrive, they are sent again.

        Raises:
            ServerError: The server refuses them twice: the first time the task may have been over.
            TaskLost: There were too many failures.
        """
        async with self._turn(ear, ear.turns):
            said, _ = await self._request("tasks/update", {"inputResponses": answers})
        if isinstance(said, ServerError):
            if said.delivery is not Delivery.ANSWERED:  # an HTTP status alone, which may be a proxy's, refuses nothing
                self._fail(said)
            elif self._refusal is not None:
                raise self._refusal
            else:
                self._refusal = said
        elif said is not None:
            self._refusal = None

    async def _request(self, method: str, content: Mapping[str, Any], *, patient: bool = False) -> "tuple[_Reply, int]":
        """The server's answer to a request about it, or its refusal, and the bytes of that; None: there is none now.
        `patient`: the answer may take any time.

        Raises:
            TaskLost: There will be none.
            InvalidResult: The answer cannot be read.
        """
        call, left = self._call, self._task.expires_at - trio.current_time()
        within = None if patient else min(ANSWER_WITHIN, max(left, LAST_ANSWER_WITHIN))
        asked = Call(call.name, server=call.server_name, timeout=within, when_down="wait")
        request = TaskRequest(asked, call.servers, method, {"taskId": self._task.id, **content}, self._transport)
        request.trace = call.trace
        if call.relay is not None and method == "tasks/result":
            request.relay = evolve(call.relay, task=self._task.id)
        try:
            raw = await request.answer()
        except ServerReplaced:
            self._is_over = True
            raise self._lost("its server is reached in another way now", for_good=False) from None
        except (ServerDown, UnknownServer) as error:
            self._is_over = True
            raise self._lost(error.fact, for_good=False) from None
        except (ServerBusy, BreakerOpen) as error:
            self._rest = error.retry_in or 0.0
            return None, 0
        except (ConnectionLost, CallTimeout) as error:
            if request.failed:
                self._fail(error)
            return None, 0
        except ServerError as error:
            return error, 0
        assert request.slot.incarnation is not None  # it has answered
        assert request.slot.control is not None
        call.slot.route(request.slot.incarnation, request.slot.control)
        outcome = request.slot.outcome
        return raw, outcome.size if isinstance(outcome, Answered) else 0

    def _fail(self, error: CallError) -> None:
        """Count a failure of a server that is there.

        Raises:
            TaskLost: There were too many.
        """
        self._failures += 1
        self._rest = error.retry_in or 0.0
        if self._failures > MOST_FAILURES:
            raise self._lost(f"{self._failures} times in a row its server did not say how it is: {error.fact}")

    def _lost(self, why: str, *, for_good: bool = True) -> TaskLost:
        call, task = self._call, self._task
        said = None if task.message is None else call.redactor.line(task.message)
        return TaskLost(
            call.redactor.line(why),
            server=call.server_name,
            tool=call.name,
            incarnation=call.slot.incarnation,
            task_id=task.id,
            status=str(task.status),
            said=said,
            for_good=for_good,
        )

    # -- its caller -----------------------------------------------------------------------------------------------

    async def _tell_progress(self) -> None:
        """Tell the caller how it is, if that is new, or was not told for a while."""
        now, message = trio.current_time(), self._task.message
        if self._tells and (message != self._told or now >= self._told_at + TOLD_EVERY):
            self._told, self._told_at = message, now
            self._times_told += 1
            await report_to(self._call.tell, self._times_told, message)

    async def _ask(self, key: str) -> Outcome:
        """Have one of its questions answered, by a callback of the host or by the client for whom the call is made."""
        call, question = self._call, self._task.questions[key]
        if more_values_than(question, MOST_ASKED):
            return Malformed(f"its task asks a question with more than {MOST_ASKED} JSON values")
        if self._idle is not None:
            self._idle.stop()
        try:
            return await (_ask_typed(call, key, question) if call.relay is None else _ask_client(call, key, question))
        finally:
            call.renew_slot()  # an answer of ours says nothing of what its server did
            if self._idle is not None:
                self._idle.restart()


def _renamed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The word of a server of 2025-11-25 about a task, with the members of later ones."""
    return {**raw, "ttlMs": raw.get("ttl"), "pollIntervalMs": raw.get("pollInterval")}


async def _ask_typed(call: ActiveCall[Any, Any], key: str, question: object) -> Outcome:
    await RESULT_TYPES.ensure_loaded()
    from mcp_nursery.actors.session.results import ValidationError, typed_question

    try:
        wanted = typed_question({"resultType": "input_required", "inputRequests": {key: question}})
    except ValidationError as error:
        return Malformed(f"a question of its task cannot be read: {error.errors()[0]['msg']}")
    return await ask_host(call, key, (wanted.input_requests or {})[key])


async def _ask_client(call: ActiveCall[Any, Any], key: str, question: object) -> Outcome:
    assert call.relay is not None  # the caller has checked
    asked = cast("dict[str, Any]", question) if isinstance(question, dict) else {}
    if not isinstance(asked.get("method"), str) or not isinstance(asked.get("params"), dict | None):
        return Malformed("a question of its task cannot be read")
    try:
        with call.standing_still():
            return Answered(await asked_peer(call.relay, key, asked["method"], asked.get("params")))
    except JsonRpcError as error:
        return Rejected(error.code, f"the server asked for input: {error.message}", error.data)
