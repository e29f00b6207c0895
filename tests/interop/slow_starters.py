"""Servers of other people that are started late: one that speaks both eras, and ten of all ages, from npm and PyPI."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from .cases import CASES
from .installing import npm_package, python_with


@frozen
class SlowStarter:
    name: str
    command: Callable[[Path], Sequence[str]]
    """Its command line, given a folder for its files. Installs it."""
    tool: str
    """One of its tools."""
    arguments: Callable[[Path], Mapping[str, object]] | None = None
    """What to call that with; None if a call would need a network."""
    answer: str = ""
    """What the text of the result holds."""


def _thought(place: Path) -> Mapping[str, object]:
    return {"thought": "so", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}


_OF_CASES = [
    SlowStarter(case.name, case.command, case.tool, case.arguments, case.answer)
    for case in CASES.values()
    if case.name != "first_line"
]

SLOW_STARTERS = [
    SlowStarter("context7", lambda place: npm_package("@upstash/context7-mcp@4.1.1"), "resolve-library-id"),
    *_OF_CASES,
    SlowStarter(
        "memory",
        lambda place: npm_package("@modelcontextprotocol/server-memory@2026.8.31"),
        "read_graph",
        lambda place: {},
        "entities",
    ),
    SlowStarter(
        "thinking",
        lambda place: npm_package("@modelcontextprotocol/server-sequential-thinking@2026.8.31"),
        "sequentialthinking",
        _thought,
        "totalThoughts",
    ),
    SlowStarter(
        "commands",
        lambda place: npm_package("mcp-server-commands@0.5.0"),
        "run_command",
        lambda place: {"command": "echo good morning"},
        "good morning",
    ),
    SlowStarter("playwright", lambda place: npm_package("@playwright/mcp@0.0.83"), "browser_navigate"),
    SlowStarter(
        "fetch",
        lambda place: [str(python_with("mcp-server-fetch==2026.10.24")), "-m", "mcp_server_fetch"],
        "fetch",
    ),
    SlowStarter(
        "calculator",
        lambda place: [str(python_with("mcp-server-calculator==0.2.1")), "-m", "mcp_server_calculator"],
        "calculate",
        lambda place: {"expression": "6 * 7"},
        "42",
    ),
]
