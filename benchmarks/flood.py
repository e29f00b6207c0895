"""(h) One call after another to a quiet server, while another server of the same host floods."""

import argparse
from collections.abc import Iterator
from typing import Any

from harness import CONTENDERS, ECHO, Table, command, measure

PATIENCE = 20.0
"""Seconds a contender may take to connect, or for one round."""
FLOODS = {
    "quiet": None,
    "2,000 notifications a second": {"kind": "notifications", "rate": 2000},
    "notifications without end": {"kind": "notifications", "rate": 0},
    "noise on stdout without end": {"kind": "noise", "rate": 0},
}


def job(flood: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "commands": {"calm": ECHO, "loud": ECHO},
        "plan": [("calm", "echo", {"text": "heard?"})],
        "before": [("loud", "flood", flood)] if flood else [],
        "timeout": 10,
    }


def subject(options: argparse.Namespace) -> Iterator[Table]:
    takers = [one for one in CONTENDERS if not one.name.startswith("floor")]
    found = {name: measure(job(flood), options, takers, patience=PATIENCE) for name, flood in FLOODS.items()}
    rows = [[name, *(_cell(found, flood, name) for flood in FLOODS)] for name in found["quiet"]]
    yield Table("Microseconds a call (wall, median), and times its own quiet", ["", *FLOODS], rows, found)


def _cell(found: dict[str, Any], flood: str, name: str) -> str:
    if name not in found[flood]:
        return f"no answer in {PATIENCE:.0f} s"
    wall, quiet = found[flood][name]["wall_median"], found["quiet"][name]["wall_median"]
    return f"{wall * 1e6:.0f}" + (f" ({wall / quiet:.1f}x)" if flood != "quiet" else "")


if __name__ == "__main__":
    command(subject, rounds=30)
