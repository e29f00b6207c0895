"""K5, K9, L17 at a connect: what a server really gets, what a command may do, and what nobody is shown."""

import json
import logging
import os
import sys
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import ServerDown, StartFailed
from mcp_nursery.supervisor import MemoryStore, RestartPolicy, ServerSpec, load_config, open_supervisor
from mcp_nursery.supervisor.config import value_sources
from mcp_nursery.supervisor.config.deferred import Resolver, defer
from mcp_nursery.supervisor.config.discovery import EntryOrigin
from mcp_nursery.supervisor.config.value_sources import CommandFailed, output_of
from mcp_nursery.supervisor.transports import StdioTransport

from ...lab.timely import Late, in_time, timely

SECRET = "hunter2-hunter2"
HOME = Path.home()
SERVER = """
import json, os, sys
facts = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}
open(sys.argv[1], "a").write(json.dumps(facts) + "\\n")
sys.stderr.write("I was told " + os.environ.get("TOKEN", "nothing") + ", here " + os.getcwd() + "\\n")
sys.exit(1)
"""


@pytest.fixture
def telling(tmp_path):
    """An entry whose server writes down what it was given, and where."""
    return {"command": sys.executable, "args": ["-I", "-S", "-c", SERVER, str(tmp_path / "told")]}, tmp_path / "told"


def told(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def configured(tmp_path, entry):
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"s": entry}}))
    return load_config(file)


async def failed_once(config, **options):
    """Runs the only server to its first failure; what it was shown to be."""
    with trio.fail_after(30):
        async with open_supervisor(
            config, state=MemoryStore(), policy=RestartPolicy(delays=()), **options
        ) as supervisor:
            async with supervisor.events() as events:
                while supervisor.status()[0].state is ServerState.CONNECTING:
                    await events.receive()
            return supervisor.status()[0]


async def test_what_a_server_gets(tmp_path, telling, monkeypatch):
    """K5, K6, K9: in command, args, env and cwd; the environment is that of the few, and the block."""
    entry, file = telling
    monkeypatch.setenv("PLANTED", SECRET)
    monkeypatch.setenv("OWN", "not this")
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setenv("WORD", "${OWN} !date")
    env = {"OWN": "own", "TOKEN": "${PLANTED}", "SAID": "!printf 'a\\nb\\n'; echo $PLANTED >/dev/null", "W": "${WORD}"}
    args = [*entry["args"], "${OWN} ${env:OWN} ${GONE:-default} ${WORD}", "${userHome}", "${workspaceFolder}"]
    config = configured(
        tmp_path, {"command": "${PY}", "args": args, "env": {**env, "PY": sys.executable}, "cwd": "${HERE}"}
    )
    await failed_once(config)
    (facts,) = told(file)
    assert facts["argv"][1:] == ["own not this default ${OWN} !date", str(HOME), os.getcwd()]
    assert facts["cwd"] == str(tmp_path)
    assert {name: facts["env"][name] for name in env} == {
        "OWN": "own",
        "TOKEN": SECRET,
        "SAID": "a\nb",
        "W": "${OWN} !date",
    }
    assert "PLANTED" not in facts["env"]
    assert "HERE" not in facts["env"]


async def test_each_connect_resolves_anew(tmp_path, telling, monkeypatch):
    """L17, K9: what a variable and a command stand for is what they stand for now."""
    entry, file = telling
    (tmp_path / "secret").write_text("first\n")
    monkeypatch.setenv("PLANTED", "1")
    env = {"TOKEN": f"!cat {tmp_path}/secret", "NUMBER": "${PLANTED}"}
    config = configured(tmp_path, {**entry, "env": env, "restartDelays": [0.05]})
    with trio.fail_after(30):
        async with open_supervisor(config, state=MemoryStore()) as supervisor, supervisor.events() as events:
            while not file.exists() or not told(file):
                await events.receive()
            (tmp_path / "secret").write_text("second\n")
            monkeypatch.setenv("PLANTED", "2")
            while supervisor.status()[0].state is not ServerState.FAILED:
                await events.receive()
            before = len(told(file))
            with pytest.raises(ServerDown):
                await supervisor.reconnect("s")
            while supervisor.status()[0].state is not ServerState.FAILED:
                await events.receive()
    first, *_, last = told(file)
    assert before < len(told(file))
    assert (first["env"]["TOKEN"], first["env"]["NUMBER"]) == ("first", "1")
    assert (last["env"]["TOKEN"], last["env"]["NUMBER"]) == ("second", "2")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"env": {"A": "${GONE}"}}, "field 'env.A' is unusable: variable ${GONE} is not set"),
        ({"env": {"API_KEY": "${GONE_KEY}"}}, "field 'env.API_KEY' is unusable: variable ${GONE_KEY} is not set"),
        ({"env": {"API_KEY": "!exit 3"}}, "field 'env.API_KEY' is unusable: the command ended with exit code 3"),
        ({"args": ["x", "${env:GONE}"]}, "field 'args' is unusable: variable ${env:GONE} is not set"),
        ({"cwd": "${GONE}/x"}, "field 'cwd' is unusable: variable ${GONE} is not set"),
        ({"command": "${file:x}"}, "field 'command' is unusable: ${file:x} is not a variable known here"),
        ({"env": {"A": "!echo hunter2; exit 3"}}, "field 'env.A' is unusable: the command ended with exit code 3"),
        ({"env": {"A": "!printf '\\377'"}}, "field 'env.A' is unusable: the command's output is not text"),
        ({"env": {"A": "!printf 'a\\0b'"}}, "field 'env.A' is unusable: the command's output is not text"),
    ],
)
async def test_what_cannot_be_resolved(tmp_path, telling, change, says):
    """K5, K9: the error of that server, one line: file, server, field and variable. Only a command is tried again."""
    entry, file = telling
    config = configured(tmp_path, {**entry, **change})
    status = await failed_once(config)
    assert status.error == f"{tmp_path}/servers.json: server 's': {says}"
    assert not file.exists()
    async with open_supervisor(
        config, state=MemoryStore(), policy=RestartPolicy(delays=(1000,)), gate=20
    ) as supervisor:
        state = supervisor.status()[0].state
    assert state is (ServerState.WAITING if "command" in says.partition(": ")[2] else ServerState.FAILED)


async def test_planted_secrets_are_shown_nowhere(tmp_path, telling, monkeypatch, caplog):
    """L17: neither in what is kept of the configuration nor in status, events and log; not even if the server tells."""
    entry, file = telling
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PLANTED", SECRET)
    seen = []
    for change in (
        {"env": {"TOKEN": "${PLANTED}"}},
        {"env": {"TOKEN": f"!echo {SECRET[:5]}{SECRET[5:]}"}},
        {"command": "${PLANTED}"},
        {"command": "/${PLANTED}/x"},
        {"cwd": "/${PLANTED}"},
        {"env": {"TOKEN": "${PLANTED}"}, "args": [*entry["args"], "${TOKEN}"]},
    ):
        config = configured(tmp_path, {**entry, **change})
        async with open_supervisor(
            config, state=MemoryStore(), policy=RestartPolicy(delays=(0.01,)), gate=0
        ) as supervisor:
            async with supervisor.events() as events:
                while supervisor.status()[0].state is not ServerState.FAILED:
                    seen.append(repr(await events.receive()))
            seen += [repr(supervisor.status()), repr(supervisor.status()[0].error)]
        if "PLANTED" in json.dumps(change):
            seen.append(repr(config))
    assert any("[REDACTED], here" in text for text in seen)
    assert any("'/${PLANTED}/x' does not exist" in text for text in seen)
    assert any("cwd '/${PLANTED}' does not exist" in text for text in seen)
    assert SECRET not in "".join(seen) + caplog.text
    assert any(facts["env"]["TOKEN"] == SECRET for facts in told(file))


def header_transport(headers, **env):
    from attrs import field, frozen

    @frozen
    class Remote:
        url: str
        headers: dict = field(repr=False)
        kind = "http"

    origin = EntryOrigin("f.json")
    return defer(Remote("https://x/${A:-}", headers), env=env, server="s", origin=origin)


async def test_headers_see_their_servers_block_alone(monkeypatch):
    """K5: the process's secret is in no header unless the block names it; elsewhere it may be."""
    monkeypatch.setenv("PLANTED", SECRET)
    monkeypatch.setenv("A", "path")
    headers = {"a": "Bearer${PLANTED}${env:PLANTED}", "b": "${NAMED}", "c": "${LITERAL}", "d": "!echo $PLANTED"}
    transport = header_transport(headers, NAMED="${PLANTED}", LITERAL="x")
    found = await Resolver(transport).transport()
    assert found.headers == {"a": "Bearer", "b": SECRET, "c": "x", "d": SECRET}
    assert found.url == "https://x/path"
    assert SECRET not in repr(transport)


@pytest.mark.parametrize(
    ("kind", "host"), [("http", "ftp://x"), ("sse", "x"), ("ws", "https://x"), ("http", "http:///nowhere")]
)
async def test_an_address_that_turns_out_to_be_none(tmp_path, monkeypatch, kind, host):
    """K5: known only once it is resolved, and told in one line without what it was resolved to."""
    monkeypatch.setenv("PLACE", host)
    status = await failed_once(configured(tmp_path, {"type": kind, "url": "${PLACE}"}))
    scheme = "ws:// or wss://" if kind == "ws" else "http:// or https://"
    assert (status.state, status.attempt) == (ServerState.FAILED, 1)
    assert status.error.startswith(f"field 'url': must be a URL that begins with {scheme}")
    assert host not in status.error.replace(scheme, "")


async def test_a_working_directory_that_is_gone(tmp_path, monkeypatch):
    """K5: is the concern of those who name it."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = await Resolver(header_transport({"a": "${V}"}, V="x")).transport()
    assert found.headers == {"a": "x"}


UNSET = "where ${UNSET} has no value: "
UNSET += '"env": {"UNSET": "${env:UNSET}"} passes it on to ${UNSET}'


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("Bearer ${UNSET}", f", {UNSET}"),
        ("${env:UNSET} x", f", {UNSET}".replace("where ${", "where ${env:")),
        ("${A:-} ${B}", ', where ${B} has no value: "env": {"B": "${env:B}"} passes it on to ${B}'),
        ("${BLANK}", ""),
        ("!printf 'x '", ""),
    ],
)
async def test_a_header_that_a_variable_leaves_with_a_blank_at_an_end(text, end):
    """K5, L12: refused with its name and that of the variable, and not tried again."""
    with pytest.raises(StartFailed) as caught:
        await Resolver(header_transport({"x": text}, BLANK=" x")).transport()
    problem = f"field 'headers.x' is unusable: the header x begins or ends with a blank{end}"
    assert str(caught.value) == f"f.json: server 's': {problem}"
    assert not caught.value.retriable


@pytest.mark.parametrize("value", ["a\nb", "a\r\nX-Evil: 1", "a\0b", "a\x1b"])
async def test_a_header_is_one_line(value):
    """K5, L17: what a library would refuse in words that hold it is refused here, without."""
    with pytest.raises(StartFailed) as caught:
        await Resolver(header_transport({"x": "${V}"}, V=value)).transport()
    assert str(caught.value) == "f.json: server 's': field 'headers.x' is unusable: the value is not one line of text"
    assert not caught.value.retriable


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("printf x", "x"),
        ("echo x", "x"),
        ("printf 'x\\n\\n'", "x\n"),
        ("printf 'x\\r\\n'", "x"),
        ("true", ""),
        ("cat", ""),
    ],
)
async def test_outputs(command, value):
    """K9: without its final newline. It has no input."""
    assert await output_of(command, "/") == value


@pytest.mark.slow
@timely
async def test_a_command_that_hangs(tmp_path, monkeypatch):
    """K9: ended with all it started, also when its own shell has gone before."""
    monkeypatch.setattr(value_sources, "COMMAND_SECONDS", 0.5)
    written = tmp_path / "pid"
    for end in ("wait", "exit 0"):
        written.unlink(missing_ok=True)
        began = time.monotonic()
        with pytest.raises(CommandFailed, match=r"took more than 0\.5 s"):
            await output_of(f"sleep 1000 & echo $! > {tmp_path}/pid; {end}", "/")
        in_time(time.monotonic() - began, 5)
        if not written.exists() or not (pid := written.read_text()):
            raise Late("its time was over before it came to start anything")
        with trio.fail_after(20):
            while _runs(int(pid)):  # noqa: ASYNC110 - another process sets no event of ours
                await trio.sleep(0.01)


async def test_a_command_that_is_cancelled(tmp_path):
    """K9, L9: a stop waits for no command."""
    with trio.move_on_after(30) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(output_of, f"echo $$ > {tmp_path}/pid; exec sleep 1000", "/")
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    assert not _runs(int((tmp_path / "pid").read_text()))


async def test_a_command_that_never_stops_talking():
    """K9: no more is kept than anybody could use."""
    for command in ("yes", "head -c 65537 /dev/zero | tr '\\0' a"):
        with pytest.raises(CommandFailed, match="took more than 10 s, or wrote more than 64 KiB"):
            await output_of(command, "/")
    assert len(await output_of("head -c 65536 /dev/zero | tr '\\0' a", "/")) == 65536


async def test_a_command_that_cannot_be_started():
    """K9."""
    with pytest.raises(CommandFailed, match="cannot be started: No such file"):
        await output_of("true", "/nonexistent")
    with pytest.raises(CommandFailed, match="cannot be started: not a command"):
        await output_of("a\0b", "/")


def test_specs_compare_by_what_is_written():
    """L18: the same text is the same server, whatever it stands for."""
    one, same = (defer(StdioTransport("${A}"), env={}, server="s", origin=EntryOrigin(file)) for file in ("a", "b"))
    other = defer(StdioTransport("${B}"), env={}, server="s", origin=EntryOrigin("a"))
    assert ServerSpec("s", one) == ServerSpec("s", same) != ServerSpec("s", other)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
