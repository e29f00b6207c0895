"""The docker client itself, where there is one, and a daemon of our own: what test_docker.py supposes of it holds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from mcp_nursery.supervisor import DockerTransport, ServerSpec

from ..lab import PROGRAMS
from ..lab.processes import AT_ONCE, eventually, is_alive, removed_in_time, status_of, supervised
from ..lab.timely import in_time, timely

DAEMON = PROGRAMS / "docker_daemon.py"
SECRET = "hunter2-hunter2"
STUBBORN = ["ignore=eof,term"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker client"),
]


@pytest.fixture
def contained(tmp_path, journal):
    """Makes a spec of a server that the client runs."""
    socket = tmp_path / "docker.sock"
    daemon = subprocess.Popen([sys.executable, DAEMON, socket], stdout=subprocess.PIPE)
    assert daemon.stdout.readline() == b"ready\n"
    env = {"DOCKER_HOST": f"unix://{socket}", "DOCKER_CONFIG": str(tmp_path), "TOKEN": SECRET}

    def spec(*args):
        return ServerSpec("lab", DockerTransport("lab", [f"journal={journal.path}", *args], env), policy=AT_ONCE)

    yield spec
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()


async def contained_pid(supervisor):
    return int((await supervisor.call_tool("pid", server="lab")).full_text)


@timely
async def test_what_it_passes_on(contained, journal, caplog):
    """K2, K6, L11: values of the environment, frames both ways, and the end of the input."""
    journal.clear()
    caplog.clear()
    async with supervised(contained()) as supervisor:
        given = json.loads((await supervisor.call_tool("environment", server="lab")).full_text)
        pid = await contained_pid(supervisor)
        left = time.monotonic()
    in_time(time.monotonic() - left, 1.3)
    removed_in_time(caplog)
    assert given["TOKEN"] == SECRET
    assert given.keys() == {"TOKEN", "DOCKER_HOST", "DOCKER_CONFIG"}
    assert (journal.count("eof"), journal.count("term")) == (1, 0)
    assert not is_alive(pid)


@timely
async def test_a_container_that_heeds_nothing(contained, journal, caplog):
    """K2, L10, L11, Q1: SIGTERM is passed on, the client killed, and the container removed by its name."""
    journal.clear()
    caplog.clear()
    async with supervised(contained(*STUBBORN)) as supervisor:
        pid = await contained_pid(supervisor)
        left = time.monotonic()
    in_time(time.monotonic() - left, 4.9)
    in_time(journal.times("eof")[0] - left, 1)
    removed_in_time(caplog)
    assert journal.count("term") == 1
    assert not is_alive(pid)
    assert not caplog.records


@timely
async def test_a_killed_client(contained, caplog):
    """K2, Q1: its container goes on without it, and is gone before the next is run."""
    caplog.clear()
    async with supervised(contained(*STUBBORN)) as supervisor:
        pid = await contained_pid(supervisor)
        client = status_of(supervisor).pid
        os.kill(client, signal.SIGKILL)
        await eventually(lambda: not is_alive(client))
        await eventually(lambda: status_of(supervisor).incarnation == 2)
        removed_in_time(caplog)
        assert not is_alive(pid)
        await supervisor.wait_connected("lab")
        assert await contained_pid(supervisor) != pid
