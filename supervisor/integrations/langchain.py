"""Supervised tools as tools of LangChain, for its agents and for LangGraph.

A tool of LangChain stands for one public name. A call goes to the tool that has that name by then, also after a restart
of its server; `supervised_tools` is asked again for tools that came later.
"""

from typing import Any, Literal

from pydantic import PrivateAttr

from mcp_nursery.actors.overrides import override

from ..decisions.restart_policy import HOLD
from ..extras import needs_extra
from ..tools.outcome import ToolOutcome
from .offered import (
    FIRST_WAIT,
    ListedTools,
    OfThread,
    OnProgress,
    ToolSupervisor,
    facts_of,
    media_of,
)

with needs_extra("langchain"):
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import BaseTool

__all__ = ["supervised_tools"]


async def supervised_tools(
    supervisor: ToolSupervisor | OfThread,
    *,
    search: bool = False,
    timeout: float | None = None,
    on_progress: OnProgress | None = None,
    startup_wait: float = FIRST_WAIT,
    hold: float = HOLD,
) -> list[BaseTool]:
    """The tools of supervised servers as they are now.

    A tool that is called with a tool call gives a `ToolMessage`: `content` is text, or the text and images as content
    blocks; `artifact` is the result of `facts_of`, structured content included; `status` is `error` if the tool or the
    call failed. Nothing is raised for that. The tools are asynchronous only.

    Args:
        supervisor: The supervisor of the tools.
        search: As for `Supervisor.as_toolset`.
        timeout: Seconds for each call, from its approval on. Default: as for `Supervisor.call_tool`.
        on_progress: Receives the progress of calls.
        startup_wait: Seconds to wait for servers that are starting. Default 5. Ask again for the tools of slower ones.
        hold: Seconds that a call is held at most while its server restarts. Default 20. 0: it fails at once.
    """
    listed = ListedTools(supervisor, search, startup_wait, hold)
    made: list[BaseTool] = []
    for tool in await listed.now():
        metadata = {"server": tool.server, "tool": tool.tool, "available": tool.available}
        one = _SupervisedTool(**tool.as_langchain(), metadata=metadata)
        one.bind_supervised(listed, timeout, on_progress)
        made.append(one)
    return made


class _SupervisedTool(BaseTool):
    """A tool that takes any arguments by their names, such as `config`, which a `StructuredTool` keeps for itself."""

    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    _listed: ListedTools = PrivateAttr()
    _timeout: float | None = PrivateAttr(default=None)
    _on_progress: OnProgress | None = PrivateAttr(default=None)

    def bind_supervised(self, listed: ListedTools, timeout: float | None, on_progress: OnProgress | None) -> None:
        self._listed, self._timeout, self._on_progress = listed, timeout, on_progress

    @override
    def _run(self, /, *_args: Any, **_arguments: Any) -> Any:
        raise NotImplementedError(f"{self.name} is asynchronous: use ainvoke, and astream or ainvoke of the agent")

    @override
    async def _arun(self, /, *_args: Any, **arguments: Any) -> tuple[str | list[dict[str, Any]], dict[str, Any]]:
        outcome = await self._listed.run(self.name, arguments, timeout=self._timeout, on_progress=self._on_progress)
        return _content(outcome), facts_of(outcome)

    @override
    async def arun(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the tool. A failure is a message with the facts of it: `ToolException` would leave no room for these."""
        output = await super().arun(tool_input, *args, **kwargs)
        if isinstance(output, ToolMessage) and output.artifact["is_error"]:
            output.status = "error"
        return output


def _content(outcome: ToolOutcome) -> str | list[dict[str, Any]]:
    """The content of a message. With a sound in it LangChain would make one long text of all, base64 included."""
    images = [
        {"type": "image", "base64": each.data, "mime_type": each.mime_type}
        for each in media_of(outcome)
        if each.type == "image"
    ]
    return [{"type": "text", "text": outcome.text}, *images] if images else outcome.text
