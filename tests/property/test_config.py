"""Whatever a file holds, reading it raises nothing but ConfigError, and no secret gets out."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config import Config, load_config
from mcp_nursery.supervisor.transports import StdioTransport, UnusableTransport

SECRET = "hunter2"
KEYS = [
    *("type", "command", "args", "env", "cwd", "url", "description", "enabled", "disabled", "restart", "restartDelays"),
    *(
        "stableAfterSeconds",
        "lazy",
        "idleSeconds",
        "connectSeconds",
        "callSeconds",
        "humanSeconds",
        "maxInFlight",
        "mailboxSize",
        "trustHints",
        "revive",
        "odd",
    ),
]
SHOWN = ("command", "cwd", "description")

text = st.text(st.characters(), max_size=8)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), text)
words = st.sampled_from(["stdio", "http", "sse", "permanent", "on_call"])


def trees(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=8)


def documents(values: st.SearchStrategy[Any], names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    settings = st.dictionaries(st.sampled_from(KEYS), values)
    # Most entries have one thing wrong; several at once hide each other.
    nearly_right = st.builds(lambda key, value: {"command": "x", key: value}, st.sampled_from(KEYS), values)
    entries = st.dictionaries(names, nearly_right | settings | values)
    return st.fixed_dictionaries({"mcpServers": entries | values})


anything = trees(scalars | words, text)
secrets = trees(
    st.sampled_from([SECRET, f"a{SECRET}\0", f"{SECRET}\ud800", "stdio", 1, True]), st.sampled_from(["KEY", "=", ""])
)


@pytest.fixture(scope="module")
def file() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "servers.json"


def load(file: Path, content: bytes) -> Config | ConfigError:
    """The outcome, checked to be one that names the file and the server in one line."""
    file.write_bytes(content)
    try:
        config = load_config(file)
    except ConfigError as error:
        check_error(error, file)
        return error
    for spec in config.servers:
        assert spec.source == str(file)
        assert isinstance(spec.transport, StdioTransport | UnusableTransport)
        if isinstance(spec.transport, UnusableTransport):
            check_error(spec.transport.error, file)
            assert spec.name == spec.transport.error.server or spec.name.startswith("(nameless)")
    return config


def check_error(error: ConfigError, file: Path) -> None:
    assert error.file == str(file)
    assert error.__context__ is None
    assert str(error).startswith(f"{file}: ")
    assert len(str(error).splitlines()) == 1


def shown(outcome: Config | ConfigError) -> str:
    if isinstance(outcome, ConfigError):
        return f"{outcome}{outcome!r}"
    errors = [spec.transport.error for spec in outcome.servers if isinstance(spec.transport, UnusableTransport)]
    return f"{outcome}{outcome!r}{outcome.warnings}{[str(error) for error in errors]}"


@given(documents(anything, text) | anything)
def test_any_json(file: Path, document: Any) -> None:
    load(file, json.dumps(document).encode())


@given(st.binary())
@example(b'{"mcpServers":' * 50_000)
@example(b'{"mcpServers":{"a":' + b"[" * 50_000)
@example(b'{"a":' + b"1" * 10_000 + b"}")
def test_any_bytes(file: Path, content: bytes) -> None:
    load(file, content)


@pytest.mark.slow
@given(documents(anything, text), st.data())
def test_any_damage_to_a_file(file: Path, document: Any, data: st.DataObject) -> None:
    content = json.dumps(document).encode()
    at = data.draw(st.integers(0, len(content)))
    load(file, content[:at] + data.draw(st.binary(max_size=3)) + content[at + data.draw(st.integers(0, 3)) :])


@given(documents(secrets, st.sampled_from(["a", "b"])), st.data())
def test_no_secret_gets_out(file: Path, document: Any, data: st.DataObject) -> None:
    servers = document["mcpServers"]
    for entry in servers.values() if isinstance(servers, dict) else ():
        for key in SHOWN if isinstance(entry, dict) else ():
            if SECRET in str(entry.get(key)) and isinstance(entry[key], str):
                entry[key] = "x"
    content = json.dumps(document).encode()
    assert SECRET not in shown(load(file, content))
    # Cut anywhere, it is not JSON any more.
    cut = load(file, content[: data.draw(st.integers(0, len(content) - 1))])
    assert isinstance(cut, ConfigError)
    assert SECRET not in shown(cut)
