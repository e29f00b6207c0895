"""Connect to all servers with mcp-nursery."""

import time

import mcp  # noqa: F401 - imports are another subject, and ours would come late
import trio
import worker

from mcp_nursery.supervisor import NurseryError, ServerSpec, StdioTransport, open_supervisor


async def main() -> None:
    job = worker.job()
    ready: list[float] = []
    failed = 0
    specs = [ServerSpec(name, StdioTransport(command, args)) for name, (command, *args) in job.commands.items()]
    started = time.perf_counter()
    async with open_supervisor(specs, gate=0) as supervisor:

        async def follow(name: str) -> None:
            nonlocal failed
            try:
                await supervisor.wait_connected(name)
                ready.append(time.perf_counter() - started)
            except NurseryError:
                failed += 1

        async with trio.open_nursery() as nursery:
            for spec in specs:
                nursery.start_soon(follow, spec.name)
        found = supervisor.status()
    restarted = sum(status.incarnation > 1 for status in found)
    old_era = sum(status.protocol_version != "2026-07-28" for status in found) - failed
    worker.say({"ready": ready, "failed": failed, "old_era": old_era, "restarted": restarted})


if __name__ == "__main__":
    trio.run(main)
