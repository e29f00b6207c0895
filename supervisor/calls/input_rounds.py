"""A call whose server asks in the middle of it: the host answers, and the call is sent again, within bounds."""

from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import trio

from mcp_nursery.actors.messages import FollowUp, Owner, Question, Request, Round
from mcp_nursery.actors.outcomes import Answered, Loss, Malformed, Outcome, Rejected
from mcp_nursery.actors.pieces import SMALL
from mcp_nursery.actors.protocol import URL_ELICITATION_REQUIRED

from .call import ActiveCall
from .outcome_to_result import refused

if TYPE_CHECKING:
    from mcp_types import ElicitRequestURLParams, InputRequest, InputRequiredResult

Asked: TypeAlias = "InputRequiredResult | Rejected"
"""A server's answers that are no result: that it needs input, or that its user has to visit a page first."""

MAX_ROUNDS = 10
"""Times a call may be answered with a request for input: the MCP SDK's `DEFAULT_INPUT_REQUIRED_MAX_ROUNDS`, which the
SDKs of other languages share."""

MAX_VISITS = 3
"""Times a call may be refused until its user has visited a page."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
"""Seconds before a round that brings nothing but the server's own state, doubled each time: the MCP SDK's values."""


class InputRounds:
    """The questions of one attempt to its host so far. Everything happens in the caller's task, step after step."""

    def __init__(self, call: ActiveCall[Any, Any]) -> None:
        self._call = call
        call.was_asked = True
        self._rounds = 0
        self._visits = 0
        self._begun = False
        """True if the server has asked in the middle of its work: from then on the call goes on, whatever changes."""
        self._pause = _FIRST_PAUSE

    async def go_on(self, question: Asked) -> Outcome:
        """Have the host do what the server asks for, and send the call again. Returns the outcome.

        Raises:
            ServerError: The server's refusal stands.
            NotApproved: What was agreed to, or pinned, has changed while the user visited a page.
            CallTimeout: The call's time is over.
        """
        self._call.renew_slot()
        return await (self._visit(question) if isinstance(question, Rejected) else self._bring(question))

    async def _bring(self, wanted: "InputRequiredResult") -> Outcome:
        """Answer every question of an `input_required` result, and send the call again with the answers."""
        self._rounds += 1
        self._begun = True
        if self._rounds > MAX_ROUNDS:
            return Malformed(f"the server still asks for input after {MAX_ROUNDS} rounds")
        if not wanted.input_requests:
            with self._call.in_time():
                await trio.sleep(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            return await self._send_again(None, wanted.request_state)
        self._pause = _FIRST_PAUSE
        responses: dict[str, Any] = {}
        for key, request in wanted.input_requests.items():  # one after another: each may be a person
            said = await ask_host(self._call, key, request)
            if not isinstance(said, Answered):
                return said
            responses[key] = said.result
        return await self._send_again(responses, wanted.request_state)

    async def _visit(self, refusal: Rejected) -> Outcome:
        """Offer the pages that must be visited first, and send the call again if the user agrees to all.

        If the user declines a page, that is the tool's answer. With nobody to offer them to, or after too many offers,
        the refusal stands.
        """
        from mcp_types import ElicitRequest

        pages = _pages(refusal)
        self._visits += 1
        if not pages or self._visits > MAX_VISITS:
            raise await refused(refusal, self._call)
        for page in pages:
            said = await ask_host(self._call, page.elicitation_id or "page", ElicitRequest(params=page))
            if isinstance(said, Rejected):
                raise await refused(refusal, self._call)
            if not isinstance(said, Answered):
                return said
            if said.result["action"] != "accept":
                return _declined(said.result["action"], page.message)
        if not self._begun:
            self._call.check_bound()
        return await self._send_again(None, None)

    async def _send_again(self, responses: dict[str, Any] | None, state: str | None) -> Outcome:
        """Send the call once more with answers and the server's state: a part of the same attempt."""
        asked = self._call.slot

        def hand_on(call: Request) -> None:
            if self._begun:
                self._call.bound = None
            call.slot.follow(asked)
            follow_up(owner_of(self._call), Round(call, responses, state))

        return await self._call.submit(hand_on)


async def ask_host(call: ActiveCall[Any, Any], key: str, request: "InputRequest") -> Outcome:
    """Have a callback of the host answer a question of the call's server. That time is the host's: no idle limit
    applies, and the deadline stands still unless the caller has named it.

    Returns `Answered` with the answer as JSON, `Rejected` if the host refuses, or the loss of the connection.

    Raises:
        CallTimeout: The time that the caller has named is over.
    """
    call.renew_slot()
    slot = call.slot
    follow_up(owner_of(call), Question(call.name, key, request, slot, call.servers.callbacks))
    with call.in_time(), call.standing_still():
        return await slot.wait()
    raise AssertionError  # its time being over is an error of its own


def owner_of(call: ActiveCall[Any, Any]) -> Owner | None:
    """The live incarnation of the call's server, if any."""
    observable = call.servers.snapshots.get(call.server_name)
    return None if observable is None else observable.value.owner


def may_be_question(outcome: Outcome | None) -> bool:
    """True if it may be a question of the server's, or the promise of an answer, instead of an answer."""
    if isinstance(outcome, Answered):
        result = outcome.result
        return result.get("resultType") in ("input_required", "task") or "task" in result
    return outcome is not None and wants_a_visit(outcome)


def wants_a_visit(outcome: Outcome) -> TypeGuard[Rejected]:
    """True if a server refuses until its user has visited a page."""
    return isinstance(outcome, Rejected) and outcome.code == URL_ELICITATION_REQUIRED


def follow_up(owner: Owner | None, message: FollowUp) -> None:
    """Pass a message to the incarnation that its slot belongs to. If that is gone, the slot is decided at once.

    Another incarnation of the server knows nothing of the call: it must not get the rest of it.
    """
    slot = message.slot
    if owner is not None and owner.incarnation == slot.incarnation:
        slot.route(owner.incarnation, owner.control)
        try:
            owner.control.put_nowait(message)
        except trio.BrokenResourceError:
            pass  # it is ending: as gone as any other
        else:
            return
    slot.resolve(Loss("the connection ended while the server waited for input"))


def _pages(refusal: Rejected) -> "list[ElicitRequestURLParams]":
    if refusal.size > SMALL:  # it would take long to find out, and no user would visit as many
        return []
    from mcp_types import ElicitationRequiredErrorData
    from pydantic import ValidationError

    try:
        return ElicitationRequiredErrorData.model_validate(refusal.data).elicitations
    except ValidationError:
        return []


def _declined(action: str, message: str) -> Answered:
    """The refusal as the tool's own answer: the model learns why nothing was done. The page's address is secret, and
    left out."""
    did = "declined" if action == "decline" else "dismissed"
    text = f"The tool did nothing: the user {did} what it needs first: {message}"
    return Answered({"content": [{"type": "text", "text": text}], "isError": True})
