"""Connect to all servers with the SDK's client on asyncio, so many at a time as the second argument says."""

import asyncio
import sys
import time

import worker
from mcp import Client, StdioServerParameters


async def main(at_once: int) -> None:
    job = worker.job()
    ready: list[float] = []
    old_era = failed = open_ends = 0
    places, leave = asyncio.Semaphore(at_once), asyncio.Event()
    started = time.perf_counter()

    async def keep(command: str, *args: str) -> None:
        nonlocal old_era, failed, open_ends
        try:
            await places.acquire()
            async with Client(StdioServerParameters(command=command, args=args)) as client:
                await client.list_tools()
                ready.append(time.perf_counter() - started)
                old_era += client.protocol_version != "2026-07-28"
                places.release()
                open_ends -= 1
                if not open_ends:
                    leave.set()
                await leave.wait()
        except Exception as error:
            print(f"{time.perf_counter() - started:.1f} s: {error!r}", file=sys.stderr)
            failed += 1
            places.release()
            open_ends -= 1
            if not open_ends:
                leave.set()

    open_ends = len(job.commands)
    await asyncio.gather(*(keep(*command) for command in job.commands.values()))
    worker.say({"ready": ready, "failed": failed, "old_era": old_era})


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[2])))
