"""Tools as the dictionaries that model APIs and agent frameworks take. Pure; each dictionary is the caller's own."""

from typing import TYPE_CHECKING, Any, cast

from .wrapping import harmless

if TYPE_CHECKING:
    from .tool import Tool


def as_openai(tool: "Tool") -> dict[str, Any]:
    """A function tool of OpenAI's chat completions, and of the many APIs that take the same."""
    function = {"name": tool.name, "description": tool.description, "parameters": _schema(tool)}
    return {"type": "function", "function": function}


def as_anthropic(tool: "Tool") -> dict[str, Any]:
    """A tool of Anthropic's messages."""
    return {"name": tool.name, "description": tool.description, "input_schema": _schema(tool)}


def as_langchain(tool: "Tool") -> dict[str, Any]:
    """What LangChain's `StructuredTool` is made of, its function left to the host."""
    return {"name": tool.name, "description": tool.description, "args_schema": _schema(tool)}


def _schema(tool: "Tool") -> dict[str, Any]:
    """The input schema, with the two keys that these APIs insist on."""
    return {"type": "object", "properties": {}, **_copy(tool.input_schema)}


def _copy(value: Any) -> Any:
    """The caller's own copy of a JSON value, in which no text, names included, forges the marks around results."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {harmless(str(key)): _copy(part) for key, part in cast("dict[object, object]", value).items()}
    if isinstance(value, list):
        return [_copy(part) for part in cast("list[object]", value)]
    return value
