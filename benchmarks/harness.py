"""The driver: contenders in processes of their own, their rounds interleaved in random order, and tables of ratios."""

import argparse
import json
import os
import platform
import random
import resource
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from environments import CannotInstall, installed_version, python_of

HERE = Path(__file__).parent
ROUND_SECONDS = 0.1
"""A round is about this long, whatever a call costs."""
PATIENCE = 180.0
"""Seconds a worker may take for one answer."""
MOST_MEMORY = 8 << 30
"""Bytes of address space a worker may take: some grow without end when a server floods."""
ECHO = [str(Path(sys.executable).resolve()), "-I", "-S", str(HERE / "peers" / "echo_server.py")]
"""The command of the stdio peer."""
BASE = "SDK, asyncio"
OURS = "mcp-nursery"


@dataclass(frozen=True)
class Contender:
    name: str
    environment: str
    script: str
    arguments: tuple[str, ...] = ()
    in_process: bool = True
    """Whether it can use a server in its own process."""


CONTENDERS = (
    Contender(BASE, "sdk", "sdk_client.py", ("asyncio",)),
    Contender("SDK, Trio", "sdk", "sdk_client.py", ("trio",)),
    Contender(OURS, "here", "nursery.py"),
    Contender("FastMCP ClientGroup", "fastmcp", "fastmcp_clients.py", ("group",)),
    Contender("FastMCP multi-server client", "fastmcp", "fastmcp_clients.py", ("multi",)),
    Contender("langchain-mcp-adapters", "langchain", "langchain_adapters.py", in_process=False),
    Contender("mcp-use", "mcp-use", "mcp_use_client.py", in_process=False),
    Contender("floor: pipes and orjson", "here", "floor.py", in_process=False),
)


class WorkerFailed(Exception):
    """A contender died, or gave a wrong answer."""


class Worker:
    """One contender at work in its own process."""

    def __init__(self, contender: Contender, job: dict[str, Any], *, patience: float = PATIENCE) -> None:
        self.contender = contender
        self.count = 1
        """Bursts in a round."""
        self.patience = patience
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        command = [str(python_of(contender.environment)), str(HERE / "contenders" / contender.script)]
        self.process = subprocess.Popen(
            [*command, json.dumps(job), *contender.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))

    def hear(self) -> dict[str, Any]:
        """The next line of its output.

        Raises:
            WorkerFailed: There is none, or none in time.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], self.patience)[0]:
            self.process.kill()
            raise WorkerFailed(f"{self.contender.name} said nothing for {self.patience} s")
        line = self.process.stdout.readline()
        if not line:
            self._errors.seek(0)
            tail = self._errors.read()[-1500:].decode(errors="replace")
            raise WorkerFailed(f"{self.contender.name} ended with {self.process.wait()}: {tail}")
        return json.loads(line)

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `hear` says what became of it
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        return self.hear()

    def round(self) -> dict[str, Any]:
        return self.ask(f"round {self.count}")

    def calibrate(self) -> None:
        """Find how many bursts make a round; warms up by the way."""
        while (seconds := self.round()["round"]) < ROUND_SECONDS / 2 and self.count < 1 << 16:
            self.count *= 2
        self.count = max(1, round(self.count * ROUND_SECONDS / seconds))

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()


@contextmanager
def workers(
    job: dict[str, Any], contenders: Sequence[Contender], *, patience: float = PATIENCE
) -> Iterator[list[Worker]]:
    """Contenders that are connected and have proved that they answer right; the others are left out."""
    with ExitStack() as stack:
        started = []
        for contender in contenders:
            try:
                worker = Worker(contender, job, patience=patience)
                stack.callback(worker.close)
                worker.hear()  # one after another: how long connecting takes is another subject
            except (CannotInstall, WorkerFailed) as reason:
                print(f"left out: {contender.name}: {reason}", file=sys.stderr)
            else:
                started.append(worker)
        yield started


@dataclass
class Samples:
    """Seconds a call, one figure a round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        return {
            "wall_p25": p25(self.wall),
            "wall_median": statistics.median(self.wall),
            "cpu_p25": p25(self.cpu),
            "cpu_median": statistics.median(self.cpu),
        }


def p25(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


def interleave(started: Sequence[Worker], rounds: int) -> dict[str, dict[str, float]]:
    """Rounds of everybody, in a random order each time, and a check of the answers behind the last."""
    samples = {worker: Samples() for worker in started}

    def everybody(act: Callable[[Worker], Any]) -> None:
        for worker in random.sample(list(samples), len(samples)):
            try:
                act(worker)
            except WorkerFailed as reason:
                print(f"dropped: {reason}", file=sys.stderr)
                del samples[worker]

    def sample(worker: Worker) -> None:
        answer = worker.round()
        samples[worker].wall.append(answer["wall"])
        samples[worker].cpu.append(answer["cpu"])

    everybody(Worker.calibrate)
    for _ in range(rounds):
        everybody(sample)
    everybody(lambda worker: worker.ask("check"))
    return {worker.contender.name: samples[worker].summary() for worker in started if worker in samples}


def measure(
    job: dict[str, Any], options: argparse.Namespace, contenders: Sequence[Contender], *, patience: float = PATIENCE
) -> dict[str, dict[str, float]]:
    with workers(job, [one for one in contenders if wanted(one, options)], patience=patience) as started:
        return interleave(started, options.rounds)


def stdio(servers: int, *, width: int = 1, timeout: float | None = None, arguments: Sequence[str] = ()) -> dict:
    """A job: `width` calls at once to each of so many stdio servers."""
    names = [f"s{index}" for index in range(servers)]
    return {"commands": {name: [*ECHO, *arguments] for name in names}, "plan": echoes(names, width), "timeout": timeout}


def in_process(servers: int, *, timeout: float | None = None) -> dict[str, Any]:
    """A job: one call to each of so many servers in the contender's own process."""
    names = [f"s{index}" for index in range(servers)]
    return {"in_process": names, "plan": echoes(names, 1), "timeout": timeout}


def echoes(names: Sequence[str], width: int) -> list[Any]:
    return [(name, "echo", {"text": f"{name}, call {index}"}) for name in names for index in range(width)]


# -- what is printed --------------------------------------------------------------------------------------------------


@dataclass
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]
    figures: dict[str, Any]
    """What the rows were made from."""
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return "\n\n".join([f"**{self.title}**", body, *self.notes])


def ratio_table(
    title: str,
    figures: dict[str, dict[str, float]],
    *,
    base: str = BASE,
    target: float | None = None,
    unit: Literal["us", "ms"] = "us",
) -> Table:
    """Time a call, and ratios to the base."""
    one_unit = 1e6 if unit == "us" else 1e3
    basis = figures.get(base) or next(iter(figures.values()), {})
    rows = [
        [
            name,
            *(f"{one[key] * one_unit:.0f}" for key in ("wall_p25", "wall_median", "cpu_p25", "cpu_median")),
            f"{one['wall_p25'] / basis['wall_p25']:.2f}",
            f"{one['cpu_p25'] / basis['cpu_p25']:.2f}",
        ]
        for name, one in figures.items()
    ]
    header = ["", f"wall p25 ({unit})", "median", f"CPU p25 ({unit})", "median", "wall ratio", "CPU ratio"]
    notes = []
    if target is not None and base in figures and OURS in figures:
        notes = [verdict(figures[OURS]["wall_p25"] / basis["wall_p25"], target, f"wall p25 against {base}")]
    return Table(title, header, rows, figures, notes)


def verdict(value: float, target: float, what: str, *, unit: str = "", at_least: bool = False) -> str:
    """One line: the target, the figure, and by how much it was missed."""
    hit = value >= target if at_least else value <= target
    missed = abs(value / target - 1)
    said = "hit" if hit else f"**missed by {missed:.0%}**"
    return f"Target: {what} {'>=' if at_least else '<='} {target:g}{unit}. Here {value:.3g}{unit}: {said}."


def machine() -> str:
    info = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}; load {load} at {datetime.now(UTC):%F %H:%M} UTC"
    )


def versions() -> str:
    named = {"mcp": "sdk", "fastmcp": "fastmcp", "langchain-mcp-adapters": "langchain", "mcp-use": "mcp-use"}
    return ", ".join(f"{name} {installed_version(python_of(where), name)}" for name, where in named.items())


def wanted(contender: Contender, options: argparse.Namespace) -> bool:
    return not options.only or any(part.lower() in contender.name.lower() for part in options.only)


def only(*names: str) -> tuple[Contender, ...]:
    return tuple(one for one in CONTENDERS if one.name in names)


Subject = Callable[[argparse.Namespace], Iterator[Table]]


def command(subject: Subject, *, rounds: int, arguments: Sequence[str] = ()) -> None:
    """Run one subject as the command line asks, and print its tables as they come. `arguments` name its own."""
    parser = argparse.ArgumentParser(description=sys.modules[subject.__module__].__doc__)
    for name in arguments:
        parser.add_argument(name)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and servers")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="contenders whose name has one of these in it")
    parser.add_argument("--rounds", type=int, help=f"rounds of each contender; {rounds} by default")
    options = parser.parse_args()
    options.rounds = options.rounds or (max(2, rounds // 8) if options.quick else rounds)
    started = machine()
    if not options.json:
        print(f"{started}\n")
    tables = []
    for table in subject(options):
        tables.append(table)
        if not options.json:
            print(f"{table}\n", flush=True)
    if options.json:
        document = {"subject": Path(sys.argv[0]).stem, "machine": started, "tables": [asdict(one) for one in tables]}
        print(json.dumps(document | {"text": [str(one) for one in tables]}, indent=1))
