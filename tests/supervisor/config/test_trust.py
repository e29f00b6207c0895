"""K7 as values and in virtual time: what has to be agreed to, where files are found, and what a refusal means."""

import json
import os
from pathlib import Path

import pytest
import trio
from attrs import evolve

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ConfigError, ServerDown
from mcp_nursery.supervisor import MemoryStore, ServerSpec, discover_config, load_config, open_supervisor
from mcp_nursery.supervisor.config import TrustRequest
from mcp_nursery.supervisor.config.deferred import DeferredTransport
from mcp_nursery.supervisor.config.effects import trust_request
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.storage.sqlite import SqliteStore
from mcp_nursery.supervisor.testing import Life, ScriptedServer, run_virtual
from mcp_nursery.supervisor.transports import StdioTransport

S = ServerState
KNOWN = (
    "type",
    "url",
    "headers",
    "env",
    "command",
    "args",
    "cwd",
    "headersHelper",
    "envFile",
    "inheritEnv",
    "bearer_token_env_var",
    "roots",
)


def ask(entry, *, server="s", file="/p/.mcp.json", remote=False, known=KNOWN):
    return trust_request(server, entry, file=file, remote=remote, known=known)


# -- what has to be agreed to ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "reasons"),
    [
        ({"url": "https://x"}, None),
        ({"url": "https://x", "headers": {"A": "${TOKEN}", "B": "x"}, "env": {"TOKEN": "literal"}}, None),
        ({"url": "https://x", "odd": "${X}", "headersHelperz": "x"}, None),
        ({"url": "https://x/${X}"}, ["reads variables for url"]),
        ({"url": "https://x/${env:X:-y}"}, ["reads variables for url"]),
        ({"url": "https://x", "env": {"T": "${T}"}}, ["reads variables for env"]),
        ({"url": "https://x", "env": {"T": "!cat ~/.ssh/id"}}, ["runs a command for env"]),
        ({"url": "https://x", "headers": {"T": "!cat ~/.ssh/id"}}, ["runs a command for headers"]),
        ({"url": "https://x", "headersHelper": "/bin/evil"}, ["runs a command for headers"]),
        ({"url": "https://x", "envFile": "/etc/passwd"}, ["reads a file for env"]),
        ({"url": "https://x", "roots": ["."]}, ["is told of folders"]),
        ({"url": "https://x", "bearer_token_env_var": "TOKEN"}, ["uses bearer_token_env_var"]),
    ],
)
def test_what_a_remote_entry_of_a_project_must_ask_for(entry, reasons):
    """K7: nothing for a plain one; whatever runs a command, reads a file or the process's environment asks."""
    request = ask(entry, remote=True)
    assert (None if request is None else list(request.reasons)) == reasons


def test_every_command_asks():
    """K7."""
    request = ask({"command": "npx", "args": ["-y", "x"], "env": {"A": "${A}", "B": "!b"}})
    assert request.reasons == ("starts a process", "runs a command for env", "reads variables for env")
    container = ask({"image": "mcp/time", "args": ["--utc"], "env": {"TOKEN": "x"}}, known={*KNOWN, "image"})
    assert container.reasons == ("starts a process",)
    assert ask({"command": "x", "inheritEnv": True}).reasons == ("starts a process", "gets your whole environment")
    assert ask({"command": "x", "inheritEnv": False}).reasons == ("starts a process",)


def test_any_change_is_another_request(tmp_path):
    """K7: consent is for that exact entry of that file under that name; the order of keys says nothing."""
    entry = {"command": "x", "args": ["a", "b"], "env": {"A": "1", "B": "2"}}
    request = ask(entry)
    assert ask({"env": {"B": "2", "A": "1"}, "args": ["a", "b"], "command": "x"}) == request
    others = [
        ask({**entry, "args": ["b", "a"]}),
        ask({**entry, "args": ["a b"]}),
        ask({**entry, "env": {"A": "1", "B": "3"}}),
        ask({**entry, "cwd": "/"}),
        ask({**entry, "odd": 1}),
        ask(entry, server="t"),
        ask(entry, file="/q/.mcp.json"),
    ]
    assert len({request.digest, *(other.digest for other in others)}) == 8
    assert request not in others
    link = tmp_path / "link"
    link.symlink_to("/p")
    assert ask(entry, file=str(link / ".mcp.json")) == request


def test_a_request_shows_no_value():
    """L17."""
    assert "hunter2" not in repr(ask({"command": "x", "env": {"A": "hunter2"}}))


def test_specs_of_a_project(tmp_path):
    """K7: what the entry says of its own hints counts for nothing."""
    file = tmp_path / "f.json"
    file.write_text(json.dumps({"mcpServers": {"s": {"command": "x", "trustHints": True}, "bad": {}}}))
    spec, bad = load_project(file).servers
    assert (spec.trust_request.server, spec.trust_request.file, spec.trust_hints) == ("s", str(file), False)
    assert bad.trust_request is None
    (trusted, _) = load_config(file).servers
    assert (trusted.trust_request, trusted.trust_hints) == (None, True)
    assert trusted != spec


# -- where files are found ------------------------------------------------------------------------------------------


def write(path: Path, **servers):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def test_the_nearest_file_of_the_repository(tmp_path):
    """K7: upwards as far as the root of the repository, and no further."""
    outside = write(tmp_path / ".mcp.json", o={"command": "x"})
    deep = tmp_path / "repo" / "a" / "b"
    deep.mkdir(parents=True)
    assert discover_config(deep).files == ()
    (tmp_path / "repo" / ".git").mkdir()
    assert discover_config(deep).files == ()
    root = write(tmp_path / "repo" / ".mcp.json", r={"command": "x"})
    assert discover_config(deep).files == (root,)
    near = write(tmp_path / "repo" / "a" / ".mcp.json", n={"command": "x"})
    assert discover_config(deep).files == (near,)
    assert discover_config(tmp_path / "repo").files == (root,)
    assert discover_config(tmp_path).files == (outside,)
    assert discover_config(deep, project=False).files == ()


def test_the_users_entries_go_first(tmp_path, user_folders, monkeypatch):
    """K4, K7: the user's own file is trusted, and replaces a project's entry of the same name as a whole."""
    project = write(tmp_path / ".mcp.json", both={"command": "theirs"}, theirs={"command": "x"})
    own = write(user_folders / "config" / "mcp-nursery" / "servers.json", both={"command": "mine"})
    monkeypatch.chdir(tmp_path)
    config = discover_config()
    assert config.files == (project, own)
    found = {spec.name: (spec.transport.command, spec.source, spec.trust_request is None) for spec in config.servers}
    assert found == {"both": ("mine", own, True), "theirs": ("x", project, False)}
    assert discover_config(user=False).files == (project,)


@pytest.mark.parametrize("content", ["{", "[]", "{}", None])
def test_a_file_that_was_found_and_is_broken(tmp_path, user_folders, content):
    """K3: one error, and the rest goes on."""
    own = write(user_folders / "config" / "mcp-nursery" / "servers.json", mine={"command": "x"})
    broken = tmp_path / ".mcp.json"
    broken.mkdir() if content is None else broken.write_text(content)
    config = discover_config(tmp_path)
    assert [spec.name for spec in config.servers] == ["mine"]
    (error,) = config.errors
    assert error.startswith(f"{broken}: ")
    assert config.files == (own,)


@pytest.mark.parametrize("place", [".mcp.json", ".codex/config.toml", "opencode.json"])
def test_what_is_found_and_no_file_at_all(tmp_path, user_folders, place):
    """K3, Q28: what lies in a repository holds nobody up; one error, and the rest goes on."""
    own = write(user_folders / "config" / "mcp-nursery" / "servers.json", mine={"command": "x"})
    strange = tmp_path / place
    strange.parent.mkdir(exist_ok=True)
    for make, problem in [
        (lambda: os.mkfifo(strange), "not a regular file"),
        (lambda: strange.symlink_to("/dev/zero"), "not a regular file"),
        (strange.mkdir, "Is a directory"),
        (lambda: strange.symlink_to(strange), "Too many levels of symbolic links"),
        (lambda: strange.symlink_to(tmp_path / "none"), "No such file or directory"),
    ]:
        make()
        config = discover_config(tmp_path)
        assert config.errors == (f"{strange}: cannot be read: {problem}",)
        assert config.files == (own,)
        strange.rmdir() if strange.is_dir() else strange.unlink()


@pytest.mark.parametrize("content", ['{"mcpServers": 1}', '{"mcpServers": {"a": {}, "a": {}}}', "\ufeff", "\0", "[1]"])
def test_what_is_found_and_holds_nothing_of_use(tmp_path, content):
    """K3."""
    (tmp_path / ".mcp.json").write_text(content, encoding="utf-16" if content == "[1]" else None)
    config = discover_config(tmp_path)
    assert (config.servers, config.files, len(config.errors)) == ((), (), 1)
    assert config.errors[0].startswith(f"{tmp_path}/.mcp.json: ")


def test_workspaces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "p" / ".mcp.json", s={"command": "${workspaceFolder}/x"})
    assert load_project(Path("p") / ".mcp.json").servers[0].transport.workspace == str(tmp_path / "p")
    assert load_config(file).servers[0].transport.workspace is None


def test_only_what_needs_it_is_unresolved(tmp_path):
    """K5, K9: an entry without variables and commands is what it says."""
    file = write(
        tmp_path / "f.json",
        plain={"command": "x", "args": ["$A", "!b"], "env": {"A": "b!"}},
        command={"command": "${A}"},
        args={"command": "x", "args": ["a", "${A}"]},
        cwd={"command": "x", "cwd": "${A}"},
        env={"command": "x", "env": {"A": "${A}"}},
        output={"command": "x", "env": {"A": "!a"}},
    )
    plain, *others = load_config(file).servers
    assert plain.transport == StdioTransport("x", ["$A", "!b"], env={"A": "b!"})
    assert all(isinstance(spec.transport, DeferredTransport) and spec.transport.kind == "stdio" for spec in others)
    assert load_config(file).servers == load_config(file).servers


def test_literals_of_code_stay_literal():
    """K5: a spec given in code only says what it means."""
    spec = ServerSpec("s", StdioTransport("${A}", env={"B": "!c"}))
    assert spec.transport.connector(close_grace=1).command == "${A}"


def test_one_depth_too_many(tmp_path):
    """K3: nothing is too deep for the one and not for the other: it is read and hashed, or its file is refused."""
    file = tmp_path / "f.json"

    def problem(depth):
        file.write_text('{"mcpServers": {"s": {"command": "x", "odd": ' + "[" * depth + "]" * depth + "}}}")
        try:
            (spec,) = load_project(file).servers
        except ConfigError as error:
            return str(error)
        return str(getattr(spec.transport, "error", ""))

    assert problem(97) == ""
    assert {problem(depth) for depth in (98, 500, 600, 900, 950)} == {f"{file}: nested too deeply: 100 levels are read"}


# -- what a refusal means -------------------------------------------------------------------------------------------

REQUEST = TrustRequest("lab", "/p/.mcp.json", ("starts a process",), {"command": "x"}, "digest")


def blocked_spec(server, name="lab", **options):
    return ServerSpec(name, server.transport, trust_request=REQUEST, **options)


def state_of(supervisor, name="lab"):
    return next(status.state for status in supervisor.status() if status.name == name)


def test_untrusted_is_blocked_and_never_started():
    """K7, L12: a diagnostic, no start, no retry; neither a call nor a person's start or reconnect gets around it."""
    server, other = ScriptedServer(), ScriptedServer()

    async def main():
        specs = [blocked_spec(server), ServerSpec("other", other.transport)]
        async with open_supervisor(specs, state=MemoryStore()) as supervisor:
            assert trio.current_time() == 0
            assert state_of(supervisor) is S.BLOCKED
            (status, _) = supervisor.status()
            assert status.error.startswith(
                "not trusted: it starts a process; review it with `mcp-nursery trust /p/.mcp.json`"
            )
            assert (status.retry_in, status.tool_count) == (None, 0)
            with pytest.raises(ServerDown) as caught:
                await supervisor.call_tool("echo", server="lab")
            assert caught.value.state is S.BLOCKED
            with pytest.raises(ServerDown):
                await supervisor.reconnect("lab")
            await supervisor.start_server("lab")
            with pytest.raises(ServerDown):
                await supervisor.wait_connected("lab")
            assert state_of(supervisor) is S.BLOCKED
            await trio.sleep(1000)
            assert await supervisor.list_tools() == supervisor.tools
            assert state_of(supervisor, "other") is S.CONNECTED
        assert (server.starts, len(other.starts)) == ([], 1)

    run_virtual(main)


def test_asked_and_agreed():
    """K7: calls wait while a person thinks, in time that is no connect timeout; the answer is remembered."""
    server = ScriptedServer(Life(dies_after=5), Life())
    store = MemoryStore()
    asked = []

    async def trust(request):
        asked.append(request)
        await trio.sleep(100)
        return True

    async def main():
        async with open_supervisor([blocked_spec(server)], trust=trust, state=store) as supervisor:
            assert (trio.current_time(), state_of(supervisor), server.starts) == (0.25, S.CONNECTING, [])
            await supervisor.call_tool("echo", server="lab")
            assert trio.current_time() == 100
            await trio.sleep(10)
            assert server.starts == [100, 107]
        async with open_supervisor([blocked_spec(server)], state=store) as supervisor:
            assert state_of(supervisor) is S.CONNECTED
        assert asked == [REQUEST]

    run_virtual(main)


def answering(answer, asked):
    """A `trust` that notes whom it is asked about, and gives this answer."""

    async def trust(request):
        await trio.lowlevel.checkpoint()
        asked.append(request.server)
        return answer

    return trust


@pytest.mark.parametrize("answer", [False, None, 1, "yes"])
def test_asked_and_refused(answer):
    """K7: only True is consent. A reconnect, a person's act, asks again."""
    server = ScriptedServer()
    asked = []

    async def main():
        store = MemoryStore()
        async with open_supervisor([blocked_spec(server)], trust=answering(answer, asked), state=store) as supervisor:
            assert state_of(supervisor) is S.BLOCKED
            assert supervisor.status()[0].error == "not trusted: refused"
            await trio.sleep(100)
            assert asked == ["lab"]
            with pytest.raises(ServerDown):
                await supervisor.reconnect("lab")
            assert asked == ["lab", "lab"]
        assert not store.agreed(REQUEST.digest)
        assert server.starts == []

    run_virtual(main)


def test_a_question_that_fails_is_a_refusal(caplog):
    """K7: nobody has agreed, whatever was wrong; the others are untouched."""
    server, other = ScriptedServer(), ScriptedServer()

    async def trust(request):
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async def main():
        specs = [blocked_spec(server), ServerSpec("other", other.transport)]
        async with open_supervisor(specs, trust=trust, state=MemoryStore()) as supervisor:
            assert (state_of(supervisor), state_of(supervisor, "other")) == (S.BLOCKED, S.CONNECTED)

    run_virtual(main)
    assert [record.getMessage() for record in caplog.records] == ["lab: trust= failed"]


def test_a_person_is_asked_one_thing_at_a_time_and_may_be_taken_away():
    """K7, L9: stopping a server withdraws its question."""
    server = ScriptedServer()
    asking = []

    async def trust(request):
        asking.append("begin")
        assert asking.count("begin") - asking.count("end") == 1
        try:
            await trio.sleep(10)
            return True
        finally:
            asking.append("end")

    async def main():
        specs = [blocked_spec(server, name) for name in ("a", "b", "c")]
        async with open_supervisor(specs, trust=trust, state=MemoryStore()) as supervisor:
            await supervisor.stop_server("a")
            assert state_of(supervisor, "a") is S.STOPPED
        assert trio.current_time() < 1
        assert server.starts == []

    run_virtual(main)


def test_what_is_trusted_by_now_starts_at_a_reload():
    """K7, L18: a server that is off stays so, and nobody is asked once more."""
    server, refused, off = ScriptedServer(), ScriptedServer(), ScriptedServer()
    store = MemoryStore()
    asked = []

    def spec(server, name, **settings):
        request = evolve(REQUEST, server=name, digest=name)
        return ServerSpec(name, server.transport, trust_request=request, **settings)

    async def main():
        specs = [spec(server, "lab"), spec(refused, "refused"), spec(off, "off", enabled=False)]
        async with open_supervisor(specs, trust=answering(False, asked), state=store) as supervisor:
            assert sorted(asked) == ["lab", "refused"]
            event = await supervisor.reload()
            assert (event.changed, event.untrusted) == ((), ("lab", "refused"))
            store.agree(specs[0].trust_request)
            event = await supervisor.reload()
            assert (event.changed, event.untouched) == (("lab",), ("refused", "off"))
            assert event.untrusted == ("refused",)
            await supervisor.wait_connected("lab")
            assert (state_of(supervisor, "refused"), state_of(supervisor, "off")) == (S.BLOCKED, S.DISABLED)
            await supervisor.stop_server("lab")
            assert (await supervisor.reload()).changed == ()
            assert state_of(supervisor) is S.STOPPED
        assert sorted(asked) == ["lab", "refused"]

    run_virtual(main)


def test_a_lazy_server_is_asked_about_when_it_is_wanted():
    """K7, G7."""
    asked = []

    async def trust(request):
        await trio.lowlevel.checkpoint()
        asked.append(request)
        return True

    async def main():
        server = ScriptedServer()
        specs = [blocked_spec(server, lazy=True)]
        async with open_supervisor(specs, trust=trust, state=MemoryStore()) as supervisor:
            await trio.sleep(5)
            assert (state_of(supervisor), asked) == (S.IDLE, [])
            await supervisor.list_tools()
            assert (state_of(supervisor), asked) == (S.CONNECTED, [REQUEST])

    run_virtual(main)


async def test_an_unreadable_store_means_no(tmp_path):
    """K7: whatever a person would say, nothing could be remembered; nobody is even asked."""
    file = tmp_path / "state.sqlite3"
    file.write_text("this is no database, and long enough to be looked at")
    file.chmod(0o600)
    server = ScriptedServer()

    async def trust(request):
        raise AssertionError

    async with open_supervisor([blocked_spec(server)], trust=trust, state=file, gate=10) as supervisor:
        assert state_of(supervisor) is S.BLOCKED
        assert f"not trusted: {file}: the state file cannot be used" in supervisor.status()[0].error
    assert server.starts == []


async def test_consent_outlasts_the_run(tmp_path):
    """K7: in the file, and for this entry alone."""
    server = ScriptedServer()
    store = SqliteStore(tmp_path / "state" / "state.sqlite3")
    store.agree(REQUEST)
    store.close()
    async with open_supervisor([blocked_spec(server)], state=store.path, gate=10) as supervisor:
        assert state_of(supervisor) is S.CONNECTED
