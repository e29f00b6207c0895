"""A running `mcp-nursery serve` for those who watch and control it from another terminal."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from mcp_nursery.supervisor.control.sockets import names_of_hosts

from ...lab.command_line import COMMAND, LAB, Run, process, until

pytestmark = pytest.mark.slow

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
CHATTY = {"command": sys.executable, "args": ["-c", "import sys; print('hello', file=sys.stderr); sys.stdin.read()"]}
FRONTS = ["config", "command", "http"]


@contextmanager
def served(front, file):
    """A gateway, its client having said hello, if it has one."""
    args = {
        "config": ["--config", file],
        "command": ["--name", "lab", "--", LAB["command"], *LAB["args"]],
        "http": ["--config", file, "--http", "127.0.0.1:0"],
    }
    with process("serve", *args[front], stdin=subprocess.PIPE) as ran:
        try:
            if front == "http":
                assert "http://" in ran.stderr.readline()
            else:
                ran.stdin.write(json.dumps(INITIALIZE) + "\n")
                ran.stdin.flush()
                assert json.loads(ran.stdout.readline())["id"] == 1
            yield ran
        finally:
            ran.kill()


def end(ran):
    """Ends a gateway as its host does; nothing but messages was printed."""
    ran.send_signal(signal.SIGTERM)
    out, err = ran.communicate(timeout=60)
    assert ran.returncode == 0
    assert all(map(json.loads, out.splitlines()))
    return err


@pytest.mark.parametrize("front", FRONTS)
def test_it_is_watched_and_controlled(cli, config, front):
    """L8, L18, G1: by each command, until it ends and leaves no socket."""
    file = config(lab=LAB)
    with served(front, file) as ran:
        until(lambda: names_of_hosts() == [str(ran.pid)])
        until(lambda: "lab\tconnected" in cli("status", "--attach").out)
        assert cli("stop", "lab") == Run(0, "lab: stopped\n", "")
        assert cli("start", "lab").code == 0
        assert cli("reconnect", "lab").out.startswith("lab: connected, incarnation ")
        assert cli("logs", "lab", "--host", ran.pid).code == 0
        if front != "command":
            config(lab=LAB, chatty=CHATTY)
            assert cli("reload") == Run(0, "reloaded: 1 added (chatty), 1 untouched\n", "")
        if front == "config":
            assert ran.stderr.readline() == "chatty: hello\n"
        end(ran)
    assert names_of_hosts() == []
    assert "no host is running" in cli("status", "--attach").err


def test_several(cli, config):
    """L8: each has a name of its own, and the one that is a server of another is not meant where another may be."""
    file, inner = config(lab=LAB), config("inner.json", more=LAB)
    nested = {"command": COMMAND[0], "args": [*COMMAND[1:], "serve", "--config", str(inner)]}
    nested["env"] = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
    with process("run", "--config", config("outer.json", nested=nested)) as run:
        until(lambda: len(names_of_hosts()) == 2)
        assert cli("reload") == Run(0, "reloaded: 1 untouched\n", "")
        assert cli("reconnect", "more").out.startswith("more: connected")
        with served("config", file) as one, served("command", file) as other:
            until(lambda: len(names_of_hosts()) == 4)
            unclear = cli("reload")
            assert unclear.code == 2
            assert f"{one.pid} (lab: " in unclear.err
            assert f"{run.pid} (nested: " in unclear.err
            assert "choose one with --host PID" in unclear.err
            assert "(more: " not in unclear.err
            assert cli("reload", "--host", other.pid).code == 0
            end(one)
            end(other)
        run.terminate()
        run.communicate(timeout=60)
    assert names_of_hosts() == []


@pytest.mark.parametrize("broken", ["others get into it", "a file"])
def test_without_a_folder_for_sockets(tmp_path, broken):
    """L8, G1: it serves, and says nothing of that; with `--verbose` it gives the reason."""
    folder = tmp_path / "state"
    (folder / "mcp-nursery").mkdir(parents=True)
    control = folder / "mcp-nursery" / "control"
    control.write_text("") if broken == "a file" else control.mkdir(mode=0o755)
    args = ["serve", "--name", "lab", "--verbose", "--", LAB["command"], *LAB["args"]]
    with process(*args, stdin=subprocess.PIPE, env={"XDG_STATE_HOME": str(folder)}) as ran:
        ran.stdin.write(json.dumps(INITIALIZE) + "\n")
        ran.stdin.flush()
        assert json.loads(ran.stdout.readline())["id"] == 1
        assert any("no control socket" in line for line in ran.stderr)
        ran.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}) + "\n")
        ran.stdin.flush()
        assert json.loads(ran.stdout.readline())["result"]["tools"]
        end(ran)
