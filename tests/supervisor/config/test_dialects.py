"""K1: the files of other hosts, in the shape of their documentation, become the servers that they mean."""

import json
import shutil
import sys
from pathlib import Path

import jsonschema_rs
import pytest
from attrs import fields

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor import OAuth, RestartPolicy, discover_config, load_config
from mcp_nursery.supervisor.config.deferred import DeferredTransport
from mcp_nursery.supervisor.config.dialects import DIALECTS, recognise
from mcp_nursery.supervisor.config.discovery import EntryOrigin
from mcp_nursery.supervisor.config.document import read_document
from mcp_nursery.supervisor.config.effects import _HARMLESS
from mcp_nursery.supervisor.config.entry import ENTRY_KEYS
from mcp_nursery.supervisor.config.loader import read_file
from mcp_nursery.supervisor.spec import CircuitBreaker, Liveness, ServerSpec
from mcp_nursery.supervisor.transports import (
    DockerTransport,
    HttpTransport,
    SseTransport,
    StdioTransport,
    UnusableTransport,
    WebSocketTransport,
)

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = Path(__file__).parents[3] / "supervisor" / "config" / "schema.json"
KEY = {"perplexity-key": "hunter2-hunter2"}


def unresolved(transport, env=None, env_file=None, inputs=None):
    own = getattr(transport, "env", {}) if env is None else env
    return DeferredTransport(transport, own, None, server="", file="", env_file=env_file, inputs=inputs or {})


def spec(name, transport, **options):
    return ServerSpec(name, transport, **options)


EXPECTED = {
    "own/servers.json": [
        spec(
            "time",
            unresolved(
                StdioTransport("mcp-server-time", ["--local-timezone", "UTC"], env={"TZ": "UTC"}, cwd="/tmp"),
                env_file="${userHome}/time.env",
            ),
            description="what time it is",
            restart="transient",
            policy=RestartPolicy(delays=(0.5, 1), stable_after=60),
            revive="on_call",
            lazy=True,
            stop_idle_after=90.5,
            connect_timeout=10,
            call_timeout=2.5,
            max_in_flight=4,
            mailbox_size=8,
            trust_hints=False,
            max_result_chars=5000,
            allow=("get_*",),
            deny=("get_secret",),
            disabled_tools=("get_old",),
            liveness=Liveness(interval=20, timeout=5),
            breaker=CircuitBreaker(failures=5, open_for=60),
        ),
        spec(
            "far",
            SseTransport("https://far.example/sse", {"X-Key": "k"}),
            enabled=False,
            liveness=None,
            breaker=None,
        ),
        spec("contained", DockerTransport("mcp/time:1.0", ["--utc"], {"TZ": "UTC"})),
        spec("live", WebSocketTransport("wss://live.example/mcp"), allow=("a",)),
    ],
    "sidecar/.vscode/settings.json": [
        spec(
            "files",
            StdioTransport("npx", ["-y", "@modelcontextprotocol/server-filesystem", "/srv"], env={"LEVEL": "info"}),
            disabled_tools=("delete_file",),
            max_result_chars=20_000,
        ),
        spec("far", HttpTransport("https://far.example/mcp", {"Authorization": "Bearer hunter2-hunter2"})),
    ],
    "claude/.mcp.json": [
        spec(
            "github",
            unresolved(
                StdioTransport(
                    "npx",
                    ["-y", "@modelcontextprotocol/server-github"],
                    env={"GITHUB_PERSONAL_ACCESS_TOKEN": "${GITHUB_TOKEN:-none}"},
                )
            ),
            call_timeout=120,
        ),
        spec("api", HttpTransport("https://api.example.com/mcp", {"Authorization": "Bearer literal"})),
        spec("events", SseTransport("https://mcp.example.com/sse")),
    ],
    "claude/claude_desktop_config.json": [
        spec(
            "filesystem",
            StdioTransport("npx", ["-y", "@modelcontextprotocol/server-filesystem", "/Users/username/Desktop"]),
        )
    ],
    "vscode/.vscode/mcp.json": [
        spec(
            "perplexity",
            unresolved(
                StdioTransport(
                    "npx", ["-y", "server-perplexity-ask"], env={"PERPLEXITY_API_KEY": "${input:perplexity-key}"}
                ),
                env_file="${workspaceFolder}/.env",
                inputs=KEY,
            ),
        ),
        spec("github", HttpTransport("https://api.githubcopilot.com/mcp/")),
    ],
    "cursor/.cursor/mcp.json": [
        spec(
            "local",
            unresolved(
                StdioTransport("python", ["${workspaceFolder}/tools/server.py"], env={"API_KEY": "${env:API_KEY}"}),
                env_file=".env",
            ),
        ),
        spec("remote", HttpTransport("http://localhost:3000/mcp", {"API_KEY": "value"})),
    ],
    "codebuddy/.codebuddy/mcp.json": [
        spec("files", StdioTransport("npx", ["-y", "server"], env={"ROOT": "/data"})),
        spec("flat", SseTransport("http://example.com/mcp"), description="events"),
    ],
    "codebuddy/listed.json": [
        spec("files", StdioTransport("npx", ["-y", "server"])),
        spec("web", HttpTransport("https://example.com/mcp", {"A": "b"})),
        spec("flat", StdioTransport("flat"), enabled=False),
    ],
    "windsurf/.codeium/windsurf/mcp_config.json": [
        spec(
            "github",
            StdioTransport(
                "npx", ["-y", "@modelcontextprotocol/server-github"], env={"GITHUB_PERSONAL_ACCESS_TOKEN": "t"}
            ),
            deny=("delete_file",),
            enabled=False,
        ),
        spec("remote", HttpTransport("https://your.example/mcp", {"API_KEY": "k"})),
    ],
    "gemini/.gemini/settings.json": [
        spec(
            "pythonTools",
            unresolved(
                StdioTransport(
                    "python",
                    ["-m", "my_mcp_server", "--port", "8080"],
                    env={"DATABASE_URL": "${DB_CONNECTION_STRING}", "API_KEY": "${EXTERNAL_API_KEY}"},
                    cwd="./mcp-servers/python",
                )
            ),
            call_timeout=15,
            allow=("safe_tool", "file_reader"),
            deny=("dangerous_tool",),
        ),
        spec("events", SseTransport("https://my.example/sse")),
        spec("http", HttpTransport("http://localhost:3000/mcp", {"Authorization": "Bearer t"}), call_timeout=0.5),
        spec("typed", HttpTransport("https://my.example/mcp")),
    ],
    "codex/.codex/config.toml": [
        spec(
            "docs",
            unresolved(
                StdioTransport(
                    "docs-server",
                    ["--port", "4000"],
                    env={"LANGUAGE": "${env:LANGUAGE:-}", "API_KEY": "value"},
                    cwd="/path/to/server",
                )
            ),
            connect_timeout=20,
            call_timeout=45.5,
            allow=("search", "summarize"),
            deny=("slow-tool",),
        ),
        spec(
            "figma",
            unresolved(
                HttpTransport(
                    "https://mcp.figma.com/mcp",
                    {
                        "X-Figma-Region": "us-east-1",
                        "Authorization": "Bearer ${FIGMA_OAUTH_TOKEN}",
                        "X-Trace": "${TRACE_ID}",
                    },
                ),
                env={"FIGMA_OAUTH_TOKEN": "${env:FIGMA_OAUTH_TOKEN}", "TRACE_ID": "${env:TRACE_ID:-}"},
            ),
            connect_timeout=1.5,
            enabled=False,
        ),
    ],
    "opencode/opencode.jsonc": [
        spec(
            "local",
            unresolved(StdioTransport("bun", ["x", "my-mcp-command"], env={"MY_ENV_VAR": "${env:MY_ENV_VAR:-}"})),
            connect_timeout=10,
        ),
        spec("remote", HttpTransport("https://my-mcp-server.com", {"Authorization": "Bearer MY_API_KEY"})),
    ],
    "opencode/opencode.json": [
        spec("everything", StdioTransport("npx", ["-y", "server-everything"], cwd="."), enabled=False)
    ],
    "fastmcp/client.json": [
        spec(
            "weather", HttpTransport("https://weather.example/mcp", {"Authorization": "Bearer token"}), call_timeout=30
        ),
        spec("events", SseTransport("https://events.example/sse", auth=OAuth())),
        spec("local", StdioTransport("python", ["./server.py"], env={"LOG_LEVEL": "DEBUG"})),
    ],
}
UNKNOWN = {
    "claude/.mcp.json": {"alwaysLoad": True},
    "vscode/.vscode/mcp.json": {"dev": {"watch": "build/**/*.js"}},
    "gemini/.gemini/settings.json": {"trust": True},
    "codex/.codex/config.toml": {"required": True},
    "opencode/opencode.jsonc": {"oauth": False},
    "fastmcp/client.json": {"icon": "i.png"},
}


def test_every_golden_file_is_expected_and_every_dialect_has_one():
    found = {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.is_file()}
    assert found == set(EXPECTED)
    hosts = {read_file(EntryOrigin(str(GOLDEN / name))).host for name in EXPECTED}
    assert hosts == {"mcp-nursery", *(dialect.name for dialect in DIALECTS)}


@pytest.mark.parametrize("name", EXPECTED)
def test_golden(name):
    """K1, K2: each dialect's own words and units; what means nothing is kept, and warned of."""
    config = load_config(GOLDEN / name, inputs=KEY)
    assert list(config.servers) == EXPECTED[name]
    assert {key: value for each in config.servers for key, value in each.extra.items()} == UNKNOWN.get(name, {})
    warned = {warning.split("unknown key ")[1].split(" ")[0].strip("'") for warning in config.warnings}
    assert warned == set(UNKNOWN.get(name, {}))
    assert all(each.source == str(GOLDEN / name) for each in config.servers)
    assert "hunter2" not in repr(config)


def test_the_schema_has_every_key_and_takes_our_own_file():
    """Editors complete what is read, and mark what is not."""
    schema = json.loads(SCHEMA.read_text())
    server = schema["$defs"]["server"]
    assert set(server["properties"]) == set(ENTRY_KEYS)
    assert all("description" in each for each in server["properties"].values())
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid(read_document(str(GOLDEN / "own/servers.json")))
    for bad in (
        {"command": 1},
        {},
        {"command": "x", "lazy": 0},
        {"command": "x", "tools": {"only": []}},
        {"command": "x", "liveness": 1},
        {"url": "https://x/", "auth": "basic"},
    ):
        assert not validator.is_valid({"mcpServers": {"s": bad}})


KEYS_OF = {
    "transport": {
        "type",
        "command",
        "image",
        "args",
        "env",
        "envFile",
        "inheritEnv",
        "cwd",
        "url",
        "headers",
        "headersHelper",
        "auth",
        "caFile",
    },
    "policy": {"restartDelays", "stableAfterSeconds"},
    "restart": {"restart"},
    "revive": {"revive"},
    "liveness": {"liveness"},
    "breaker": {"breaker"},
    "lazy": {"lazy"},
    "stop_idle_after": {"idleSeconds"},
    "limits": {"limits"},
    "tasks": {"tasks"},
    "enabled": {"enabled", "disabled"},
    "protocol": {"protocol"},
    "connect_timeout": {"connectSeconds"},
    "install_timeout": {"installSeconds"},
    "call_timeout": {"callSeconds"},
    "human_timeout": {"humanSeconds"},
    "trust_hints": {"trustHints"},
    "max_in_flight": {"maxInFlight"},
    "mailbox_size": {"mailboxSize"},
    "instances": {"instances"},
    "max_instances": {"maxInstances"},
    "on_disconnect": {"onDisconnect"},
    "allow": {"tools"},
    "deny": {"tools"},
    "disabled_tools": {"tools"},
    "max_result_chars": {"maxResultChars"},
    "max_message_values": {"maxMessageValues"},
    "max_kept_bytes": {"maxKeptBytes"},
    "max_definitions": {"maxDefinitions"},
    "subscribe": {"subscribe"},
    "roots": {"roots"},
    "extensions": {"extensions"},
    "description": {"description"},
}
"""What a file says for each field of a spec."""
NOT_SAID = {"name", "source", "host", "extra", "trust_request"}
"""Fields that follow from where and how an entry stands."""


def test_every_option_of_a_spec_has_its_key():
    """K1: what code can say, a file can; and a project's file can say no more than its user knows of."""
    assert {attribute.name for attribute in fields(ServerSpec)} == set(KEYS_OF) | NOT_SAID
    assert set().union(*KEYS_OF.values()) == set(ENTRY_KEYS)
    agreed_to = {
        "command",
        "image",
        "args",
        "envFile",
        "inheritEnv",
        "cwd",
        "maxMessageValues",
        "maxKeptBytes",
        "maxDefinitions",
        "instances",
        "maxInstances",
        "auth",
        "headersHelper",
        "caFile",
        "roots",
    }
    assert agreed_to == ENTRY_KEYS - _HARMLESS


def test_settings_without_servers_are_no_error(tmp_path):
    """K10: a project's settings of VS Code are none of ours, whatever else is in them."""
    settings = tmp_path / ".vscode" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"mcp": {"servers": {"x": {"command": "y"}}}, "mcpServers": {"z": {}}}))
    config = discover_config(tmp_path, user=False)
    assert (config.files, config.servers, config.errors) == ((), (), ())
    with pytest.raises(ConfigError, match=r"field 'sidecar\.mcpServers': missing"):
        load_config(settings)
    settings.rename(named := tmp_path / "named.json")
    named.write_text(json.dumps({"sidecar.mcpServers": {"x": {"command": "y"}}}))
    assert load_config(named).servers == (spec("x", StdioTransport("y")),)


@pytest.mark.parametrize(
    ("place", "entry", "field", "problem"),
    [
        (".mcp.json", {"command": "x", "timeout": "5s"}, "timeout", "must be milliseconds, not text"),
        (".mcp.json", {"command": "x", "timeout": -1}, "timeout", "must be finite milliseconds >= 0"),
        (".mcp.json", {"command": "x", "timeout": 1, "callSeconds": 1}, "timeout", "same as callSeconds"),
        (".vscode/mcp.json", {"type": "stdio"}, "command", "missing command"),
        (".vscode/mcp.json", {"command": "x", "envFile": 1}, "envFile", "must be text, not a number"),
        (".vscode/mcp.json", {"command": "x", "envFile": " "}, "envFile", "must not be empty"),
        (".vscode/mcp.json", {"command": "x", "args": ["${input:k}"]}, "args", "the input 'k' has no value"),
        (".vscode/mcp.json", {"url": "https://x", "headers": {"A": "${input:k}"}}, "headers", "input 'k'"),
        (".cursor/mcp.json", {"url": "x"}, "url", "begins with http"),
        (".codebuddy/mcp.json", {"transport": {"command": 1}}, "transport.command", "must be text"),
        (".codebuddy/mcp.json", {"transport": "pigeon", "url": "x"}, "transport", "unknown transport"),
        (
            ".codebuddy/mcp.json",
            {"command": "x", "transport": {"command": "x"}},
            "transport.command",
            "same",
        ),
        ("mcp_config.json", {"serverUrl": 1}, "serverUrl", "must be text, not a number"),
        ("mcp_config.json", {"serverUrl": "x"}, "serverUrl", "begins with http"),
        ("mcp_config.json", {"serverUrl": "https://x", "url": "https://x"}, "serverUrl", "same as url"),
        (".gemini/settings.json", {"httpUrl": "x"}, "httpUrl", "begins with http"),
        (".gemini/settings.json", {"httpUrl": "https://x", "url": "https://x"}, "httpUrl", "same as url"),
        (".gemini/settings.json", {"command": "x", "includeTools": "a"}, "includeTools", "must be a list"),
        (".gemini/settings.json", {"command": "x", "excludeTools": [1]}, "excludeTools", "must be text"),
        (
            ".gemini/settings.json",
            {"command": "x", "excludeTools": [], "tools": []},
            "excludeTools",
            "same",
        ),
        ("opencode.json", {"type": "local", "command": "npx"}, "command", "must be a list, not text"),
        ("opencode.json", {"type": "local", "command": []}, "command", "not an empty list"),
        ("opencode.json", {"command": ["x"], "args": ["y"]}, "args", "the arguments are part of command"),
        ("opencode.json", {"command": ["x"], "environment": {"A": 1}}, "environment", "the value of 'A' must be text"),
        ("opencode.json", {"command": ["x"], "environment": {"A": "{file:~/k}"}}, "environment", "{file:…}"),
        ("opencode.json", {"command": ["x"], "timeout": []}, "timeout", "must be milliseconds, not a list"),
        ("f.json", {"transport": "carrier", "url": "https://x"}, "transport", "unknown transport"),
        ("f.json", {"transport": "http", "url": "https://x", "auth": 1}, "auth", "must be text"),
        (
            "f.json",
            {"transport": "http", "url": "https://x", "auth": "t", "headers": {"authorization": "u"}},
            "auth",
            "the header Authorization is in headers too",
        ),
        (
            "f.json",
            {"transport": "http", "url": "https://x", "auth": "t", "headers": 1},
            "headers",
            "object",
        ),
    ],
)
def test_a_broken_entry_names_file_server_and_field(tmp_path, place, entry, field, problem):
    """K1, K3: in the words of the file."""
    root = {".vscode/mcp.json": "servers", "opencode.json": "mcp"}.get(place, "mcpServers")
    check_broken(tmp_path, place, json.dumps({root: {"bad": entry, "good": {"url": "https://x"}}}), field, problem)


@pytest.mark.parametrize(
    ("entry", "field", "problem"),
    [
        ("command = 1", "command", "must be text, not a number"),
        ('command = "x"\nstartup_timeout_sec = "5"', "startup_timeout_sec", "must be seconds, not text"),
        ('command = "x"\nstartup_timeout_sec = inf', "startup_timeout_sec", "finite seconds"),
        ('command = "x"\nstartup_timeout_sec = 5\nstartup_timeout_ms = 5', "startup_timeout_ms", "startup_timeout_sec"),
        ('command = "x"\ntool_timeout_sec = 2025-01-01', "tool_timeout_sec", "must be seconds, not text"),
        ('command = "x"\nenabled_tools = "a"', "enabled_tools", "must be a list"),
        ('command = "x"\nenv = 1\nenv_vars = ["A"]', "env", "must be an object"),
        ('command = "x"\nenv_vars = ["A=B"]', "env_vars", "must be the name of an environment variable"),
        ('url = "x"', "url", "begins with http"),
        ('url = "https://x"\nbearer_token_env_var = "${A}"', "bearer_token_env_var", "the name of an environment"),
        ('url = "https://x"\nbearer_token_env_var = 1', "bearer_token_env_var", "must be text"),
        ('url = "https://x"\nhttp_headers = {"A B" = "x"}', "http_headers", "not a valid header name"),
        ('url = "https://x"\nenv_http_headers = {"A" = "B C"}', "env_http_headers", "the name of an environment"),
        (
            'url = "https://x"\nbearer_token_env_var = "T"\nhttp_headers = {"authorization" = "x"}',
            "bearer_token_env_var",
            "the header Authorization is in headers too",
        ),
    ],
)
def test_a_broken_entry_in_toml(tmp_path, entry, field, problem):
    """K1, K3."""
    text = f'[mcp_servers.bad]\n{entry}\n[mcp_servers.good]\nurl = "https://x"\n'
    check_broken(tmp_path, ".codex/config.toml", text, field, problem)


def check_broken(folder, place, text, field, problem):
    file = folder / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    bad, good = load_config(file).servers
    assert isinstance(bad.transport, UnusableTransport)
    error = bad.transport.error
    assert (error.file, error.server, error.field) == (str(file), "bad", field)
    assert problem in str(error)
    assert "\n" not in str(error)
    assert not isinstance(good.transport, UnusableTransport)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a = \n", "not TOML: Invalid value (at line 1, column 5)"),
        ("a = 1\na = 2\n", "not TOML: Cannot overwrite a value (at line 2"),
        ("a = " + "[" * 5000, "nested too deeply"),
        ("a = " + "9" * 5000, "too many digits"),
        ("mcp_servers = 1", "field 'mcp_servers': must be an object with one entry per server"),
        ("a = 1", "field 'mcpServers': missing"),
    ],
)
def test_broken_toml(tmp_path, content, problem):
    """K3."""
    file = tmp_path / "x.toml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert problem in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"servers": [{"name": "a", "command": "x"}, {"name": "a", "command": "y"}]}, "the name 'a' appears twice"),
        ({"servers": 1}, "field 'servers': must be an object"),
        ({"mcp": []}, "field 'mcp': must be an object"),
        ({"mcpServers": [{"name": "a"}]}, "field 'mcpServers': must be an object"),
    ],
)
def test_a_broken_list(tmp_path, document, problem):
    """K3."""
    file = tmp_path / "x.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert problem in str(caught.value)


@pytest.mark.parametrize("item", [{"command": "x"}, 1, {"name": 7, "command": "x"}])
def test_a_nameless_item_of_a_list(tmp_path, item):
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"servers": [item, {"name": "good", "command": "x"}]}))
    bad, good = load_config(file).servers
    assert (bad.name, bad.transport.error.field, good.name) == ("(nameless)", "servers", "good")


@pytest.mark.parametrize(
    ("place", "root", "entry", "written"),
    [
        (
            ".gemini/settings.json",
            "mcpServers",
            {"command": "$A", "args": ["$B", ["$"][0]], "cwd": "$C", "env": {"X": "a$D.b"}},
            {"command": "${A}", "args": ("${B}", "$"), "cwd": "${C}", "env": {"X": "a${D}.b"}},
        ),
        (
            ".gemini/settings.json",
            "mcpServers",
            {"url": "https://$A/", "headers": {"X": "$B"}},
            {"headers": {"X": "${B}"}},
        ),
        (".gemini/settings.json", "mcpServers", {"httpUrl": "https://$A/"}, {"url": "https://${A}/"}),
        (
            "opencode.json",
            "mcp",
            {"command": ["{env:A}", "{env:B}"], "cwd": "{env:C}", "environment": {"X": "a{env:D}"}},
            {"command": "${env:A:-}", "args": ("${env:B:-}",), "cwd": "${env:C:-}", "env": {"X": "a${env:D:-}"}},
        ),
        (
            "opencode.json",
            "mcp",
            {"url": "https://{env:A}/", "headers": {"X": "Bearer {env:B}"}},
            {"url": "https://${env:A:-}/", "headers": {"X": "Bearer ${env:B}"}},
        ),
    ],
)
def test_variables_in_other_words(tmp_path, place, root, entry, written):
    """K1, K5: in each text where that host has them, and nowhere else."""
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({root: {"s": {**entry, "description": "$A {env:A}"}}}))
    config = load_config(file)
    (spec,) = config.servers
    assert {key: getattr(spec.transport.transport, key) for key in written} == written
    assert spec.description == "$A {env:A}"
    variables = [text.rpartition(" ")[2] for text in written.get("headers", {}).values()]
    assert list(config.warnings) == [
        f"{file}: server 's': field 'headers.X': {variable} is not in its env, so it is empty; "
        '"env": {"B": "${env:B}"} passes it on to ${B}'
        for variable in variables
    ]


def test_where_hosts_keep_their_files():
    """K1: as the README has it."""
    code = "Library/Application Support" if sys.platform == "darwin" else ".config"
    assert {dialect.name: (dialect.project, dialect.user) for dialect in DIALECTS} == {
        "Claude": ((".mcp.json",), (".claude.json", f"{code}/Claude/claude_desktop_config.json")),
        "VS Code": ((".vscode/mcp.json",), (f"{code}/Code/User/mcp.json",)),
        "Cursor": ((".cursor/mcp.json",), (".cursor/mcp.json",)),
        "CodeBuddy": ((".codebuddy/mcp.json",), (".codebuddy/mcp.json", ".codebuddy.json")),
        "Windsurf": ((".windsurf/mcp_config.json",), (".codeium/windsurf/mcp_config.json",)),
        "Gemini CLI": ((".gemini/settings.json",), (".gemini/settings.json",)),
        "Codex": ((".codex/config.toml",), (".codex/config.toml",)),
        "OpenCode": (
            ("opencode.json", "opencode.jsonc"),
            (".config/opencode/opencode.json", ".config/opencode/opencode.jsonc"),
        ),
        "SideCar": ((".vscode/settings.json",), (f"{code}/Code/User/settings.json",)),
        "FastMCP": ((), ()),
    }


def test_each_nameless_item_is_an_error_of_its_own(tmp_path):
    """K3: told by its place; none goes before another, also of another file."""
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file in files:
        file.write_text(json.dumps({"servers": [{"command": "x"}, {"name": "good", "command": "x"}, 7]}))
    config = load_config(*files)
    assert [spec.name for spec in config.servers] == [
        "(nameless)",
        "good",
        "(nameless) 2",
        "(nameless) 3",
        "(nameless) 4",
    ]
    errors = [str(spec.transport.error) for spec in config.servers if spec.name != "good"]
    assert errors == [f"{file}: field 'servers': entry {number} needs a name" for file in files for number in (1, 3)]
    assert config.replaced == (f"mcp:good via CodeBuddy ({files[1]}) overrides mcp:good via CodeBuddy ({files[0]})",)


@pytest.mark.parametrize(
    ("document", "host"),
    [
        ({"mcpServers": {}}, "mcp-nursery"),
        ({"mcpServers": {"s": {"url": "https://x"}}}, "mcp-nursery"),
        ({"mcpServers": {"s": {"url": "https://x"}, "t": {"httpUrl": "https://x"}}}, "Gemini CLI"),
        ({"mcpServers": {"s": {"excludeTools": []}}}, "Gemini CLI"),
        ({"mcpServers": {"s": {"serverUrl": "https://x"}}}, "Windsurf"),
        ({"mcpServers": {"s": {"serverUrl": "https://x", "httpUrl": "https://x"}}}, "Windsurf"),
        ({"mcpServers": {"s": {"transport": "http"}}}, "FastMCP"),
        ({"mcpServers": {"s": {"transport": {}}}}, "CodeBuddy"),
        ({"servers": {"s": {"transport": {}}}}, "CodeBuddy"),
        ({"servers": []}, "CodeBuddy"),
        ({"servers": {}}, "VS Code"),
        ({"mcp_servers": {}}, "Codex"),
        ({"mcp": {}}, "OpenCode"),
        ({"mcp": {}, "servers": {}, "mcpServers": 1}, "mcp-nursery"),
        ({"mcp": {}, "servers": {}, "mcp_servers": {}}, "VS Code"),
    ],
)
def test_whose_words(document, host):
    """The keys of a file of which the place says nothing, in the documented order."""
    assert recognise("/somewhere/x.json", document)[0].name == host


@pytest.mark.parametrize(
    ("place", "document", "host"),
    [
        ("/p/.mcp.json", {"mcpServers": {"s": {"httpUrl": "https://x"}}}, "Claude"),
        ("/p/.vscode/mcp.json", {"servers": []}, "VS Code"),
        ("/p/.vscode/mcp.json", {"mcpServers": {}}, "mcp-nursery"),
        ("/p/.gemini/settings.json", {"mcpServers": {}}, "Gemini CLI"),
        ("/p/settings.json", {"mcpServers": {}}, "mcp-nursery"),
        ("/h/.claude.json", {"mcpServers": {}}, "Claude"),
        ("/anywhere/claude_desktop_config.json", {"mcpServers": {}}, "Claude"),
    ],
)
def test_its_place_goes_first(place, document, host):
    assert recognise(place, document)[0].name == host


def test_a_place_named_from_within_it(tmp_path, monkeypatch):
    shutil.copytree(GOLDEN / "gemini", tmp_path / "g")
    monkeypatch.chdir(tmp_path / "g" / ".gemini")
    assert read_file(EntryOrigin("settings.json")).host == "Gemini CLI"
