"""Calls that wait for a client that cannot be asked: one of 2026-07-28, while its server is of the handshake era.

The server asks by a request in the middle of the call, and goes on waiting. The client is told `input_required`, and
comes again with the answers. So such a call is a task of the gateway, which outlives the request that began it.
"""

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final

import trio
from attrs import define, field

from mcp_nursery.actors.protocol import INVALID_PARAMS, LATEST_HANDSHAKE_VERSION, JsonRpcError

from .downstream import Incoming
from .eras import Json

HOLD: Final = 300.0
"""Seconds that a call waits for its client to come back with answers."""
MOST_HELD: Final = 1_000
"""Calls that wait for their clients; beyond it a question is refused."""
MOST_HELD_OF_CLIENT: Final = 100
"""Those of one client, where clients are told apart."""
TOGETHER: Final = 0.01
"""Seconds in which questions are asked together."""


@define(eq=False)
class _Question:
    method: str
    params: Mapping[str, Any] | None
    answered: trio.Event = field(factory=trio.Event)
    answer: Json | None = None


@define(eq=False)
class HeldCall:
    """One call, which may be asked about several times before it has a result."""

    incoming: Incoming
    """The request that it is attended by now; the first began it, and the others ask for the same."""
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    _said: deque[tuple[str, Mapping[str, Any]]] = field(factory=lambda: deque(maxlen=1024))
    _questions: dict[str, _Question] = field(factory=dict[str, _Question])
    _used: set[str] = field(factory=set[str])
    """Keys of all questions there were."""
    _outcome: Json | Exception | None = None
    _changed: trio.Event = field(factory=trio.Event)

    async def run(self, make: Callable[["HeldCall"], Awaitable[Json]]) -> None:
        """Make the call. In a task of the gateway."""
        try:
            with self.scope:  # once it is cancelled, nobody attends the call
                self._outcome = await make(self)
        except Exception as error:
            self._outcome = error
        self._changed.set()

    # -- in the task of the call ----------------------------------------------------------------------------------

    async def hear(self, method: str, params: Mapping[str, Any]) -> None:
        """The server says something of it."""
        self._said.append((method, params))
        self._changed.set()

    async def ask(self, key: str, method: str, params: Mapping[str, Any] | None) -> Json:
        """The server asks, or the gateway.

        Raises:
            JsonRpcError: The client cannot be asked that.
        """
        self.incoming.check_can_answer(method)
        while key in self._used:  # another incarnation counts anew, and an answer to the one is none to the other
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
        """The server asks. A client that has come with answers and without its state is not asked for those again.

        Raises:
            JsonRpcError: The client cannot be asked that.
        """
        self.incoming.check_can_answer(method)
        brought: Json = self.incoming.params.get("inputResponses") or {}
        if "requestState" not in self.incoming.params and _answers(method, brought.get(key)):
            return dict(brought[key])
        return await self.ask(key, method, params)

    # -- in the task of the request that attends it ---------------------------------------------------------------

    async def attend(self, incoming: Incoming) -> Json | None:
        """Hand on what is said until there is a result, or None: there are questions. Cancelled, the call is too."""
        self.incoming = incoming
        try:
            while True:
                self._changed = trio.Event()
                while self._said:
                    await incoming.hand_on(*self._said.popleft())
                if isinstance(self._outcome, Exception):
                    raise self._outcome
                if self._outcome is not None:
                    return self._outcome
                if self._questions:
                    await trio.sleep(TOGETHER)
                    if self._questions:  # the server has not taken them back
                        return None
                else:
                    await self._changed.wait()
        except trio.Cancelled as cancelled:
            self.scope.cancel(cancelled.reason if cancelled.source == "explicit" else None)
            raise

    @property
    def questions(self) -> Json:
        """What is to be answered, as the newer protocol has it."""
        return {
            key: {"method": each.method, **({} if each.params is None else {"params": each.params})}
            for key, each in self._questions.items()
        }

    def answer(self, responses: Mapping[str, Any]) -> None:
        """The client has come with answers. What it left out is asked again.

        Raises:
            JsonRpcError: One is no answer to its question. None counts then.
        """
        for key, question in self._questions.items():
            if key in responses and not _answers(question.method, responses[key]):
                raise JsonRpcError(INVALID_PARAMS, f"the answer to {key} is none to {question.method}")
        for key, question in list(self._questions.items()):
            if key in responses:
                question.answer = responses[key]
                question.answered.set()
                del self._questions[key]


class HeldCalls:
    """The calls whose clients are to come back, by what they were told to bring."""

    def __init__(self, nursery: trio.Nursery, hold: float) -> None:
        self._nursery = nursery
        self._hold = hold
        self._held: dict[str, tuple[HeldCall, trio.CancelScope]] = {}

    def has(self, state: str) -> bool:
        """Whether a client that brings this comes back to a call."""
        return state in self._held

    async def make(self, call: HeldCall, make: Callable[[HeldCall], Awaitable[Json]]) -> Json:
        """Begin a call; its result, or the questions that come before it."""
        self._nursery.start_soon(call.run, make)
        return await self._attended(call, call.incoming)

    async def go_on(self, incoming: Incoming) -> Json:
        """Go on with the call that a client has come back to.

        Raises:
            JsonRpcError: There is none, it was another's, or another request.
        """
        state = incoming.params["requestState"]
        held = self._held.get(state)
        if held is None or _wanted(held[0].incoming) != _wanted(incoming):
            raise JsonRpcError(INVALID_PARAMS, "unknown or expired requestState, or not that of this request")
        call, scope = held
        call.answer(incoming.params.get("inputResponses") or {})
        del self._held[state]
        scope.cancel()
        return await self._attended(call, incoming)

    def end(self, of: Callable[[Hashable], bool]) -> None:
        """Give up the calls of these principals, whether they come back or not."""
        for call, scope in list(self._held.values()):
            if of(call.incoming.principal):
                scope.cancel()

    async def _attended(self, call: HeldCall, incoming: Incoming) -> Json:
        result = await call.attend(incoming)
        if result is not None:
            return result
        principal = incoming.principal
        own = 0 if principal is None else sum(each.incoming.principal == principal for each, _ in self._held.values())
        if len(self._held) >= MOST_HELD or own >= MOST_HELD_OF_CLIENT:
            call.scope.cancel()
            raise JsonRpcError(INVALID_PARAMS, "too many calls wait for answers of their clients")
        state, scope = secrets.token_urlsafe(24), trio.CancelScope()
        self._held[state] = call, scope
        self._nursery.start_soon(self._expire, state, call, scope)
        return {"resultType": "input_required", "inputRequests": call.questions, "requestState": state}

    async def _expire(self, state: str, call: HeldCall, scope: trio.CancelScope) -> None:
        """The client has some time to come back; then its call is given up."""
        with trio.move_on_after(self._hold), scope:
            await trio.sleep_forever()
        if self._held.pop(state, None) is not None:
            call.scope.cancel()


def _answers(method: str, response: Any) -> bool:
    """Whether this is an answer to a question of this method."""
    from mcp_types import methods  # loaded long since: an older server has asked
    from pydantic import ValidationError

    try:
        methods.validate_client_result(method, LATEST_HANDSHAKE_VERSION, response)
    except ValidationError:
        return False
    return True


def _wanted(incoming: Incoming) -> tuple[str, Json, Hashable]:
    """What a request asks for, and whose it is."""
    return incoming.method, bare(incoming.params), incoming.principal


def bare(params: Mapping[str, Any]) -> Json:
    """The parameters of a request without what it came back with."""
    return {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
