"""One process with every transport under faults for hours: what grows, and how late a deadline is.

Servers over stdio, streamable HTTP of both eras, SSE, WebSocket and in the process are called all along, with deadlines
and without a rest. Each second one of them is killed, frozen, reconnected or stopped, or the configuration is reloaded;
resources are subscribed, and servers are borrowed. The servers are those of the tests (`tests/lab`). Exit code 1: there
are more tasks, files, processes or much more memory than there were.
"""

import argparse
import faulthandler
import gc
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil
import trio
from attrs import evolve
from harness import HERE, Table, machine, verdict

from mcp_nursery.supervisor import (
    NurseryError,
    RestartPolicy,
    ServerSpec,
    StdioTransport,
    Supervisor,
    open_supervisor,
)
from mcp_nursery.supervisor.preload import ALL_MODULES
from mcp_nursery.supervisor.spec import CircuitBreaker

sys.path.append(str(HERE.parent))
from tests.lab import PROGRAMS
from tests.lab.processes import status_of
from tests.lab.remote import Remote
from tests.lab.rigs import open_rig

COLUMNS = ("stdio", "handshake", "modern", "sse", "ws", "in_process")
LIBRARY = "library"
"""One more server, over stdio, whose resource is subscribed."""
NOTE = "note://file"
CALLERS = 2
"""Tasks that call each server."""
SETTINGS: dict[str, Any] = {
    "policy": RestartPolicy(delays=[0.2] * 10_000, stable_after=0),
    "breaker": CircuitBreaker(open_for=1),
}
TIMEOUTS = (0.05, 0.3, 1.0)
TAKES = (0.0, 0.0, 0.0, 0.1, 60.0)
"""Seconds that a call takes: the last never ends in time."""
THINK = (0.02, 0.2)
FROZEN = (0.5, 3.0)
FAULTS = ("kill", "kill", "freeze", "freeze", "reconnect", "stop", "reload")
SAMPLES = 400
"""Looks at what there is, if that is less than one a second and more than two a minute."""
CALM = 10.0
"""Seconds without faults and calls before anything is compared."""
WELL = 60.0
"""Seconds in which every server has to be connected again then."""

SPARE = 8
"""Tasks and files that connections may have more of than at the beginning: streams are opened when they are needed."""
SLOPE = 10.0
"""MiB an hour."""
JUDGED = 0.5
"""Hours from which on a slope says something."""
WARM = 0.2
"""Part of the run that is left out of it: caches fill, and an allocator keeps what it has had once."""
DATABASE = 16 << 20
"""Bytes of the state file, with its log, which SQLite lets grow to 4 MiB."""
STUCK = 120.0
"""Seconds after which a loop that stands still is ended, with a traceback and exit code 1."""
LATE = 0.5
"""Seconds after its deadline at which a call is over, at most."""
BLOCKS, WIDTH = "▁▂▃▄▅▆▇█", 48


@dataclass(frozen=True)
class Sample:
    """What this process has at one moment."""

    at: float
    tasks: int
    files: int
    processes: int
    memory: int
    database: int
    overshoot: float
    """Of the deadlines since the sample before, at most."""

    @classmethod
    def now(cls, began: float, folder: Path, overshoot: float) -> "Sample":
        own = psutil.Process()
        return cls(
            at=time.monotonic() - began,
            tasks=trio.lowlevel.current_statistics().tasks_living,
            files=own.num_fds(),
            processes=len(own.children(recursive=True)),
            memory=own.memory_info().rss,
            database=sum(file.stat().st_size for file in folder.glob("state.db*")),
            overshoot=overshoot,
        )


class Soak:
    """The supervisor, those who use it, and what is done to its servers."""

    def __init__(self, supervisor: Supervisor, rigs: dict[str, Any], specs: Sequence[ServerSpec], seed: int) -> None:
        self._supervisor, self._rigs, self._specs = supervisor, rigs, list(specs)
        self._seed, self._chance = seed, Random(seed)
        self._busy: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.overshoot = 0.0
        self.late_loop = 0.0
        """Seconds by which a task that sleeps was late, at most: a busy machine, or a loop that stood still."""

    @property
    def _names(self) -> list[str]:
        return [spec.name for spec in self._specs]

    async def use(self, seconds: float) -> None:
        """Call, subscribe, borrow, and do harm, for so long; then mend everything."""
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as users:
                    for name in self._rigs:
                        for caller in range(CALLERS):
                            users.start_soon(self._call, name, caller)
                    for task in (self._subscribe, self._write, self._borrow, self._hear, self._watch_loop):
                        users.start_soon(task)
                    await self._harm(nursery)

    async def calm(self) -> None:
        """Wait until every server is connected, and has had time to leave nothing behind."""
        with trio.fail_after(WELL):
            for name in self._names:
                await self._supervisor.wait_connected(name)
        await trio.sleep(CALM)
        gc.collect()

    # -- users ------------------------------------------------------------------------------------------------------

    async def _call(self, name: str, caller: int) -> None:
        chance = Random(f"{self._seed}/{name}/{caller}")
        while True:
            arguments, timeout = {"seconds": chance.choice(TAKES)}, chance.choice(TIMEOUTS)
            when_down = chance.choice(("fail", "wait"))
            began = trio.current_time()
            said = "result"
            try:
                await self._supervisor.call_tool(
                    self._rigs[name].slow, arguments, server=name, timeout=timeout, when_down=when_down
                )
            except NurseryError as error:
                said = type(error).__name__
            self.overshoot = max(self.overshoot, trio.current_time() - began - timeout)
            self.outcomes[said] += 1
            await trio.sleep(chance.uniform(*THINK))

    async def _subscribe(self) -> None:
        while True:
            with suppress(NurseryError), trio.move_on_after(5):
                async with self._supervisor.subscribe(NOTE, server=LIBRARY) as updates:
                    async for _ in updates:
                        self.done["updates of a resource"] += 1
            await trio.sleep(0.1)  # of a server that is stopped there is none: it says so without a checkpoint

    async def _write(self) -> None:
        while True:
            with suppress(NurseryError):
                await self._supervisor.call_tool("write", {"text": "new"}, server=LIBRARY, timeout=1)
            await trio.sleep(0.5)

    async def _borrow(self) -> None:
        while True:
            names = self._chance.sample(list(self._rigs), 2)
            async with open_supervisor(borrow=self._supervisor, servers=names, template="{server}_{tool}") as child:
                for name in names:
                    with suppress(NurseryError):
                        await child.call_tool(self._rigs[name].slow, {"seconds": 0}, server=name, timeout=0.5)
            self.done["servers borrowed"] += len(names)
            await trio.sleep(0.2)

    async def _hear(self) -> None:
        async with self._supervisor.events() as events:
            async for _ in events:
                self.done["events"] += 1

    async def _watch_loop(self) -> None:
        while True:
            began = trio.current_time()
            await trio.sleep(0.05)
            self.late_loop = max(self.late_loop, trio.current_time() - began - 0.05)

    # -- faults -----------------------------------------------------------------------------------------------------

    async def _harm(self, nursery: trio.Nursery) -> None:
        """Begin a fault each second. Those of one server come one after the other; `nursery` outlives the users."""
        while True:
            fault, name = self._chance.choice(FAULTS), self._chance.choice([*self._rigs, LIBRARY])
            if name not in self._busy:
                nursery.start_soon(self._one_fault, fault, name)
            await trio.sleep(1)

    async def _one_fault(self, fault: str, name: str) -> None:
        self._busy.add(name)
        with suppress(NurseryError):
            await getattr(self, f"_{fault}")(name)
            self.done[fault] += 1
        self._busy.discard(name)

    async def _kill(self, name: str) -> None:
        if name in ("stdio", LIBRARY):
            if (pid := status_of(self._supervisor, name).pid) is not None:
                os.kill(pid, signal.SIGKILL)
            return
        await self._rigs[name].killed(self._supervisor)
        await trio.sleep(self._chance.uniform(0, 1))
        await self._rigs[name].mend()

    async def _freeze(self, name: str) -> None:
        if name not in ("stdio", LIBRARY):
            await self._rigs[name].frozen(self._supervisor)
            await trio.sleep(self._chance.uniform(*FROZEN))
            await self._rigs[name].mend()
        elif (pid := status_of(self._supervisor, name).pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                await trio.sleep(self._chance.uniform(*FROZEN))
                os.kill(pid, signal.SIGCONT)

    async def _reconnect(self, name: str) -> None:
        await self._supervisor.reconnect(name)

    async def _stop(self, name: str) -> None:
        await self._supervisor.stop_server(name)
        await trio.sleep(self._chance.uniform(0, 1))
        await self._supervisor.start_server(name)

    async def _reload(self, name: str) -> None:
        at = self._names.index(name)
        self._specs[at] = evolve(self._specs[at], description=f"changed {self.done['reload']} times")
        await self._supervisor.reload(self._specs)


@asynccontextmanager
async def open_rigs(folder: Path) -> AsyncGenerator[dict[str, Any], None]:
    """A server for each transport, by its name."""
    remotes: dict[str, Remote] = {}

    def of_kind(kind: str) -> Remote:
        (folder / kind).mkdir(exist_ok=True)
        return remotes.setdefault(kind, Remote(kind, folder / kind))

    try:
        async with AsyncExitStack() as stack:
            rigs = {}
            for column in COLUMNS:
                own = folder / f"{column}.rig"
                own.mkdir()
                rigs[column] = await stack.enter_async_context(open_rig(column, of_kind, own))
            yield rigs
    finally:
        for remote in remotes.values():
            remote.kill()


async def soak(seconds: float, seed: int, folder: Path) -> tuple[list[Sample], Soak, dict[str, tuple[float, float]]]:
    """The samples, what was done, and what there was before and after, by what it is."""
    note, began, samples = folder / "note", time.monotonic(), []
    note.write_text("new")

    def sampled(overshoot: float = 0.0) -> Sample:
        samples.append(Sample.now(began, folder, overshoot))
        return samples[-1]

    async with open_rigs(folder) as rigs:
        library = StdioTransport(
            sys.executable, [str(PROGRAMS / "nursery_library.py"), "stdio"], env={"NOTE": str(note)}
        )
        specs = [rig.spec(name, **SETTINGS) for name, rig in rigs.items()]
        specs.append(ServerSpec(LIBRARY, library, **SETTINGS))
        outside = Sample.now(began, folder, 0.0)
        async with open_supervisor(specs, state=folder / "state.db") as supervisor:
            running = Soak(supervisor, rigs, specs, seed)
            await running.calm()
            before = sampled()

            async def sample() -> None:
                while True:
                    faulthandler.dump_traceback_later(STUCK, exit=True)
                    await trio.sleep(min(STUCK / 4, max(1.0, seconds / SAMPLES)))
                    sampled(running.overshoot)

            async with trio.open_nursery() as sampling:
                sampling.start_soon(sample)
                await running.use(seconds)
                sampling.cancel_scope.cancel()
            faulthandler.cancel_dump_traceback_later()
            await running.calm()
            after = sampled()
        gc.collect()
        left = Sample.now(began, folder, 0.0)
    grown = {
        "tasks": (before.tasks, after.tasks),
        "files": (before.files, after.files),
        "processes": (before.processes, after.processes),
        "tasks, block left": (outside.tasks, left.tasks),
        "files, block left": (outside.files, left.files),
        "processes, block left": (outside.processes, left.processes),
    }
    return samples, running, grown


# -- what is printed --------------------------------------------------------------------------------------------------


def slope(samples: Sequence[Sample]) -> float:
    """MiB an hour, without the beginning."""
    warm = [each for each in samples if each.at > samples[-1].at * WARM]
    if len(warm) < 2:  # two points make a line
        return 0.0
    line = statistics.linear_regression([each.at / 3600 for each in warm], [each.memory / (1 << 20) for each in warm])
    return line.slope


def drawn(values: Sequence[float]) -> str:
    """A line of blocks, from the least to the most: of several values in one place the most."""
    places = min(WIDTH, len(values))
    parts = [max(values[at * len(values) // places : (at + 1) * len(values) // places]) for at in range(places)]
    low, high = min(parts), max(parts)
    return "".join(BLOCKS[int((each - low) / ((high - low) or 1) * (len(BLOCKS) - 1))] for each in parts)


def leaks(grown: dict[str, tuple[float, float]], samples: Sequence[Sample]) -> Iterator[str]:
    """What there is more of than there was, or than there may be."""
    steep, hours = slope(samples), samples[-1].at / 3600
    for name, (before, after) in grown.items():
        spare = 0 if name.startswith("processes") else SPARE
        if after > before + spare:
            yield f"leak: {before:g} {name} before, {after:g} after"
    if hours >= JUDGED and steep > SLOPE:
        yield f"leak: memory grows by {steep:.1f} MiB an hour"
    if (most := max(each.database for each in samples)) > DATABASE:
        yield f"leak: the state file has {most >> 20} MiB"


def table(samples: Sequence[Sample], running: Soak, grown: dict[str, tuple[float, float]]) -> Table:
    steep, last = slope(samples), samples[-1]
    lines = {
        "tasks": [each.tasks for each in samples],
        "open files": [each.files for each in samples],
        "processes": [each.processes for each in samples],
        "memory (MiB)": [each.memory / (1 << 20) for each in samples],
        "state file (KiB)": [each.database / 1024 for each in samples],
        "worst overshoot so far (ms)": [each.overshoot * 1e3 for each in samples[1:-1]] or [0.0],
    }
    rows = [
        [name, f"{values[0]:.0f}", f"{max(values):.0f}", f"{values[-1]:.0f}", drawn(values)]
        for name, values in lines.items()
    ]
    calls = ", ".join(f"{count:,} {name}" for name, count in running.outcomes.most_common())
    done = ", ".join(f"{count:,} {name}" for name, count in running.done.most_common())
    grew = verdict(steep, SLOPE, f"memory, without the first {WARM:.0%}", unit=" MiB/h")
    notes = [
        f"{last.at / 3600:.2f} h. Calls: {calls}.\n\nDone: {done}.",
        grew if last.at / 3600 >= JUDGED else f"{grew} Too short a time to judge it.",
        verdict(running.overshoot * 1e3, LATE * 1e3, "worst overshoot of a deadline", unit=" ms")
        + f" A task that sleeps was late by {running.late_loop * 1e3:.0f} ms at most.",
        "Before and after: " + ", ".join(f"{was:g} and {now:g} {name}" for name, (was, now) in grown.items()) + ".",
    ]
    figures = {"samples": [vars(each) for each in samples], "outcomes": running.outcomes, "done": running.done}
    return Table("Soak", ["", "first", "most", "last", "over time"], rows, figures, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    seconds = 3600 * options.hours + 60 * options.minutes or parser.error("say --hours or --minutes")
    logging.disable()  # servers are killed each second
    ALL_MODULES.load()
    began = machine()
    with tempfile.TemporaryDirectory(prefix="soak", ignore_cleanup_errors=True) as folder:
        for kind in ("STATE", "CONFIG"):
            os.environ[f"XDG_{kind}_HOME"] = f"{folder}/{kind.lower()}"
        samples, running, grown = trio.run(soak, seconds, options.seed, Path(folder))
    found = table(samples, running, grown)
    leaking = list(leaks(grown, samples))
    if options.json:
        print(json.dumps({"machine": began, "text": str(found), "figures": found.figures, "leaks": leaking}, indent=1))
    else:
        print("\n\n".join([began, str(found), *leaking]))
    sys.exit(bool(leaking))


if __name__ == "__main__":
    main()
