"""The page of a gateway in a real browser: how soon it is there, how soon an event is seen, and what it costs.

    python benchmarks/page.py [SERVERS] [SECONDS]

Gateway and servers are this process, the browser (Chromium without a window) has the same cores. Calls are timed in
turn with and without a page that is open. Then 100 events come each second, for so many seconds, and the page shows
them.
"""

import gc
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import trio
from harness import machine

sys.path.insert(0, str(Path(__file__).parents[1]))

from mcp_nursery.supervisor import ServerSpec
from mcp_nursery.supervisor.testing import ScriptedServer
from tests.interop.browsers import browser
from tests.lab.pages import paged

EVENTS = 100
"""Events a second."""
ROUNDS = 10
CALLS = 500
SHOWN = """new Promise((found) => {
    const events = document.getElementById.bind(document, 'events');
    const look = () => events().innerText.includes(%r) ? found(Date.now()) : setTimeout(look, 4);
    look();
})"""


async def seconds_until_shown(page: Any, gateway: Any, name: str) -> float:
    """Seconds from an event until it stands on the page."""
    await gateway.supervisor.stop_server(name)
    began = time.time()
    shown = await page.value(SHOWN % f"{name}: stopped")
    await gateway.supervisor.start_server(name)
    return float(shown) / 1000 - began


async def call_seconds(gateway: Any) -> float:
    """Seconds of one call, of so many."""
    began = time.perf_counter()
    for _ in range(CALLS):
        await gateway.supervisor.call_tool("mcp_s0_echo", {})
    return (time.perf_counter() - began) / CALLS


async def heap_of(page: Any) -> float:
    """MB of JavaScript and DOM in the browser's page."""
    await page.ask("HeapProfiler.collectGarbage")
    return float((await page.ask("Runtime.getHeapUsage"))["usedSize"]) / 1e6


def memory() -> float:
    """MB of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def measure(servers: int, seconds: float) -> None:
    """Measure, and print."""
    doubles = [ScriptedServer() for _ in range(servers)]
    specs = [ServerSpec(f"s{number}", double.transport) for number, double in enumerate(doubles)]
    async with paged(specs) as gateway, browser(Path(tempfile.mkdtemp())) as page:
        for each in specs:
            await gateway.supervisor.wait_connected(each.name)
        firsts = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await page.go(f"{gateway.origin}/ui")
            firsts.append(time.perf_counter() - began)
        size = await page.value("document.documentElement.outerHTML.length")
        print(f"{servers} servers: the first screen is there after {median(firsts):.2f} s ({size / 1e6:.2f} MB)")
        await trio.sleep(2)
        seen = [await seconds_until_shown(page, gateway, f"s{number + 1}") for number in range(ROUNDS)]
        print(f"an event is seen after {median(seen):.3f} s, {max(seen):.3f} s at most of {ROUNDS}")
        await compare_calls(page, gateway)
        await flood(page, gateway, doubles, seconds)


async def compare_calls(page: Any, gateway: Any) -> None:
    """Calls with a page that is open, and without, in turn."""
    ratios = []
    await call_seconds(gateway)
    for _ in range(ROUNDS):
        await page.go(f"{gateway.origin}/ui/static/icon.svg")
        without = await call_seconds(gateway)
        await page.go(f"{gateway.origin}/ui")
        await trio.sleep(0.5)
        ratios.append(await call_seconds(gateway) / without)
    print(f"a call costs {median(ratios):.3f} of itself with a page that is open")


async def flood(page: Any, gateway: Any, doubles: Sequence[ScriptedServer], seconds: float) -> None:
    """Events for so long, and what that does to memory; less than ten seconds are left out."""
    await page.go(f"{gateway.origin}/ui")
    early: list[float] = []
    began, count = trio.current_time(), 0
    heaps = [await heap_of(page)]
    while trio.current_time() < began + seconds:
        for number in range(EVENTS // 2):  # each stop and each start is at least one
            name = f"s{(count + number) % len(doubles)}"
            await gateway.supervisor.stop_server(name)
            await gateway.supervisor.start_server(name)
        count += EVENTS // 2
        for double in doubles:  # what they record of their lives is no memory of ours
            for record in (double.starts, double.ends, double.listings):
                record.clear()
        early.append(memory())
        if len(early) % 30 == 0:
            heaps.append(await heap_of(page))
        await trio.sleep_until(began + count / (EVENTS // 2))
    heaps.append(await heap_of(page))
    if len(early) < 10:
        return
    tenth = len(early) // 10
    process = f"the process from {median(early[tenth : 2 * tenth]):.0f} MB to {median(early[-tenth:]):.0f} MB"
    print(f"{seconds:.0f} s with {EVENTS} events a second: {process}")
    print(f"the page from {heaps[0]:.1f} MB to {heaps[-1]:.1f} MB, {max(heaps):.1f} MB at most")


def main() -> None:
    """Run the benchmark."""
    servers = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
    print(machine())
    trio.run(measure, servers, seconds)


if __name__ == "__main__":
    main()
