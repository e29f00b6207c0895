"""A call whose server asks in the middle of it: the host answers, and the call is sent again, within bounds."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from mcp_types import ElicitationRequiredErrorData, ElicitRequest, ElicitRequestURLParams, InputRequest
from mcp_types import InputRequiredResult as Wanted
from pydantic import ValidationError

from mcp_nursery.actors.messages import Answered, FollowUp, Loss, Malformed, Outcome, Owner, Rejected

MAX_ROUNDS = 10
"""Times a call may be answered with a request for input: the MCP SDK's `DEFAULT_INPUT_REQUIRED_MAX_ROUNDS`, which the
SDKs of other languages share."""

MAX_VISITS = 3
"""Times a call may be refused until its user has visited a page."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
"""Seconds before a round that brings nothing but the server's own state, doubled each time: the MCP SDK's too."""

Ask = Callable[[str, InputRequest], Awaitable[Outcome]]
"""Has the host asked: `Answered` with the answer as JSON, `Rejected` if it refuses, or the loss of the connection."""

Again = Callable[[dict[str, Any] | None, str | None], Awaitable[Outcome]]
"""Sends the call once more, with answers and the server's state."""


class InputRounds:
    """What one call has asked of its host so far. Everything happens in the caller's task, one step after another."""

    def __init__(self, ask: Ask, again: Again) -> None:
        self._ask = ask
        self._again = again
        self._rounds = 0
        self._visits = 0
        self._pause = _FIRST_PAUSE

    async def bring(self, wanted: Wanted) -> Outcome:
        """Answer every question of an `input_required` result, and send the call again with the answers."""
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            return Malformed(f"the server still asks for input after {MAX_ROUNDS} rounds")
        if not wanted.input_requests:
            await trio.sleep(self._pause)
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            return await self._again(None, wanted.request_state)
        self._pause = _FIRST_PAUSE
        responses: dict[str, Any] = {}
        for key, request in wanted.input_requests.items():  # one after another: each may be a person
            said = await self._ask(key, request)
            if not isinstance(said, Answered):
                return said
            responses[key] = said.result
        return await self._again(responses, wanted.request_state)

    async def visit(self, refused: Rejected) -> Outcome | None:
        """Offer the pages that must be visited first, and send the call again if the user agrees to all.

        A page that the user declines is the tool's answer. None if there is nobody to offer them to, or it was done
        too often: the refusal stands.
        """
        pages = _pages(refused)
        self._visits += 1
        if not pages or self._visits > MAX_VISITS:
            return None
        for page in pages:
            said = await self._ask(page.elicitation_id or "page", ElicitRequest(params=page))
            if isinstance(said, Rejected):
                return None
            if not isinstance(said, Answered):
                return said
            if said.result["action"] != "accept":
                return _declined(said.result["action"], page.message)
        return await self._again(None, None)


def follow_up(owner: Owner | None, asker: int | None, message: FollowUp) -> None:
    """Leave a message with the incarnation that asks. If that is gone, the message's slot is decided at once.

    Another incarnation of the server knows nothing of the call: it must not get the rest of it.
    """
    slot = message.slot
    slot.incarnation = asker
    if owner is not None and owner.incarnation == asker:
        slot.owner = owner.control
        try:
            owner.control.put_nowait(message)
        except trio.BrokenResourceError:
            pass  # it is ending: as gone as any other
        else:
            return
    slot.resolve(Loss("the connection ended while the server waited for input"))


def _pages(refused: Rejected) -> list[ElicitRequestURLParams]:
    try:
        return ElicitationRequiredErrorData.model_validate(refused.data).elicitations
    except ValidationError:
        return []


def _declined(action: str, message: str) -> Answered:
    """As the tool's own answer: the model learns why nothing was done. Without the page's address, which is secret."""
    did = "declined" if action == "decline" else "dismissed"
    text = f"The tool did nothing: the user {did} what it needs first: {message}"
    return Answered({"content": [{"type": "text", "text": text}], "isError": True})
