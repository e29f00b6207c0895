"""The catalogue as the loop of a model's host uses it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import trio

from mcp_nursery.actors.errors import InvalidArguments, NurseryError, one_line
from mcp_nursery.actors.json_parsing import finite_number, parse_json, refuse_constant
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.preload import RESULT_TYPES
from mcp_nursery.actors.reply import ProgressCallback

from .calls.host_tools import HostTools
from .catalogue.catalogue import Catalogue
from .decisions.restart_policy import WhenDown
from .security.untrusted_marks import missing_servers, preamble
from .servers.view import ServerView
from .tools.outcome import ToolOutcome, outcome_of_error, outcome_of_result
from .tools.tool import Tool

__all__ = ["ToolOutcome", "Toolset"]


class ToolForms(ABC):
    """The tools for the APIs of models, in whatever thread they are needed."""

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """The tools now, sorted by name."""

    def as_openai(self) -> list[dict[str, Any]]:
        """The tools now, as OpenAI-style APIs take them."""
        return [tool.as_openai() for tool in self.tools]

    def as_anthropic(self) -> list[dict[str, Any]]:
        """The tools now, as Anthropic's API takes them."""
        return [tool.as_anthropic() for tool in self.tools]

    def as_gemini(self) -> list[dict[str, Any]]:
        """The tools now, as the `function_declarations` of a tool of Google's Gemini."""
        return [tool.as_gemini() for tool in self.tools]

    def as_langchain(self) -> list[dict[str, Any]]:
        """The tools now, as LangChain's `StructuredTool` takes them."""
        return [tool.as_langchain() for tool in self.tools]


class Toolset(ToolForms):
    """All tools, always as they are now. Made by `Supervisor.as_toolset`.

    Nothing is copied when it is made: each access reads the present catalogue, so a host that reads the tools before
    each turn of the model needs no events. `changed` is for hosts that would rather wait.
    """

    def __init__(self, servers: ServerView, offered: HostTools) -> None:
        self._servers = servers
        self._offered = offered

    @property
    @override
    def tools(self) -> tuple[Tool, ...]:
        """The tools now, sorted by name. While servers have resources, `list_mcp_resources` and `read_mcp_resource` are
        among them. With `search=True`: `find_tools`, `call_tool` and the tools that servers want to be loaded
        always."""
        return self._offered.beside(self._servers.listed)

    def preamble(self) -> str:
        """The text for the system prompt of the model: the rule that words of servers are data and no instructions, and
        the instructions of the servers that have tools now, between the same marks, at most 2,000 characters of each.
        One line names servers that are missing, and why: they have failed, or wait for a login or for trust. The text
        is the same for the same servers in the same states, in whatever order they connect."""
        snapshots = [observable.value for observable in self._servers.snapshots.values()]
        return preamble(
            {
                each.spec.name: each.introduction.instructions
                for each in snapshots
                if each.keeps_tools and each.introduction is not None and each.introduction.instructions
            },
            missing_servers(
                (each.spec.name, each.state, each.keeps_tools and bool(each.definitions)) for each in snapshots
            ),
        )

    async def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> str:
        """Do what a model asked for, as `run` does. Returns the text for the model, errors included."""
        return (await self.run(name, arguments)).text

    async def run(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        when_down: WhenDown | None = None,
    ) -> ToolOutcome:
        """Do what a model asked for, with approval. A failed call has an outcome, too.

        Every `NurseryError` is in the outcome. Cancellation is passed on, and so are exceptions of the host's own
        `approve` and `on_progress`.

        Args:
            name: The tool's public name; with `search=True` also that of a tool which is not listed.
            arguments: A JSON object, or the text of one, as some models write it: if it is not valid, the model gets
                the reason.
            timeout: Seconds for the call, from its approval on. Default: as for `Supervisor.call_tool`.
            on_progress: `async (progress, total, message)`, called in order, before the result.
            meta: Additional `_meta` of the request.
            when_down: As for `Supervisor.call_tool`.
        """
        server = None
        try:
            self._servers.check_open()
            tool = await self._offered.find(name)
            server = tool.server
            given = _object_in(arguments, tool) if isinstance(arguments, str) else arguments
            return outcome_of_result(
                await tool(given, timeout=timeout, on_progress=on_progress, meta=meta, when_down=when_down)
            )
        except NurseryError as error:
            await RESULT_TYPES.ensure_loaded()  # a text is one of them
            known = self._servers.snapshots.get(getattr(error, "server", None) or server or "")
            return outcome_of_error(
                error,
                transport=None if known is None else known.value.spec.transport.kind,
                restarts_in=None if known is None else known.value.retry_in(trio.current_time()),
                held=when_down == "hold" or (isinstance(when_down, int | float) and when_down > 0),
            )

    async def changed(self, since: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """Wait until the tools differ from `since`, an earlier value of `tools`, and return them.

        Raises:
            SupervisorClosed: The block is being left.
        """

        def others(catalogue: Catalogue) -> tuple[Tool, ...] | None:
            self._servers.check_open()
            tools = self._offered.beside(catalogue)
            return tools if tools != since else None

        return await self._servers.catalogue.wait(others)


def _object_in(text: str, tool: Tool) -> dict[str, Any]:
    """The object that a model has written as JSON; an empty one for an empty text.

    Raises:
        InvalidArguments: It is no JSON object.
    """
    try:
        value: object = (
            parse_json(text, parse_constant=refuse_constant, parse_float=finite_number) if text.strip() else {}
        )
    except (ValueError, RecursionError) as error:
        problem = f"the arguments are no JSON: {one_line(error, 200)}"
    else:
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        problem = "the arguments must be a JSON object"
    raise InvalidArguments(problem, server=tool.server, tool=tool.tool)
