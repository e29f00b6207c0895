import contextlib
import fcntl
import os
import pty
import signal
import termios

import psutil
import pytest

from ...lab.command_line import BROKEN, LAB, process, until

FLAKY = {**LAB, "restartDelays": [0.1]}


def read_until(stream, text):
    lines = []
    for line in stream:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} not in {lines}")


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_piped_it_tells_events_until_a_signal(config, signum):
    with process("run", "--config", config(lab=FLAKY)) as ran:
        read_until(ran.stdout, "lab: connected")
        (server,) = psutil.Process(ran.pid).children()
        server.kill()
        told = "".join(read_until(ran.stdout, "lab: connected"))
        assert "lab: waiting" in told
        children = psutil.Process(ran.pid).children(recursive=True)
        ran.send_signal(signum)
        _, err = ran.communicate(timeout=60)
    assert (ran.returncode, err) == (0, "")
    assert not [child for child in children if child.is_running()]


@pytest.mark.slow
def test_a_file_that_changes_is_read_again_and_at_sighup_too(config):
    file = config(lab=LAB)
    with process("run", "--config", file, start_new_session=True) as ran:
        read_until(ran.stdout, "lab: connected")
        config(lab=LAB, other=LAB)
        read_until(ran.stdout, "reloaded: 1 added (other), 1 untouched")
        read_until(ran.stdout, "other: connected")
        ran.send_signal(signal.SIGHUP)
        read_until(ran.stdout, "reloaded: 2 untouched")
        file.write_text("{")
        read_until(ran.stdout, "not reloaded: ")
        ran.terminate()
        _, err = ran.communicate(timeout=60)
    assert ran.returncode == 0
    assert err.count("not reloaded, everything stays as it is") == 1


@pytest.mark.slow
def test_it_ends_with_its_terminal(config):
    def take_terminal():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    master, slave = pty.openpty()
    with process("run", "--config", config(lab=LAB), preexec_fn=take_terminal, pass_fds=[slave]) as ran:
        os.close(slave)
        read_until(ran.stdout, "lab: connected")
        os.kill(ran.pid, signal.SIGHUP)  # by a person, while the terminal is there
        read_until(ran.stdout, "reloaded: 1 untouched")
        os.close(master)
        _, err = ran.communicate(timeout=60)
    assert (ran.returncode, err) == (0, "")


@pytest.mark.slow
def test_nohup_survives_its_terminal(config):
    def ignore_hangup():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with process("run", "--config", config(lab=FLAKY), preexec_fn=ignore_hangup) as ran:
        read_until(ran.stdout, "lab: connected")
        ran.send_signal(signal.SIGHUP)
        (server,) = psutil.Process(ran.pid).children()
        server.kill()
        read_until(ran.stdout, "lab: connected")  # it goes on
        ran.terminate()
        ran.communicate(timeout=60)
    assert ran.returncode == 0


@pytest.mark.slow
def test_under_nohup_files_are_read_again_at_sighup_too(config):
    """L18: nothing was done, and nothing said."""

    def ignore_hangup():
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with process("run", "--config", config(lab=LAB), preexec_fn=ignore_hangup) as ran:
        read_until(ran.stdout, "lab: connected")
        ran.send_signal(signal.SIGHUP)
        read_until(ran.stdout, "reloaded: 1 untouched")
        ran.terminate()
        ran.communicate(timeout=60)
    assert ran.returncode == 0


def test_in_this_process(cli, config, monkeypatch):
    from mcp_nursery.supervisor.cli import watching

    async def say(line):
        said.append(line)
        if "lab: connected" in line:
            os.kill(os.getpid(), signal.SIGINT)

    said = []
    monkeypatch.setattr(watching, "send_line", say)
    assert cli("run", "--config", config(lab=LAB, broken=BROKEN)).code == 0
    assert any("broken: " in line for line in said)
    assert [line.split(" ", 1)[1] for line in said].count("lab: connecting") == 1


def test_a_full_screen_on_a_terminal(tty, screen, config):
    screen.when("connected", lambda: os.kill(os.getpid(), signal.SIGINT))
    ran = tty("run", "--config", config(lab=LAB, **{"[b]ad": BROKEN}))
    assert ran.code == 0
    for words in ("SERVER", "RETRY IN", "UP", "PID", "CALLS", "ERROR", "[b]ad"):
        assert words in ran.out
    assert "\x1b[2J" not in ran.out


@pytest.mark.slow
def test_a_reader_that_takes_nothing_holds_up_nothing(cli, config):
    """`run | less`: the servers are supervised, commands are obeyed, and a signal ends it."""
    with process("run", "--config", config(lab=LAB), "--json") as ran:
        fcntl.fcntl(ran.stdout, fcntl.F_SETPIPE_SZ, 4096)
        until(lambda: '"connected"' in cli("status", "--attach", "--json").out)
        for _ in range(20):
            answer = cli("reconnect", "lab", "--json").json
            assert [server["state"] for server in answer.get("servers", [])] == ["connected"], answer
        ran.terminate()
        assert ran.wait(timeout=60) == 0


@pytest.mark.slow
def test_the_reader_went_away(config):
    with process("run", "--config", config(lab=FLAKY)) as ran:
        read_until(ran.stdout, "lab: connected")
        ran.stdout.close()
        with contextlib.suppress(psutil.NoSuchProcess):  # a line that was still to come may have told it already
            for server in psutil.Process(ran.pid).children():
                server.kill()
        err = ran.stderr.read()
        assert (ran.wait(60), err) == (141, "")
