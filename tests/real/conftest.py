import json
import os
import shlex
import signal
import sys

import pytest

from ..lab import PROGRAMS
from ..lab.processes import Journal, is_alive
from ..lab.remote import KINDS, Remote

FAKE_DOCKER = PROGRAMS / "fake_docker.py"


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


@pytest.fixture(scope="session")
def remotes(tmp_path_factory):
    """Gives the server of a kind, started at its first use."""
    started = {}

    def of_kind(kind):
        if kind not in started:
            started[kind] = Remote(kind, tmp_path_factory.mktemp(kind))
        return started[kind]

    yield of_kind
    for remote in started.values():
        remote.kill()


@pytest.fixture(params=KINDS)
def remote(request, remotes):
    """Each kind of remote server in turn, behaving."""
    remote = remotes(request.param)
    remote.reset()
    return remote


@pytest.fixture
def modern(remotes):
    remote = remotes("modern")
    remote.reset()
    return remote


class Docker:
    """What the client was told, and which containers there are."""

    def __init__(self, state):
        self.state = state

    def calls(self, command):
        if not (self.state / "calls").exists():
            return []
        lines = map(json.loads, (self.state / "calls").read_text().splitlines())
        return [line for line in lines if line["argv"][0] == command]

    def containers(self):
        """Pids by name."""
        return {file.name: int(file.read_text()) for file in self.state.glob("mcp-nursery-*")}

    def make(self, trouble):
        (self.state / trouble).touch()

    def forget(self):
        """What was told, for who begins again; a container that was left behind is ended."""
        (self.state / "calls").unlink(missing_ok=True)
        for name, pid in self.containers().items():
            (self.state / name).unlink()
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """The only `docker` on PATH, and no container of it left behind."""
    state, bin_folder = tmp_path / "state", tmp_path / "bin"
    state.mkdir()
    bin_folder.mkdir()
    program = bin_folder / "docker"
    program.write_text(
        f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", "-S", str(FAKE_DOCKER), str(state)])} "$@"\n'
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    yield (fake := Docker(state))
    fake.forget()
