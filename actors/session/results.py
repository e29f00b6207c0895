"""Results of callers' requests as the SDK's models. Loads them."""

from collections.abc import Mapping
from typing import Any, Final

from mcp_types import CallToolResult, CompleteResult, GetPromptResult, InputRequiredResult, ReadResourceResult
from pydantic import BaseModel, ValidationError

from ..messages import CALL_TOOL

__all__ = ["ValidationError", "typed_question", "typed_result"]

_RESULTS: Final[Mapping[str, type[BaseModel]]] = {
    CALL_TOOL: CallToolResult,
    "resources/read": ReadResourceResult,
    "prompts/get": GetPromptResult,
    "completion/complete": CompleteResult,
}


def typed_result(method: str, raw: dict[str, Any]) -> BaseModel:
    """The result of a request of this method.

    Raises:
        ValidationError: It is none.
    """
    return _RESULTS[method].model_validate(raw, by_name=False)


def typed_question(raw: dict[str, Any]) -> InputRequiredResult:
    """A request for input in the place of a result.

    Raises:
        ValidationError: It is none.
    """
    return InputRequiredResult.model_validate(raw, by_name=False)
