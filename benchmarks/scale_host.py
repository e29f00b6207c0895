"""One host with many servers, in a process of its own: what it costs to have them. Prints one JSON document.

Argument: a job, as JSON. `kind` (stdio, in-process, http, ws), `servers`, `tools` of each, `subject`.
"""
# ruff: noqa: ARG001, ARG002, ARG005 - subjects and instruments are told more than each of them needs

import gc
import json
import logging
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import trio

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))
Job = dict[str, Any]
Figures = dict[str, float]


class Turns(trio.abc.Instrument):
    """The longest time in which the loop looked at nothing that had come from outside. The loop's own thread's, so that
    other work of the machine is not counted."""

    def __init__(self) -> None:
        self.longest = self._began = 0.0

    def reset(self) -> None:
        self.longest, self._began = 0.0, time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


class Stopwatch:
    """Wall time, and this process's own, which a busy machine disturbs less."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> Figures:
        """Since the last one."""
        wall, cpu = self._wall, self._cpu
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return {name: self._wall - wall, f"{name}_cpu": self._cpu - cpu}


@contextmanager
def transports(job: Job) -> Iterator[Callable[[int], Any]]:
    """Makes the transport of the n-th server."""
    from mcp_nursery.supervisor import HttpTransport, InProcessTransport, StdioTransport, WebSocketTransport

    match job["kind"]:
        case "stdio":
            stubborn = ["0", "1"] if job.get("stubborn") else []
            yield lambda n: StdioTransport(job["command"][0], [*job["command"][1:], str(job["tools"]), *stubborn])
        case "in-process":
            made = [small_server(job["tools"]) for _ in range(job["servers"])]
            yield lambda n: InProcessTransport(made[n])
        case kind:
            command = [sys.executable, str(PEERS / "crowd.py"), str(job["tools"])]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
                assert crowd.stdout is not None
                at = f"127.0.0.1:{int(crowd.stdout.readline())}"
                if kind == "http":
                    yield lambda n: HttpTransport(f"http://{at}/{n}")
                else:
                    yield lambda n: WebSocketTransport(f"ws://{at}/{n}")
                assert crowd.stdin is not None
                crowd.stdin.close()


def small_server(tools: int) -> Any:
    import mcp_types as types
    from mcp.server import Server

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(name=f"echo_{n}", input_schema={"type": "object"}) for n in range(tools)]
        )

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text="here")])

    return Server("small", on_list_tools=list_tools, on_call_tool=call_tool)


@asynccontextmanager
async def supervised(job: Job, transport: Callable[[int], Any], **options: Any) -> AsyncGenerator[Any, None]:
    from mcp_nursery.supervisor import ServerSpec, open_supervisor

    specs = [ServerSpec(f"s{n:04}", transport(n), **options) for n in range(job["servers"])]
    with tempfile.TemporaryDirectory() as folder:
        state = job.get("state", Path(folder) / "state.db")
        async with open_supervisor(specs, gate=0, state=state) as supervisor:
            yield supervisor


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def life(job: Job, transport: Callable[[int], Any], turns: Turns) -> Figures:
    """From the first start to the end, with one call to each, one list of all, and what stays while nothing happens."""
    one = {**job, "servers": 1}
    async with supervised(one, transport) as supervisor:  # imports, caches
        await supervisor.list_tools(refresh=True)
    freeze()  # what the host has anyway
    memory, objects = resident(), len(gc.get_objects())
    if not job["collector"]:
        gc.disable()  # as the docs advise, until all are connected
    turns.reset()
    watch = Stopwatch()
    async with supervised(job, transport) as supervisor:
        tools = await supervisor.list_tools()
        found = {**watch.lap("connect"), "turn": turns.longest}
        gc.enable()
        if missing := [status for status in supervisor.status() if status.tool_count < job["tools"]]:
            sys.exit(f"{len(missing)} are not connected; the first: {missing[0]}")
        await trio.sleep(1)
        tasks, pause = count_tasks(), whole_collection()
        found |= {
            "tasks": tasks / job["servers"],
            "kib": (resident() - memory) / 1024 / job["servers"],
            "objects": (len(gc.get_objects()) - objects) / job["servers"],
            "pause": pause,
            "status": best(supervisor.status),
            "misspelt": best(lambda: misspelt(supervisor, tools[0].name)),
        }
        gc.freeze()
        found["frozen_pause"] = whole_collection()
        turns.reset()
        watch = Stopwatch()
        await supervisor.list_tools(refresh=True)
        found |= {**watch.lap("relist"), "relist_turn": turns.longest}
    return {**found, **watch.lap("leave")}


def freeze() -> None:
    """As the docs advise a host with many servers, once it has started."""
    gc.collect()
    gc.freeze()


def whole_collection() -> float:
    """Seconds that the garbage collector stops everything for when it looks at all there is."""
    gc.collect()
    watch = Stopwatch()
    gc.collect()
    return watch.lap("it")["it_cpu"]


def best(act: Callable[[], object]) -> float:
    """Seconds of the quickest of five."""
    found = []
    for _ in range(5):
        watch = Stopwatch()
        act()
        found.append(watch.lap("it")["it_cpu"])
    return min(found)


def misspelt(supervisor: Any, name: str) -> None:
    from mcp_nursery.supervisor import UnknownTool

    try:
        supervisor.tool(name[:-1] + "x")
    except UnknownTool:
        return
    raise AssertionError("it has such a tool")


def count_tasks() -> int:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    waiting, count = [root], 0
    while waiting:
        task = waiting.pop()
        count += 1
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return count


async def starting(job: Job, transport: Callable[[int], Any], turns: Turns) -> Figures:
    """Until one call to each is answered: made at the start, by public name or by server, or when all are connected."""
    async with supervised({**job, "servers": 1}, transport) as supervisor:
        await supervisor.list_tools()

    async def call(supervisor: Any, n: int) -> None:
        if job["by"] == "server":
            await supervisor.call_tool("echo_0", server=f"s{n:04}")
        else:
            await supervisor.call_tool(f"mcp_s{n:04}_echo_0")

    turns.reset()
    watch = Stopwatch()
    async with supervised(job, transport) as supervisor:
        async with trio.open_nursery() as nursery:
            if job["by"] == "after":
                await supervisor.list_tools()
            for n in range(job["servers"]):
                nursery.start_soon(call, supervisor, n)
        return {**watch.lap("all"), "turn": turns.longest}


async def frozen(job: Job, transport: Callable[[int], Any], turns: Turns) -> Figures:
    """Many calls at once to a server that answers none, each in a task of its own or in one fan-out: how long after
    its time the last of them has its outcome, and how long the first and the last are apart."""
    from mcp_nursery.supervisor import Call, CallTimeout

    ended: list[float] = []
    due: list[float] = []

    async def call(supervisor: Any) -> None:
        due.append(trio.current_time() + 1)
        try:
            await supervisor.call_tool("mute", server="s0000", timeout=1)
        except CallTimeout:
            ended.append(trio.current_time())

    sizes = {"mailbox_size": job["calls"], "max_in_flight": job["calls"]}
    async with supervised({**job, "servers": 1}, transport, **sizes) as supervisor:
        await supervisor.list_tools()
        if job["freeze"]:
            freeze()
        turns.reset()
        if job["bulk"]:
            calls = [Call("mute", server="s0000", timeout=1)] * job["calls"]
            async with supervisor.fan_out(calls) as outcomes:
                due.append(trio.current_time() + 1)
                ended = [trio.current_time() async for _ in outcomes]
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(job["calls"]):
                    nursery.start_soon(call, supervisor)
    assert len(ended) == job["calls"], len(ended)
    return {"latest": max(ended) - max(due), "apart": max(ended) - min(ended), "turn": turns.longest}


async def gate(job: Job, transport: Callable[[int], Any], turns: Turns) -> Figures:
    """The first block of a process, with a server that is never ready: how long after its gate it is entered, and how
    late another task of the loop is at most, from opening it to half a second later."""
    from mcp_nursery.supervisor import MemoryStore, ServerSpec, StdioTransport, open_supervisor

    late: list[float] = []

    async def beat() -> None:
        while True:
            due = trio.current_time() + 0.005
            await trio.sleep_until(due)
            late.append(trio.current_time() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        await trio.sleep(0.1)
        late.clear()
        watch = Stopwatch()
        mute = [ServerSpec("mute", StdioTransport("sleep", ["60"]))]
        async with open_supervisor(mute, state=MemoryStore(), gate=0.25, shutdown_timeout=0.5):
            found = watch.lap("entered")
            await trio.sleep(0.5)
            latest = max(late)
        nursery.cancel_scope.cancel()
    return {"after_gate": found["entered"] - 0.25, "latest": latest}


async def stubborn(job: Job, transport: Callable[[int], Any], turns: Turns) -> Figures:
    """Leaving the block with servers that end neither with their input nor at SIGTERM: how long it takes, how many are
    said to have outlived SIGKILL, and how many are left, as processes and in the state file."""
    reports: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: reports.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mcp_nursery").addHandler(handler)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state.db"
        async with supervised({**job, "state": state}, transport) as supervisor:
            await supervisor.list_tools()
            pids = [status.pid for status in supervisor.status()]
            reports.clear()
            turns.reset()
            watch = Stopwatch()
        found = {**watch.lap("leave"), "turn": turns.longest}
        with closing(sqlite3.connect(state)) as db:
            (rows,) = db.execute("SELECT count(*) FROM processes").fetchone()
    outlived = sum("outlived" in report for report in reports)
    alive = sum(os.path.exists(f"/proc/{pid}") for pid in pids)  # noqa: ASYNC240 - takes no time
    return {**found, "reports": len(reports), "outlived": outlived, "rows": rows, "alive": alive}


async def pins(job: Job, transport: Callable[[int], Any], turns: Turns) -> Figures:
    """With `pins="block"` all servers are met for the first time, and then once more: how many of them have tools held
    back, all of them healthy, when all have connected."""
    from mcp_nursery.supervisor import ServerSpec, open_supervisor

    specs = [ServerSpec(f"s{n:04}", transport(n)) for n in range(job["servers"])]
    found: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for time_met in ("first", "again"):
            watch = Stopwatch()
            async with open_supervisor(specs, gate=0, state=Path(folder) / "state.db", pins="block") as supervisor:
                await supervisor.list_tools()
                held = sum(status.tool_count < job["tools"] for status in supervisor.status())
                found |= {**watch.lap(time_met), f"{time_met}_held": held}
    return {**found, "turn": turns.longest}


SUBJECTS: dict[str, Callable[[Job, Callable[[int], Any], Turns], Awaitable[Figures]]] = {
    "life": life,
    "starting": starting,
    "frozen": frozen,
    "gate": gate,
    "stubborn": stubborn,
    "pins": pins,
}


def main() -> None:
    job = json.loads(sys.argv[1])
    if job.get("imported", True):
        import mcp_nursery.supervisor.opening  # noqa: F401 - as a program does
    turns = Turns()
    with transports(job) as transport:
        figures = trio.run(SUBJECTS[job["subject"]], job, transport, turns, instruments=[turns])
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
