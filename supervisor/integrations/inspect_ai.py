"""Supervised tools as a source of tools of Inspect AI.

One supervisor serves all samples of an evaluation: a solver or an agent gets the tools that there are when it asks for
them. On Inspect's Trio backend (`INSPECT_ASYNC_BACKEND=trio`) it is a `Supervisor` of the same loop. The calls of a
sample that is cancelled, or has used up a limit, are withdrawn, and their servers are notified.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from pydantic import ValidationError

from mcp_nursery.actors.overrides import override

from ..decisions.restart_policy import HOLD
from ..extras import needs_extra
from ..tools.outcome import ToolOutcome
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

with needs_extra("inspect-ai"):
    from inspect_ai.log import transcript
    from inspect_ai.tool import (
        ContentAudio,
        ContentImage,
        ContentText,
        ToolDef,
        ToolError,
        ToolParam,
        ToolParams,
        ToolResult,
        ToolSource,
    )
    from inspect_ai.tool import Tool as InspectTool

__all__ = ["mcp_nursery_tools"]

_SOUNDS: Mapping[str, Literal["wav", "mp3"]] = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""The sounds that Inspect has a name for, by their media types."""


def mcp_nursery_tools(
    supervisor: ToolSupervisor | OfThread,
    *,
    tools: Literal["all"] | Sequence[str] = "all",
    search: bool = False,
    parallel: bool = True,
    timeout: float | None = None,
    on_progress: OnProgress | None = None,
    startup_wait: float = FIRST_WAIT,
    hold: float = HOLD,
) -> ToolSource:
    """The tools of supervised servers, for `use_tools`, `react(tools=[…])` or `get_model().generate`.

    A call that fails is a `ToolError` for the model, and the sample goes on. The transcript has the facts of each
    call (`facts_of`) as an `InfoEvent` of the source `mcp-nursery`. Results are cut at `max_result_chars` of their
    server's spec, and Inspect's `max_tool_output` does not cut them again: their marks stay whole.

    Args:
        supervisor: The supervisor of the tools.
        tools: Globs for public names; `"all"`.
        search: As for `Supervisor.as_toolset`.
        parallel: Whether calls of one message of the model may be made at once.
        timeout: Seconds for each call, from its approval on. Default: as for `Supervisor.call_tool`.
        on_progress: Receives the progress of calls.
        startup_wait: Seconds to wait for servers that are starting, the first time. Default 5. Tools of slower ones
            come when they are asked for again.
        hold: Seconds that a call is held at most while its server restarts. Default 20. 0: it fails at once.
    """
    listed = ListedTools(supervisor, search, startup_wait, hold)
    return _Source(listed, tools, parallel=parallel, timeout=timeout, on_progress=on_progress)


class _Source(ToolSource):
    """The source of tools, asked by each solver and agent that is given it."""

    def __init__(
        self,
        listed: ListedTools,
        globs: Literal["all"] | Sequence[str],
        *,
        parallel: bool,
        timeout: float | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._listed = listed
        self._globs = ("*",) if globs == "all" else globs
        self._parallel = parallel
        self._timeout = timeout
        self._on_progress = on_progress

    @override
    async def tools(self) -> list[InspectTool]:
        return [
            self._inspect_tool(tool)
            for tool in await self._listed.now()
            if any(fnmatchcase(tool.name, glob) for glob in self._globs)
        ]

    def _inspect_tool(self, tool: Tool) -> InspectTool:
        async def execute(**kwargs: Any) -> ToolResult:
            return await _call(self._listed, tool.name, kwargs, self._timeout, self._on_progress)

        shown = tool.as_anthropic()
        return ToolDef(
            execute,
            name=tool.name,
            description=shown["description"],
            parameters=_parameters(shown["input_schema"]),
            parallel=self._parallel,
            max_output=0,
        ).as_tool()


async def _call(
    listed: ListedTools, name: str, arguments: dict[str, Any], timeout: float | None, on_progress: OnProgress | None
) -> ToolResult:
    outcome = await listed.run(name, arguments, timeout=timeout, on_progress=on_progress)
    transcript().info(facts_of(outcome), source="mcp-nursery")
    if outcome.is_error:
        raise ToolError(outcome.text) from outcome.error
    return _content(outcome)


def _content(outcome: ToolOutcome) -> ToolResult:
    media: list[ContentText | ContentImage | ContentAudio] = []
    for block in media_of(outcome):
        url = f"data:{block.mime_type};base64,{block.data}"
        if block.type == "image":
            media.append(ContentImage(image=url))
        elif block.mime_type in _SOUNDS:
            media.append(ContentAudio(audio=url, format=_SOUNDS[block.mime_type]))
    return [ContentText(text=outcome.text), *media] if media else outcome.text


def _parameters(schema: Mapping[str, Any]) -> ToolParams:
    """The schema as far as Inspect has words for it. Its own check passes the rest, which the server checks."""
    properties, required = schema["properties"], schema.get("required")
    named = cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
    names = cast("list[object]", required) if isinstance(required, list) else []
    return ToolParams(
        properties={name: _parameter(name, each) for name, each in named.items()},
        required=[name for name in named if name in names],
        additionalProperties=schema.get("additionalProperties") is not False,
    )


def _parameter(name: str, schema: object) -> ToolParam:
    try:
        parameter = ToolParam.model_validate(schema)
    except ValidationError:  # `true`, or what only JSON Schema can say
        parameter = ToolParam()
    parameter.description = parameter.description or name  # a sample ends if a tool lacks it
    return parameter
