"""K7: a file whose text becomes part of a project's entry is agreed to with the entry."""

import json
import os
import sys

import pytest
import trio

from mcp_nursery.actors.callbacks import Callbacks
from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import AuthorizationFailed, ServerDown
from mcp_nursery.actors.nurseries import run_alongside
from mcp_nursery.supervisor import (
    MemoryStore,
    RestartPolicy,
    discover_config,
    load_config,
    open_supervisor,
)
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.login.vault import ServerVault
from mcp_nursery.supervisor.security.redaction import ServerSecrets
from mcp_nursery.supervisor.servers.call_counter import CallCounter
from mcp_nursery.supervisor.servers.settings import KeeperSettings, SupervisorSettings
from mcp_nursery.supervisor.storage.worker import StoreWorker

from ...lab import PROGRAMS

S = ServerState
LAB = {"command": sys.executable, "args": [str(PROGRAMS / "lab_server.py")]}
REMOTE = {"url": "https://${X}/", "headers": {"A": "${TOKEN}"}}
SECRET = "hunter2-hunter2"


@pytest.fixture
def project(tmp_path):
    """Writes the entry of a project and its file of variables."""

    def write(entry=LAB, variables=f"TOKEN={SECRET}\n", env_file=".env"):
        (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"lab": {**entry, "envFile": env_file}}}))
        if variables is not None:
            (tmp_path / ".env").write_text(variables)
        return tmp_path

    return write


def request(folder):
    (spec,) = load_project(folder / ".mcp.json").servers
    return spec.trust_request


def found(folder):
    return request(folder).as_found()


@pytest.mark.parametrize("entry", [LAB, {"image": "mcp/time"}, REMOTE])
def test_another_content_is_another_request(project, entry):
    """K7: whatever the transport, and also if the file was not there, or is none that can be read."""
    folder = project(entry)
    first = found(folder)
    assert found(folder) == first
    assert first != request(folder)
    (file,) = first.files
    assert (file.path, file.variables, file.problem) == (str(folder / ".env"), ("TOKEN",), None)
    assert SECRET not in repr(first)
    digests = {first.digest}
    for content in (b"TOKEN=other\n", b"TOKEN=other\nPYTHONPATH=lib\n", b"", b"\xff", b"no variable"):
        (folder / ".env").write_bytes(content)
        digests.add(found(folder).digest)
    (folder / ".env").unlink()
    digests.add(found(folder).digest)
    assert len(digests) == 5  # those that cannot be used are alike: none of them sets anything


@pytest.mark.parametrize(
    ("env_file", "path", "problem"),
    [
        ("none", "{}/none", "cannot be read: No such file or directory"),
        ("pipe", "{}/pipe", "not a regular file of at most 1 MiB"),
        ("${NOT_SET}/x", "${NOT_SET}/x", "a variable in its name has no value"),
        ("bad.env", "{}/bad.env", "line 2 is not NAME=VALUE"),
    ],
)
def test_what_cannot_be_read_is_said(project, env_file, path, problem):
    """K7, L17: without a word of what stands in it."""
    folder = project(env_file=env_file)
    os.mkfifo(folder / "pipe")
    (folder / "bad.env").write_text(f"A=1\n{SECRET}\n")
    (file,) = found(folder).files
    assert (file.path, file.variables, file.problem) == (path.replace("{}", str(folder)), (), problem)


def test_an_entry_that_reads_no_file_is_what_it_was(project):
    """K7: what was agreed to earlier holds on."""
    folder = project()
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"lab": LAB}}))
    assert found(folder) is not None
    assert (found(folder), found(folder).files) == (request(folder), ())


async def test_it_is_looked_at_before_each_start(project):
    """K7: the file of a server that runs gains a variable; the next start asks, and without an answer there is none."""
    folder = project()
    store, asked = MemoryStore(), []

    async def trust(request):
        await trio.lowlevel.checkpoint()
        asked.append(request.files[0].variables)
        return len(asked) == 1

    async with open_supervisor(discover_config(folder), trust=trust, state=store, gate=60) as supervisor:
        assert supervisor.status()[0].state is S.CONNECTED
        project(variables=f"TOKEN={SECRET}\nPYTHONPATH=lib\n")
        with pytest.raises(ServerDown):
            await supervisor.reconnect("lab")
        assert (supervisor.status()[0].state, supervisor.status()[0].error) == (S.BLOCKED, "not trusted: refused")
        assert asked == [("TOKEN",), ("PYTHONPATH", "TOKEN")]
        project()
        await supervisor.reconnect("lab")  # as it was agreed to
    async with open_supervisor(discover_config(folder), state=store, gate=60) as supervisor:
        assert supervisor.status()[0].state is S.CONNECTED
    project(variables="PYTHONPATH=lib\n")
    async with open_supervisor(discover_config(folder), state=store, gate=60) as supervisor:
        assert "reads a file for env; review it with `mcp-nursery trust" in supervisor.status()[0].error
    assert len(asked) == 2


async def test_what_changes_while_a_person_thinks_is_not_used(project):
    """K7: what connects is what was shown; what came instead is asked about at the next attempt."""
    folder = project({**LAB, "restartDelays": [0]})
    asked = []

    async def trust(request):
        asked.append(request.files[0].variables)
        project({**LAB, "restartDelays": [0]}, variables="PYTHONPATH=lib\n")
        await trio.lowlevel.checkpoint()
        return len(asked) == 1

    async with open_supervisor(discover_config(folder), trust=trust, state=MemoryStore(), gate=0) as supervisor:
        with pytest.raises(ServerDown):
            await supervisor.wait_connected("lab")
        (status,) = supervisor.status()
        assert (status.error, status.state) == ("not trusted: refused", S.BLOCKED)
        assert asked == [("TOKEN",), ("PYTHONPATH",)]


async def test_a_file_of_the_user_may_change(project, monkeypatch):
    """K7: nobody is asked about a file that the user named."""
    folder = project()
    monkeypatch.chdir(folder)
    async with open_supervisor(load_config(folder / ".mcp.json"), state=MemoryStore(), gate=60) as supervisor:
        project(variables="OTHER=1\n")
        await supervisor.reconnect("lab")
        assert supervisor.status()[0].state is S.CONNECTED


async def test_nothing_cached_is_offered_after_a_change(project):
    """K7, G5: what a server declared is not shown before its user has agreed to how it would run now."""
    folder = project()
    store = MemoryStore()

    async def trust(request):
        await trio.lowlevel.checkpoint()
        return True

    async with open_supervisor(discover_config(folder), trust=trust, state=store, gate=60) as supervisor:
        assert supervisor.tools
    for variables, offered in ((f"TOKEN={SECRET}\n", True), ("PYTHONPATH=lib\n", False)):
        project(variables=variables)
        async with open_supervisor(discover_config(folder), state=store, wait_for="uncached", gate=60) as supervisor:
            assert bool(supervisor.tools) is offered


async def never(_request):
    raise AssertionError


async def test_no_login_begins_after_a_change(project):
    """K7: a login resolves the entry too, and may begin long after the start was permitted."""
    folder = project({"url": "${URL}", "auth": "oauth"}, variables="URL=http://127.0.0.1:9/mine\n")
    (spec,) = load_project(folder / ".mcp.json").servers
    worker = StoreWorker(MemoryStore())
    callbacks = Callbacks(authorize=never)
    settings = SupervisorSettings(RestartPolicy(), "{tool}", (), 5, {}, worker, callbacks=callbacks)
    vault = ServerVault(settings.vault)
    kept = KeeperSettings.of(
        spec, settings, number=0, secrets=ServerSecrets(), counter=CallCounter(print), tokens=vault
    )
    async with run_alongside(worker.run):
        with pytest.raises(
            AuthorizationFailed, match=r"not trusted: it .*uses your tokens, reads a file for env; review it with"
        ):
            await kept.log_in()
