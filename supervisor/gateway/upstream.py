"""What servers are asked for a client: agreed to first, in the instance where it belongs, and all that a server asks in
the middle of it.

Raw where client and server speak one era: what a server says is handed on as it came. Bridged where they do not: see
`eras` for results, and `held` for questions in the middle of a call.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final

import trio

from mcp_nursery.actors.jsonrpc.relays import ASKED
from mcp_nursery.actors.messages import LISTED
from mcp_nursery.actors.protocol import INTERNAL_ERROR, JsonRpcError
from mcp_nursery.actors.reply import Ask, NoticeCallback

from ..calls.input_rounds import MAX_ROUNDS
from ..calls.relayed import RelayedResult
from ..supervisor import Supervisor
from .access import Principal
from .approval import NobodyAsked, Unattended, approve
from .catalogues import Place, protocol_of
from .downstream import Incoming
from .eras import Json, bridged, envelope, is_modern, server_info_of, without_hop
from .held import HeldCall, HeldCalls, bare
from .instances import Instances

_MAY_ASK: Final = frozenset(["tools/call", "prompts/get", "resources/read"])


class Upstream:
    """Makes requests of clients to servers.

    Args:
        supervisor: Whose servers they are.
        instances: Which of a server's instances a request goes to.
        nursery: Where calls live that are held for a client's answers.
        hold, unattended: See `open_gateway`.
    """

    def __init__(
        self, supervisor: Supervisor, instances: Instances, nursery: trio.Nursery, hold: float, unattended: Unattended
    ) -> None:
        self._supervisor = supervisor
        self._instances = instances
        self._held = HeldCalls(nursery, hold)
        self._hold = hold
        self._unattended: Unattended = unattended

    def end_clients(self, of: Callable[[Principal | None], bool]) -> None:
        """See `Gateway.end_clients`."""

        def is_one(whose: Hashable) -> bool:
            return (whose is None or isinstance(whose, Principal)) and of(whose)

        self._held.end(is_one)
        self._instances.end(is_one)

    async def request(self, incoming: Incoming, place: Place) -> Json:
        """Make a request, agreed to first. A client of the handshake era is asked in the middle of it.

        Args:
            incoming: As the client made it.
            place: Where it goes, and its parameters there.

        Returns:
            The result as the client's era has it.

        Raises:
            JsonRpcError: The client is told that instead.
            NurseryError: See `Supervisor.request`.
        """
        modern = is_modern(await protocol_of(self._supervisor, place.server))
        if not incoming.modern:
            ask = partial(_ask, incoming)
            await self._agree(incoming, place, ask)
            return await self._rounds(incoming, place.server, place.params, incoming.hand_on, ask)
        if incoming.method in _MAY_ASK:
            state = incoming.params.get("requestState")
            if isinstance(state, str) and (not modern or self._held.has(state)):
                return await self._held.go_on(incoming)
            if not modern or await self._has_to_ask(incoming, place):
                return await self._held.make(HeldCall(incoming), partial(self._make_held, place=place))
        return await self._request(incoming, place.server, place.params, on_notice=incoming.hand_on)

    async def _make_held(self, call: HeldCall, *, place: Place) -> Json:
        """A request of a client that is asked by the answers to it."""
        await self._agree(call.incoming, place, call.ask)
        return await self._rounds(call.incoming, place.server, bare(place.params), call.hear, call.ask_for_server)

    async def _rounds(self, incoming: Incoming, server: str, params: Json, hear: NoticeCallback, ask: Ask) -> Json:
        """A request, and all the rounds in which a newer server asks."""
        for _ in range(MAX_ROUNDS):
            result = await self._request(incoming, server, params, on_notice=hear, on_question=ask)
            if result.get("resultType") != "input_required":
                return result
            params = bare(params) | {"inputResponses": await _answers(ask, result.get("inputRequests") or {})}
            if "requestState" in result:
                params["requestState"] = result["requestState"]
        raise JsonRpcError(INTERNAL_ERROR, f"the server still asks for input after {MAX_ROUNDS} rounds")

    async def _agree(self, incoming: Incoming, place: Place, ask: Ask | None) -> None:
        """Have a call of a tool agreed to.

        Raises:
            NotApproved: It is not.
            NobodyAsked: Its client has to be asked, and `ask` is None.
        """
        if incoming.method == "tools/call":
            asking = partial(approve, incoming=incoming, ask=ask, unattended=self._unattended, within=self._hold)
            arguments = place.params.get("arguments")
            await self._supervisor.agree(place.server, place.params["name"], arguments, approve=asking)

    async def _has_to_ask(self, incoming: Incoming, place: Place) -> bool:
        """Whether its client has to be asked before a call."""
        try:
            await self._agree(incoming, place, None)
        except NobodyAsked:
            return True
        return False

    async def _request(self, incoming: Incoming, server: str, params: Json, **hears: Any) -> Json:
        if is_modern(self._supervisor.protocol_version(server)):
            meta = envelope(incoming.meta, incoming.capabilities, incoming.info, incoming.wanted_level)
        else:
            meta = without_hop(incoming.meta)
        principal = incoming.principal or object()

        async def make(supervisor: Supervisor) -> RelayedResult:
            return await supervisor.request(
                server,
                incoming.method,
                params,
                meta=meta,
                principal=principal,
                on_unclear=partial(self._instances.note_question, server, of_somebody=incoming.principal is not None),
                **hears,
            )

        if incoming.method in LISTED:  # of what there is, not of what one has of it
            relayed = await make(self._supervisor)
        else:
            relayed = await self._instances.call(server, incoming, principal, make)
        from_modern = is_modern(relayed.protocol_version)
        if from_modern == incoming.modern or relayed.result.get("resultType") == "input_required":
            return relayed.result
        info = server_info_of(self._supervisor.hello(server) or {}) if incoming.modern else {}  # only these are told
        return bridged(
            incoming.method, relayed.result, to_modern=incoming.modern, from_modern=from_modern, server_info=info
        )


async def _ask(incoming: Incoming, key: str, method: str, params: Mapping[str, Any] | None) -> Json:
    """A question of an older server to an older client: a request on the stream of its call."""
    del key
    if method in ASKED:  # what the protocol does not know the client answers for itself
        incoming.check_can_answer(method)
    assert incoming.ask is not None  # or this is not handed on
    return await incoming.ask(method, params)


async def _answers(ask: Ask, questions: Mapping[str, Mapping[str, Any]]) -> Json:
    """What a client says to the questions of a newer server, by their keys.

    Raises:
        JsonRpcError: It cannot be asked one of them, or fails to.
    """
    answers: Json = {}
    failures: list[JsonRpcError] = []

    async def bring(key: str, question: Mapping[str, Any]) -> None:
        try:
            answers[key] = await ask(key, question["method"], question.get("params"))
        except JsonRpcError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for key, question in questions.items():
            nursery.start_soon(bring, key, question)
    if failures:
        raise failures[0]
    return answers
