"""The catalogue as the loop of a model's host uses it."""

from collections.abc import Mapping
from typing import Any

from mcp_nursery.actors.errors import NurseryError, UnknownTool

from .catalogue import Catalogue
from .fleet import Fleet
from .tools.error_content import error_content
from .tools.tool import Tool


class Toolset:
    """All tools, always as they are now. Made by `Supervisor.as_toolset`.

    Nothing is copied when it is made: each look is at the present catalogue, so a host that asks before each turn of
    the model needs no events. `changed` is for hosts that would rather wait.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools now, sorted by name."""
        return self._fleet.catalogue.value.tools

    def as_openai(self) -> list[dict[str, Any]]:
        """The tools now, as OpenAI-style APIs take them."""
        return [tool.as_openai() for tool in self.tools]

    def as_anthropic(self) -> list[dict[str, Any]]:
        """The tools now, as Anthropic's API takes them."""
        return [tool.as_anthropic() for tool in self.tools]

    def as_langchain(self) -> list[dict[str, Any]]:
        """The tools now, as LangChain's `StructuredTool` takes them."""
        return [tool.as_langchain() for tool in self.tools]

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Do what a model asked for, with approval; what the model is to see of it, errors included.

        Raises:
            Nothing of ours: every `NurseryError` becomes `error_content`. Cancellation is passed on, and so is what
            the host's own `approve` raises.
        """
        server = None
        try:
            self._fleet.check_open()
            tool = self._fleet.catalogue.value.find(name)
            if tool is None:
                raise UnknownTool(name, near=self._fleet.catalogue.value.near(name))
            server = tool.server
            return (await tool(arguments)).text
        except NurseryError as error:
            return error_content(error, transport=self._transport(server))

    async def changed(self, since: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """Wait until the tools are others than `since`, an earlier value of `tools`, and return them.

        Raises:
            SupervisorClosed: The block is being left.
        """

        def others(catalogue: Catalogue) -> tuple[Tool, ...] | None:
            self._fleet.check_open()
            return catalogue.tools if catalogue.tools != since else None

        return await self._fleet.catalogue.wait(others)

    def _transport(self, server: str | None) -> str | None:
        cell = None if server is None else self._fleet.cells.get(server)
        return None if cell is None else cell.value.spec.transport.kind
