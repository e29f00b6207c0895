"""mcp-nursery: everything under one supervisor. With `tasks`, each call of a burst is made in a task of its own."""

import sys
from typing import Any

import trio
import worker

from mcp_nursery.supervisor import (
    Call,
    HttpTransport,
    InProcessTransport,
    ServerSpec,
    StdioTransport,
    WebSocketTransport,
    open_supervisor,
)


def specs(job: worker.Job) -> list[ServerSpec]:
    made = [ServerSpec(name, StdioTransport(command, args)) for name, (command, *args) in job.commands.items()]
    for name, url in job.urls.items():
        made.append(ServerSpec(name, WebSocketTransport(url) if url.startswith("ws:") else HttpTransport(url)))
    if job.in_process:
        from sdk_server import make_server

        made += [ServerSpec(name, InProcessTransport(make_server())) for name in job.in_process]
    return made


async def main() -> None:
    job = worker.job()
    async with open_supervisor(specs(job)) as supervisor:
        for status in supervisor.status():
            await supervisor.wait_connected(status.name)

        async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
            return await supervisor.call_tool(tool, arguments, server=server, timeout=job.timeout)

        calls = [Call(tool, arguments, server=server, timeout=job.timeout) for server, tool, arguments in job.plan]

        async def gather() -> list[Any]:
            return await supervisor.gather(calls)

        async def tasks() -> list[Any]:
            results: list[Any] = [None] * len(job.plan)

            async def one(number: int) -> None:
                results[number] = await call(*job.plan[number])

            async with trio.open_nursery() as nursery:
                for number in range(len(job.plan)):
                    nursery.start_soon(one, number)
            return results

        burst = tasks if "tasks" in sys.argv[2:] else gather
        await worker.serve(job, call, burst, lambda result: result.full_text)


if __name__ == "__main__":
    trio.run(main)
