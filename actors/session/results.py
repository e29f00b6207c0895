"""Results of callers' requests as the SDK's models. Loads the models."""

from collections.abc import Mapping
from typing import Any, Final

from mcp_types import CallToolResult, CompleteResult, GetPromptResult, InputRequiredResult, ReadResourceResult
from pydantic import BaseModel, ValidationError

from ..messages import CALL_TOOL
from .base import BadResult

__all__ = ["ValidationError", "typed_question", "typed_result"]

_RESULTS: Final[Mapping[str, type[BaseModel]]] = {
    CALL_TOOL: CallToolResult,
    "resources/read": ReadResourceResult,
    "prompts/get": GetPromptResult,
    "completion/complete": CompleteResult,
}


def typed_result(method: str, raw: dict[str, Any], first: int = 0) -> BaseModel:
    """The result of a request of this method; `first`: the place of the first of its parts among all.

    Raises:
        BadResult: It is not valid.
    """
    try:
        return _RESULTS[method].model_validate(raw, by_name=False)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part + first if isinstance(part, int) else part) for part in problem["loc"])
        raise BadResult(f"not a {method} result: {where}: {problem['msg']}") from None


def typed_question(raw: dict[str, Any]) -> InputRequiredResult:
    """A request for input in place of a result.

    Raises:
        ValidationError: It is not valid.
    """
    return InputRequiredResult.model_validate(raw, by_name=False)
