"""A command that installs what it starts has the time that a download takes, and is not cut off three times."""

import json
import shlex
import sys

import pytest
import trio

from mcp_nursery.supervisor import (
    MemoryStore,
    RestartPolicy,
    ServerDown,
    ServerSpec,
    StdioTransport,
    load_config,
    open_supervisor,
)
from mcp_nursery.supervisor.status import ServerState

from ..lab import PROGRAMS
from ..lab.processes import eventually, status_of

SERVER = [sys.executable, "-I", "-S", str(PROGRAMS / "both_eras.py"), "modern"]
SHORT = 0.6
"""Seconds to connect, where nothing is installed."""
AGAIN = RestartPolicy(delays=[0.05, 0.05, 0.05])


@pytest.fixture
def npx(tmp_path):
    """A command of this name. It counts its starts; where `first` or `all` stands in the file `slow`, its first or each
    start says what it does, and waits until the file `installed` is there. Then it is the server."""
    program = tmp_path / "npx"
    program.write_text(
        f"""#!/bin/sh
cd {shlex.quote(str(tmp_path))}
echo start >> starts
count=$(wc -l < starts)
if grep -q all slow || {{ grep -q first slow && [ $count = 1 ]; }}; then
  echo "added $count packages" >&2
  while [ ! -e installed ]; do sleep 0.05; done
fi
exec {shlex.join([*SERVER, "journal"])}
"""
    )
    program.chmod(0o755)
    return program


def spec_of(program, **settings):
    return ServerSpec("lab", StdioTransport(str(program)), policy=AGAIN, connect_timeout=SHORT, **settings)


def starts(program):
    return program.with_name("starts").read_text().count("start")


def entry_of(program):
    """The same in a file, with a variable: its command is known before that has a value."""
    entry = {"command": str(program), "env": {"WHERE": "${HOME}"}, "restartDelays": [0.05], "connectSeconds": SHORT}
    file = program.with_name("servers.json")
    file.write_text(json.dumps({"mcpServers": {"lab": entry}}))
    return load_config(file).servers[0]


@pytest.mark.parametrize("make", [spec_of, entry_of])
async def test_the_first_start_may_take_as_long_as_a_download(npx, make):
    npx.with_name("slow").write_text("first")
    with trio.fail_after(60):
        async with open_supervisor([make(npx)], gate=0) as supervisor:
            await eventually(lambda: status_of(supervisor, "lab").installing == "npx: added 1 packages")
            await trio.sleep(2 * SHORT)  # longer than any other command would have: nothing happens meanwhile
            assert status_of(supervisor, "lab").state is ServerState.CONNECTING
            npx.with_name("installed").touch()
            await supervisor.wait_connected("lab")
            assert status_of(supervisor, "lab").installing is None
    assert starts(npx) == 1


async def test_after_an_attempt_that_was_cut_off_the_next_one_has_time(npx):
    """It has answered before, and installs something newer."""
    npx.with_name("slow").touch()
    with trio.fail_after(60):
        async with open_supervisor([spec_of(npx)], gate=0) as supervisor:
            await supervisor.wait_connected("lab")
            npx.with_name("slow").write_text("all")
            with pytest.raises(ServerDown, match="connectSeconds in a file, gives it more"):
                await supervisor.reconnect("lab")
            await eventually(lambda: status_of(supervisor, "lab").installing == "npx: added 3 packages")
            await trio.sleep(2 * SHORT)
            npx.with_name("installed").touch()
            await supervisor.wait_connected("lab")
    assert starts(npx) == 3


async def test_a_server_that_answered_in_an_earlier_run_has_the_usual_time(npx):
    store = MemoryStore()
    npx.with_name("slow").touch()
    with trio.fail_after(60):
        async with open_supervisor([spec_of(npx)], state=store) as supervisor:
            await supervisor.wait_connected("lab")
        npx.with_name("slow").write_text("all")
        async with open_supervisor([spec_of(npx)], state=store, gate=0) as supervisor:
            await eventually(lambda: status_of(supervisor, "lab").error is not None)
            assert "connectSeconds in a file" in status_of(supervisor, "lab").error


async def test_the_error_names_the_setting_that_gives_it_more(npx):
    npx.with_name("slow").write_text("all")
    spec = spec_of(npx, install_timeout=2 * SHORT)
    with trio.fail_after(60):
        async with open_supervisor([spec], gate=0) as supervisor:
            await eventually(lambda: status_of(supervisor, "lab").error is not None)
            said = status_of(supervisor, "lab").error
            assert said.startswith("not connected within 1.2 s")
            assert "install_timeout, or installSeconds in a file, gives it more" in said
            assert said.endswith("added 1 packages")


async def test_a_command_that_installs_nothing_has_the_usual_time(npx):
    npx.with_name("slow").write_text("all")
    program = npx.rename(npx.with_name("server"))
    with trio.fail_after(60):
        async with open_supervisor([spec_of(program)], gate=0) as supervisor:
            await eventually(lambda: status_of(supervisor, "lab").error is not None)
            assert "connectSeconds" in status_of(supervisor, "lab").error
            assert status_of(supervisor, "lab").installing is None


@pytest.mark.parametrize("protocol", ["auto", "handshake-first", "handshake"])
async def test_a_command_whose_server_has_answered_once_has_the_usual_time(npx, tmp_path, protocol):
    """Whatever protocol is set: `serve` sets one for most of its clients."""
    npx.with_name("slow").touch()
    spec, state = spec_of(npx, protocol=protocol), tmp_path / "state"
    with trio.fail_after(60):
        async with open_supervisor([spec], state=state) as supervisor:
            await supervisor.wait_connected("lab")
        npx.with_name("slow").write_text("all")
        async with open_supervisor([spec], state=state, gate=0) as supervisor:
            await eventually(lambda: status_of(supervisor, "lab").error is not None)
            assert "connectSeconds" in status_of(supervisor, "lab").error
