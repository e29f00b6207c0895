"""A server that asks in the middle of a call: its question to the host's callbacks, and the call sent again."""

from typing import Any

from mcp.client import ClientSession
from mcp_types import ErrorData

from ..messages import Answered, Question, Rejected, Round
from ..wire.frames import decode
from .callbacks import CallContext


async def answer(session: ClientSession, question: Question) -> Answered | Rejected:
    """What the host's callback says, or the session in its place where there is none."""
    params = question.request.params
    context = CallContext(
        session=session, request_id=question.key, meta=params.meta if params else None, tool=question.tool
    )
    said = await session.dispatch_input_request(context, question.request)
    if isinstance(said, ErrorData):
        return Rejected(said.code, f"the server asked for input: {said.message}", said.data)
    return Answered(said.model_dump(by_alias=True, mode="json", exclude_none=True))


def round_params(again: Round, meta: dict[str, Any]) -> dict[str, Any]:
    """The parameters of `tools/call` for one more round."""
    call = again.call
    params: dict[str, Any] = {"name": call.tool}
    if call.arguments is not None:
        params["arguments"] = decode(call.arguments)
    if again.responses is not None:
        params["inputResponses"] = again.responses
    if again.state is not None:
        params["requestState"] = again.state
    return params | {"_meta": meta} if meta else params
