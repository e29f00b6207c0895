"""Calls that wait for a client that cannot be sent questions: one of 2026-07-28, while its server is of the handshake
era. Tools that are held back are another matter: see `tools.pins`.

The server asks by a request in the middle of the call, and goes on waiting. The client is answered `input_required`,
and comes back with the answers. So such a call is a task of the gateway, which outlives the request that began it.

A balancer may direct the client to another gateway, which does not hold the call. If both have a key in common, the
`requestState` shows what can be done there: it is sealed, and bound to the client, the request and the server. A call
that waits for an approval alone was not sent, and is made there, once. A call that its server has is not made again.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from hashlib import blake2b
from json import dumps
from typing import Any, Final

import orjson
import trio

from mcp_nursery.actors.account import own_weight
from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.protocol import INTERNAL_ERROR, INVALID_PARAMS, LATEST_HANDSHAKE_VERSION, JsonRpcError
from mcp_nursery.actors.queues import BoundedQueue, WhenFull
from mcp_nursery.actors.records import Factory, define, field, frozen

from ..auth.principal import Principal, principal_name
from ..bridge import Json, as_object
from ..client_request import ClientRequest, GatewayEnding
from ..client_status import HeldCallStatus
from ..clients import BACKLOG_BYTES
from ..sealing import SessionKeys, bind

MOST_HELD: Final = 1_000
"""Calls that wait for their clients; beyond that a question is refused."""
MOST_HELD_OF_CLIENT: Final = 100
"""The held calls of one client at once, where clients are told apart."""
_UNATTENDED: Final = 1024
"""Notifications about a held call that wait for its client."""
TOGETHER: Final = 0.01
"""Seconds in which questions are collected, to be asked together."""
MOST_ADOPTED: Final = 65_536
"""Calls of other gateways that are made here and may come back once more; beyond that a client has to begin anew."""
MOST_BOUND: Final = 1 << 20
"""Bytes of a request that a `requestState` can be bound to; the call of a larger one goes on only where it is held."""

_FORMAT: Final = b"mcp-nursery held call 1"


@define(eq=False)
class _Question:
    method: str
    params: Mapping[str, Any] | None
    answered: trio.Event = field(factory=trio.Event)
    answer: Json | None = None


@define(eq=False)
class HeldCall:
    """One call, about which the client may be asked several times before there is a result."""

    request: ClientRequest
    """The request that attends to it now: the one that began it, or a repetition of that."""
    server: str = ""
    """The server that it is for."""
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    approved: bool = False
    """True once its server may have it."""
    adopted: Json = field(factory=dict[str, Any])
    """The answers to questions that another gateway has asked about it, before a server had it."""
    _first: ClientRequest = field(default=Factory(lambda self: self.request, takes_self=True), init=False)
    """The request that began it, which has its delivery."""
    _said: BoundedQueue[tuple[str, Mapping[str, Any]]] = field(
        factory=partial(
            BoundedQueue[tuple[str, Mapping[str, Any]]], _UNATTENDED, BACKLOG_BYTES, when_full=WhenFull.LOSE_OLDEST
        )
    )
    """Notifications about it that were not passed on yet."""
    _questions: dict[str, _Question] = field(factory=dict[str, _Question])
    _used: set[str] = field(factory=set[str])
    """The keys of all its questions so far."""
    _outcome: Json | Exception | None = None
    _changed: trio.Event = field(factory=trio.Event)

    async def run(self, make: Callable[["HeldCall"], Awaitable[Json]]) -> None:
        """Make the call, in a task of the gateway."""
        try:
            with self.scope:  # once it is cancelled, nobody attends the call
                self._outcome = await make(self)
        except Exception as error:
            self._outcome = error
        finally:
            self._changed.set()

    async def result(self) -> Json:
        """The result of a call that nobody attends, once there is one.

        Raises:
            GatewayEnding: It was cancelled with the gateway.
        """
        await self._changed.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if self._outcome is None:
            raise GatewayEnding
        return self._outcome

    # -- in the task of the call ----------------------------------------------------------------------------------

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Keep a notification of the server about the call."""
        self._said.put((method, params), own_weight(params))
        self._changed.set()

    async def ask(self, key: str, method: str, params: Mapping[str, Any] | None) -> Json:
        """Ask the client, for the server or for the gateway.

        Raises:
            JsonRpcError: The client cannot be asked that.
        """
        self.request.check_can_answer(method)
        if not self.approved and key in self.adopted and _is_answer(method, self.adopted[key]):
            return as_object(self.adopted.pop(key))
        while key in self._used:  # another incarnation counts anew, and its question needs an answer of its own
            key = f"{key}-{len(self._used)}"
        self._used.add(key)
        question = self._questions[key] = _Question(method, params)
        self._changed.set()
        try:
            await question.answered.wait()
        finally:
            self._questions.pop(key, None)
        assert question.answer is not None  # it was answered
        return question.answer

    async def ask_for_server(self, key: str, method: str, params: Mapping[str, Any] | None) -> Json:
        """Ask the client for the server. Answers that the client has sent without a state are not asked for again.

        Raises:
            JsonRpcError: The client cannot be asked that.
        """
        self.request.check_can_answer(method)
        brought: Json = self.request.params.get("inputResponses") or {}
        if "requestState" not in self.request.params and key in brought and _is_answer(method, brought[key]):
            return dict(brought[key])
        return await self.ask(key, method, params)

    # -- in the task of the request that attends it ---------------------------------------------------------------

    async def attend(self, request: ClientRequest) -> Json | None:
        """Pass on notifications until there is a result; None: there are questions. If cancelled, cancel the call."""
        first, self.request = self._first, request
        first.gone = request.gone
        try:
            while True:
                self._changed = trio.Event()
                while len(self._said):
                    await request.forward(*self._said.receive_nowait())
                if isinstance(self._outcome, Exception):
                    raise self._outcome
                if self._outcome is not None:
                    return self._outcome
                if self._questions:
                    await trio.sleep(TOGETHER)
                    if self._questions:  # the server has not withdrawn them
                        return None
                else:
                    await self._changed.wait()
        except trio.Cancelled as cancelled:
            self.scope.cancel(cancelled.reason if cancelled.source == "explicit" else None)
            raise
        finally:
            request.delivery = first.delivery

    @property
    def open_questions(self) -> int:
        """Questions that wait for an answer."""
        return sum(not each.answered.is_set() for each in self._questions.values())

    @property
    def questions(self) -> Json:
        """The open questions, in the form of the newer protocol."""
        return {
            key: {"method": each.method, **({} if each.params is None else {"params": each.params})}
            for key, each in self._questions.items()
        }

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Take the answers of the client. Questions that it left out are asked again.

        Raises:
            JsonRpcError: One of them is no answer to its question. No answer is taken then.
        """
        for key, question in self._questions.items():
            if key in responses and not _is_answer(question.method, responses[key]):
                raise JsonRpcError(INVALID_PARAMS, f"the answer to {key} is none to {question.method}")
        for key, question in list(self._questions.items()):
            if key in responses:
                question.answer = responses[key]
                question.answered.set()
                del self._questions[key]


@frozen
class _State:
    """The facts about a held call that are sealed in its `requestState`."""

    key: str
    """The name of the call at its gateway."""
    replica: str
    """The gateway that holds it."""
    since: float
    """The Unix time at which its client was asked."""
    approved: bool
    """True if its server may have it."""


class HeldCalls:
    """The calls whose clients are to come back, by the `requestState` that these clients were sent. `answer_within`
    returns how many seconds a call to a server waits for its client. The keys seal the state of a call; None: no other
    gateway can read it. `reached` returns how a server is reached: in a chain of gateways with the same key, each
    reaches it in another way."""

    def __init__(
        self,
        nursery: trio.Nursery,
        answer_within: Callable[[str], float],
        keys: SessionKeys | None = None,
        reached: Callable[[str], str | None] = str,
    ) -> None:
        self._nursery = nursery
        self._answer_within = answer_within
        self._keys = keys
        self._reached = reached
        self._held: dict[str, tuple[HeldCall, trio.CancelScope]] = {}
        self._adopted: OrderedDict[str, float] = OrderedDict()
        """The calls of other gateways that were made here, and the Unix times at which their states are too old in any
        case."""

    def has(self, request: ClientRequest, server: str) -> bool:
        """True if the client comes back to a call that is held here, or that another gateway with our keys has held."""
        state = request.params.get("requestState")
        if not isinstance(state, str) or self._keys is None or state in self._held:
            return isinstance(state, str) and state in self._held
        said = self._open(state, request, server)
        return said is not None and said.replica != self._keys.replica

    async def begin(self, call: HeldCall, make: Callable[[HeldCall], Awaitable[Json]]) -> Json:
        """Begin a call. Returns its result, or the questions that come before it."""
        self._nursery.start_soon(call.run, make)
        return await self._attend(call, call.request)

    async def resume(
        self, request: ClientRequest, make: Callable[[HeldCall], Awaitable[Json]], server: str = ""
    ) -> Json:
        """Go on with a call whose client has come back. A call of another gateway that no server has is made here.

        Raises:
            JsonRpcError: There is no such call of this client, request and server, or another gateway holds it.
        """
        state, answers = request.params["requestState"], as_object(request.params.get("inputResponses"))
        held = self._held.get(state)
        request.delivery = Delivery.UNKNOWN  # a server may have had the call that it goes on with
        if held is None:
            self._adopt(state, request, server)
            request.delivery = Delivery.NOT_SENT
            return await self.begin(HeldCall(request, server, adopted=answers), make)
        if held[0].server != server or _identity(held[0].request) != _identity(request):
            raise _unknown_state()
        call, scope = held
        call.answer(answers)
        del self._held[state]
        scope.cancel()
        return await self._attend(call, request)

    @property
    def status(self) -> tuple[HeldCallStatus, ...]:
        """The calls that wait for their clients, those that wait longest first."""
        return tuple(
            HeldCallStatus(
                client=principal_name(call.request.principal),
                server=call.server,
                method=call.request.method,
                name=name if isinstance(name := call.request.params.get("name"), str) else None,
                questions=call.open_questions,
                expires_in=max(0.0, scope.deadline - trio.current_time()),
            )
            for call, scope in self._held.values()
        )

    def end(self, of: Callable[[Hashable], bool]) -> None:
        """Give up the calls of these principals, whether they come back or not."""
        for call, scope in list(self._held.values()):
            if of(call.request.principal):
                scope.cancel()

    async def _attend(self, call: HeldCall, request: ClientRequest) -> Json:
        result = await call.attend(request)
        if result is not None:
            return result
        principal = request.principal
        own = 0 if principal is None else sum(each.request.principal == principal for each, _ in self._held.values())
        if len(self._held) >= MOST_HELD or own >= MOST_HELD_OF_CLIENT:
            call.scope.cancel()
            raise JsonRpcError(INVALID_PARAMS, "too many calls wait for answers of their clients")
        state = self._seal(call)
        scope = trio.CancelScope(deadline=trio.current_time() + self._answer_within(call.server))
        self._held[state] = call, scope
        self._nursery.start_soon(self._expire, state, call, scope)
        return {"resultType": "input_required", "inputRequests": call.questions, "requestState": state}

    async def _expire(self, state: str, call: HeldCall, scope: trio.CancelScope) -> None:
        """Give up a call whose client has not come back in time."""
        with scope:
            await trio.sleep_forever()
        if self._held.pop(state, None) is not None:
            call.scope.cancel()

    # -- calls of other gateways ----------------------------------------------------------------------------------

    def _seal(self, call: HeldCall) -> str:
        """Make the state of a call."""
        key = secrets.token_urlsafe(24)
        bound = None if self._keys is None else self._bind(call.request, call.server)
        if self._keys is None or bound is None:
            return key
        plain = orjson.dumps((key, self._keys.replica, round(time.time()), call.approved))
        return self._keys.seal(plain, bound) or key

    def _open(self, state: str, request: ClientRequest, server: str) -> _State | None:
        """Read a state that is bound to this request of this client. None: no gateway with our keys has made it."""
        bound = None if self._keys is None else self._bind(request, server)
        plain = None if self._keys is None or bound is None else self._keys.open(state, bound)
        return None if plain is None else _State(*orjson.loads(plain))

    def _adopt(self, state: str, request: ClientRequest, server: str) -> None:
        """Take over a call that another gateway holds, and that no server has.

        Raises:
            JsonRpcError: It cannot be made here.
        """
        said, now, adopted = self._open(state, request, server), time.time(), self._adopted
        within = self._answer_within(server)
        if self._keys is None or said is None or said.replica == self._keys.replica or said.since + within < now:
            raise _unknown_state()
        while adopted and next(iter(adopted.values())) < now:
            adopted.popitem(last=False)
        if said.key in adopted or len(adopted) >= MOST_ADOPTED:
            raise _unknown_state()
        if said.approved:
            words = "this call waits for answers at another gateway, where they did not arrive: it may have acted"
            raise JsonRpcError(INTERNAL_ERROR, words)
        adopted[said.key] = now + within

    def _bind(self, request: ClientRequest, server: str) -> bytes | None:
        """The associated data of a call's state: its client, request and server. None if the request is too large."""
        method, params, principal = _identity(request)
        if not (principal is None or isinstance(principal, Principal)) or own_weight(params) > MOST_BOUND:
            return None
        text = dumps([server, self._reached(server), method, params], sort_keys=True)
        return bind(_FORMAT, principal, blake2b(text.encode()).hexdigest())


def _unknown_state() -> JsonRpcError:
    settings = "humanSeconds of the server or serve --answer-within gives answers more time"
    return JsonRpcError(INVALID_PARAMS, f"unknown or expired requestState, or not that of this request ({settings})")


def _is_answer(method: str, response: Any) -> bool:
    """True if this is an answer to a question of this method."""
    from mcp_types import methods  # loaded: a request with answers was checked
    from pydantic import ValidationError

    try:
        methods.validate_client_result(method, LATEST_HANDSHAKE_VERSION, response)
    except ValidationError:
        return False
    return True


def _identity(request: ClientRequest) -> tuple[str, Json, Hashable]:
    """The parts in which a request and its repetition are equal."""
    return request.method, strip_answers(request.params), request.principal


def strip_answers(params: Mapping[str, Any]) -> Json:
    """The parameters of a request without the answers and the state of a repetition."""
    return {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
