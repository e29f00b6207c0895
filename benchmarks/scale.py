"""(i) Many servers in one host: what it takes to have them, and what one of them costs when nothing happens.

Arguments: the subjects to measure (all of them by default), `--kind`, `--servers` for other numbers. `--quick` takes
seconds. Each figure is of a host in a process of its own (`scale_host.py`); of several rounds it is the least.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Table, machine, verdict

HERE = Path(__file__).parent
KINDS = {"stdio": 1000, "in-process": 1000, "http": 300, "ws": 300}
"""And how many servers of each."""
CONNECT, COLLECTION = "5000 in-process, 1 tools each, collector off at first", "1000 in-process, 1 tools each"
"""Hosts that have a target: for the CPU that connecting takes, and for a whole collection of garbage."""
Figures = dict[str, float]


def host(options: argparse.Namespace, **job: Any) -> Figures:
    """The least of each figure, of some rounds."""
    rounds = [one_host({"tools": 1, "command": options.command, **job}) for _ in range(options.rounds)]
    return {name: min(figures[name] for figures in rounds) for name in rounds[0]}


def one_host(job: dict[str, Any]) -> Figures:
    run = subprocess.run(
        [sys.executable, str(HERE / "scale_host.py"), json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        sys.exit(f"{job}: {run.stderr[-1000:]}")
    return json.loads(run.stdout)


def lives(options: argparse.Namespace) -> Iterator[Table]:
    """From the first start of many servers to the end of the last."""
    sizes = [(kind, servers, 1, True) for kind, servers in KINDS.items()] + [
        ("in-process", 1000, 20, True),
        ("in-process", 5000, 1, True),
        ("in-process", 5000, 1, False),
    ]
    if options.quick:
        sizes = [(kind, 30, 1, True) for kind in KINDS]
    if options.kind or options.servers:
        one = (options.kind or "in-process", options.servers or 300, options.tools)
        sizes = [(*one, True), (*one, False)]
    found = {
        f"{servers} {kind}, {tools} tools each{'' if collector else ', collector off at first'}": host(
            options, subject="life", kind=kind, servers=servers, tools=tools, collector=collector
        )
        for kind, servers, tools, collector in sizes
    }
    lines = {
        "connect (s)": lambda one: f"{one['connect']:.2f}",
        "its CPU (s)": lambda one: f"{one['connect_cpu']:.2f}",
        "longest turn (ms)": lambda one: f"{one['turn'] * 1e3:.0f}",
        "list again (s)": lambda one: f"{one['relist']:.2f}",
        "longest turn then (ms)": lambda one: f"{one['relist_turn'] * 1e3:.0f}",
        "leave (s)": lambda one: f"{one['leave']:.2f}",
        "status (ms)": lambda one: f"{one['status'] * 1e3:.1f}",
        "misspelt name (ms)": lambda one: f"{one['misspelt'] * 1e3:.1f}",
    }
    table = Table("Servers that are started, listed and ended together", *cells(found, lines), found)
    if CONNECT in found:
        table.notes.append(verdict(found[CONNECT]["connect_cpu"], 8, f"CPU of connecting {CONNECT}", unit=" s"))
    yield table
    growth = {
        "KiB": lambda one: f"{one['kib']:.0f}",
        "objects the collector tracks": lambda one: f"{one['objects']:.0f}",
        "tasks": lambda one: f"{one['tasks']:.1f}",
        "whole collection, of all servers (ms)": lambda one: f"{one['pause'] * 1e3:.0f}",
        "after gc.freeze()": lambda one: f"{one['frozen_pause'] * 1e3:.0f}",
    }
    table = Table("What one idle server adds", *cells(found, growth), found)
    if COLLECTION in found:
        pause = found[COLLECTION]["pause"] * 1e3
        table.notes.append(verdict(pause, 50, f"a whole collection of {COLLECTION}", unit=" ms"))
    yield table


def waiting(options: argparse.Namespace) -> Iterator[Table]:
    """One call to each server, made before any is connected."""
    servers = options.servers or (50 if options.quick else 300)
    ways = {"made when all are connected": "after", "waiting, by server": "server", "waiting, by public name": "name"}
    job = {"subject": "starting", "kind": options.kind or "stdio", "servers": servers}
    found = {way: host(options, **job, by=by) for way, by in ways.items()}
    base = next(iter(found.values()))
    lines = {
        "until all are answered (s)": lambda one: f"{one['all']:.2f}",
        "CPU (s)": lambda one: f"{one['all_cpu']:.2f}",
        "CPU ratio": lambda one: f"{one['all_cpu'] / base['all_cpu']:.2f}",
    }
    yield Table(f"{servers} calls on {servers} servers", *cells(found, lines), found)


def frozen(options: argparse.Namespace) -> Iterator[Table]:
    """Many calls at once, with a timeout of 1 s, to a server that never answers."""
    calls = 500 if options.quick else 5000
    ways = {
        "each in a task of its own": {"bulk": False, "freeze": False},
        "one fan-out": {"bulk": True, "freeze": False},
        "one fan-out, after gc.freeze()": {"bulk": True, "freeze": True},
    }
    job = {"subject": "frozen", "kind": "stdio", "servers": 1, "calls": calls}
    found = {way: host(options, **job, **more) for way, more in ways.items()}
    lines = {
        "the last, after its time (ms)": lambda one: f"{one['latest'] * 1e3:.0f}",
        "longest turn (ms)": lambda one: f"{one['turn'] * 1e3:.0f}",
    }
    yield Table(f"{calls} calls to a frozen server", *cells(found, lines), found)


def gate(options: argparse.Namespace) -> Iterator[Table]:
    """The first block of a process, with a server that is never ready."""
    ways = {"imported before the loop": True, "imported in the loop": False}
    job = {"subject": "gate", "kind": "stdio", "servers": 1}
    found = {way: host(options, **job, imported=imported) for way, imported in ways.items()}
    lines = {
        "entered after the gate (ms)": lambda one: f"{one['after_gate'] * 1e3:.0f}",
        "another task, late at most (ms)": lambda one: f"{one['latest'] * 1e3:.0f}",
    }
    yield Table("The first block of a process, gate 0.25 s", *cells(found, lines), found)


def stubborn(options: argparse.Namespace) -> Iterator[Table]:
    """Leaving the block with servers that have to be killed: two grace periods of 2 s, of the 5 s it may take."""
    sizes = [options.servers] if options.servers else [30] if options.quick else [300, 1000]
    job = {"subject": "stubborn", "kind": "stdio", "stubborn": True}
    found = {f"{servers} servers": host(options, **job, servers=servers) for servers in sizes}
    lines = {
        "leave (s)": lambda one: f"{one['leave']:.2f}",
        "its CPU (s)": lambda one: f"{one['leave_cpu']:.2f}",
        "longest turn (ms)": lambda one: f"{one['turn'] * 1e3:.0f}",
        "said to outlive SIGKILL": lambda one: f"{one['outlived']:.0f}",
        "warnings": lambda one: f"{one['reports']:.0f}",
        "rows left": lambda one: f"{one['rows']:.0f}",
        "alive": lambda one: f"{one['alive']:.0f}",
    }
    yield Table("Leaving servers that end only when they are killed", *cells(found, lines), found)


def pins(options: argparse.Namespace) -> Iterator[Table]:
    """Servers whose tools are held back unless they are what they were when they were first used; all are."""
    sizes = [("http", 30), ("stdio", 30)] if options.quick else [("http", 300), ("stdio", 1000)]
    if options.kind or options.servers:
        sizes = [(options.kind or "stdio", options.servers or 300)]
    job = {"subject": "pins", "tools": options.tools}
    found = {f"{servers} {kind}": host(options, **job, kind=kind, servers=servers) for kind, servers in sizes}
    lines = {
        "connect, first (s)": lambda one: f"{one['first']:.2f}",
        "with tools held back": lambda one: f"{one['first_held']:.0f}",
        "connect, again (s)": lambda one: f"{one['again']:.2f}",
        "the same then": lambda one: f"{one['again_held']:.0f}",
    }
    yield Table('Servers under pins="block", tools as they were', *cells(found, lines), found)


def cells(found: dict[str, Figures], lines: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    return ["", *lines], [[name, *(cell(one) for cell in lines.values())] for name, one in found.items()]


SUBJECTS = {"lives": lives, "waiting": waiting, "frozen": frozen, "gate": gate, "stubborn": stubborn, "pins": pins}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []], help="default: all")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--servers", type=int)
    parser.add_argument("--tools", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="few servers, one round")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    began, tables = machine(), []
    with tempfile.TemporaryDirectory() as folder:
        options.command = [f"{folder}/tiny"]
        subprocess.run(["cc", "-O2", "-o", *options.command, str(HERE / "peers" / "tiny.c")], check=True)
        for name in options.subjects or SUBJECTS:
            for table in SUBJECTS[name](options):
                tables.append(table)
                print(table, file=sys.stderr if options.json else sys.stdout, end="\n\n", flush=True)
    if options.json:
        text = [str(table) for table in tables]
        figures = [{"title": table.title, "figures": table.figures} for table in tables]
        print(json.dumps({"machine": began, "text": text, "tables": figures}, indent=1))
    else:
        print(began)


if __name__ == "__main__":
    main()
