"""Supervised tools as a toolset of pydantic-ai.

The agent asks for its tools before each request to the model, so it sees what servers have by then. A call that fails
is a failed result for the model (`ToolFailed`), which costs it none of its retries: the text says what to do next, and
whether the server may have acted.
"""

import base64
from typing import Any

from pydantic_core import SchemaValidator, core_schema

from mcp_nursery.actors.overrides import override

from ..decisions.restart_policy import HOLD
from ..extras import needs_extra
from ..tools.outcome import ToolOutcome
from ..tools.tool import Tool
from .offered import FIRST_WAIT, ListedTools, OfThread, OnProgress, ToolSupervisor, facts_of, media_of

with needs_extra("pydantic-ai"):
    from pydantic_ai import BinaryContent, RunContext, ToolDefinition, ToolFailed, ToolReturn
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

__all__ = ["SupervisedToolset"]

_ANY_ARGUMENTS = SchemaValidator(core_schema.any_schema())
"""A validator that passes all arguments: the servers check them, and report what is wrong."""


class SupervisedToolset(AbstractToolset[Any]):
    """The tools of supervised servers, for `Agent(…, toolsets=[SupervisedToolset(supervisor)])`.

    Entering and leaving it starts and ends nothing: the servers live as long as the block of their supervisor. A result
    for the model is text, followed by images and sounds as `BinaryContent`; `ToolReturnPart.metadata` has the result of
    `facts_of`. If a call failed, `ToolFailed.__cause__` is its `NurseryError`, for a toolset that wraps this one.

    Args:
        supervisor: The supervisor of the tools.
        id: The toolset's name, unique in its agent.
        search: As for `Supervisor.as_toolset`.
        instructions: Whether the agent's instructions include `Toolset.preamble`.
        timeout: Seconds for each call, from its approval on. Default: as for `Supervisor.call_tool`.
        on_progress: Receives the progress of calls.
        startup_wait: Seconds for which the first step waits for servers that are starting. Default 5. Tools of slower
            ones come with a later step.
        hold: Seconds that a call is held at most while its server restarts. Default 20. 0: it fails at once.
    """

    def __init__(
        self,
        supervisor: ToolSupervisor | OfThread,
        *,
        id: str = "mcp-nursery",  # noqa: A002 - as toolsets of pydantic-ai have it
        search: bool = False,
        instructions: bool = True,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        startup_wait: float = FIRST_WAIT,
        hold: float = HOLD,
    ) -> None:
        self._listed = ListedTools(supervisor, search, startup_wait, hold)
        self._id = id
        self._instructions = instructions
        self._timeout = timeout
        self._on_progress = on_progress

    @property
    @override
    def id(self) -> str:
        return self._id

    @override
    async def get_instructions(self, ctx: RunContext[Any]) -> str | None:
        return self._listed.offered.preamble() if self._instructions else None

    @override
    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            tool.name: ToolsetTool(
                toolset=self,
                tool_def=_definition(tool),
                max_retries=ctx.max_retries,
                args_validator=_ANY_ARGUMENTS,
            )
            for tool in await self._listed.now()
        }

    @override
    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> ToolReturn[Any]:
        outcome = await self._listed.run(name, tool_args, timeout=self._timeout, on_progress=self._on_progress)
        if outcome.is_error:
            raise ToolFailed(outcome.text) from outcome.error
        return ToolReturn(_content(outcome), metadata=facts_of(outcome))


def _definition(tool: Tool) -> ToolDefinition:
    shown = tool.as_anthropic()
    return ToolDefinition(
        name=tool.name,
        description=shown["description"],
        parameters_json_schema=shown["input_schema"],
        metadata={"server": tool.server, "tool": tool.tool, "available": tool.available},
        return_schema=tool.output_schema,
    )


def _content(outcome: ToolOutcome) -> "str | list[str | BinaryContent]":
    media = [BinaryContent(base64.b64decode(each.data), media_type=each.mime_type) for each in media_of(outcome)]
    return [outcome.text, *media] if media else outcome.text
