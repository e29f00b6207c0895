"""`status` while servers settle, and where a host runs that supervises them."""

import shutil
import sys
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.cli.status import settle
from mcp_nursery.supervisor.testing import run_virtual

from ...lab import PROGRAMS
from ...lab.command_line import LAB, MISSING, process
from .test_attached import running
from .test_run import read_until
from .test_statuses import status

QUICK = {"command": sys.executable, "args": ["-IS", str(PROGRAMS / "quick_server.py")]}
HANGING = {"command": "sleep", "args": ["600"]}


def late(timeout):
    """The error of a server that has not come in time."""
    return f"still connecting after {timeout:g} s (--timeout gives it more)"


CONNECTING = {"state": ServerState.CONNECTING, "uptime": None}
FAILED = {"state": ServerState.FAILED, "error": "no licence", "uptime": None}


def told_of(history, within):
    """What `settle` says and gives; `history`: at each second, where each server stands."""
    told = []

    async def look():
        facts = history[min(int(trio.current_time()), len(history) - 1)]
        return [status(0, name=name, **each) for name, each in facts.items()]

    async def tell(new, _):
        told.extend((trio.current_time(), each.name) for each in new)

    async def main():
        statuses = await settle(look, partial(trio.sleep, 1), tell, within)
        return trio.current_time(), {each.name: each.state for each in statuses}

    return told, *run_virtual(main)


def test_each_is_told_once_when_it_settles():
    """One that failed and is being started again has settled: it stands where it failed."""
    history = [
        {"a": CONNECTING, "b": CONNECTING, "c": {}},
        {"a": FAILED, "b": CONNECTING, "c": {}},
        {"a": CONNECTING, "b": CONNECTING, "c": {}},
        {"a": CONNECTING, "b": {}, "c": {}},
    ]
    told, ended, states = told_of(history, 10)
    assert told == [(0, "c"), (1, "a"), (3, "b")]
    assert (ended, states) == (3, {"a": "failed", "b": "connected", "c": "connected"})


@pytest.mark.parametrize("within", [0, 2.5])
def test_nobody_is_waited_for_longer(within):
    told, ended, states = told_of([{"a": {}, "b": CONNECTING}], within)
    assert told == [(0, "a")]
    assert (ended, states) == (within, {"a": "connected", "b": "connecting"})


@pytest.mark.slow
def test_who_does_not_come_is_still_connecting(cli, config):
    file = config(hanging=HANGING, lazy={**LAB, "lazy": True})
    ran = cli("status", "--timeout", "0.2", "--config", file)
    rows = {name: [state, *rest] for name, state, *rest in (line.split("\t") for line in ran.out.splitlines())}
    assert (ran.code, ran.err, [*rows]) == (3, "", ["SERVER", "lazy", "hanging"])
    assert rows["lazy"][0] == "idle"
    assert (rows["hanging"][0], rows["hanging"][-1]) == ("connecting", late(0.2))
    (hanging, _) = cli("status", "--timeout", "0.2", "--config", file, "--json").json["servers"]
    assert (hanging["state"], hanging["error"]) == ("connecting", None)


@pytest.mark.slow
def test_a_command_that_installs_is_shown_with_what_it_wrote(cli, config, tmp_path):
    """P5: by `doctor` as well, and both name the option that gives it more time."""
    npx = tmp_path / "npx"
    npx.write_text("#!/bin/sh\necho added 1 package >&2\nexec sleep 600\n")
    npx.chmod(0o755)
    file = config(lab={"command": str(npx)})
    said = "still installing (npx: added 1 package)"
    row = cli("status", "--timeout", "1", "--config", file).out.splitlines()[1].split("\t")
    assert (row[1], row[-1]) == ("connecting", f"{said} after 1 s (--timeout gives it more)")
    assert row[6].isdecimal()
    (server,) = cli("doctor", "--timeout", "1", "--config", file, "--json").json["servers"]
    assert server["start"]["error"] == f"{said} (--timeout gives it more)"


@pytest.mark.slow
def test_one_is_down(cli, config):
    """For scripts that say so, one of two is enough to fail; a server that is off is not down."""
    file = config(lab=LAB, broken=MISSING, off={**LAB, "enabled": False})
    assert cli("status", "--config", file).code == 0
    down = cli("status", "--config", file, "--strict")
    assert (down.code, len(down.out.splitlines())) == (3, 4)
    whole = config(lab=LAB, off={**LAB, "enabled": False})
    assert cli("status", "--config", whole, "--strict").code == 0


def test_a_terminal_shows_how_many_stand_where(tty, config):
    """While somebody is waited for, and at the end."""
    ran = tty("status", "--timeout", "0.5", "--config", config(hanging=HANGING, lab={**LAB, "lazy": True}))
    assert ran.code == 3
    waiting, _, shown = ran.out.partition("\x1b[?25h")
    counts = "0 of 2 connected, 1 connecting, 1 idle"
    assert counts in waiting
    assert shown.splitlines()[-2:] == [f"hanging: {late(0.5)}", counts]


@pytest.mark.slow
def test_fifty_servers_of_which_three_hang(config):
    """Each of the 47 is a line as soon as it is there; the three are waited for no longer than was said."""
    servers = {f"server-{number}": HANGING if number % 20 == 5 else QUICK for number in range(50)}
    with process("status", "--timeout", "25", "--config", config(**servers)) as ran:
        head, *rows = [line.rstrip("\n").split("\t") for line in ran.stdout]
        assert ran.wait(timeout=60) == 0
    assert head[:2] == ["SERVER", "STATE"]
    assert [row[1] for row in rows] == ["connected"] * 47 + ["connecting"] * 3
    assert {row[0] for row in rows} == set(servers)
    assert [(row[0], row[-1]) for row in rows[47:]] == [(f"server-{number}", late(25)) for number in (5, 25, 45)]


# -- a running host ---------------------------------------------------------------------------------------------------


def pid_of(ran):
    (server,) = ran.json["servers"]
    return server["pid"]


@pytest.mark.slow
def test_the_host_that_supervises_them_is_asked(cli, config, tmp_path, monkeypatch):
    """It names the same servers of the same file, from wherever it was started; else they are started here."""
    file = config(lab=LAB)
    with running(file) as ran:
        known = pid_of(cli("status", "--attach", "--json"))
        monkeypatch.chdir(tmp_path)
        for named in (file, file.name):
            asked = cli("status", "--config", named, "--json")
            assert (asked.code, pid_of(asked)) == (0, known)
            assert asked.err.startswith(f"mcp-nursery: host {ran.pid} supervises them (")
        for args in (("--no-attach",), ("--trust",)):
            started = cli("status", "--config", file, "--json", *args)
            assert (started.err, pid_of(started) == known) == ("", False)
        (tmp_path / "elsewhere").mkdir()
        other = shutil.copy(file, tmp_path / "elsewhere")
        assert pid_of(cli("status", "--config", other, "--json")) != known
        assert len(cli("status", "--config", file, "--config", config("more.json", more=LAB)).out.splitlines()) == 3
        with running(file) as second:
            first, other = sorted((ran.pid, second.pid))
            assert f"host {first} supervises them (" in cli("status", "--config", file).err
            assert f"; so do {other}: see --host" in cli("status", "--config", file).err


@contextmanager
def hanging_host(config):
    with process("run", "--config", config(hanging=HANGING)) as ran:
        try:
            read_until(ran.stdout, "hanging: connecting")
            yield
        finally:
            ran.terminate()
            ran.communicate(timeout=60)


@pytest.mark.slow
def test_a_host_that_is_starting_is_waited_for(cli, config):
    with hanging_host(config):
        ran = cli("status", "--attach", "--timeout", "0.3")
    assert ran.code == 3
    assert ran.out.splitlines()[1].startswith("hanging\tconnecting\t")
    assert ran.out.endswith(f"{late(0.3)}\n")


def test_a_folder_that_others_get_into_is_asked_for_nothing(cli, lab, user_folders):
    folder = user_folders / "state" / "mcp-nursery" / "control"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    assert (cli("status", "--config", lab).code, cli("status", "--attach").code) == (0, 3)
