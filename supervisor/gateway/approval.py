"""A call that a rule wants asked about: the client's user is, by a form, where the client can be asked."""

import json
from collections.abc import Mapping
from typing import Final, Literal

import trio

from mcp_nursery.actors.errors import NotApproved
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.reply import Ask

from ..security.untrusted_marks import visible
from ..tools.approval import Approval, ApprovalRequest
from .downstream import Incoming, as_object
from .eras import Json

Unattended = Literal["allow", "deny"]
"""What becomes of a call that a rule wants asked about, and whose client cannot be asked."""

MOST_SHOWN: Final = 4_000
"""Characters of arguments that somebody is asked about."""

_KEY: Final = "approval"
_FIELD: Final = "allow"
_FORM: Final[Json] = {
    "type": "object",
    "properties": {_FIELD: {"type": "boolean", "title": "Allow this call", "default": False}},
    "required": [_FIELD],
}


class NobodyAsked(Exception):
    """Somebody has to be asked, and there was no way to."""


def can_be_asked(incoming: Incoming) -> bool:
    """Whether a client takes forms."""
    taken = incoming.capabilities.get("elicitation")
    return isinstance(taken, Mapping) and (not taken or "form" in taken)


async def approve(
    request: ApprovalRequest, incoming: Incoming, *, ask: Ask | None, unattended: Unattended, within: float
) -> Approval:
    """What a client's user says to a call.

    Args:
        request: The call.
        incoming: Whose it is.
        ask: Asks that client; None: it cannot be asked on this way.
        unattended: The answer for a client that takes no forms.
        within: Seconds that its user may take.

    Raises:
        NobodyAsked: It takes forms, and `ask` is None.
        NotApproved: Its user does not want it, or does not say.
    """
    tool = request.tool
    if not can_be_asked(incoming):
        if unattended == "allow":
            return Approval.ALLOW
        raise NotApproved(tool.server, tool.tool, "it has to be asked about, and its client cannot be asked")
    if ask is None:
        raise NobodyAsked
    said: object = None
    with trio.move_on_after(within) as limit:
        try:
            said = await ask(_KEY, "elicitation/create", {"message": question(request), "requestedSchema": _FORM})
        except JsonRpcError as error:
            raise NotApproved(tool.server, tool.tool, f"its client could not ask: {error.message}") from None
    if limit.cancelled_caught:
        raise NotApproved(tool.server, tool.tool, f"nobody has answered within {within:g} s")
    if _agrees(said):
        return Approval.ALLOW
    raise NotApproved(tool.server, tool.tool, "the user of its client has not allowed it")


def _agrees(said: object) -> bool:
    answer = as_object(said)
    return answer.get("action") == "accept" and as_object(answer.get("content")).get(_FIELD) is True


def question(request: ApprovalRequest) -> str:
    """What is asked: three lines, with nothing in them that a terminal obeys or that nobody sees, and no secrets."""
    tool = request.tool
    arguments = visible(json.dumps(request.redacted, ensure_ascii=False))
    if len(arguments) > MOST_SHOWN:
        arguments = f"{arguments[:MOST_SHOWN]}… and {len(arguments) - MOST_SHOWN} more characters that are not shown"
    return f"Allow this call?\nserver: {visible(tool.server)}\ntool: {visible(tool.tool)}\narguments: {arguments}"
