"""Two terminals: a host in one, and in the other who watches it and tells it what to do."""

import json
import os
import signal
from contextlib import contextmanager

import psutil
import pytest

from mcp_nursery.supervisor.cli.output import safe_text
from mcp_nursery.supervisor.control.sockets import names_of_hosts

from ...lab.command_line import BROKEN, LAB, MISSING, process, until
from .test_run import read_until

pytestmark = pytest.mark.slow


@contextmanager
def running(config, *args):
    """`mcp-nursery run` in a terminal of its own, its server `lab` connected."""
    with process("run", "--config", config, *args) as ran:
        try:
            read_until(ran.stdout, "lab: connected")
            yield ran
        finally:
            ran.terminate()
            ran.communicate(timeout=60)
    assert ran.returncode == 0


def settled(cli, server, state, *args):
    """The server has come to this state."""

    def look():
        servers = cli("status", "--attach", *args, "--json").json["servers"]
        return {each["name"]: each["state"] for each in servers}.get(server) == state

    until(look)


def test_each_command(cli, config):
    """L8, L9, L18, L19: what each prints, and what it did."""
    file = config(lab=LAB)
    with running(file) as ran:
        (server,) = psutil.Process(ran.pid).children()
        assert cli("status", "--attach").out.splitlines()[1].split("\t")[:2] == ["lab", "connected"]
        assert cli("status", "--attach", "--json").json["servers"][0]["pid"] == server.pid
        assert cli("stop", "lab").out == "lab: stopped\n"
        until(lambda: not server.is_running())
        assert cli("start", "lab").out.startswith("lab: connect")
        read_until(ran.stdout, "lab: connected")
        assert cli("reconnect", "lab").out.startswith("lab: connected, incarnation 3, pid ")
        assert cli("reconnect", "lab", "--json").json["servers"][0]["incarnation"] == 4
        config(lab=LAB, more=LAB)
        read_until(ran.stdout, "more: connected")
        assert cli("reload").out == "reloaded: 2 untouched\n"
        told = {"added": [], "changed": ["lab", "more"], "removed": [], "untouched": [], "untrusted": []}
        assert cli("reload", "--restart", "--json").json == told
        file.write_text("{")
        read_until(ran.stdout, "not reloaded: ")
        failed = cli("reload")
        assert (failed.code, failed.out) == (2, "")
        assert "not JSON" in failed.err
        unknown = cli("stop", "lob", "--json")
        assert (unknown.code, unknown.json["error"]["type"]) == (2, "UnknownServer")
        for command in (["stop", "lob"], ["start", "lob"], ["reconnect", "lob"], ["logs", "lob", "--follow"]):
            assert "did you mean 'lab'?" in cli(*command).err


def test_a_server_that_does_not_start(cli, config):
    with running(config(lab=LAB, broken=BROKEN)):
        settled(cli, "broken", "failed")
        failed = cli("reconnect", "broken")
        assert (failed.code, failed.out) == (3, "")
        assert failed.err.startswith("mcp-nursery: broken: the server is failed (")


def test_logs(cli, config):
    """Of a running host the server goes on; where a file is named, one is started for it."""
    noisy = {**LAB, "args": [*LAB["args"], "--broken"], "restartDelays": [3600]}
    file = config(lab=LAB, noisy=noisy)
    with running(file) as ran:
        settled(cli, "noisy", "waiting")
        started = len(psutil.Process(ran.pid).children())
        printed = cli("logs", "noisy")
        assert printed.code == 0
        said = cli("logs", "noisy", "--json").json
        assert (said["name"], list(map(safe_text, said["lines"]))) == ("noisy", printed.out.splitlines())
        assert said["lines"]
        assert len(psutil.Process(ran.pid).children()) == started
        assert cli("logs", "noisy", "--config", file).code == 3
        with process("logs", "noisy", "--follow") as following:
            read_until(following.stdout, printed.out.splitlines()[-1])
            assert cli("reconnect", "noisy").code == 3
            read_until(following.stdout, printed.out.splitlines()[-1])
            following.send_signal(signal.SIGINT)
            _, err = following.communicate(timeout=60)
        assert (following.returncode, err) == (0, "")
        assert cli("logs", "lab").code == 0
        assert cli("logs", "lob", "--follow").code == 2


def test_top_until_the_host_ends(cli, config):
    with running(config(lab=LAB)) as ran, process("top") as plain, process("top", "--json") as lines:
        read_until(plain.stdout, "lab: connected")
        assert json.loads(lines.stdout.readline())["status"]["name"] == "lab"
        psutil.Process(ran.pid).children()[0].kill()
        read_until(plain.stdout, "lab: waiting")
        read_until(lines.stdout, '"waiting"')
        ran.terminate()
        ran.wait(timeout=60)
        for each in (plain, lines):
            out, err = each.communicate(timeout=60)
            assert each.returncode == 3
            assert f"host {ran.pid} has ended" in out + err
            assert each is plain or all(map(json.loads, out.splitlines()))
    assert names_of_hosts() == []


def test_top_on_a_terminal(tty, screen, config):
    with running(config(lab=LAB)):
        screen.when("connected", lambda: os.kill(os.getpid(), signal.SIGINT))
        assert tty("top").code == 0
        assert "RETRY IN" in screen.text


def test_run_as_json(config):
    with process("run", "--json", "--config", config(lab=LAB)) as ran:
        first = json.loads(ran.stdout.readline())
        assert (first["event"], first["status"]["name"]) == ("SnapshotEvent", "lab")
        assert json.loads(read_until(ran.stdout, '"connected"')[-1])["event"] == "StateChanged"
        ran.terminate()
        ran.communicate(timeout=60)


COMMANDS = [("status", "--attach"), ("top",), ("reconnect", "x"), ("stop", "x"), ("start", "x"), ("reload",)]


@pytest.mark.parametrize("command", [*COMMANDS, ("logs", "x", "--follow")])
def test_no_host_runs(cli, command):
    failed = cli(*command)
    assert (failed.code, failed.out) == (3, "")
    assert failed.err == "mcp-nursery: no host is running; start one with 'mcp-nursery run'\n"
    assert cli(*command, "--json").json["error"]["type"] == "ControlError"
    assert "no host 7 is running" in cli(*command, "--host", "7").err


def test_several_hosts(cli, config):
    """The one that is named, or the only one with the server; otherwise one line that names them."""
    with running(config(lab=LAB)) as one, running(config("other.json", lab=LAB, extra=LAB)) as other:
        settled(cli, "extra", "connected", "--host", other.pid)
        unclear = cli("stop", "lab")
        assert unclear.code == 2
        assert unclear.err.count("\n") == 1
        for each in (one, other):
            assert f"{each.pid} (" in unclear.err
        assert "choose one with --host PID" in unclear.err
        assert cli("stop", "extra").out == "extra: stopped\n"
        assert cli("stop", "lab", "--host", one.pid).out == "lab: stopped\n"
        stated = [cli("status", "--host", each.pid, "--json").json["servers"][0]["state"] for each in (one, other)]
        assert stated == ["stopped", "connected"]
        assert f"no host 7 is running; running: {', '.join(sorted(map(str, (one.pid, other.pid))))}" in (
            cli("reload", "--host", "7").err
        )


def test_a_killed_host_is_no_host(cli, config):
    with process("run", "--config", config(lab=LAB)) as ran:
        read_until(ran.stdout, "lab: connected")
        children = psutil.Process(ran.pid).children()
        ran.kill()
        ran.communicate(timeout=60)
        for child in children:
            child.kill()
    assert "no host is running" in cli("status", "--attach").err


def test_a_folder_that_others_get_into(cli, config, user_folders):
    """A host runs without a socket, and says so; nobody looks into that folder."""
    folder = user_folders / "state" / "mcp-nursery" / "control"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    with process("run", "--config", config(lab=LAB)) as ran:
        read_until(ran.stdout, "lab: connected")
        failed = cli("status", "--attach")
        assert failed.code == 3
        assert "other users can access it; chmod 700" in failed.err
        ran.terminate()
        _, err = ran.communicate(timeout=60)
    assert ran.returncode == 0
    assert err.startswith("mcp-nursery: warning: field 'control': no control socket in ")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The folder of a project, and what writes its file."""
    folder = tmp_path / "repo"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)

    def write(**servers):
        file = folder / ".mcp.json"
        file.write_text(json.dumps({"mcpServers": servers}))
        return file

    return write


def test_an_entry_is_mended_and_trusted(cli, project):
    """K7, L18: whichever command comes last starts it, and until then each says what to do; another server goes on."""
    project(lab=LAB, broken=MISSING)
    assert cli("trust", "--yes").code == 0
    with process("run") as ran:
        try:
            read_until(ran.stdout, "lab: connected")
            settled(cli, "broken", "failed")
            file = project(lab=LAB, broken=LAB)
            read_until(ran.stdout, "reloaded: 1 changed (broken), 1 untouched, 1 not trusted (broken)")
            read_until(ran.stdout, "broken: blocked (not trusted: ")
            refused = cli("reload")
            assert (refused.code, refused.out) == (4, "reloaded: 2 untouched, 1 not trusted (broken)\n")
            way = f"review them with 'mcp-nursery trust {file}'"
            assert refused.err == f"mcp-nursery: {file}: servers in it are not trusted; {way}\n"
            assert cli("reload", "--json").json["untrusted"] == ["broken"]
            started = cli("trust", "--yes").out.splitlines()[-1]
            assert started.startswith(f"broken: started by host {ran.pid} (")
            read_until(ran.stdout, "broken: connected")
            assert cli("reload").out == "reloaded: 2 untouched\n"
            settled(cli, "lab", "connected")
            (lab,) = (each for each in cli("status", "--json").json["servers"] if each["name"] == "lab")
            assert lab["incarnation"] == 1
        finally:
            ran.terminate()
            ran.communicate(timeout=60)


def test_trust_needs_no_host(cli, project, user_folders):
    """K7: it records the answer, also where no host can be looked for."""
    project(lab=LAB)
    folder = user_folders / "state" / "mcp-nursery" / "control"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    assert cli("trust", "--yes").code == 0
    assert cli("check", "--json").json["servers"][0]["trusted"] is True
