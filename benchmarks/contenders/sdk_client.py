"""The MCP SDK's own client, one a server; `asyncio` or `trio` as the second argument."""

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

import worker
from mcp import Client, StdioServerParameters


def clients(job: worker.Job) -> dict[str, Client]:
    made = {
        name: Client(StdioServerParameters(command=command, args=args))
        for name, (command, *args) in job.commands.items()
    } | {name: Client(url) for name, url in job.urls.items()}
    if job.in_process:
        from sdk_server import make_server

        made |= {name: Client(make_server()) for name in job.in_process}
    return made


async def main(loop: str) -> None:
    job = worker.job()
    async with AsyncExitStack() as stack:
        client_of = clients(job)
        for client in client_of.values():
            await stack.enter_async_context(client)

        async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
            return await client_of[server].call_tool(tool, arguments, read_timeout_seconds=job.timeout)

        async def asyncio_gather() -> list[Any]:
            return await asyncio.gather(*(call(*one) for one in job.plan))

        async def trio_gather() -> list[Any]:
            import trio

            results: list[Any] = [None] * len(job.plan)

            async def keep(index: int) -> None:
                results[index] = await call(*job.plan[index])

            async with trio.open_nursery() as nursery:
                for index in range(len(job.plan)):
                    nursery.start_soon(keep, index)
            return results

        gather = trio_gather if loop == "trio" else asyncio_gather
        await worker.serve(job, call, gather, lambda result: result.content[0].text)


if __name__ == "__main__":
    if sys.argv[2] == "trio":
        import trio

        trio.run(main, "trio")
    else:
        asyncio.run(main("asyncio"))
