"""A supervisor in a thread of its own: with our portal from `asyncio` and `plain` code, and with that of `anyio`."""

import asyncio
import sys
from functools import partial
from typing import Any

import worker
from anyio.from_thread import start_blocking_portal
from nursery import specs

from mcp_nursery.supervisor import Call, open_supervisor
from mcp_nursery.supervisor.portal import open_supervisor_thread


def text_of(result: Any) -> str:
    return result.full_text


async def on_asyncio(job: worker.Job, calls: list[Call]) -> None:
    async with open_supervisor_thread(specs(job)) as supervisor:
        for status in supervisor.status():
            await supervisor.wait_connected(status.name)

        async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
            return await supervisor.call_tool(tool, arguments, server=server, timeout=job.timeout)

        async def tasks() -> list[Any]:
            return await asyncio.gather(*(call(*each) for each in job.plan))

        async def gather() -> list[Any]:
            return await supervisor.gather(calls)

        await worker.serve(job, call, tasks if "tasks" in sys.argv[2:] else gather, text_of)


async def plain(job: worker.Job, calls: list[Call]) -> None:
    """The worker is asynchronous, and its loop waits meanwhile: no other task runs there."""
    with open_supervisor_thread(specs(job)) as supervisor:
        for status in supervisor.status():
            supervisor.wait_connected(status.name)

        async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
            return supervisor.call_tool(tool, arguments, server=server, timeout=job.timeout)

        async def gather() -> list[Any]:
            return supervisor.gather(calls)

        await worker.serve(job, call, gather, text_of)


async def through_anyio(job: worker.Job, calls: list[Call]) -> None:
    with (
        start_blocking_portal(backend="trio") as portal,
        portal.wrap_async_context_manager(open_supervisor(specs(job))) as supervisor,
    ):

        async def do(function: Any, *args: Any, **options: Any) -> Any:
            return await asyncio.wrap_future(portal.start_task_soon(partial(function, *args, **options)))

        async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
            return await do(supervisor.call_tool, tool, arguments, server=server, timeout=job.timeout)

        async def tasks() -> list[Any]:
            return await asyncio.gather(*(call(*each) for each in job.plan))

        async def gather() -> list[Any]:
            return await do(supervisor.gather, calls)

        await worker.serve(job, call, tasks if "tasks" in sys.argv[2:] else gather, text_of)


KINDS = {"asyncio": on_asyncio, "plain": plain, "anyio": through_anyio}


def main() -> None:
    job = worker.job()
    calls = [Call(tool, arguments, server=server, timeout=job.timeout) for server, tool, arguments in job.plan]
    asyncio.run(KINDS[sys.argv[2]](job, calls))


if __name__ == "__main__":
    main()
