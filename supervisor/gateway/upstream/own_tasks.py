"""Calls that the gateway makes tasks of, for clients that know Tasks, at servers that do not.

Such a call is made in a task of the gateway, and the request that began it waits for the result for so many seconds.
After that the call is recorded in the supervisor's store like any task, and the client gets the handle: the call goes
on, whether its client is there or not, and any gateway with the same key and the same store answers about it. Only the
gateway that makes the call has it: if that gateway dies, the next one that is asked records the task as failed.

A call that has become a task asks nobody: its client has an answer already. A server that asks in the middle of the
call is refused, and one that answers with questions has failed.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from secrets import token_hex
from typing import Any, Final

import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.extensions import TASKS, declares
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.jsonrpc.relays import ASKED
from mcp_nursery.actors.messages import CALL_TOOL
from mcp_nursery.actors.protocol import INTERNAL_ERROR, INVALID_PARAMS, JsonRpcError
from mcp_nursery.actors.records import define, field

from ...decisions.task_records import ANYBODY, LAST_TIME, TaskInfo, TaskRecord
from ...decisions.task_states import TaskStatus
from ...supervisor import Supervisor
from ..auth.principal import Principal
from ..bridge import Json
from ..client_request import ClientRequest, GatewayEnding, check_declares
from ..views.task_ids import UNKNOWN_TASK, TaskIds
from ..views.view import View, status_of
from .held_calls import HeldCall

POLL_EVERY: Final = 1.0
"""Seconds after which a client is to ask again."""


@define(eq=False)
class OwnTasks:
    """The tasks that a gateway makes of calls. The nursery has the calls."""

    _supervisor: Supervisor
    _nursery: trio.Nursery
    _ids: TaskIds
    _after: float | None
    """Seconds after which a call becomes a task, where the spec of its server does not say; None: never."""
    _settle: Callable[[], None]
    """Called when the end of one of them is recorded."""
    _made: set[HeldCall] = field(factory=set[HeldCall], init=False)
    """The calls of those whose ends are not recorded."""

    def after(self, request: ClientRequest, server: str) -> float | None:
        """Seconds after which a request to this server becomes a task; None: never. Servers that declare Tasks
        themselves make their own."""
        if request.method != CALL_TOOL or not request.modern or self._supervisor.made_tasks is None:
            return None
        seconds = self._supervisor.spec(server).tasks.after
        seconds = self._after if seconds is None else seconds
        if seconds is None or not declares(request.own_capabilities, TASKS) or self._makes_its_own(server):
            return None
        return seconds

    @property
    def under_way(self) -> bool:
        """True until the ends of all of them are recorded."""
        return bool(self._made)

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End the calls of these clients: see `Gateway.end_clients`."""
        for call in self._made:
            if of(call.request.client):
                call.scope.cancel()

    def makes_some(self, view: View) -> bool:
        """True if calls of this client may become tasks."""
        if self._supervisor.made_tasks is None:
            return False
        return self._after is not None or any(
            self._supervisor.spec(one.name).tasks.after is not None for one in view.statuses
        )

    def _makes_its_own(self, server: str) -> bool:
        known = status_of(self._supervisor, server) is not None
        return not known or self._supervisor.declares_extension(server, TASKS)

    async def run(
        self, request: ClientRequest, server: str, tool: str, after: float, make: Callable[[], Awaitable[Json]]
    ) -> Json:
        """Make a call. Returns its result, or after so many seconds the handle of a task.

        Args:
            request: The request of the client.
            server: The server that it is for.
            tool: The server's own name of the tool.
            after: Seconds that the client waits.
            make: Makes the call.
        """
        call = HeldCall(request, server)

        async def unattended(_call: HeldCall) -> Json:
            return await make()

        self._nursery.start_soon(call.run, unattended)
        try:
            with trio.move_on_after(after):
                return await call.result()
            return await self._make_task(call, server, tool) or await call.result()
        except BaseException:
            call.scope.cancel()
            raise

    async def _make_task(self, call: HeldCall, server: str, tool: str) -> Json | None:
        """Make a task of a call that is under way. Returns the handle; None: it stays a call."""
        request, tasks = call.request, self._supervisor.made_tasks
        if tasks is None or self._makes_its_own(server):
            return None
        name = f"{_digest(request.client)}.{token_hex(16)}"
        shown = self._ids.seal_own(name, request.client)
        ttl = self._supervisor.spec(server).tasks.ttl
        made = await tasks.make(name, server, tool, partial(self._end, call), partial(self._leave, call), ttl=ttl)
        if made is None:
            return None
        self._made.add(call)
        request.notify = _say_nothing  # it has been answered
        asking = {*ASKED.values(), "extensions"}  # a server that connects only now is to make no task of the call
        request.capabilities = {key: value for key, value in request.capabilities.items() if key not in asking}
        return {"resultType": "task", **_status(shown, made)}

    async def _end(self, call: HeldCall) -> bytes | JsonRpcError | None:
        """The end of a call: its result as JSON, or the error; None: it was cancelled with the gateway."""
        try:
            result = await call.result()
            if result.get("resultType") != "input_required":
                return codec.encode(result)
            words = "its server asks for input, for which a call that the gateway has made a task of has no client"
            return JsonRpcError(INTERNAL_ERROR, words, {"delivery": Delivery.UNKNOWN.value})
        except GatewayEnding:
            return None
        except JsonRpcError as error:
            return error
        except trio.Cancelled:
            call.scope.cancel()
            raise

    def _leave(self, call: HeldCall) -> None:
        self._made.discard(call)
        self._settle()

    async def answer(self, request: ClientRequest, view: View) -> Json | None:
        """The answer to one of `TASK_REQUESTS` that is about a task of a gateway with the same key; None: it is about
        none of those.

        Raises:
            JsonRpcError: There is no such task any more, or its client has not declared the extension.
            StoreUnreadable: That cannot be found out.
        """
        tasks, shown = self._supervisor.made_tasks, request.params.get("taskId")
        name = self._ids.open_own(shown, request.client)
        if tasks is None or name is None:
            return None
        check_declares(request.capabilities, TASKS)
        record = await tasks.made(name)
        if record is None or view.server not in (None, record.info.server):
            raise JsonRpcError(INVALID_PARAMS, UNKNOWN_TASK)
        if request.method == "tasks/get":
            return {"resultType": "complete", **_status(shown, record.info), **_ended(record)}
        if request.method == "tasks/cancel":
            await tasks.cancel_made(name)
        return {"resultType": "complete"}


def _digest(client: Principal | None) -> str:
    """The digest by which the tasks of one client are counted; `ANYBODY` for all that are not told apart."""
    return ANYBODY if client is None else blake2b(repr((client.name, client.key)).encode(), digest_size=8).hexdigest()


def _status(shown: object, info: TaskInfo) -> Json:
    return {
        "taskId": shown,
        "status": str(info.status),
        "createdAt": _date(info.created),
        "lastUpdatedAt": _date(info.finished or info.created),
        "ttlMs": None if info.expires is None else round((info.expires - info.created) * 1000),
        "pollIntervalMs": round(POLL_EVERY * 1000),
    }


def _date(at: float) -> str:
    return datetime.fromtimestamp(min(max(at, 0.0), LAST_TIME), UTC).isoformat(timespec="milliseconds")


def _ended(record: TaskRecord) -> Json:
    """The end of a task as its client is told.

    Raises:
        JsonRpcError: It is recorded no more.
    """
    outcome, info = record.outcome or {}, record.info
    if info.status is TaskStatus.COMPLETED:
        if not isinstance(outcome.get("result"), dict):
            raise JsonRpcError(INVALID_PARAMS, UNKNOWN_TASK)
        return {"result": outcome["result"]}
    if info.status is not TaskStatus.FAILED:
        return {}
    said: Mapping[str, Any] = outcome.get("error") or {}
    words = said.get("message", info.error)
    error = {"code": said.get("code", INTERNAL_ERROR), "message": words, "data": said.get("data")}
    return {"statusMessage": info.error, "error": error}


async def _say_nothing(method: str, params: Mapping[str, Any] | None) -> None:
    del method, params
    await trio.lowlevel.checkpoint()
