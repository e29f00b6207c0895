"""Supervised tools as an MCP server of OpenAI Agents, or as its function tools.

To the framework all supervised servers are one, which never goes away: it is asked for its tools at each turn, and a
call that fails is a result for the model.
"""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, cast

from mcp_types import CallToolResult, GetPromptResult, ListPromptsResult
from mcp_types import Tool as Definition

from mcp_nursery.actors.overrides import override

from ..decisions.restart_policy import HOLD, WhenDown
from ..extras import needs_extra
from ..resources import Prompt, PromptResult
from ..tools.tool import Tool
from .offered import (
    FIRST_WAIT,
    ListedTools,
    OfThread,
    OnProgress,
    ToolSupervisor,
    facts_of,
    media_of,
)

with needs_extra("openai-agents"):
    from agents import AgentBase, FunctionTool, RunContextWrapper
    from agents.mcp import MCPServer, MCPUtil
    from agents.mcp.util import MCPToolCustomDataContext

__all__ = ["PromptSupervisor", "SupervisedMCPServer", "function_tools"]

_FACTS = "mcp-nursery/facts"
"""The member of a result's `_meta` that has the facts of the call."""


class PromptSupervisor(ToolSupervisor, Protocol):
    """A supervisor with prompts."""

    def list_prompts(
        self, server: str | None = None, *, refresh: bool = False
    ) -> Coroutine[Any, Any, Sequence[Prompt]]:
        """The prompts, once first attempts are settled."""
        ...

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, when_down: WhenDown | None = None
    ) -> Coroutine[Any, Any, PromptResult]:
        """Have a server fill in a prompt."""
        ...


class SupervisedMCPServer(MCPServer):
    """All supervised servers as one, for `Agent(…, mcp_servers=[SupervisedMCPServer(supervisor)])`.

    Connecting and cleaning it up starts and ends nothing: the servers live as long as the block of their supervisor. A
    result for the model is text, followed by images; `ToolCallOutputItem.custom_data` has the result of `facts_of`.

    Args:
        supervisor: The supervisor of the tools.
        name: The name that traces show.
        search: As for `Supervisor.as_toolset`.
        timeout: Seconds for each call, from its approval on. Default: as for `Supervisor.call_tool`.
        on_progress: Receives the progress of calls.
        startup_wait: Seconds for which the first turn waits for servers that are starting. Default 5. Tools of slower
            ones come with a later turn.
        hold: Seconds that a call is held at most while its server restarts. Default 20. 0: it fails at once.
        require_approval: The approval policy of the framework, applied before that of the supervisor: see `MCPServer`.
            Default: none.
    """

    def __init__(
        self,
        supervisor: PromptSupervisor | OfThread,
        *,
        name: str = "mcp-nursery",
        search: bool = False,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        startup_wait: float = FIRST_WAIT,
        hold: float = HOLD,
        require_approval: Any = None,
    ) -> None:
        super().__init__(require_approval=require_approval, custom_data_extractor=_facts_in)
        self._listed = ListedTools(supervisor, search, startup_wait, hold)
        self._supervisor = cast("PromptSupervisor", self._listed.supervisor)
        self._name = name
        self._timeout = timeout
        self._on_progress = on_progress

    @property
    @override
    def name(self) -> str:
        return self._name

    @override
    async def connect(self) -> None:
        """Do nothing: the supervisor has its servers connected."""

    @override
    async def cleanup(self) -> None:
        """Do nothing: the servers are not this agent's alone."""

    @override
    async def list_tools(
        self, run_context: "RunContextWrapper[Any] | None" = None, agent: "AgentBase[Any] | None" = None
    ) -> list[Definition]:
        return [_definition(tool) for tool in await self._listed.now()]

    @override
    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        outcome = await self._listed.run(
            tool_name, arguments, timeout=self._timeout, on_progress=self._on_progress, meta=meta
        )
        text, *_ = outcome.content
        images = [each for each in media_of(outcome) if each.type == "image"]
        return CallToolResult(content=[text, *images], is_error=outcome.is_error, _meta={_FACTS: facts_of(outcome)})

    @override
    async def list_prompts(self) -> ListPromptsResult:
        prompts = await self._supervisor.list_prompts()
        return ListPromptsResult(prompts=[each.definition.model_copy(update={"name": each.name}) for each in prompts])

    @override
    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        prompt = await self._supervisor.get_prompt(name, arguments, when_down=self._listed.hold)
        return GetPromptResult(description=prompt.description, messages=list(prompt.messages))


async def function_tools(server: SupervisedMCPServer) -> list[FunctionTool]:
    """The tools of this server as they are now, for `Agent(…, tools=[…])`."""
    return [
        MCPUtil.to_function_tool(tool, server, convert_schemas_to_strict=False) for tool in await server.list_tools()
    ]


def _facts_in(context: MCPToolCustomDataContext) -> Mapping[str, Any] | None:
    return (context.result_meta or {}).get(_FACTS)


def _definition(tool: Tool) -> Definition:
    shown = tool.as_anthropic()
    return Definition(
        name=tool.name,
        description=shown["description"],
        input_schema=shown["input_schema"],
        output_schema=tool.output_schema,
        annotations=tool.annotations,
    )
