import json
import math
import subprocess
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from mcp_nursery.actors.enums import Protocol
from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.liveness import Liveness
from mcp_nursery.supervisor.config import Config, document, load_config, loader
from mcp_nursery.supervisor.config.deferred import DeferredTransport
from mcp_nursery.supervisor.decisions.restart_policy import RestartPolicy
from mcp_nursery.supervisor.servers.settings import connect_timeout, default_call_timeout
from mcp_nursery.supervisor.spec import Limits, MadeTasks, ServerSpec
from mcp_nursery.supervisor.transports import (
    DockerGatewayTransport,
    DockerTransport,
    HttpTransport,
    SseTransport,
    StdioTransport,
    UnusableTransport,
    WebSocketTransport,
)

SECRET = "hunter2"
ALL_KEYS = [
    *(
        "type",
        "command",
        "args",
        "env",
        "envFile",
        "inheritEnv",
        "image",
        "cwd",
        "url",
        "headers",
        "description",
        "enabled",
        "disabled",
        "restart",
        "restartDelays",
    ),
    *(
        "stableAfterSeconds",
        "lazy",
        "idleSeconds",
        "limits",
        "tasks",
        "connectSeconds",
        "callSeconds",
        "humanSeconds",
        "maxInFlight",
        "mailboxSize",
        "instances",
        "maxInstances",
        "onDisconnect",
        "trustHints",
        "revive",
        "maxResultChars",
        "maxMessageValues",
        "maxKeptBytes",
        "maxDefinitions",
        "protocol",
        "subscribe",
        "roots",
        "extensions",
        "tools",
    ),
]


def write(path: Path, servers: Any) -> str:
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "servers.json"


def load_one(file: Path, entry: Any) -> ServerSpec:
    (spec,) = load_config(write(file, {"s": entry})).servers
    return spec


# Files


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON: Expecting value (line 1, column 1)"),
        (b'{\n  "mcpServers": {},,\n}', "not JSON: Expecting property name enclosed in double quotes (line 2"),
        (b"[,]", "not JSON"),
        (b'{"a": ,}', "not JSON"),
        (b'{"a": 1 /* open', "not JSON: Expecting ',' delimiter (line 1, column 9)"),
        (b'{ // a\n /* b\n */ "a" 1}', "(line 3, column 9)"),
        (b'{"a": "// open', "not JSON: Unterminated string"),
        (b'{\n  "a" 1}', "(line 2, column 7)"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8 (line 1)"),
        (b'{"a":\n"\xe4"}', "not UTF-8 (line 2)"),
        (b"[]", "the top level must be an object, not a list"),
        (b"null", "the top level must be an object, not null"),
        (b'"x"', "the top level must be an object, not text"),
        (b"true", "the top level must be an object, not a boolean"),
        (b"1.5", "the top level must be an object, not a number"),
        (b'{"mcpServers": {"a": {}, "b": {}, "a": {}}}', "the key 'a' appears twice"),
        (b'{"mcpServers": {}, "mcpServers": {}}', "the key 'mcpServers' appears twice"),
        (b'{"mcpServers": {"a": {"command": "x", "env": {"K": "1", "K": "2"}}}}', "the key 'K' appears twice"),
        (b'{"x\\ny": 1, "x\\ny": 2}', r"the key 'x\ny' appears twice"),
        (b'{"mcpServers": {"\\ud800": {}}}', r"the key '\ud800' is not Unicode"),
        (b"{}", "field 'mcpServers': missing"),
        (b'{"mcpservers": {}}', "field 'mcpServers': missing"),
        (b'{"mcpServers": []}', "field 'mcpServers': must be an object"),
        (b'{"mcpServers": null}', "field 'mcpServers': must be an object"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": -Infinity}', "-Infinity is no JSON number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number with too many digits"),
        (b'{"a": ' + b"[" * 100_000 + b"}", "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
)
def test_bad_file(file: Path, content: bytes, problem: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert problem in message
    assert "\n" not in message
    assert caught.value.file == str(file)
    assert caught.value.server is None


def test_unreadable_file(tmp_path: Path) -> None:
    for path, problem in [
        (tmp_path / "absent.json", "No such file"),
        (tmp_path, "Is a directory"),
        ("a\0b", "not a file name"),
        ("a\ud800b", "not a file name"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert f"cannot be read: {problem}" in str(caught.value)
        assert caught.value.file == str(path)


def test_a_file_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: there is a limit; a pipe that somebody named is read to its end."""
    with pytest.raises(ConfigError, match="cannot be read: more than 64 MiB"):
        load_config("/dev/zero")
    monkeypatch.setattr(document, "FILE_LIMIT", 1 << 20)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as stream:
        stream.truncate((1 << 20) + 1)
    with pytest.raises(ConfigError, match="cannot be read: more than 1 MiB"):
        load_config(huge)
    with huge.open("r+b") as stream:
        stream.truncate(1 << 20)
    with pytest.raises(ConfigError, match="not JSON"):
        load_config(huge)
    with subprocess.Popen(["printf", '{"mcpServers": {"a": {"command": "x"}}}'], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert [spec.name for spec in load_config(f"/dev/fd/{writer.stdout.fileno()}").servers] == ["a"]


def test_a_bad_file_shows_none_of_its_text(file: Path) -> None:
    file.write_text('{"mcpServers": {"a": {"command": "x", "args": ["hunter2"]} oops', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert SECRET not in str(caught.value)
    # The parser's error holds the whole text.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_byte_order_mark(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"mcpServers": {}}')
    assert load_config(file) == Config(servers=(), files=(str(file),), warnings=())


# Entries


@pytest.mark.parametrize(
    ("entry", "field", "problem", "kind"),
    [
        ("npx", None, "must be an object, not text", None),
        (None, None, "must be an object, not null", None),
        ([], None, "must be an object, not a list", None),
        ({}, "command", "missing command (stdio), image (docker) or url (http)", None),
        ({"command": None}, "command", "missing command (stdio)", None),
        ({"type": "stdio"}, "command", "missing command (stdio)", "stdio"),
        ({"type": "stdio", "url": "https://x"}, "command", "missing command (stdio)", "stdio"),
        ({"command": 1}, "command", "must be text, not a number", "stdio"),
        ({"command": ["npx"]}, "command", "must be text, not a list", "stdio"),
        ({"command": ""}, "command", "must not be empty", "stdio"),
        ({"command": " "}, "command", "must not be empty", "stdio"),
        ({"command": "a\0b"}, "command", "without NUL", "stdio"),
        ({"command": "a\ud800b"}, "command", "Unicode text", "stdio"),
        ({"command": "x", "args": "--flag"}, "args", "must be a list, not text", "stdio"),
        ({"command": "x", "args": {"a": "b"}}, "args", "must be a list, not an object", "stdio"),
        ({"command": "x", "args": ["ok", 1]}, "args", "item 2 must be text, not a number", "stdio"),
        ({"command": "x", "args": ["a\0b"]}, "args", "item 1 must be Unicode text without NUL", "stdio"),
        ({"command": "x", "env": ["A=b"]}, "env", "must be an object, not a list", "stdio"),
        ({"command": "x", "env": {"PORT": 80}}, "env", "the value of 'PORT' must be text, not a number", "stdio"),
        ({"command": "x", "env": {"A": None}}, "env", "the value of 'A' must be text, not null", "stdio"),
        ({"command": "x", "env": {"A": "a\0b"}}, "env", "the value of 'A' must be Unicode text without NUL", "stdio"),
        ({"command": "x", "env": {"": "b"}}, "env", "a variable's name", "stdio"),
        ({"command": "x", "env": {"A=B": "b"}}, "env", "a variable's name", "stdio"),
        ({"command": "x", "env": {"A\0": "b"}}, "env", "a variable's name", "stdio"),
        ({"command": "x", "cwd": 1}, "cwd", "must be text, not a number", "stdio"),
        ({"command": "x", "cwd": ""}, "cwd", "must not be empty", "stdio"),
        ({"command": "x", "roots": "/work"}, "roots", 'must be a list of folders, or "cwd"', "stdio"),
        ({"command": "x", "roots": 7}, "roots", "must be a list, not a number", "stdio"),
        ({"command": "x", "roots": [""]}, "roots", "a path or a file:// URI", "stdio"),
        ({"command": "x", "roots": ["https://x"]}, "roots", "a path or a file:// URI, not one of https", "stdio"),
        ({"command": "x", "roots": ["${HOME}"]}, "roots", "must not hold variables", "stdio"),
        ({"command": "x", "url": "https://x"}, "url", "both command (stdio) and url (http)", "stdio"),
        ({"command": "x", "url": "https://x", "type": "http"}, "url", "both command", "http"),
        ({"command": "x", "image": "y"}, "image", "both command (stdio) and image (docker)", "stdio"),
        ({"image": "x", "url": "https://x"}, "url", "both image (docker) and url (http)", "docker"),
        ({"type": "docker", "command": "x", "image": "y", "url": "z"}, "image", "both command", "docker"),
        ({"type": "docker"}, "image", "missing image (docker)", "docker"),
        ({"type": "docker", "image": None}, "image", "missing image (docker)", "docker"),
        ({"type": "docker", "command": "x"}, "image", "missing image (docker)", "docker"),
        ({"type": "docker", "url": "https://x"}, "image", "missing image (docker)", "docker"),
        ({"type": "stdio", "image": "x"}, "command", "missing command (stdio)", "stdio"),
        ({"type": "sse", "image": "x"}, "url", "missing url (sse)", "sse"),
        ({"type": "docker-gateway", "image": "x"}, "image", "must not be given: docker's gateway", "docker-gateway"),
        ({"type": "docker-gateway", "command": "x"}, "command", "must not be given", "docker-gateway"),
        ({"type": "docker-gateway", "cwd": "/"}, "cwd", "must not be given", "docker-gateway"),
        ({"image": ""}, "image", "must not be empty", "docker"),
        ({"image": " "}, "image", "must not be empty", "docker"),
        ({"image": "--privileged"}, "image", "must be the name of an image", "docker"),
        ({"image": "a b"}, "image", "must be the name of an image", "docker"),
        ({"image": ["x"]}, "image", "must be text, not a list", "docker"),
        ({"image": "x", "cwd": "/"}, "cwd", "the working directory of its image", "docker"),
        ({"image": "x", "envFile": " "}, "envFile", "must not be empty", "docker"),
        ({"url": "https://x", "envFile": ""}, "envFile", "must not be empty", "http"),
        ({"type": "sdk", "name": "x"}, "type", "given in code only", None),
        ({"type": "in-process"}, "type", "given in code only", None),
        ({"command": "x", "type": "pigeon"}, "type", "the known ones are stdio, local, docker, docker-gateway", None),
        ({"command": "x", "type": 1}, "type", "must be text, not a number", None),
        ({"command": "x", "type": "http"}, "url", "missing url (http)", "http"),
        ({"type": "sse"}, "url", "missing url (sse)", "sse"),
        ({"type": "ws", "url": None}, "url", "missing url (ws)", "ws"),
        ({"url": "wss://x/mcp", "type": "http"}, "url", "must be a URL that begins with http:// or https://", "http"),
        ({"url": "ftp://x"}, "url", "must be a URL that begins with http:// or https://", "http"),
        ({"url": "x.example/mcp"}, "url", "must be a URL that begins with http:// or https://", "http"),
        ({"url": "https://x", "type": "ws"}, "url", "must be a URL that begins with ws:// or wss://", "ws"),
        ({"url": "https://"}, "url", "and names a host", "http"),
        ({"url": "https://x:99999/"}, "url", "begins with http", "http"),
        ({"url": "https://[x/"}, "url", "begins with http", "http"),
        ({"url": "https://x/a b"}, "url", "and names a host", "http"),
        ({"url": ""}, "url", "begins with http", "http"),
        ({"url": "https://x", "headers": ["A: b"]}, "headers", "must be an object, not a list", "http"),
        ({"url": "https://x", "headers": {"A": 1}}, "headers", "the value of 'A' must be text, not a number", "http"),
        ({"url": "https://x", "headers": {"A": None}}, "headers", "the value of 'A' must be text, not null", "http"),
        ({"url": "https://x", "headers": {"A B": "c"}}, "headers", "'A B' is not a valid header name", "http"),
        ({"url": "https://x", "headers": {"A": "b\r\nC: d"}}, "headers", "the header A has a character", "http"),
        ({"url": "wss://x", "headers": {"": "b"}}, "headers", "not a valid header name", "ws"),
        ({"url": 1}, "url", "must be text, not a number", "http"),
        ({"command": "x", "description": 1}, "description", "must be text, not a number", "stdio"),
        ({"command": "x", "enabled": "no"}, "enabled", "must be true or false, not text", "stdio"),
        ({"command": "x", "disabled": 1}, "disabled", "must be true or false, not a number", "stdio"),
        ({"command": "x", "lazy": 0}, "lazy", "must be true, false or cached", "stdio"),
        ({"command": "x", "trustHints": "yes"}, "trustHints", "must be true or false, not text", "stdio"),
        ({"command": "x", "restart": "always"}, "restart", "one of permanent, transient, temporary", "stdio"),
        ({"command": "x", "restart": ["permanent"]}, "restart", "one of permanent, transient, temporary", "stdio"),
        ({"command": "x", "revive": "always"}, "revive", "must be on_call, never, finite seconds > 0", "stdio"),
        ({"command": "x", "revive": 0}, "revive", "must be on_call, never, finite seconds > 0", "stdio"),
        ({"command": "x", "revive": -1}, "revive", "finite seconds", "stdio"),
        ({"command": "x", "revive": True}, "revive", "must be on_call, never", "stdio"),
        ({"command": "x", "revive": ["on_call"]}, "revive", 'or ["on_call", seconds]', "stdio"),
        ({"command": "x", "restartDelays": 5}, "restartDelays", "must be a list, not a number", "stdio"),
        ({"command": "x", "restartDelays": [1, "2"]}, "restartDelays", "must be seconds, not text", "stdio"),
        ({"command": "x", "restartDelays": [1, -2]}, "restartDelays", "finite seconds >= 0", "stdio"),
        ({"command": "x", "restartDelays": [True]}, "restartDelays", "must be seconds, not a boolean", "stdio"),
        ({"command": "x", "stableAfterSeconds": -1}, "stableAfterSeconds", "finite seconds >= 0", "stdio"),
        ({"command": "x", "connectSeconds": "30"}, "connectSeconds", "must be seconds, not text", "stdio"),
        ({"command": "x", "connectSeconds": False}, "connectSeconds", "must be seconds, not a boolean", "stdio"),
        ({"command": "x", "idleSeconds": "90"}, "idleSeconds", "must be seconds, not text", "stdio"),
        ({"command": "x", "idleSeconds": -1}, "idleSeconds", "finite seconds >= 0", "stdio"),
        ({"command": "x", "limits": "1GiB"}, "limits", "must be an object, not text", "stdio"),
        ({"command": "x", "limits": {"cpu": 1}}, "limits.cpu", "the known ones are memory, age", "stdio"),
        ({"command": "x", "limits": {"memory": "1 G"}}, "limits.memory", 'a text like "512MiB" or "1.5GiB"', "stdio"),
        ({"command": "x", "limits": {"memory": 1.5}}, "limits.memory", "must be bytes, as a whole number", "stdio"),
        ({"command": "x", "limits": {"memory": True}}, "limits.memory", "must be bytes, as a whole number", "stdio"),
        ({"command": "x", "limits": {"memory": "0KB"}}, "limits.memory", "must be bytes >= 1", "stdio"),
        ({"command": "x", "limits": {"memory": -1}}, "limits.memory", "must be bytes >= 1", "stdio"),
        ({"command": "x", "limits": {"age": "60"}}, "limits.age", "must be seconds, not text", "stdio"),
        ({"command": "x", "limits": {"age": 59}}, "limits.age", "must be finite seconds >= 60", "stdio"),
        ({"command": "x", "tasks": 5}, "tasks", "must be an object, not a number", "stdio"),
        ({"command": "x", "tasks": {"after": -1}}, "tasks.after", "must be finite seconds >= 0", "stdio"),
        ({"command": "x", "tasks": {"ttl": 0}}, "tasks.ttl", "must be seconds > 0 and <= 2.592e+06", "stdio"),
        ({"url": "https://x", "limits": {"memory": 1}}, "limits.memory", "only of a process that is started", "http"),
        ({"image": "x", "limits": {"memory": 1}}, "limits.memory", "must not be given: the memory of a", "docker"),
        (
            {"command": "docker", "args": ["run", "${X}"], "limits": {"memory": 1}},
            "limits.memory",
            "--memory of docker run limits it",
            "stdio",
        ),
        ({"command": "x", "callSeconds": -0.5}, "callSeconds", "finite seconds >= 0", "stdio"),
        ({"command": "x", "callSeconds": 10**400}, "callSeconds", "finite seconds >= 0", "stdio"),
        ({"command": "x", "maxInFlight": 0}, "maxInFlight", "a whole number >= 1", "stdio"),
        ({"command": "x", "instances": "client"}, "instances", "one of shared, session, single", "stdio"),
        ({"command": "x", "onDisconnect": "go on"}, "onDisconnect", "one of cancel, keep", "stdio"),
        ({"command": "x", "maxInstances": 0}, "maxInstances", "a whole number >= 1", "stdio"),
        ({"command": "x", "extensions": ["a.b/c"]}, "extensions", "must be an object, not a list", "stdio"),
        ({"command": "x", "extensions": {"ui": {}}}, "extensions", "'ui' identifies no extension", "stdio"),
        ({"command": "x", "extensions": {"a.b/c": True}}, "extensions", "settings of a.b/c must be an object", "stdio"),
        ({"command": "x", "maxInFlight": 1.5}, "maxInFlight", "must be a whole number, not a number", "stdio"),
        ({"command": "x", "maxInFlight": True}, "maxInFlight", "must be a whole number, not a boolean", "stdio"),
        ({"command": "x", "maxResultChars": 0}, "maxResultChars", "a whole number >= 1", "stdio"),
        ({"command": "x", "tools": "all"}, "tools", "must be an object or a list, not text", "stdio"),
        ({"command": "x", "tools": {"only": []}}, "tools.only", "unknown key; the known ones are allow, deny", "stdio"),
        ({"command": "x", "tools": {"deny": "x"}}, "tools.deny", "must be a list, not text", "stdio"),
        ({"command": "x", "tools": {"enabled": {"a": 1}}}, "tools.enabled", "must be true or false", "stdio"),
        ({"command": "x", "tools": {"enabled": []}}, "tools.enabled", "must be an object, not a list", "stdio"),
        ({"command": "x", "tools": {"a": {"enabled": 1}}}, "tools.a.enabled", "must be true or false", "stdio"),
        ({"command": "x", "liveness": 1}, "liveness", "must be an object, true or false, not a number", "stdio"),
        (
            {"command": "x", "liveness": {"seconds": 1}},
            "liveness.seconds",
            "unknown key; the known ones are interval",
            "stdio",
        ),
        ({"command": "x", "liveness": {"intervalSeconds": ""}}, "liveness.intervalSeconds", "must be seconds", "stdio"),
        ({"command": "x", "liveness": {"timeoutSeconds": 0}}, "liveness", "finite seconds > 0", "stdio"),
        ({"command": "x", "breaker": "off"}, "breaker", "must be an object, true or false, not text", "stdio"),
        ({"command": "x", "breaker": {"seconds": 1}}, "breaker.seconds", "unknown key; the known ones are", "stdio"),
        ({"command": "x", "breaker": {"openSeconds": 0}}, "breaker", "finite seconds > 0", "stdio"),
        ({"command": "x", "breaker": {"failures": 0}}, "breaker.failures", "a whole number >= 1", "stdio"),
        ({"command": "x", "tools": [1]}, "tools.allow", "item 1 must be text, not a number", "stdio"),
        ({"command": "x", "mailboxSize": -1}, "mailboxSize", "a whole number >= 1", "stdio"),
        ({"command": "x", "mailboxSize": "9"}, "mailboxSize", "must be a whole number, not text", "stdio"),
    ],
)
def test_bad_entry(file: Path, entry: Any, field: str | None, problem: str, kind: str | None) -> None:
    path = write(file, {"before": {"command": "x"}, "bad": entry, "after": {"command": "y"}})
    before, bad, after = load_config(path).servers
    assert isinstance(before.transport, StdioTransport)
    assert isinstance(after.transport, StdioTransport)
    assert isinstance(bad.transport, UnusableTransport)
    error = bad.transport.error
    assert (error.file, error.server, error.field) == (path, "bad", field)
    assert (bad.name, bad.source, bad.enabled, bad.transport.kind) == ("bad", path, True, kind)
    assert load_config(path).servers[1] == bad  # or each reload would call it changed
    assert problem in str(error)
    assert "\n" not in str(error)
    with pytest.raises(ConfigError):
        bad.transport.connector(close_grace=1)


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "https://x/mcp"}, HttpTransport("https://x/mcp")),
        ({"url": "http://x:80", "type": "streamable-http"}, HttpTransport("http://x:80")),
        ({"url": "https://x", "headers": {"A": "b"}}, HttpTransport("https://x", headers={"A": "b"})),
        ({"url": "https://x/sse", "type": "sse"}, SseTransport("https://x/sse")),
        ({"url": "https://x/sse", "type": "sse-ide"}, SseTransport("https://x/sse")),
        ({"url": "wss://x/ws", "type": "websocket"}, WebSocketTransport("wss://x/ws")),
        ({"url": "ws://x/ws"}, WebSocketTransport("ws://x/ws")),
        ({"url": "https://${A}:${B}/", "headers": {"C": "${D}"}}, HttpTransport("https://${A}:${B}/", {"C": "${D}"})),
    ],
)
def test_remote_entry(file: Path, entry: Any, transport: Any) -> None:
    """K2: named or inferred; what is to be expanded stays as written."""
    config = load_config(write(file, {"far": entry}))
    (spec,) = config.servers
    written = spec.transport.transport if isinstance(spec.transport, DeferredTransport) else spec.transport
    assert (spec.name, spec.liveness, written) == ("far", Liveness(), transport)
    assert [warning.partition("'far': ")[2] for warning in config.warnings] == (
        ['field \'headers.C\': ${D} is not in its env, so it is empty; "env": {"D": "${env:D}"} passes it on to ${D}']
        if "${D}" in str(entry)
        else []
    )


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"image": "mcp/time"}, DockerTransport("mcp/time")),
        ({"image": "mcp/time", "type": "docker", "args": ["-v"]}, DockerTransport("mcp/time", ["-v"])),
        (
            {"image": "ghcr.io:443/a/b_c:1.0-x@sha256:0f", "env": {"A": "b"}},
            DockerTransport("ghcr.io:443/a/b_c:1.0-x@sha256:0f", env={"A": "b"}),
        ),
    ],
)
def test_an_entry_of_a_container(file: Path, entry: Any, transport: DockerTransport) -> None:
    """K2: named or inferred; its environment and arguments are its server's."""
    spec = load_one(file, entry)
    assert (spec.transport, spec.transport.kind, spec.liveness) == (transport, "docker", None)


WORDS = {
    "stdio": ["stdio", "local"],
    "docker": ["docker"],
    "docker-gateway": ["docker-gateway"],
    "http": ["http", "streamable-http", "streamable_http", "streamableHttp", "remote"],
    "sse": ["sse", "sse-ide"],
    "ws": ["ws", "ws-ide", "websocket"],
}


@pytest.mark.parametrize(("kind", "word"), [(kind, word) for kind, words in WORDS.items() for word in words])
def test_every_word_for_a_transport(file: Path, kind: str, word: str) -> None:
    """K2: what is missing is named by the transport's own word."""
    key, text = {"stdio": ("command", "x"), "docker": ("image", "x"), "ws": ("url", "ws://x")}.get(
        kind, ("url", "http://x")
    )
    if kind == "docker-gateway":
        assert load_one(file, {"type": word}).transport == DockerGatewayTransport()
        return
    assert load_one(file, {"type": word, key: text}).transport.kind == kind
    error = load_one(file, {"type": word}).transport.error
    assert error.field == key
    assert f"missing {key} ({kind})" in str(error)


def test_editors_know_every_word() -> None:
    """K2."""
    schema = json.loads(Path(loader.__file__).with_name("schema.json").read_text())
    words = {word for words in WORDS.values() for word in words}
    assert set(schema["$defs"]["server"]["properties"]["type"]["enum"]) == {*words, None}


def test_editors_know_an_entry_of_a_type_alone(file: Path) -> None:
    entry = {"type": "docker-gateway"}
    assert load_one(file, entry).transport.kind == "docker-gateway"
    editor = jsonschema_rs.validator_for(json.loads(Path(loader.__file__).with_name("schema.json").read_text()))
    assert editor.is_valid({"mcpServers": {"s": entry}})
    assert not editor.is_valid({"mcpServers": {"s": {"type": "stdio"}}})


def test_editors_know_every_protocol() -> None:
    """P7."""
    schema = json.loads(Path(loader.__file__).with_name("schema.json").read_text())
    said = schema["$defs"]["server"]["properties"]["protocol"]
    assert said["enum"] == [*get_args(Protocol), None]
    versions = {*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS}
    assert set(get_args(Protocol)) == {"auto", "handshake", "handshake-first", *versions}


def test_numbers_beyond_floats(file: Path) -> None:
    file.write_text('{"mcpServers": {"s": {"command": "x", "callSeconds": 1e999}}}', encoding="utf-8")
    (spec,) = load_config(file).servers
    assert spec.transport.error.field == "callSeconds"


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_nameless_entry(file: Path, name: str) -> None:
    bad, good = load_config(write(file, {name: {"command": "x"}, "good": {"command": "x"}})).servers
    assert bad.name == "(nameless)"
    assert (bad.transport.error.file, bad.transport.error.field) == (str(file), "mcpServers")
    assert "field 'mcpServers': entry 1 needs a name" in str(bad.transport.error)
    assert isinstance(good.transport, StdioTransport)


def test_least_entry(file: Path) -> None:
    spec = load_one(file, {"command": "mcp-server-time"})
    assert spec == ServerSpec("s", StdioTransport("mcp-server-time"))
    assert spec.source == str(file)
    assert spec.trust_hints
    assert spec.policy is None


def test_full_entry(file: Path) -> None:
    spec = load_one(
        file,
        {
            "type": "stdio",
            "command": "npx",
            "args": ["-y", "é"],
            "env": {"KEY": SECRET},
            "cwd": "/tmp",
            "description": "lists files",
            "restart": "transient",
            "revive": 60,
            "restartDelays": [0.5, 1],
            "stableAfterSeconds": 60,
            "lazy": True,
            "idleSeconds": 90,
            "limits": {"memory": "1.5GiB", "age": 86400},
            "tasks": {"after": 20, "ttl": 60},
            "connectSeconds": 0,
            "callSeconds": 2.5,
            "humanSeconds": 90,
            "maxInFlight": 4,
            "mailboxSize": 8,
            "instances": "session",
            "maxInstances": 3,
            "onDisconnect": "keep",
            "maxResultChars": 100,
            "maxMessageValues": 1000,
            "maxKeptBytes": 2000,
            "maxDefinitions": 20,
            "protocol": "handshake",
            "subscribe": ["file:///logs/*"],
            "roots": ["/work", "file:///else"],
            "extensions": {"com.example/x": {"deep": [1]}},
            "tools": {"allow": ["read_*"], "deny": ["*_all"], "enabled": {"read_x": False, "read_y": True}},
            "trustHints": False,
        },
    )
    assert spec == ServerSpec(
        "s",
        StdioTransport("npx", args=["-y", "é"], env={"KEY": SECRET}, cwd="/tmp"),
        description="lists files",
        restart="transient",
        revive=60.0,
        policy=RestartPolicy(delays=(0.5, 1.0), stable_after=60.0),
        lazy=True,
        stop_idle_after=90.0,
        connect_timeout=0.0,
        call_timeout=2.5,
        human_timeout=90.0,
        tasks=MadeTasks(after=20.0, ttl=60.0),
        max_in_flight=4,
        mailbox_size=8,
        instances="session",
        max_instances=3,
        on_disconnect="keep",
        max_result_chars=100,
        max_message_values=1000,
        max_kept_bytes=2000,
        max_definitions=20,
        protocol="handshake",
        subscribe=("file:///logs/*",),
        roots=["/work", "file:///else"],
        extensions={"com.example/x": {"deep": [1]}},
        allow=("read_*",),
        deny=("*_all",),
        disabled_tools=("read_x",),
        trust_hints=False,
    )
    assert spec.limits == Limits(memory=3 << 29, age=86400)
    assert SECRET not in repr(spec)


@pytest.mark.parametrize("key", sorted({*ALL_KEYS, "odd"} - {"command"}))
def test_no_value_is_shown(file: Path, key: str) -> None:
    for value in [[SECRET], {"K": SECRET}, [SECRET, 1], {"K": SECRET, "L": 1}, {"K": [SECRET]}, [[SECRET]], SECRET]:
        config = load_config(write(file, {"s": {"command": "x", key: value}}))
        (spec,) = config.servers
        if (value == SECRET and key in ("cwd", "description", "envFile")) or (value == [SECRET] and key == "tools"):
            continue  # What these are for.
        error = spec.transport.error if isinstance(spec.transport, UnusableTransport) else None
        assert SECRET not in f"{config!r}{config.warnings}{error}{error!r}"


@pytest.mark.parametrize("kind", ["stdio", "local", None])
def test_words_for_stdio(file: Path, kind: str | None) -> None:
    assert load_one(file, {"command": "x", "type": kind}).transport == StdioTransport("x")


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [
        ({}, True),
        ({"enabled": True}, True),
        ({"enabled": False}, False),
        ({"disabled": True}, False),
        ({"disabled": False}, True),
        ({"enabled": True, "disabled": True}, False),
        ({"enabled": False, "disabled": False}, False),
    ],
)
def test_enabled(file: Path, settings: dict[str, bool], *, enabled: bool) -> None:
    assert load_one(file, {"command": "x", **settings}).enabled is enabled
    assert load_one(file, {"url": "https://x", **settings}).enabled is enabled


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"restartDelays": []}, RestartPolicy(delays=())),
        ({"restartDelays": [1]}, RestartPolicy(delays=(1,))),
        ({"stableAfterSeconds": 0}, RestartPolicy(stable_after=0)),
    ],
)
def test_policy(file: Path, settings: dict[str, Any], policy: RestartPolicy) -> None:
    assert load_one(file, {"command": "x", **settings}).policy == policy


def test_revived_by_calls(file: Path) -> None:
    """G3, R1."""
    assert load_one(file, {"command": "x", "revive": "on_call"}).revive == "on_call"
    assert load_one(file, {"command": "x", "revive": None}).revive is None
    assert load_one(file, {"command": "x", "revive": "never"}).revive == "never"
    assert load_one(file, {"command": "x", "revive": ["on_call", 300]}).revive == ("on_call", 300)


@pytest.mark.parametrize(
    ("tools", "allow"),
    [({}, ("*",)), ({"allow": None, "enabled": None}, ("*",)), ({"allow": []}, ()), (["a", "b*"], ("a", "b*"))],
)
def test_tools(file: Path, tools: Any, allow: tuple[str, ...]) -> None:
    """T5: nothing said is all; a list, as some hosts write it, is what is allowed."""
    assert load_one(file, {"command": "x", "tools": tools}) == ServerSpec("s", StdioTransport("x"), allow=allow)


def test_null_counts_as_absent(file: Path) -> None:
    entry = dict.fromkeys(("args", "env", "cwd", "url", "enabled", "lazy", "maxInFlight", "restart", "what"))
    path = write(file, {"s": {"command": "x", **entry}})
    assert load_config(path) == Config((ServerSpec("s", StdioTransport("x")),), (path,), ())


def test_unknown_keys_are_warned_of_once_a_file(tmp_path: Path) -> None:
    odd = {"command": "x", "colour": SECRET, "alwaysAllow": []}
    first = write(tmp_path / "1.json", {"a": odd, "b": odd, "c": {"url": "https://x", "headers": {}}})
    second = write(tmp_path / "2.json", {"a": {"colour": 1}})
    assert load_config(first, second).warnings == (
        f"{first}: server 'a': unknown key 'colour' is ignored",
        f"{first}: server 'a': unknown key 'alwaysAllow' is ignored",
        f"{second}: server 'a': unknown key 'colour' is ignored",
    )


def test_what_other_programs_keep_in_the_file_is_left_alone(file: Path) -> None:
    file.write_text('{"theme": {"a": [1]}, "mcpServers": {"a": {"command": "x"}}}', encoding="utf-8")
    assert load_config(file).warnings == ()


def test_no_files() -> None:
    assert load_config() == Config(servers=(), files=(), warnings=())


def test_later_file_wins_a_whole_entry(tmp_path: Path) -> None:
    first = write(tmp_path / "1.json", {"a": {"command": "x", "lazy": True}, "b": {"command": "x"}})
    second = write(tmp_path / "2.json", {"c": {"command": "z"}, "a": {"command": "y"}, "b": 1})
    config = load_config(Path(first), second)
    a, b, c = config.servers
    assert config.files == (first, second)
    assert a == ServerSpec("a", StdioTransport("y"))
    assert isinstance(b.transport, UnusableTransport)
    assert [spec.name for spec in (a, b, c)] == ["a", "b", "c"]
    assert [spec.source for spec in (a, b, c)] == [second, second, second]


# Time limits


@pytest.mark.parametrize(
    ("own", "variable", "seconds"),
    [
        (None, None, 30.0),
        (5.0, None, 5.0),
        (0.0, None, math.inf),
        (5.0, "2500", 2.5),
        (None, "2500", 2.5),
        (5.0, "0", math.inf),
        (5.0, "0.5", 0.0005),
        (5.0, " 100 ", 0.1),
        (5.0, "", 5.0),
    ],
)
def test_connect_timeout(own: float | None, variable: str | None, seconds: float) -> None:
    assert connect_timeout(own, {} if variable is None else {"MCP_TIMEOUT": variable}) == seconds


@pytest.mark.parametrize(
    "text", ["soon", "-1", "30s", "1_000", "1e3", "nan", "inf", "0x10", "٣", "1.", ".5", "9" * 400]
)
def test_bad_timeout_in_the_environment(text: str) -> None:
    with pytest.raises(ConfigError, match="the environment variable MCP_TIMEOUT must be milliseconds") as caught:
        connect_timeout(5.0, {"MCP_TIMEOUT": text})
    assert caught.value.field == "MCP_TIMEOUT"
    with pytest.raises(ConfigError, match="the environment variable MCP_TOOL_TIMEOUT must be milliseconds"):
        default_call_timeout({"MCP_TOOL_TIMEOUT": text})


@pytest.mark.parametrize(("variable", "seconds"), [(None, math.inf), ("1500", 1.5), ("0", math.inf), ("", math.inf)])
def test_call_timeout(variable: str | None, seconds: float) -> None:
    environ = {"MCP_TIMEOUT": "7"} if variable is None else {"MCP_TOOL_TIMEOUT": variable}
    assert default_call_timeout(environ) == seconds


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("comand", "command"),
        ("idleSecond", "idleSeconds"),
        ("arg", "args"),
        ("Env", "env"),
        ("restart_delays", "restartDelays"),
        ("disabledTools", None),
        ("alwaysAllow", None),
    ],
)
def test_a_misspelt_key_of_an_entry(file: Path, key: str, meant: str | None) -> None:
    write(file, {"s": {"command": "x", key: 1}})
    asked = f"; did you mean {meant!r}?" if meant else ""
    assert load_config(file).warnings == (f"{file}: server 's': unknown key {key!r} is ignored{asked}",)


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        ({"breaker": {"failure": 1}}, "failures"),
        ({"liveness": {"interval": 1}}, None),
        ({"tools": {"Deny": []}}, "deny"),
    ],
)
def test_a_misspelt_key_within_an_entry(file: Path, entry: Any, meant: str | None) -> None:
    problem = str(load_one(file, {"command": "x", **entry}).transport.error)
    assert problem.endswith(f"; did you mean {meant!r}?") if meant else "did you mean" not in problem


@pytest.mark.parametrize("key", ["mcpServer", "MCPServers", "mcp_servers_"])
def test_a_misspelt_key_of_a_file(file: Path, key: str) -> None:
    file.write_text(json.dumps({key: {"s": {"command": "x"}}}))
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    near = f"; did you mean that by {key!r}?"
    assert str(caught.value) == f"{file}: field 'mcpServers': missing: an object with one entry per server{near}"


def test_that_keys_are_misspelt_is_said_of_a_hundred(file: Path) -> None:
    """Each costs a little, and somebody else may have written the file."""
    write(file, {"s": {"command": "x", **{f"comand{number}": 1 for number in range(1000)}}})
    assert sum("did you mean" in warning for warning in load_config(file).warnings) == 100
