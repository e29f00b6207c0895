"""The questions to clients: those that servers behind a gateway may ask, and those about calls that a rule wants asked
about. The latter are put to the client's user, in a form, if the client takes forms."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import trio

from mcp_nursery.actors.errors import NotApproved
from mcp_nursery.actors.extensions import OFFERED
from mcp_nursery.actors.limits import unanswered
from mcp_nursery.actors.protocol import INTERNAL_ERROR, JsonRpcError
from mcp_nursery.actors.reply import AskPeer

from ...callbacks import Callbacks
from ...security.untrusted_marks import visible
from ...tools.approval_rules import Approval, ApprovalRequest
from ..bridge import Json, as_object
from ..client_request import ClientRequest

if TYPE_CHECKING:
    from mcp_types import ErrorData

Unattended = Literal["allow", "deny"]
"""The decision about a call that a rule wants asked about, if its client cannot be asked."""

MOST_SHOWN: Final = 4_000
"""Characters of arguments that are shown in a question."""

_KEY: Final = "approval"
_FORM_FIELD: Final = "allow"
_FORM: Final[Json] = {
    "type": "object",
    "properties": {_FORM_FIELD: {"type": "boolean", "title": "Allow this call", "default": False}},
    "required": [_FORM_FIELD],
}


class NobodyAsked(Exception):
    """The error of a call whose user has to be asked, and cannot be asked here."""


def can_be_asked(request: ClientRequest) -> bool:
    """True if the client of a request takes forms."""
    taken = request.capabilities.get("elicitation")
    return isinstance(taken, Mapping) and (not taken or "form" in taken)


async def approve(
    call: ApprovalRequest,
    request: ClientRequest,
    *,
    ask: AskPeer | None,
    unattended: Unattended,
    within: Callable[[], float],
) -> Approval:
    """Ask the user of a client about a call, by `ask`; None: the client cannot be asked here. `unattended` is the
    answer for a client that takes no forms. `within` returns how many seconds the user may take.

    Raises:
        NobodyAsked: The client takes forms, and `ask` is None.
        NotApproved: Its user refuses or does not answer, or `unattended` denies the call.
    """
    tool = call.tool
    if not can_be_asked(request):
        if unattended == "allow":
            return Approval.ALLOW
        raise NotApproved(tool.server, tool.tool, "it has to be asked about, and its client cannot be asked")
    if ask is None:
        raise NobodyAsked
    said: object = None
    seconds = within()
    with trio.move_on_after(seconds) as limit:
        try:
            said = await ask(_KEY, "elicitation/create", {"message": question(call), "requestedSchema": _FORM})
        except JsonRpcError as error:
            raise NotApproved(tool.server, tool.tool, f"its client could not ask: {error.message}") from None
    if limit.cancelled_caught:
        raise NotApproved(tool.server, tool.tool, unanswered(seconds))
    if _is_approval(said):
        return Approval.ALLOW
    raise NotApproved(tool.server, tool.tool, "the user of its client has not allowed it")


async def ask_in_time(
    ask: AskPeer, within: Callable[[], float], key: str, method: str, params: Mapping[str, Any] | None
) -> Json:
    """Ask a client for a server. A user who does not answer in time, of `within` seconds, counts as one who dismisses
    the question.

    Raises:
        JsonRpcError: The client cannot be asked that, or somebody else than its user has not answered in time.
    """
    seconds = within()
    with trio.move_on_after(seconds):
        return dict(await ask(key, method, params))
    if method == "elicitation/create":
        return {"action": "cancel"}
    raise JsonRpcError(INTERNAL_ERROR, unanswered(seconds))


def _is_approval(said: object) -> bool:
    answer = as_object(said)
    return answer.get("action") == "accept" and as_object(answer.get("content")).get(_FORM_FIELD) is True


def question(call: ApprovalRequest) -> str:
    """Write the question: four lines, and one about the tool's page if it has one, without control characters,
    invisible characters and secrets."""
    tool = call.tool
    arguments = visible(json.dumps(call.redacted, ensure_ascii=False))
    if len(arguments) > MOST_SHOWN:
        arguments = f"{arguments[:MOST_SHOWN]}… and {len(arguments) - MOST_SHOWN} more characters that are not shown"
    page = "" if tool.ui is None else f"\npage: {visible(tool.ui.summary)}"
    about = f"server: {visible(tool.server)}\ntool: {visible(tool.tool)}{page}"
    return f"Allow this call?\n{about}\narguments: {arguments}"


# -- what servers are offered ------------------------------------------------------------------------------------------


async def _refuse_question(_: object) -> "ErrorData":
    from mcp_types import ErrorData  # loaded long since: a server has asked

    return ErrorData(code=INTERNAL_ERROR, message="no call is under way that this could be for")


def gateway_callbacks(capabilities: Mapping[str, Any] | None = None) -> Callbacks:
    """The callbacks of the supervisor behind a gateway. Questions outside of calls are refused.

    Args:
        capabilities: The capabilities of the only client: servers are offered the same elicitation, sampling and
            roots, may ask nothing else, and are told of the same extensions. None: there may be several clients;
            servers are offered all that a client may be asked, and each client decides for itself. They are told of
            the extensions that a gateway can pass on to any client (Apps, Skills).
    """
    if capabilities is None:
        some = {"extensions": OFFERED}
        return Callbacks(elicit=_refuse_question, sample=_refuse_question, roots=[], capabilities=some)
    told: Json = {name: value for name, value in capabilities.items() if isinstance(value, Mapping)}
    return Callbacks(
        elicit=_refuse_question if "elicitation" in told else None,
        sample=_refuse_question if "sampling" in told else None,
        roots=[] if "roots" in told else None,
        capabilities=told,
    )
