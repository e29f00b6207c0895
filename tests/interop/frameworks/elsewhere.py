"""A supervisor in a thread of its own, as a task of asyncio uses it."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial

import trio
from anyio.from_thread import start_blocking_portal

from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor

from ...lab import PROGRAMS
from ...lab.processes import AT_ONCE, next_state


def agent(**settings):
    """The spec of the server of these tests."""
    command = StdioTransport(sys.executable, args=["-I", "-S", str(PROGRAMS / "nursery_agent.py")])
    return ServerSpec("agent", command, **{"policy": AT_ONCE, **settings})


async def kill(supervisor, server="agent"):
    """Kill a server, and wait until its end is noticed."""
    (status,) = [each for each in supervisor.status() if each.name == server]
    async with supervisor.events() as events:
        os.kill(status.pid, signal.SIGKILL)
        await next_state(events, "waiting", server)


async def learned(supervisor, name):
    """Wait until there is a tool of this name."""
    toolset = supervisor.as_toolset()
    tools = toolset.tools
    while name not in {tool.name for tool in tools}:
        tools = await toolset.changed(tools)


class Elsewhere:
    def __init__(self, portal, supervisor):
        self._portal, self._supervisor = portal, supervisor

    async def _do(self, function, *args, **kwargs):
        return await asyncio.wrap_future(self._portal.start_task_soon(partial(function, *args, **kwargs)))

    async def list_tools(self, server=None, *, refresh=False):
        return await self._do(self._supervisor.list_tools, server, refresh=refresh)

    async def list_prompts(self, server=None, *, refresh=False):
        return await self._do(self._supervisor.list_prompts, server, refresh=refresh)

    async def get_prompt(self, name, arguments=None):
        return await self._do(self._supervisor.get_prompt, name, arguments)

    async def wait_connected(self):
        return await self._do(self._supervisor.wait_connected, "agent")

    async def kill(self):
        await self._do(kill, self._supervisor)

    async def learned(self, name):
        await self._do(learned, self._supervisor, name)

    def as_toolset(self, *, search=False):
        return OfferedElsewhere(self._do, self._portal.call(partial(self._supervisor.as_toolset, search=search)))


class Here:
    """A supervisor of the same loop, by the names above."""

    def __init__(self, supervisor):
        self.list_tools, self.as_toolset = supervisor.list_tools, supervisor.as_toolset
        self.wait_connected = partial(supervisor.wait_connected, "agent")
        self.kill, self.learned = partial(kill, supervisor), partial(learned, supervisor)


class OfferedElsewhere:
    def __init__(self, do, toolset):
        self._do, self._toolset = do, toolset
        self.as_anthropic, self.as_openai, self.as_gemini = toolset.as_anthropic, toolset.as_openai, toolset.as_gemini

    async def call(self, name, arguments=None):
        return (await self.run(name, arguments)).text

    @property
    def tools(self):
        return self._toolset.tools

    def preamble(self):
        return self._toolset.preamble()

    async def run(self, name, arguments=None, *, timeout=None, on_progress=None, meta=None):
        loop = asyncio.get_running_loop()

        async def here(progress, total, message):
            future = asyncio.run_coroutine_threadsafe(on_progress(progress, total, message), loop)
            await trio.to_thread.run_sync(future.result)

        run = partial(self._toolset.run, name, arguments, timeout=timeout, meta=meta)
        return await self._do(run, on_progress=None if on_progress is None else here)


@asynccontextmanager
async def supervised_elsewhere(*, lazy=False, **options):
    with start_blocking_portal(backend="trio") as portal:
        opened = open_supervisor([agent(lazy=lazy)], **options)
        with portal.wrap_async_context_manager(opened) as supervisor:
            elsewhere = Elsewhere(portal, supervisor)
            if not lazy:
                await elsewhere.wait_connected()
            yield elsewhere


@asynccontextmanager
async def supervised_here(**options):
    async with open_supervisor([agent()], **options) as supervisor:
        await supervisor.wait_connected("agent")
        yield Here(supervisor)
