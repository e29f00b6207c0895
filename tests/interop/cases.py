"""The servers: how each is installed and started, what is asked of it, and what it should answer."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from ..lab import PROGRAMS
from .installing import npm_package, python_with

FIRST_LINE = PROGRAMS / "nursery_fastmcp.py"


@frozen
class Case:
    name: str
    command: Callable[[Path], Sequence[str]]
    """Its command line, given a folder with a file and a repository. Installs it."""
    protocol: str
    server: str
    """What it calls itself."""
    tools: frozenset[str] = field(converter=frozenset)
    """Some of its tools."""
    tool: str
    """One to call."""
    arguments: Callable[[Path], Mapping[str, object]]
    answer: str
    """What the text of the result holds."""


def _module(requirement, module, *arguments):
    return [str(python_with(requirement)), "-m", module, *arguments]


_ALL = [
    Case(
        name="time",
        command=lambda place: _module("mcp-server-time==2026.10.19", "mcp_server_time", "--local-timezone", "UTC"),
        protocol="2026-07-28",
        server="mcp-time",
        tools={"get_current_time", "convert_time"},
        tool="convert_time",
        arguments=lambda place: {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"},
        answer="T21:30:00+09:00",
    ),
    Case(
        name="git",
        command=lambda place: _module("mcp-server-git==2026.10.19", "mcp_server_git"),
        protocol="2026-07-28",
        server="mcp-git",
        tools={"git_status", "git_log", "git_diff"},
        tool="git_log",
        arguments=lambda place: {"repo_path": str(place / "repository")},
        answer="first words",
    ),
    Case(
        name="everything",
        command=lambda place: [*npm_package("@modelcontextprotocol/server-everything@2026.8.31"), "stdio"],
        protocol="2025-11-25",
        server="mcp-servers/everything",
        tools={"echo", "get-sum"},
        tool="echo",
        arguments=lambda place: {"message": "ünïcode ✓"},
        answer="Echo: ünïcode ✓",
    ),
    Case(
        name="filesystem",
        command=lambda place: [*npm_package("@modelcontextprotocol/server-filesystem@2026.8.31"), str(place)],
        protocol="2025-11-25",
        server="secure-filesystem-server",
        tools={"read_text_file", "list_directory"},
        tool="read_text_file",
        arguments=lambda place: {"path": str(place / "hello.txt")},
        answer="good morning",
    ),
    Case(
        name="first_line",
        command=lambda place: [str(python_with("mcp[ws]==1.30.0")), str(FIRST_LINE)],
        protocol="2025-11-25",
        server="first line",
        tools={"add"},
        tool="add",
        arguments=lambda place: {"a": 2, "b": 40},
        answer="42",
    ),
]

CASES = {case.name: case for case in _ALL}
