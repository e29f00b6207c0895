"""(g) Starting: `mcp-nursery --help` and imports against `import mcp`, each in a fresh process with warm caches."""

import argparse
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from harness import Samples, Table, command, ratio_table, verdict

IMPORT_MCP, HELP = "import mcp", "mcp-nursery --help"
COMMANDS = {
    IMPORT_MCP: [sys.executable, "-c", "import mcp"],
    HELP: [str(Path(sys.executable).parent / "mcp-nursery"), "--help"],
    "mcp-nursery status --help": [str(Path(sys.executable).parent / "mcp-nursery"), "status", "--help"],
    "import mcp_nursery.supervisor": [sys.executable, "-c", "import mcp_nursery.supervisor"],
    "import open_supervisor": [sys.executable, "-c", "from mcp_nursery.supervisor import open_supervisor"],
    "import trio": [sys.executable, "-c", "import trio"],
    "Python alone": [sys.executable, "-c", "pass"],
}


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(program: list[str], samples: Samples) -> None:
    wall, cpu = time.perf_counter(), children_cpu()
    subprocess.run(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    samples.wall.append(time.perf_counter() - wall)
    samples.cpu.append(children_cpu() - cpu)


def subject(options: argparse.Namespace) -> Iterator[Table]:
    samples = {name: Samples() for name in COMMANDS}
    for program in COMMANDS.values():
        run(program, Samples())
    for _ in range(options.rounds):
        for name in random.sample(list(COMMANDS), len(COMMANDS)):
            run(COMMANDS[name], samples[name])
    figures = {name: one.summary() for name, one in samples.items()}
    table = ratio_table("From the start of the process to its end", figures, base=IMPORT_MCP, unit="ms")
    ratio = figures[HELP]["wall_p25"] / figures[IMPORT_MCP]["wall_p25"]
    table.notes.append(verdict(ratio, 0.35, f"wall p25 of `{HELP}` against `{IMPORT_MCP}`"))
    yield table


if __name__ == "__main__":
    command(subject, rounds=24)
