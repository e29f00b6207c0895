"""Connect to all servers with FastMCP's `ClientGroup` or multi-server client (`group`, `multi`): ready when all are."""

import asyncio
import sys
import time

import worker
from fastmcp_clients import client


async def main(kind: str) -> None:
    job = worker.job()
    started = time.perf_counter()
    try:
        async with client(kind, job) as connected:
            tools = await connected.list_tools()
            now = time.perf_counter() - started
        worker.say({"ready": [now] * len(tools), "failed": len(job.commands) - len(tools), "old_era": 0})
    except Exception as error:
        print(repr(error), file=sys.stderr)
        worker.say({"ready": [], "failed": len(job.commands), "old_era": 0})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[2]))
