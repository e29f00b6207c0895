"""The requests to servers on behalf of clients, and all that may happen to one between client and server.

*The way.* A call of a tool is approved first, by the host's rules or by the client's user. `InstancePool` then chooses
the instance of the server, and `Supervisor.request` makes the request: it waits for a server that is starting, holds
the request while its server restarts, sends it again only where that is safe, and reports of each failure whether the
server may have acted. Nothing here makes a second attempt.

*The eras.* Before 2026-07-28 a server asks in the middle of a call, by a request of its own. Since then it answers
with `input_required`, and the client makes the same request again, with the answers. If client and server are of the
same era, everything is passed on as it came; otherwise the gateway translates:

| client, server | questions of the server | what the gateway does |
|----------------|-------------------------|-----------------------|
| old, old | requests on the client's stream | asks the client while the call waits (`_rounds`) |
| old, new | `input_required` | asks the client, and makes the request again, `MAX_ROUNDS` times at most (`_rounds`) |
| new, old | requests | holds the call, and answers the client `input_required` (`held`) |
| new, new | `input_required` | passes it on: the client comes back by itself |

*Tasks.* A server since 2026-07-28 may answer a call with a task. A client that has declared the extension follows it
itself. For any other client the gateway declares the extension, and its call waits until the task is over
(`follow_tasks` of `Supervisor.request`): the questions of the task reach the client as those of an old server do, and
what cancels the call cancels the task.

An approval that the client's user has to give is one more question: for a new client the call is held, whichever
server it is for. Results are translated by `bridge`.

*Held calls.* Such a call is a task of the gateway, not of the HTTP request or the message that began it. Between two
requests of its client nobody attends to it; `requestState` is the key by which the client finds it again. It ends with
its result, when its client has not come back in the time that a person has for an answer, when its client loses its
access, or with the gateway. A repetition with other parameters, or of another client, is refused. Another gateway with
a key in common makes a call that waited for its approval alone, and refuses one that a server may have (`HeldCalls`).

*Cancelling.* A client cancels by a notification (over HTTP only one of the handshake era), by closing the HTTP
connection of its request (only one since 2026-07-28: see `http/exchange.py`), or by ending its session. Each cancels
the scope of the task that answers the request; `trio.Cancelled` is raised where that task waits for the answer, in
`ReplySlot.wait`, which cancels the slot. The server's actor reads that in its mailbox (`ServerActor._cancel`), and has
the endpoint withdraw the request from its queue, or send `notifications/cancelled` if a part of it was written
(`Endpoint.cancel`). For a held call, `HeldCall.attend` passes the cancellation on. The server may go on working all the
same: its instance records the principal (`Instance.given_up`), so that a late question of that call reaches nobody
else.

*Loss.* When a server's connection is lost, its questions that are still open are withdrawn, and the request fails with
`ConnectionLost` or is sent again. The failure of a call becomes a result that a model can read; any other failure is an
error of JSON-RPC (`client_request.failure_of`). A client that is lost has cancelled its requests.

*Whose question.* Over one stream an old server does not say which call a question is about. The question goes to the
latest call, and is refused while calls of several principals are at that instance. From the first such question on
(`record_question`) calls of other principals go to further instances, which are leased to one principal at a time.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final

import trio

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import NurseryError, UnknownServer
from mcp_nursery.actors.extensions import TASKS, declares
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc.relays import ASKED
from mcp_nursery.actors.limits import HUMAN_TIMEOUT
from mcp_nursery.actors.messages import CALL_TOOL
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.protocol import INTERNAL_ERROR, JsonRpcError
from mcp_nursery.actors.reply import AskPeer, NoticeCallback
from mcp_nursery.actors.session.plain import is_plain_result, is_text_alone

from ...calls.input_rounds import MAX_ROUNDS
from ...spec import spec_digest
from ...supervisor import Supervisor
from ...tools.approval_rules import Agreement, of_any_definition
from ..auth.principal import Principal
from ..bridge import Json, bridge_result, build_envelope, is_modern, server_info_of, strip_hop
from ..client_request import ClientRequest
from ..client_status import HeldCallStatus
from ..sealing import SessionKeys
from ..views.view import RequestRoute, protocol_of
from .ask_client import NobodyAsked, Unattended, approve, ask_in_time
from .held_calls import HeldCall, HeldCalls, strip_answers
from .instance_leases import InstancePool

_MAY_ASK: Final = frozenset(["tools/call", "prompts/get", "resources/read"])


class Upstream:
    """The requests of clients to servers. The nursery has held calls. For the options see `open_gateway`."""

    def __init__(
        self,
        supervisor: Supervisor,
        instances: InstancePool,
        nursery: trio.Nursery,
        *,
        hold: float,
        answer_within: float | None,
        unattended: Unattended,
        session_keys: SessionKeys | None,
    ) -> None:
        self._supervisor = supervisor
        self._instances = instances
        self._held = HeldCalls(
            nursery, self._human_limit, session_keys, lambda server: spec_digest(supervisor.spec(server))
        )
        self._hold = float(hold)
        self._answer_within = answer_within
        self._unattended: Unattended = unattended
        self._waiting: dict[str, deque[trio.Event]] = {}
        """The turns of the requests that wait for the first connections of servers, each set once it is the first."""

    @property
    def held(self) -> tuple[HeldCallStatus, ...]:
        """The calls that wait for their clients."""
        return self._held.status

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """End the held calls and the instances of these clients: see `Gateway.end_clients`."""

        def is_one(whose: Hashable) -> bool:
            return (whose is None or isinstance(whose, Principal)) and of(whose)

        self._held.end(is_one)
        self._instances.end(is_one)

    async def request(self, request: ClientRequest, route: RequestRoute) -> Json:
        """Make a request, once it is approved. A client of the handshake era is asked in the middle of it.

        Returns:
            The result in the form of the client's era.

        Raises:
            JsonRpcError: The error that the client is sent instead.
            NurseryError: See `Supervisor.request`.
        """
        modern = is_modern(await self._protocol_of(route.server))
        if not request.modern:
            ask = partial(ask_in_time, partial(_ask_in_session, request), partial(self._human_limit, route.server))
            agreed = await self._approve(request, route, ask)
            return await self._rounds(request, route.server, route.params, request.forward, ask, agreed=agreed)
        agreed = None
        if request.method in _MAY_ASK:
            make = partial(self._request_held, route=route)
            if isinstance(request.params.get("requestState"), str) and (
                not modern or self._held.has(request, route.server)
            ):
                return await self._held.resume(request, make, route.server)
            needs_question = not modern
            try:
                agreed = await self._approve(request, route, None) if modern else None
            except NobodyAsked:
                needs_question = True
            if needs_question:
                return await self._held.begin(HeldCall(request, route.server), make)
            if self._follows_tasks(request, route.server):  # it may ask
                return await self._held.begin(
                    HeldCall(request, route.server), partial(self._request_followed, route=route, agreed=agreed)
                )
        return await self._request(
            request,
            route.server,
            route.params,
            modern=modern,
            on_notice=request.forward,
            agreed=agreed,
            follow_tasks=not modern,  # or it was begun above
        )

    def _follows_tasks(self, request: ClientRequest, server: str) -> bool:
        """True if its server may make a task of a call whose client does not follow tasks."""
        if request.method != CALL_TOOL or not self._supervisor.declares_extension(server, TASKS):
            return False
        if declares(request.own_capabilities, TASKS) and declares(request.capabilities, TASKS):
            return False
        own = self._supervisor.spec(server).extensions
        return own is None or TASKS in own

    async def _request_followed(self, call: HeldCall, *, route: RequestRoute, agreed: Agreement | None) -> Json:
        """Make a call that may become a task, for a client without sessions."""
        call.approved = True
        return await self._request(
            call.request,
            route.server,
            route.params,
            modern=True,
            on_notice=call.notify,
            on_question=call.ask,
            agreed=agreed,
            follow_tasks=True,
        )

    def _human_limit(self, server: str) -> float:
        """Seconds for the answer to a question about a call to this server."""
        try:
            spec = self._supervisor.spec(server)
        except UnknownServer:  # it was removed while the client was asked
            return HUMAN_TIMEOUT if self._answer_within is None else self._answer_within
        if spec.human_timeout is None and self._answer_within is not None:
            return self._answer_within
        return spec.human_limit

    async def _protocol_of(self, server: str) -> str:
        """The version of the protocol that a server speaks, once it has been connected. Requests that wait for that go
        on in the order in which they came: each waits by itself, but a client may have written several at once."""
        version = self._supervisor.protocol_version(server)
        if version is not None and server not in self._waiting:
            return version
        turns, turn = self._waiting.setdefault(server, deque()), trio.Event()
        turns.append(turn)
        turns[0].set()
        try:
            version = await protocol_of(self._supervisor, server, hold=self._hold)
            await turn.wait()
            return version
        finally:
            turns.remove(turn)
            if turns:
                turns[0].set()
            else:
                del self._waiting[server]

    async def _request_held(self, call: HeldCall, *, route: RequestRoute) -> Json:
        """Make the request of a held call."""
        agreed = await self._approve(call.request, route, call.ask)
        call.approved = True
        return await self._rounds(
            call.request, route.server, strip_answers(route.params), call.notify, call.ask_for_server, agreed=agreed
        )

    async def _rounds(
        self,
        request: ClientRequest,
        server: str,
        params: Json,
        on_notice: NoticeCallback,
        ask: AskPeer,
        *,
        agreed: Agreement | None,
    ) -> Json:
        """Make a request, and repeat it with the client's answers for as long as a newer server asks."""
        for _ in range(MAX_ROUNDS):
            modern = is_modern(self._supervisor.protocol_version(server))
            result = await self._request(
                request,
                server,
                params,
                modern=modern,
                on_notice=on_notice,
                on_question=ask,
                agreed=agreed,
                follow_tasks=not modern or self._follows_tasks(request, server),
            )
            if result.get("resultType") != "input_required":
                return result
            agreed = of_any_definition(agreed)  # the server has begun the call: it goes on
            params = strip_answers(params) | {
                "inputResponses": await _collect_answers(ask, result.get("inputRequests") or {})
            }
            if "requestState" in result:
                params["requestState"] = result["requestState"]
        raise JsonRpcError(INTERNAL_ERROR, f"the server still asks for input after {MAX_ROUNDS} rounds")

    async def _approve(self, request: ClientRequest, route: RequestRoute, ask: AskPeer | None) -> Agreement | None:
        """Have a call of a tool approved.

        Raises:
            NotApproved: The call was not approved.
            NobodyAsked: The client has to be asked, and `ask` is None.
        """
        if request.method != "tools/call":
            return None
        within = partial(self._human_limit, route.server)
        asking = partial(approve, request=request, ask=ask, unattended=self._unattended, within=within)
        arguments = route.params.get("arguments")
        return await self._supervisor.agree(route.server, route.params["name"], arguments, approve=asking)

    async def _request(
        self, request: ClientRequest, server: str, params: Json, *, modern: bool, **options: Any
    ) -> Json:
        """Make one request. Returns the result as the client's era has it; `modern`: the server has no handshake."""
        if modern:
            meta = build_envelope(request.meta, request.capabilities, request.info, request.wanted_level)
        else:
            meta = strip_hop(request.meta)
        before, request.delivery = request.delivery, Delivery.UNKNOWN
        try:
            relayed = await self._instances.request(server, request, params, meta, when_down=self._hold, **options)
        except NurseryError as error:
            request.record_failure(before, error)
            raise
        result = relayed.result
        kind = result.get("resultType", "complete")
        if kind == "input_required":
            return result
        request.delivery = Delivery.ANSWERED
        if request.method == CALL_TOOL and kind == "complete" and not is_text_alone(result):  # others are of extensions
            result = await _readable(result)
        from_modern = is_modern(relayed.protocol_version)
        gets_info = request.modern and not from_modern
        info = server_info_of(self._supervisor.hello(server) or {}) if gets_info else {}
        return bridge_result(
            request.method, result, to_modern=request.modern, from_modern=from_modern, server_info=info
        )


async def _readable(result: Json) -> Json:
    """The result of a tool as far as it can be read."""
    if await by_turns(is_plain_result(result)):
        return result
    await RESULT_TYPES.ensure_loaded()
    from mcp_nursery.actors.session.results import readable_result

    return await by_turns(readable_result(result, extended=True))


async def _ask_in_session(request: ClientRequest, key: str, method: str, params: Mapping[str, Any] | None) -> Json:
    """Ask an older client for an older server: by a request on the stream of the call."""
    del key
    if method in ASKED:  # the client itself decides about a method that the protocol does not know
        request.check_can_answer(method)
    assert request.ask is not None  # otherwise this function is not passed on
    return await request.ask(method, params)


async def _collect_answers(ask: AskPeer, questions: Mapping[str, Mapping[str, Any]]) -> Json:
    """The answers of a client to the questions of a newer server, by their keys.

    Raises:
        JsonRpcError: The client cannot be asked a question, or fails to answer.
    """
    answers: Json = {}
    failures: list[JsonRpcError] = []

    async def fetch(key: str, question: Mapping[str, Any]) -> None:
        try:
            answers[key] = await ask(key, question["method"], question.get("params"))
        except JsonRpcError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for key, question in questions.items():
            nursery.start_soon(fetch, key, question)
    if failures:
        raise failures[0]
    return answers
