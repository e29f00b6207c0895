"""Docker's MCP gateway, run by a docker client that is not there: tests/lab/programs/fake_docker.py is in its place."""

import json
import logging
import sys
import time

import psutil
import pytest
import trio
import trio.testing

from mcp_nursery.actors.transports import docker as docker_transport
from mcp_nursery.actors.transports.docker import run_client
from mcp_nursery.supervisor import (
    RestartPolicy,
    ServerDown,
    ServerSpec,
    load_config,
    open_supervisor,
)
from mcp_nursery.supervisor.spec import DockerGatewayTransport
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import eventually, lab, status_of

pytestmark = pytest.mark.slow

CANNOT = "docker's MCP gateway cannot run here: 'docker'"
TROUBLES = {
    "no_mcp": f"{CANNOT} has no command `mcp gateway`",
    "no_daemon": f"{CANNOT} reaches no daemon",
    "mcp_hangs": f"{CANNOT} did not answer within 0.5 s",
    "info_hangs": f"{CANNOT} did not answer within 0.5 s",
}


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def names(supervisor):
    return [status.name for status in supervisor.status()]


def told(docker):
    """What the client was told, apart from looking."""
    return [call["argv"] for call in docker.calls("mcp") if call["argv"] != ["mcp", "--help"]]


async def test_an_entry_runs_the_gateway_when_it_is_wanted(docker, journal, tmp_path):
    """G9: lazy, and stopped when it is idle."""
    path = tmp_path / "servers.json"
    entry = {"type": "docker-gateway", "args": [f"journal={journal.path}"], "env": {"LEVEL": "1"}}
    path.write_text(json.dumps({"mcpServers": {"all": entry}}))
    config = load_config(path)
    (spec,) = config.servers
    assert (spec.lazy, spec.idle_limit, config.errors) == (True, 300, ())
    with trio.fail_after(60):
        async with open_supervisor(config, gate=10) as supervisor:
            assert (status_of(supervisor, "all").state, docker.calls("mcp")) == (ServerState.IDLE, [])
            assert not (await supervisor.call_tool("environment", server="all")).is_error
            status = status_of(supervisor, "all")
            assert (status.transport, status.state) == ("docker-gateway", ServerState.CONNECTED)
    assert told(docker) == [["mcp", "gateway", "run", f"journal={journal.path}"]]
    assert docker.calls("mcp")[-1]["env"]["LEVEL"] == "1"
    assert journal.count("start") == journal.count("eof") == 1
    assert not psutil.pid_exists(status.pid)


ANSWERED = ("absent", "no_mcp", "no_daemon")
"""The troubles in which nothing hangs."""


@pytest.mark.parametrize("trouble", [*TROUBLES, "absent"])
async def test_where_it_cannot_run(docker, trouble, caplog, monkeypatch, tmp_path):
    """G9: one warning, one line, one attempt; whatever hung is killed; everything else goes on."""
    if trouble not in ANSWERED:  # these may take as long as a busy machine needs to start a program
        monkeypatch.setattr(docker_transport, "DETECTION", 0.5)
    if trouble == "absent":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        docker.make(trouble)
    why = TROUBLES.get(trouble, f"{CANNOT}: No such file or directory")
    gateway = ServerSpec("all", DockerGatewayTransport(), policy=RestartPolicy(delays=[0] * 3))
    with trio.fail_after(60):
        async with open_supervisor([gateway, lab("fine")], gate=30) as supervisor:
            began = time.monotonic()
            with pytest.raises(ServerDown) as caught:
                await supervisor.call_tool("environment", server="all")
            assert trouble in ANSWERED or time.monotonic() - began >= 0.5
            assert why in str(caught.value)
            status = status_of(supervisor, "all")
            assert (status.state, status.error, status.attempt) == (ServerState.FAILED, why, 1)
            assert not (await supervisor.call_tool("echo", {"text": "x"}, server="fine")).is_error
            assert not [child for child in psutil.Process().children() if "fake_docker" in " ".join(child.cmdline())]
    assert warnings(caplog) == [f"all: connecting -> failed: {why}"]
    assert told(docker) == []


async def test_it_is_added_where_it_is_found(docker, tmp_path):
    """G9: also after a reload; the block does not wait for it."""
    path = tmp_path / "servers.json"
    path.write_text('{"mcpServers": {}}')
    with trio.fail_after(60):
        async with open_supervisor(path, docker="auto") as supervisor:
            assert names(supervisor) == []
            await eventually(lambda: names(supervisor) == ["docker"])
            assert (await supervisor.reload()).added == ()
            assert not (await supervisor.call_tool("environment", server="docker")).is_error
            path.write_text('{"mcpServers": {"mine": {"type": "docker-gateway"}}}')
            await supervisor.reload()
            assert names(supervisor) == ["mine"]


@pytest.mark.parametrize("spec", [ServerSpec("all", DockerGatewayTransport()), lab("docker")], ids=["it", "its name"])
async def test_it_is_not_looked_for_where_it_or_its_name_is(docker, spec):
    """G9."""
    async with open_supervisor([spec], docker="auto", gate=0) as supervisor:
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert names(supervisor) == [spec.name]
    assert docker.calls("mcp") == []


async def test_where_it_is_not_found_nothing_is_added(docker, caplog):
    """G9."""
    docker.make("no_daemon")
    async with open_supervisor([], docker="auto") as supervisor:
        await eventually(lambda: warnings(caplog))
        assert names(supervisor) == []
    assert warnings(caplog) == [TROUBLES["no_daemon"]]


async def test_a_block_that_is_left_while_it_is_looked_for(docker):
    docker.make("mcp_hangs")
    with trio.fail_after(2):
        async with open_supervisor([], docker="auto"):
            await eventually(lambda: docker.calls("mcp"))


async def test_a_client_that_talks_without_end():
    """The beginning of it is kept."""
    talk = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with trio.fail_after(30):
        ended = await run_client(sys.executable, ["-I", "-S", "-c", talk], {})
    assert ended.returncode != 0
    assert ended.stdout[:10] == b"x" * 10
    assert len(ended.stdout) < 1 << 20
    assert b"BrokenPipeError" in ended.stderr
