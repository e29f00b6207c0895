"""Servers in containers, run by a docker client that is not there: lab/programs/fake_docker.py is in its place."""

import json
import os
import signal
import time

import psutil
import pytest
import trio

from mcp_nursery.supervisor import (
    ConnectionLost,
    DockerTransport,
    RestartPolicy,
    ServerSpec,
    StdioTransport,
    load_config,
    open_supervisor,
)
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.status import ServerState

from ..lab.processes import AT_ONCE, eventually, is_alive, next_state, removed_in_time, status_of, supervised
from ..lab.timely import in_time, timely

pytestmark = pytest.mark.slow

SECRET = "hunter2-hunter2"
STUBBORN = ["ignore=eof,term"]
ONCE = RestartPolicy(delays=())


def contained(*args, env=None, **options):
    return ServerSpec("lab", DockerTransport("lab", args, env or {}), **{"policy": AT_ONCE, **options})


@timely
async def test_a_server_in_a_container(docker, journal, caplog, monkeypatch):
    """K2, K6, L11: what the client is told, what the server gets, and an end without a signal."""
    docker.forget()
    journal.clear()
    caplog.clear()
    monkeypatch.setenv("PLANTED_TOKEN", SECRET)
    spec = contained(f"journal={journal.path}", env={"TOKEN": SECRET, "LEVEL": "1"})
    async with supervised(spec) as supervisor:
        status = status_of(supervisor)
        assert (status.transport, status.state) == ("docker", ServerState.CONNECTED)
        given = json.loads((await supervisor.call_tool("environment", server="lab")).full_text)
        ((name, pid),) = docker.containers().items()
        left = time.monotonic()
    in_time(time.monotonic() - left, 1.2)
    removed_in_time(caplog)
    assert (journal.count("start"), journal.count("eof"), journal.count("term")) == (1, 1, 0)
    assert (docker.containers(), is_alive(pid), is_alive(status.pid)) == ({}, False, False)
    assert given == {"TOKEN": SECRET, "LEVEL": "1"}
    (run,) = docker.calls("run")
    assert run["argv"] == [
        *("run", f"--name={name}", "-i", "--rm", "--init", "--env=TOKEN", "--env=LEVEL", "--"),
        *("lab", f"journal={journal.path}"),
    ]
    assert SECRET not in repr((spec, status))
    assert "PLANTED_TOKEN" not in run["env"]
    (removal,) = docker.calls("rm")
    assert removal["argv"] == ["rm", "--force", name]
    assert removal["env"].keys() <= run["env"].keys()


@pytest.mark.parametrize(("options", "end"), [(["-i", "--rm"], ["rm", "--force"]), (["-i"], ["kill"])])
@timely
async def test_a_container_of_a_command(docker, caplog, options, end):
    """K2, L11: one that heeds nothing ends with its server, too; without `--rm` it stays, and is killed."""
    docker.forget()
    caplog.clear()
    command = StdioTransport("docker", ["run", *options, "--", "lab", *STUBBORN])
    async with supervised(ServerSpec("lab", command, policy=AT_ONCE)) as supervisor:
        ((name, pid),) = docker.containers().items()
        await supervisor.stop_server("lab")
        removed_in_time(caplog)
        assert not is_alive(pid)
    assert [each["argv"] for each in docker.calls(end[0])] == [[*end, name]]
    assert docker.calls("run")[0]["argv"] == ["run", f"--name={name}", *command.args[1:]]


async def test_a_container_with_a_name_of_its_own(docker):
    """K2: it is its user's: nothing is added, and it is not removed."""
    command = StdioTransport("docker", ["run", "--name=mcp-nursery-mine", "-i", "--rm", "--", "lab"])
    async with supervised(ServerSpec("lab", command, policy=AT_ONCE)):
        assert [*docker.containers()] == ["mcp-nursery-mine"]
    assert [each["argv"] for each in docker.calls("run")] == [["run", *command.args[1:]]]
    assert docker.calls("rm") == docker.calls("kill") == []


async def test_no_process_list_shows_a_value(docker):
    """K2, T9: `ps` shows arguments to everybody on the machine."""
    async with supervised(contained(env={"TOKEN": SECRET})) as supervisor:
        await supervisor.call_tool("echo", server="lab")
        shown = [word for process in psutil.process_iter(["cmdline"]) for word in process.info["cmdline"] or ()]
    assert "--env=TOKEN" in shown
    assert not any(SECRET in word for word in shown)


@pytest.mark.parametrize("leave", ["close", "cancel", "stop"])
@timely
async def test_a_container_that_heeds_nothing(docker, journal, caplog, leave):
    """K2, L10, L11, Q1: input ended, SIGTERM passed on, the client killed, the container removed: within the 5 s that
    any server has."""
    docker.forget()
    journal.clear()
    caplog.clear()
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with supervised(contained(f"journal={journal.path}", *STUBBORN)) as supervisor:
            ((name, pid),) = docker.containers().items()
            left = time.monotonic()
            if leave == "cancel":
                scope.cancel()
                await trio.sleep_forever()
            elif leave == "stop":
                await supervisor.stop_server("lab")
                stopped = not is_alive(pid)
    taken = time.monotonic() - left
    assert taken >= 2.6
    in_time(taken, 4.9)
    removed_in_time(caplog)
    (eof,), (term,) = journal.times("eof"), journal.times("term")
    assert term - left >= 1.3
    in_time(eof - left, 0.3)
    in_time(term - left, 1.7)
    assert not is_alive(pid)
    assert leave != "stop" or stopped
    assert docker.containers() == {}
    assert [call["argv"][-1] for call in docker.calls("rm")] == [name]
    assert not caplog.records


@pytest.mark.parametrize("leave", ["close", "stop", "timeout"])
@timely
async def test_a_container_that_never_answers(docker, caplog, leave):
    """K2, L9, L10: it is removed also when its start is cancelled, or out of time."""
    docker.forget()
    caplog.clear()
    patience = 1.5 if leave == "timeout" else 0
    limits = {"connect_timeout": patience, "install_timeout": patience}
    spec = contained("mute=yes", *STUBBORN, policy=ONCE, **limits)
    with trio.fail_after(60):
        async with open_supervisor([spec], gate=0) as supervisor, supervisor.events() as events:
            await eventually(docker.containers)
            ((_, pid),) = docker.containers().items()
            left = time.monotonic()
            if leave == "stop":
                await supervisor.stop_server("lab")
            elif leave == "timeout":
                await next_state(events, ServerState.FAILED)
    in_time(time.monotonic() - left, 6.5)
    removed_in_time(caplog)
    assert not is_alive(pid)
    assert len(docker.calls("rm")) == 1


@timely
async def test_a_container_that_ends_at_sigterm(docker, journal, caplog):
    """L11: the client passes it on, and nobody is killed."""
    docker.forget()
    caplog.clear()
    journal.clear()
    async with supervised(contained(f"journal={journal.path}", "ignore=eof")):
        left = time.monotonic()
    taken = time.monotonic() - left
    assert taken >= 1.3
    in_time(taken, 2.5)
    removed_in_time(caplog)
    assert journal.count("term") == 1
    assert docker.containers() == {}


@timely
async def test_a_client_that_was_killed_leaves_no_container(docker, journal, caplog):
    """K2, Q1, L7: the old container is gone before the next one is run, which has another name."""
    docker.forget()
    caplog.clear()
    async with supervised(contained(f"journal={journal.path}", *STUBBORN)) as supervisor:
        ((first, pid),) = docker.containers().items()
        os.kill(status_of(supervisor).pid, signal.SIGKILL)
        await eventually(lambda: status_of(supervisor).incarnation == 2)
        removed_in_time(caplog)
        assert not is_alive(pid)
        await supervisor.wait_connected("lab")
        assert status_of(supervisor).incarnation == 2
        (second,) = docker.containers()
        assert first != second


async def test_a_server_that_dies_in_its_container(docker):
    """R3, L6: the loss is told as that of any process."""
    async with supervised(contained()) as supervisor:
        with pytest.raises(ConnectionLost) as caught:
            await supervisor.call_tool("crash", server="lab")
        assert caught.value.exit_code == 9
        await supervisor.wait_connected("lab")
        assert len(docker.calls("run")) == 2


@pytest.mark.parametrize("trouble", ["rm_hangs", "rm_fails"])
@timely
async def test_a_container_that_cannot_be_removed(docker, caplog, trouble):
    """K2, L10: the end is as long as that of any server, and who stayed behind is named."""
    docker.forget()
    caplog.clear()
    docker.make(trouble)
    async with supervised(contained(*STUBBORN)):
        ((name, pid),) = docker.containers().items()
        left = time.monotonic()
    in_time(time.monotonic() - left, 4.9)
    if trouble == "rm_fails":
        removed_in_time(caplog)
    (record,) = caplog.records
    problem = "docker took more than 1.3 s" if trouble == "rm_hangs" else "docker ended with exit code 1"
    assert record.getMessage() == f"a container may be left behind: {problem}; `docker rm -f {name}` ends it"
    assert is_alive(pid)
    command = f"rm --force {name}".split()
    assert not any((process.info["cmdline"] or [])[-3:] == command for process in psutil.process_iter(["cmdline"]))


@pytest.mark.parametrize("trouble", [None, "old"])
@timely
async def test_a_container_that_is_gone_already(docker, caplog, trouble):
    """K2: that is what was wanted, whatever the client calls it."""
    docker.forget()
    caplog.clear()
    if trouble:
        docker.make(trouble)
    async with supervised(contained()):
        pass
    removed_in_time(caplog)
    assert len(docker.calls("rm")) == 1
    assert not caplog.records


async def test_a_client_that_has_gone_meanwhile(docker, caplog, tmp_path):
    """K2: there is nobody to remove a container."""
    async with supervised(contained()):
        (tmp_path / "bin" / "docker").unlink()
        (name,) = docker.containers()
    assert [record.getMessage() for record in caplog.records] == [
        f"a container may be left behind: No such file or directory; `docker rm -f {name}` ends it"
    ]


async def failed(spec):
    with trio.fail_after(60):
        async with open_supervisor([spec], gate=0) as supervisor, supervisor.events() as events:
            if status_of(supervisor).state is not ServerState.FAILED:
                await next_state(events, ServerState.FAILED)
            return status_of(supervisor)


async def test_an_image_that_does_not_exist(docker):
    """K2, L13: in docker's own words, and without those about its help."""
    status = await failed(ServerSpec("lab", DockerTransport("nobody/nothing:1"), policy=ONCE))
    problem = "docker: Error response from daemon: pull access denied for nobody/nothing:1, repository does not exist."
    assert status.error == f"exited with code 125: {problem}"
    assert docker.calls("rm") == []


async def test_no_docker_at_all(monkeypatch, tmp_path):
    """K2, L12: nothing to be tried again."""
    monkeypatch.setenv("PATH", str(tmp_path))
    status = await failed(contained())
    assert (status.error, status.attempt) == ("command 'docker' was not found on PATH", 1)


async def test_an_entry_of_a_file(docker, tmp_path, monkeypatch):
    """K2, K5, L17: variables are resolved when it connects; no argument and no error shows what they stand for."""
    monkeypatch.setenv("PLANTED", SECRET)
    file = tmp_path / "servers.json"
    entry = {
        "type": "docker",
        "image": "${KIND}",
        "args": ["more=extra"],
        "env": {"TOKEN": "${PLANTED}", "KIND": "lab"},
    }
    file.write_text(json.dumps({"mcpServers": {"lab": entry}}))
    async with supervised(*load_config(file).servers) as supervisor:
        assert "extra" in {tool.tool for tool in supervisor.tools}
        given = json.loads((await supervisor.call_tool("environment", server="lab")).full_text)
    assert given == {"TOKEN": SECRET, "KIND": "lab"}
    assert SECRET not in json.dumps(docker.calls("run")[0]["argv"])
    entry["env"]["KIND"] = "--privileged"
    file.write_text(json.dumps({"mcpServers": {"lab": entry}}))
    (spec,) = load_config(file).servers
    status = await failed(spec)
    assert status.error.startswith("field 'image': must be the name of an image")
    assert len(docker.calls("run")) == 1


async def test_an_entry_of_a_project(docker, tmp_path):
    """K7, Q28: nothing is run that nobody has agreed to."""
    file = tmp_path / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"lab": {"image": "lab", "env": {"A": "1"}}}}))
    async with open_supervisor(load_project(file), state=tmp_path / "state.sqlite3") as supervisor:
        status = status_of(supervisor)
        assert (status.state, status.transport) == (ServerState.BLOCKED, "docker")
    assert docker.calls("run") == docker.calls("rm") == []
