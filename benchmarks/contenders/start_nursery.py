"""Open a supervisor and have all tools: `cold`, `warm`, `uncached` or `lazy`, with a state file, as arguments say."""

import sys
import time
from typing import Any

import mcp  # noqa: F401 - imports are another subject, and ours would come late
import trio
import worker

from mcp_nursery.supervisor import ServerSpec, StdioTransport, open_supervisor

WAYS: dict[str, dict[str, Any]] = {
    "cold": {"gate": 600},
    "warm": {},
    "uncached": {"wait_for": "uncached"},
    "lazy": {},
}


async def main(way: str, state: str) -> None:
    commands = worker.job().commands
    lazy = "cached" if way == "lazy" else False
    specs = [ServerSpec(name, StdioTransport(command, args), lazy=lazy) for name, (command, *args) in commands.items()]
    started = time.perf_counter()
    async with open_supervisor(specs, state=state, **WAYS[way]) as supervisor:
        found, ready = len(supervisor.tools), time.perf_counter() - started
        result = await supervisor.call_tool(supervisor.tools[-1].name, {"text": "hello"}, timeout=600)
        called = time.perf_counter() - started
    if result.full_text != "hello":
        raise SystemExit(f"wrong answer: {result.full_text[:80]!r}")
    worker.say({"ready": [ready] * found, "called": called})


if __name__ == "__main__":
    trio.run(main, *sys.argv[2:])
