import os
import resource
import sys
from pathlib import Path

import pytest

from mcp_nursery.actors.errors import StartFailed
from mcp_nursery.actors.process.command import INHERITED
from mcp_nursery.actors.transports.stdio import StdioConnector


async def environment(**env):
    connector = StdioConnector("env", (), env=env, cwd=None, close_grace=1)
    lines = []
    async with connector.open() as stream:
        while batch := await stream.read():
            lines += batch
    return dict(line.decode().split("=", 1) for line in lines)


NAMES = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP"]
"""Spelled out, so that none comes or goes unnoticed."""


def test_the_list_of_variables():
    """K6: a name that this machine happens not to have set would not be missed below."""
    assert list(INHERITED) == NAMES


async def test_a_child_gets_the_listed_variables_its_own_and_the_marker(monkeypatch):
    """K6: these names and nothing else."""
    monkeypatch.setenv("PLANTED_SECRET", "hunter2")
    for name in ("PYTHONPATH", "NODE_OPTIONS", "LD_LIBRARY_PATH", "XDG_CONFIG_HOME", "LC_CTYPE", "PWD", *NAMES[1:]):
        monkeypatch.setenv(name, f"value of {name}")
    monkeypatch.delenv("LOGNAME")
    seen = await environment(OWN="mine", HOME="/its/home", MCP_NURSERY_INCARNATION="forged")
    marker = seen.pop("MCP_NURSERY_INCARNATION")
    assert len(marker) == 32
    inherited = {name: os.environ[name] for name in NAMES if name != "LOGNAME"}
    assert seen == {**inherited, "OWN": "mine", "HOME": "/its/home"}
    monkeypatch.setenv("LOGNAME", "me")
    other = await environment()
    assert other["LOGNAME"] == "me"
    assert other["MCP_NURSERY_INCARNATION"] != marker


def program(path: Path, text="#!/bin/sh\necho hello from $0\n", mode=0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("command", "env", "cwd"),
    [
        ("hello", {"PATH": "{tmp}/bin"}, None),
        ("hello", {"PATH": "bin"}, "{tmp}"),
        ("./hello", {}, "{tmp}/bin"),
        ("bin/hello", {}, "{tmp}"),
        ("{tmp}/bin/hello", {}, "/"),
    ],
)
async def test_a_program_is_found_from_the_childs_point_of_view(tmp_path, command, env, cwd):
    program(tmp_path / "bin" / "hello")

    def here(text):
        return text and text.format(tmp=tmp_path)

    env = {name: here(value) for name, value in env.items()}
    async with StdioConnector(here(command), (), env=env, cwd=here(cwd), close_grace=1).open() as stream:
        assert (await stream.read())[0].startswith(b"hello from")


async def test_a_relative_cwd_is_the_hosts(tmp_path, monkeypatch):
    program(tmp_path / "bin" / "hello")
    monkeypatch.chdir(tmp_path)
    async with StdioConnector("./hello", (), env={}, cwd="bin", close_grace=1).open() as stream:
        assert (await stream.read())[0].startswith(b"hello from")


@pytest.mark.parametrize(
    ("command", "cwd", "problem"),
    [
        ("no-such-program", None, "command 'no-such-program' was not found on PATH"),
        ("", None, "command '' was not found on PATH"),
        ("/no/such", None, "command '/no/such' does not exist"),
        ("./no-such", "{tmp}", "command './no-such' does not exist"),
        ("{tmp}", None, "command '{tmp}' is a directory"),
        ("{tmp}/plain", None, "command '{tmp}/plain' is not executable"),
        ("{tmp}/bad", None, "command '{tmp}/bad' cannot be started: its interpreter does not exist"),
        ("{tmp}/garbage", None, "command '{tmp}/garbage' cannot be started: Exec format error"),
        ("sh", "{tmp}/none", "cwd '{tmp}/none' does not exist"),
        ("sh", "{tmp}/plain", "cwd '{tmp}/plain' is not a directory"),
    ],
)
async def test_a_start_that_cannot_work_says_why_and_is_not_retried(tmp_path, command, cwd, problem):
    program(tmp_path / "plain", mode=0o644)
    program(tmp_path / "bad", text="#!/no/such/interpreter\n")
    program(tmp_path / "garbage", text="\0\1\2")
    command, cwd, problem = (text and text.format(tmp=tmp_path) for text in (command, cwd, problem))
    with pytest.raises(StartFailed) as failure:
        async with StdioConnector(command, (), env={}, cwd=cwd, close_grace=1).open():
            pytest.fail("started")
    assert (str(failure.value), failure.value.retriable) == (problem, False)


async def test_a_string_no_process_can_have_is_not_retried():
    with pytest.raises(StartFailed) as failure:
        async with StdioConnector("sh", ("\0",), env={}, cwd=None, close_grace=1).open():
            pytest.fail("started")
    assert not failure.value.retriable


async def test_a_lack_of_files_is_retried():
    connector = StdioConnector(sys.executable, (), env={}, cwd=None, close_grace=1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        with pytest.raises(StartFailed) as failure:
            async with connector.open():
                pytest.fail("started")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert failure.value.retriable
    assert "Too many open files" in str(failure.value)


def test_values_and_arguments_are_not_shown():
    connector = StdioConnector("x", ("--token=hunter2",), env={"KEY": "hunter2"}, cwd=None, close_grace=1)
    assert "hunter2" not in repr(connector)
    assert "KEY" in repr(connector)
