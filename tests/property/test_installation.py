"""Whatever a host's file holds: the gateway goes in and comes out, and what it starts is what the host would start."""

import json
import os
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.actors.process.command import child_environment
from mcp_nursery.supervisor import load_config
from mcp_nursery.supervisor.config.deferred import DeferredTransport, Resolver
from mcp_nursery.supervisor.config.document import parse_document
from mcp_nursery.supervisor.config.edits import Edit, apply_edits
from mcp_nursery.supervisor.config.hosts import GATEWAY_ENTRY, HOSTS
from mcp_nursery.supervisor.config.installation import install, undo, user_place

pytestmark = pytest.mark.slow

OUTSIDE = {"A": "one", "B": "${A}", "C": "!echo", "PATH": "/bin", "HOME": "/nonexistent"}
"""The environment that a host has, and starts its servers with."""


def of_names(text):
    """Claude Code, Gemini CLI."""
    return re.sub(r"\$\{([A-Z]+)(:-([^}]*))?\}", lambda found: OUTSIDE.get(found[1]) or found[3] or "", text)


def of_env(text):
    """Cursor, VS Code."""
    return re.sub(r"\$\{env:([A-Z]+)\}", lambda found: OUTSIDE[found[1]], text)


def of_braces(text):
    """OpenCode."""
    return re.sub(r"\{env:([A-Z]+)\}", lambda found: OUTSIDE[found[1]], text)


def as_it_is(text):
    return text


PLAIN = ["", "x", "a b", "é", "$A", "{}", '"', "\\", "//", ",}", "!x", "${o d}"]
LANGUAGES = {
    "claude-code": (of_names, ["${A}", "-${B}-", "${D:-d}", "${A:-d}", "${C}"]),
    "claude-desktop": (as_it_is, []),
    "cursor": (of_env, ["${env:A}", "-${env:B}-"]),
    "vscode": (of_env, ["${env:A}", "-${env:C}"]),
    "gemini": (of_names, ["${A}", "-${B}-"]),
    "codex": (as_it_is, []),
    "opencode": (of_braces, ["{env:A}", "-{env:B}-"]),
}


@contextmanager
def a_home():
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.clear()
        os.environ.update(OUTSIDE, HOME=folder, XDG_CONFIG_HOME=f"{folder}/config")
        try:
            yield Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(before)


@st.composite
def hosts(draw):
    """A host, and what its file holds of servers, in its words."""
    host = draw(st.sampled_from(HOSTS))
    _, variables = LANGUAGES[host.name]
    plain = [text for text in PLAIN if not (text == "$A" and host.name == "gemini")]
    texts = st.lists(st.sampled_from([*plain, *variables]), max_size=3).map("".join)
    values = st.dictionaries(st.sampled_from(["E", "F", "A"]), texts, max_size=2)
    local = st.tuples(texts.map("run{}".format), st.lists(texts, max_size=3), values)
    remote = st.tuples(texts, values)
    servers = {}
    for name in draw(st.lists(st.sampled_from(["a", "b.c", 'd"e', "é", "f g"]), unique=True, min_size=1)):
        if draw(st.booleans()):
            servers[name] = stdio(host.name, *draw(local), off=draw(st.booleans()))
        else:
            servers[name] = http(host.name, *draw(remote))
    return host, servers


def stdio(host, command, args, env, *, off):
    if host == "opencode":
        entry = {"type": "local", "command": [command, *args], "environment": env}
        return {**entry, "enabled": False} if off else entry
    entry = {"command": command, "args": args, "env": env}
    return {**entry, **({"enabled": False} if host == "codex" else {"disabled": True})} if off else entry


def http(host, text, headers):
    key = {"gemini": "httpUrl"}.get(host, "url")
    entry = {key: f"https://x/{text.replace(' ', '%20')}", {"codex": "http_headers"}.get(host, "headers"): headers}
    return {"type": "http", **entry} if host in ("claude-code", "vscode", "cursor", "claude-desktop") else entry


def written(host, servers, indent):
    """The file, with more in it than servers."""
    root = host.root({})[0]
    if host.name == "codex":
        steps = [Edit("set", (root, name), entry) for name, entry in servers.items()]
        return apply_edits('model = "o"\n', "f.toml", steps)
    return json.dumps({"theme": "dark", root: servers, "more": [1]}, indent=indent, ensure_ascii=False)


def started_by(host, entry):
    """What the host would start or reach: read anew here, not by what is tested."""
    meant, _ = LANGUAGES[host.name]
    env = entry.get("environment", entry.get("env", {}))
    argv = entry.get("command")
    if argv is None:
        headers = entry.get("headers", entry.get("http_headers", {}))
        return meant(entry.get("url") or entry["httpUrl"]), {name: meant(text) for name, text in headers.items()}
    argv = argv if isinstance(argv, list) else [argv, *entry["args"]]
    given = {**os.environ, **{name: meant(text) for name, text in env.items()}}
    return [meant(text) for text in argv], given


def started_behind(spec):
    transport = spec.transport
    if isinstance(transport, DeferredTransport):
        transport = trio.run(Resolver(transport).transport)
    if hasattr(transport, "url"):
        return transport.url, dict(transport.headers)
    return list(transport.argv), child_environment(transport.environment)


def is_off(entry):
    return entry.get("disabled", False) or not entry.get("enabled", True)


@given(given=hosts(), indent=st.sampled_from([None, 2, "\t"]), twice=st.booleans())
def test_what_is_started_is_the_same_and_everything_comes_back(given, indent, twice):
    host, servers = given
    with a_home():
        place = user_place(host)
        place.file.parent.mkdir(parents=True, exist_ok=True)
        text = written(host, servers, indent)
        place.file.write_text(text)
        document = parse_document(text, str(place.file))
        if twice:
            make(install(place, ["/bin/mcp-nursery"]))
        try:
            plan = install(place, ["/bin/mcp-nursery"], adopting=True)
        except ConfigError as error:
            if "no server that can go behind" not in str(error):
                raise
            return
        make(plan)
        assert {*plan.moved, *plan.stay} == set(servers)
        left = parse_document(place.file.read_text(), str(place.file))[host.root(document)[0]]
        assert set(left) == {GATEWAY_ENTRY, *plan.stay}
        specs = {spec.name: spec for spec in load_config(place.servers).servers}
        assert set(specs) == set(plan.moved)
        for name, spec in specs.items():
            assert spec.enabled is not is_off(servers[name])
            assert started_behind(spec) == started_by(host, servers[name])
        for name, reason in plan.stay.items():
            assert re.search("run as a command|is not what|alone|must|header", reason), (reason, servers[name])
        make(undo(place))
        assert place.file.read_text() == text
        assert list(place.servers.parent.iterdir()) == []
        assert list(place.file.parent.glob("*.bak")) == []


def make(plan):
    for replacement in plan.replacements:
        replacement.make()
