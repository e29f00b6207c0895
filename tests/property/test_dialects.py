"""Whatever stands in a file of any host, reading it raises nothing but ConfigError, which names the place."""

import json
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config import load_config, load_project
from mcp_nursery.supervisor.config.document import read_document
from mcp_nursery.supervisor.transports import UnusableTransport

SECRET = "hunter2"
PLACES = {
    ".mcp.json": "mcpServers",
    ".vscode/mcp.json": "servers",
    ".cursor/mcp.json": "mcpServers",
    ".codebuddy/mcp.json": "servers",
    ".windsurf/mcp_config.json": "mcpServers",
    ".gemini/settings.json": "mcpServers",
    "opencode.json": "mcp",
    "some.json": "mcpServers",
    ".codex/config.toml": "mcp_servers",
}
KEYS = [
    *("type", "command", "args", "env", "envFile", "cwd", "url", "headers", "name", "transport", "timeout", "tools"),
    *("serverUrl", "disabledTools", "httpUrl", "includeTools", "excludeTools", "trust", "environment", "auth"),
    *("startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec", "enabled_tools", "disabled_tools"),
    *("bearer_token_env_var", "http_headers", "env_http_headers", "env_vars", "callSeconds", "enabled", "servers"),
]

text = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["stdio", "http", "https://x/sse", "${input:a}", "$A", "{env:A}", "{file:a}", "!a", f"{SECRET}\0", "A"]
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), text)
names = st.sampled_from(KEYS) | text.filter(lambda name: SECRET not in name)  # keys are shown
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=8)
entries = st.dictionaries(st.sampled_from(KEYS), values) | values
servers = st.dictionaries(st.text(st.characters(), max_size=8), entries) | st.lists(entries) | values


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def check(folder, place, content):
    file = folder / place
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    for load in (load_config, load_project):
        try:
            config = load(file)
        except ConfigError as error:
            check_error(error, file)
            continue
        for spec in config.servers:
            assert spec.source == str(file)
            if isinstance(spec.transport, UnusableTransport):
                check_error(spec.transport.error, file)
                assert spec.name == spec.transport.error.server or spec.name.startswith("(nameless)")
        assert all("\n" not in warning for warning in config.warnings)


def check_error(error, file):
    assert error.file == str(file)
    assert str(error).startswith(f"{file}: ")
    assert "\n" not in str(error)
    assert SECRET not in str(error).replace(f"server {error.server!r}", "")  # a name is no secret


@given(place=st.sampled_from(sorted(PLACES)), said=servers, beside=values)
@example(place="opencode.json", said={"servers": {"type": 1}}, beside=None)
@example(place=".codebuddy/mcp.json", said=[{"name": "a", "transport": {"name": "b"}}], beside=None)
def test_arbitrary_servers(folder, place, said, beside):
    """K1, K3."""
    document = {PLACES[place]: said, "other": beside}
    content = toml(document) if place.endswith("toml") else json.dumps(document).encode()
    check(folder, place, content)


encoded = text.map(lambda said: said.encode("utf-8", "replace"))


@given(place=st.sampled_from(sorted(PLACES)), content=st.binary(max_size=64) | encoded)
def test_arbitrary_bytes(folder, place, content):
    """K3."""
    check(folder, place, content)


def toml(value):
    return "".join(f"{key_of(key)} = {inline(part)}\n" for key, part in value.items() if part is not None).encode(
        "utf-8", "replace"
    )


def key_of(name):
    return json.dumps(name)


def inline(value):
    match value:
        case dict():
            parts = (f"{key_of(key)} = {inline(part)}" for key, part in value.items() if part is not None)
            return "{" + ", ".join(parts) + "}"
        case list():
            return "[" + ", ".join(inline(part) for part in value if part is not None) + "]"
        case float():
            return repr(value)
        case _:
            return json.dumps(value)


def test_the_toml_of_these_tests_is_toml():
    document = {"a": {"b.c": [1, 0.5, float("inf"), "x\n", True, {}]}}
    assert tomllib.loads(toml(document).decode()) == document


gaps = st.sampled_from(["", " ", "\n", '// ,} "x\n', '/* // " */', "/***/", "//,\n", "/*,*/", "/*\n,]*/\r\n"])


@given(value=st.dictionaries(text, values), data=st.data())
def test_comments_change_nothing(folder, value, data):
    """K1: wherever they stand; and text that looks like them stays text."""
    plain = json.dumps(value, allow_nan=False) if finite(value) else json.dumps({"a": ["//", "/*", ",]", '\\"']})

    def gap():
        return data.draw(gaps)

    def written(part):
        match part:
            case dict():
                items = [f"{gap()}{json.dumps(key)}{gap()}:{written(each)}" for key, each in part.items()]
                return f"{gap()}{{{','.join(items)}{closing(items)}}}{gap()}"
            case list():
                items = [written(each) for each in part]
                return f"{gap()}[{','.join(items)}{closing(items)}]{gap()}"
            case _:
                return f"{gap()}{json.dumps(part)}{gap()}"

    def closing(items):
        return gap() + data.draw(st.sampled_from(["", ","] if items else [""])) + gap()

    file = folder / "commented.json"
    file.write_bytes(written(json.loads(plain)).encode())
    assert outcome(file) in (json.loads(plain), "refused")


def outcome(file):
    try:
        return read_document(str(file))
    except ConfigError as error:
        return "refused" if "not Unicode" in str(error) or "too many digits" in str(error) else str(error)


def finite(value):
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
