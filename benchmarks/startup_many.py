"""(n) All tools of 40 servers written with the SDK: a host that has run before, against one that starts them first."""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments import CannotInstall, python_of
from harness import BASE, HERE, OURS, Contender, Table, Worker, WorkerFailed, command, verdict, wanted

WARM = f"{OURS}, warm"
COLD = f"{OURS}, cold"
SCRIPT = "start_nursery.py"
ALL_AT_ONCE = "1000"


def contenders(state: str) -> list[Contender]:
    """The cold one writes what the warm ones read."""
    return [
        Contender(COLD, "here", SCRIPT, ("cold", state)),
        Contender(WARM, "here", SCRIPT, ("warm", state)),
        Contender(f'{OURS}, warm, wait_for="uncached"', "here", SCRIPT, ("uncached", state)),
        Contender(f'{OURS}, warm, lazy="cached"', "here", SCRIPT, ("lazy", state)),
        Contender(BASE, "sdk", "connect_sdk.py", (ALL_AT_ONCE,)),
        Contender("FastMCP ClientGroup", "fastmcp", "connect_fastmcp.py", ("group",)),
    ]


def start(contender: Contender, servers: int) -> dict[str, Any] | None:
    peer = [str(python_of("sdk")), str(HERE / "peers" / "sdk_server.py")]
    worker = None
    try:
        worker = Worker(contender, {"commands": {f"s{number}": peer for number in range(servers)}})
        return worker.hear()
    except (CannotInstall, WorkerFailed) as reason:
        print(f"left out: {contender.name}: {reason}", file=sys.stderr)
        return None
    finally:
        if worker is not None:
            worker.close()


def runs(options: argparse.Namespace, servers: int) -> dict[str, list[dict[str, Any]]]:
    made: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds):
            first, *rest = contenders(str(Path(folder, str(turn), "state.sqlite3")))
            for one in [first, *random.sample(rest, len(rest))]:
                if one is first or wanted(one, options):
                    run = start(one, servers)
                    made.setdefault(one.name, []).extend([] if run is None else [run])
    return {name: each for name, each in made.items() if each}


def summary(made: list[dict[str, Any]], servers: int) -> dict[str, Any]:
    whole = [max(run["ready"]) for run in made if len(run["ready"]) == servers]
    called = [run["called"] for run in made if "called" in run]
    return {
        "tools": min(len(run["ready"]) for run in made),
        "all_tools": statistics.median(whole) if whole else None,
        "first_call": statistics.median(called) if called else None,
    }


def subject(options: argparse.Namespace) -> Iterator[Table]:
    servers = 8 if options.quick else 40
    figures = {name: summary(made, servers) for name, made in runs(options, servers).items()}
    base = figures.get(BASE, figures[COLD])["all_tools"]
    rows = [[name, *_cells(one, base)] for name, one in figures.items()]
    header = ["", "tools", "all tools (s)", "first call answered (s)", "ratio, all tools"]
    notes = []
    if WARM in figures and figures[WARM]["all_tools"] is not None:
        notes = [verdict(figures[WARM]["all_tools"], 0.3, "all tools of a warm start", unit=" s")]
    yield Table(f"From opening to all tools of {servers} SDK servers: medians", header, rows, figures, notes)


def _cells(one: dict[str, Any], base: float | None) -> list[str]:
    times = ["" if one[key] is None else f"{one[key]:.3f}" for key in ("all_tools", "first_call")]
    ratio = "" if base is None or one["all_tools"] is None else f"{one['all_tools'] / base:.3f}"
    return [str(one["tools"]), *times, ratio]


if __name__ == "__main__":
    command(subject, rounds=2)
