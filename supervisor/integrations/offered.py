"""The part of a supervisor that a framework needs, and the facts of a call for its program.

A `Supervisor` has these methods in its Trio loop, and one in a thread of its own has them in the loop of its caller:
a framework on either loop gets the same tools.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import anyio
import anyio.lowlevel
from mcp_types import AudioContent, ImageContent

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.errors import CallError, delivery_of
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.reply import ProgressCallback

from ..decisions.restart_policy import HOLD, WhenDown
from ..portal import BlockingSupervisor, ThreadSupervisor
from ..tools.outcome import ToolOutcome
from ..tools.tool import Tool, prepare_for_models

__all__ = ["OfferedTools", "OnProgress", "ToolSupervisor", "facts_of"]

OnProgress = Callable[[str, float, float | None, str | None], Awaitable[None]]
"""The callback for the progress of calls: `async (tool, progress, total, message)`, with the public name of the tool.
It runs in order, before the result of its call."""


class OfferedTools(Protocol):
    """The tools for a model, as `Toolset` has them."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools now, sorted by name."""
        ...

    def preamble(self) -> str:
        """The text for the system prompt."""
        ...

    def run(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        when_down: WhenDown | None = None,
    ) -> Coroutine[Any, Any, ToolOutcome]:
        """Do what a model asked for, with approval. A failed call has an outcome, too."""
        ...


class ToolSupervisor(Protocol):
    """A supervisor that a framework can be given: a `Supervisor`, or one in a thread of its own."""

    def list_tools(self, server: str | None = None, *, refresh: bool = False) -> Coroutine[Any, Any, tuple[Tool, ...]]:
        """The tools, once first attempts are settled."""
        ...

    def as_toolset(self, *, search: bool = False) -> OfferedTools:
        """The tools for a model."""
        ...


FIRST_WAIT: Final = 5.0
"""Seconds for which a framework's first request for tools waits for servers that are starting."""
NEXT_WAIT: Final = 0.1
"""Seconds for which its next requests wait for lists that may be old."""
_SLICE_SECONDS: Final = 0.002
"""Seconds of work after which other tasks of the framework's loop get their turn."""


OfThread: TypeAlias = ThreadSupervisor | BlockingSupervisor
"""A supervisor in a thread of its own, of either kind. Type checkers take its methods for variables, which those of a
protocol are not."""


def awaitable(supervisor: ToolSupervisor | OfThread) -> ToolSupervisor:
    """The supervisor for the loop of a framework, which plain code runs behind a call of its own."""
    of_loop: Any = supervisor.awaitable() if isinstance(supervisor, BlockingSupervisor) else supervisor
    found: ToolSupervisor = of_loop
    return found


@define(eq=False)
class ListedTools:
    """The tools of a supervisor, as they are listed before each request to a model. No server that is slow to start, or
    to list what it has, holds up an agent: tools that come later are there at a later request.

    The first request waits `wait` seconds. A call is held for `hold` seconds at most while its server restarts.
    `search` is as for `Supervisor.as_toolset`.
    """

    supervisor: ToolSupervisor = field(converter=awaitable)
    search: bool
    _wait: float
    hold: float = HOLD
    offered: OfferedTools = field(init=False)
    """The same tools, to be called."""

    def __attrs_post_init__(self) -> None:
        self.offered = self.supervisor.as_toolset(search=self.search)

    async def now(self) -> tuple[Tool, ...]:
        """The tools for the next request."""
        wait, self._wait = self._wait, NEXT_WAIT
        with anyio.move_on_after(wait):
            await self.supervisor.list_tools()  # first attempts are settled, lists that may be old are new
        tools = self.offered.tools
        until = time.perf_counter() + _SLICE_SECONDS
        for _ in prepare_for_models(tools):
            if time.perf_counter() > until:
                await anyio.lowlevel.checkpoint()
                until = time.perf_counter() + _SLICE_SECONDS
        return tools

    async def run(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        *,
        timeout: float | None,
        on_progress: OnProgress | None,
        meta: Mapping[str, Any] | None = None,
    ) -> ToolOutcome:
        """Do what a model asked for."""
        progress = None if on_progress is None else partial(on_progress, name)
        return await self.offered.run(
            name, arguments, timeout=timeout, on_progress=progress, meta=meta, when_down=self.hold
        )


def media_of(outcome: ToolOutcome) -> list[ImageContent | AudioContent]:
    """The images and sounds that a model may be shown after the text."""
    return [block for block in outcome.content if isinstance(block, ImageContent | AudioContent)]


def facts_of(outcome: ToolOutcome) -> dict[str, Any]:
    """The facts of a call that a program wants and a model is not shown, as a JSON object.

    Its members: `server` and `tool` (the server's own name of it), `incarnation` of the server, `is_error`, `error`
    (the name of its class, None if the tool answered), `delivery` (`not_sent`, `unknown`: the server may have acted, or
    `answered`) and `structured` (the structured content). What is not known is None.
    """
    error, result = outcome.error, outcome.result
    about = result or (error if isinstance(error, CallError) else None)
    return {
        "server": about and about.server,
        "tool": about and about.tool,
        "incarnation": about and about.incarnation,
        "is_error": outcome.is_error,
        "error": None if error is None else type(error).__name__,
        "delivery": (Delivery.ANSWERED if error is None else delivery_of(error)).value,
        "structured": result and result.structured,
    }
