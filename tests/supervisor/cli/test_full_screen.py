"""The full screen on real terminals: a person at tmux, and what is left when it ends."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import termios

import psutil
import pytest

from ...lab.command_line import BROKEN, COMMAND, LAB, process, until
from .test_attached import running


class Tmux:
    """A shell in a terminal, with somebody who types and reads."""

    def __init__(self, folder, width, **env):
        self.env = {**os.environ, "TMUX_TMPDIR": str(folder), **env}
        self("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", 24, "bash --norc --noprofile")

    def __call__(self, *args):
        told = subprocess.run(["tmux", *map(str, args)], env=self.env, capture_output=True, text=True, check=True)
        return told.stdout

    def type(self, *keys):
        self("send-keys", *keys)

    def run(self, *args):
        self.type(shlex.join([*COMMAND, *map(str, args)]) + "; echo exit=$?", "Enter")

    @property
    def text(self):
        return self("capture-pane", "-p")

    def see(self, *texts):
        """Waits until all of this is seen."""
        until(lambda: all(text in self.text for text in texts), 120, lambda: f"{texts} not in\n{self.text}")


@pytest.fixture
def tmux(tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(width, **env):
            terminal = Tmux(tmp_path, width, **env)
            stack.callback(terminal, "kill-server")
            until(lambda: "#" in terminal.text or "$" in terminal.text)
            return terminal

        yield begin


@pytest.mark.slow
@pytest.mark.night  # needs tmux
@pytest.mark.parametrize("width", [60, 200])
def test_a_person_at_run(tmux, config, width):
    """Every key, and in the end a shell as it was."""
    terminal = tmux(width)
    terminal.run("run", "--config", config(broken=BROKEN, lab=LAB))
    terminal.see("1 of 2 connected", "> broken", "lab: connected", "q quit")
    assert all(len(line) <= width for line in terminal.text.splitlines())
    terminal.type("r")
    terminal.see("reconnect: broken: the server is failed")
    terminal.type("e")
    terminal.see("stderr of broken", "no licence")
    terminal.type("Down", "t")
    terminal.see("tools of lab", "mcp_lab_echo")
    terminal.type("Escape", "x")
    terminal.see("stop lab: done", "0 of 2 connected", "lab: stopped")
    terminal.type("s")
    terminal.see("start lab: done", "1 of 2 connected", "incarnation 2")
    terminal.type("/", "failed", "Enter")
    terminal.see("filter: failed", "> broken")
    assert "lab  " not in "".join(terminal.text.splitlines()[2:4])
    terminal("resize-window", "-x", 90, "-y", 12)
    until(lambda: "q quit" in terminal.text.splitlines()[11])
    terminal.type("q")
    terminal.see("exit=0")
    assert "connected" not in terminal.text
    terminal.type("stty -a", "Enter")
    terminal.see(" icanon", " echo ")


@pytest.mark.slow
@pytest.mark.night  # needs tmux
def test_the_broken_one_of_two_hundred(tmux, config):
    """It was configured last and stands first, and the first line counts; by name it is far below."""
    terminal = tmux(100)
    idle = {f"idle-{number:03}": {**LAB, "lazy": True} for number in range(199)}
    terminal.run("run", "--config", config(**idle, broken=BROKEN))
    terminal.see("0 of 200 connected, 1 failed, 199 idle", "> broken", "no licence", "o order")
    terminal.type("o", "o", "Home")
    terminal.see("by file", "> idle-000")
    assert "  broken" not in terminal.text.split("events")[0]
    terminal.type("q")
    terminal.see("exit=0")


@pytest.mark.slow
@pytest.mark.night  # needs tmux
def test_a_person_stops_it_for_a_while(tmux, config):
    """Ctrl-Z gives the shell its terminal, `fg` brings the screen back."""
    terminal = tmux(80)
    terminal.run("run", "--config", config(lab=LAB))
    terminal.see("1 of 1 connected")
    terminal.type("C-z")
    terminal.see("Stopped")
    assert "1 of 1 connected" not in terminal.text
    terminal.type("fg", "Enter")
    terminal.see("1 of 1 connected", "q quit")
    terminal.type("C-c")
    until(lambda: "q quit" not in terminal.text)


@pytest.mark.slow
@pytest.mark.night  # needs tmux
def test_a_person_at_top(tmux, config):
    """The same screen of a host elsewhere; its end is told. Without colours if that is wished."""
    with running(config(lab=LAB)) as ran:
        terminal = tmux(100, NO_COLOR="1")
        terminal.run("top")
        terminal.see(f"host {ran.pid}", "1 of 1 connected", "q quit")
        assert not re.search(r"\x1b\[[\d;]*3[0-7]m", terminal("capture-pane", "-p", "-e"))
        terminal.type("r")
        terminal.see("reconnect lab: done", "incarnation 2")
        terminal.type("t")
        terminal.see("mcp_lab_echo")
        terminal.type("e")
        terminal.see("stderr of lab")
        ran.terminate()
        ran.communicate(timeout=60)
        terminal.see(f"host {ran.pid} ", "exit=3")


def test_keys_end_it(tty, screen, config):
    """In this process, on a terminal whose modes are what they were."""
    before = termios.tcgetattr(screen.slave)
    screen.when("lab: connected", lambda: screen.type("\x1b[Bq"))
    assert tty("run", "--config", config(lab=LAB)).code == 0
    assert "\x1b[?1049h" in screen.text
    assert screen.text.endswith("\x1b[?1049l")
    assert termios.tcgetattr(screen.slave) == before


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(screen, config, signum):
    before = termios.tcgetattr(screen.slave)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), screen.slave)
    with process("run", "--config", config(lab=LAB), **streams) as ran:
        screen.wait_for("lab: connected")
        children = psutil.Process(ran.pid).children(recursive=True)
        ran.send_signal(signum)
        assert ran.wait(60) == 0
    screen.settle()
    assert screen.text.endswith("\x1b[?1049l")
    assert termios.tcgetattr(screen.slave) == before
    assert not [child for child in children if child.is_running()]


@pytest.mark.slow
def test_a_log_that_goes_elsewhere_still_does(screen, config):
    """`run --verbose 2> file`: the screen takes only what would be printed over it."""
    streams = dict.fromkeys(("stdin", "stdout"), screen.slave)
    with process("run", "--verbose", "--config", config(lab=LAB), env={"TERM": "xterm"}, **streams) as ran:
        screen.wait_for("lab: connected")
        ran.terminate()
        _, err = ran.communicate(timeout=60)
    assert "lab: connecting -> connected" in err
    assert "->" not in screen.text


@pytest.mark.slow
def test_no_screen_where_nobody_types(screen, config):
    """Lines, as into a pipe: input is not from the terminal, or that can redraw nothing."""
    for kind, stdin in (("xterm", subprocess.DEVNULL), ("dumb", screen.slave), ("", screen.slave)):
        env = {"TERM": kind}
        with process("run", "--config", config(lab=LAB), stdin=stdin, stdout=screen.slave, env=env) as ran:
            screen.wait_for("lab: connected")
            ran.terminate()
            ran.communicate(timeout=60)
        assert ran.returncode == 0
        assert "\x1b" not in screen.text
        screen.text = ""


@pytest.mark.slow
def test_a_terminal_that_has_gone(config):
    """Nobody can see or quit any more: the servers end."""
    master, slave = os.openpty()
    env = {"TERM": "xterm"}
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with process("run", "--config", config(lab=LAB), stdin=slave, stdout=slave, env=env, **ignored) as ran:
        os.close(slave)
        seen = b""
        while b"lab: connected" not in seen:
            seen += os.read(master, 4096)
        os.close(master)
        assert (ran.wait(60), ran.stderr.read()) == (141, "")
