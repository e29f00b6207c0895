"""Servers that leave daemons behind."""

import logging
import shlex
import sys

import psutil
import pytest

from mcp_nursery.supervisor import ServerSpec, StdioTransport

from ..lab.processes import LAB, eventually, supervised

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a mark that nobody loses"),
]


SERVER = [sys.executable, "-I", "-S", str(LAB)]


def sleepers(length):
    return [one for one in psutil.process_iter() if _command(one) == ["sleep", length]]


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return None


@pytest.mark.parametrize(
    ("script", "length"),
    [
        ("env -i setsid sleep {length} & exec {server}", "8641"),
        ("env -i setsid sh -c 'sleep {length} &'; exec {server}", "8642"),
        ("env -i setsid sh -c 'trap \"\" HUP TERM; sleep {length} & exec sleep {length}' & exec {server}", "8643"),
    ],
    ids=["in the background", "with no parent", "stubborn"],
)
async def test_a_daemon_of_a_clean_environment_ends_with_its_server(script, length, caplog):
    """Q1: started before the server itself, in a session of its own, with nothing in its environment."""
    server = shlex.join(SERVER)
    shell = StdioTransport("sh", ["-c", script.format(length=length, server=server)])
    try:
        with caplog.at_level(logging.WARNING):
            async with supervised(ServerSpec("lab", shell)):
                await eventually(lambda: sleepers(length))
            assert sleepers(length) == []
    finally:
        for left in sleepers(length):
            left.kill()
    assert "left behind" not in caplog.text


async def test_what_writes_to_the_pipes_of_a_tree_belongs_to_it(monkeypatch):
    """Q1: a daemon that has no mark: its parent was gone before the first process could be marked."""
    monkeypatch.setattr("mcp_nursery.actors.process.tree.mark", lambda pid, marker: None)
    for length, outputs in (("8645", ""), ("8646", ">/dev/null"), ("8647", "2>/dev/null")):
        script = f"env -i setsid sh -c 'sleep {length} {outputs} &'; exec {shlex.join(SERVER)}"
        try:
            async with supervised(ServerSpec("lab", StdioTransport("sh", ["-c", script]))):
                await eventually(lambda length=length: sleepers(length))
            assert sleepers(length) == []
        finally:
            for left in sleepers(length):
                left.kill()
