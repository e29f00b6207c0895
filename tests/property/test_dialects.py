"""Whatever stands in a file of any host, reading it raises nothing but ConfigError, which names the place."""

import json
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.config import discover_config, load_config
from mcp_nursery.supervisor.config.dialects import DIALECTS
from mcp_nursery.supervisor.config.discovery import SETTINGS
from mcp_nursery.supervisor.config.document import read_document
from mcp_nursery.supervisor.config.loader import load_project
from mcp_nursery.supervisor.transports import UnusableTransport

pytestmark = pytest.mark.slow

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
ROOTS = {place: dialect.roots[-1] for dialect in DIALECTS for place in (*dialect.project, *dialect.user)} | PLACES
ALL_PLACES = sorted(ROOTS)
PROJECT_PLACES = {place for dialect in DIALECTS for place in dialect.project}
SETTINGS_PLACES = {place for place in ALL_PLACES if Path(place).name in SETTINGS}
KEYS = [
    *("type", "command", "args", "env", "envFile", "cwd", "url", "headers", "name", "transport", "timeout", "tools"),
    *("serverUrl", "disabledTools", "httpUrl", "includeTools", "excludeTools", "trust", "environment", "auth"),
    *("startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec", "enabled_tools", "disabled_tools"),
    *("bearer_token_env_var", "http_headers", "env_http_headers", "env_vars", "callSeconds", "enabled", "servers"),
    *("image", "idleSeconds", "description", "restartDelays", "revive", "maxInFlight", "lazy", "trustHints"),
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
    """The configuration, if it can be read, named as a project's; every error in it names its place."""
    config = None
    file = folder / place
    file.parent.mkdir(exist_ok=True, parents=True)
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
                whole = ("must be an object", "nested too deeply")
                assert spec.transport.error.field is not None or any(
                    words in str(spec.transport.error) for words in whole
                )
        assert all("\n" not in warning for warning in config.warnings)
    return config


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


ODD = [
    *(
        None,
        True,
        0,
        -1,
        1.5,
        10**400,
        "",
        " ",
        "\n",
        SECRET,
        f"{SECRET}\0",
        f"\ud800{SECRET}",
        f"${{input:{SECRET[0]}}}",
    ),
    *("${", "$A", "!", "{file:x}", "A=B", "https://", "on_call", [], [""], ["x", 1], [[SECRET]], [f"{SECRET}\0"], [{}]),
    *(
        {},
        {"K": 1},
        {"K": [SECRET]},
        {"K": f"{SECRET}\0"},
        {"": SECRET},
        {"A B": SECRET},
        {"a\nb": SECRET},
        {"command": "x"},
    ),
]


REMOTE_KEYS = [
    "type",
    "image",
    "command",
    "url",
    "headers",
    "env",
    "envFile",
    "httpUrl",
    "serverUrl",
    "timeout",
    "auth",
]
MARKS = {"serverUrl", "httpUrl", "includeTools", "excludeTools", "transport"}


@pytest.mark.parametrize("place", [*PLACES, "fastmcp"])
def test_one_thing_wrong_in_an_entry(folder, place):
    """K1, K3: each key in turn with everything that it could hold by mistake, in the words of each host: an error names
    file, server and field, and shows no value."""
    root = PLACES.get(place, "mcpServers")
    bases = [({"command": ["x"] if root == "mcp" else "x"}, KEYS), ({"url": "https://x"}, REMOTE_KEYS)]
    said = [{**base, key: value} for base, keys in bases for key in keys for value in ODD]
    if place.endswith("toml"):
        said = [entry for entry in said if not any("\ud800" in str(value) for value in entry.values())]
    if place in ("some.json", "fastmcp"):  # nothing but what stands in it tells whose words it is written in
        said = [entry for entry in said if MARKS.isdisjoint(entry)]
    if place == "fastmcp":
        said += [{"url": "https://x", "transport": value} for value in ODD if not isinstance(value, dict)]
    servers = {f"s{number}": entry for number, entry in enumerate(said)}
    config = check(
        folder, place, toml({root: servers}) if place.endswith("toml") else json.dumps({root: servers}).encode()
    )
    assert [spec.name for spec in config.servers] == list(servers)
    unusable = sum(isinstance(spec.transport, UnusableTransport) for spec in config.servers)
    assert len(servers) / 5 < unusable < len(servers)


ODD_FILES = [
    *(f'{{"a": "{SECRET}" oops'.encode(), f'a = "{SECRET}\n'.encode(), f"a = 1\n{SECRET}\n".encode()),
    *(b"", b"\xef\xbb\xbf", b"\0", b"\xff", b"[]", b"null", b"{", b'"x', b"a = ", b"\xef\xbb\xbf{}", b"a = 1\na = 2"),
    *(text.encode(codec) for text in ('{"mcpServers": {}}', "a = 1") for codec in ("utf-16", "utf-16-le", "utf-32")),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"a = " + b"[" * 100_000, b"a = " + b"{a=" * 100_000),
    *(b'{"a": ' + b"9" * 5000 + b"}", b"a = " + b"9" * 5000, b'{"a": NaN}', b'{"a": 1, "a": 1}', rb'{"\ud800": 1}'),
]


ODD_PARTS = [r'"\ud800": 1', '"odd": NaN', '"odd": 1e', '"command": "y"', '"odd": {"a": 1, "a": 1}', '"odd": "\t"', "}"]


@pytest.mark.parametrize("place", ALL_PLACES)
def test_odd_files(folder, place):
    """K3: whatever holds no servers at all is refused by ConfigError, wherever it stands."""
    entries = [
        rf'{{"{root}": {{"s": {{"command": "x", {odd}}}}}}}' for root in set(ROOTS.values()) for odd in ODD_PARTS
    ]
    for content in (*ODD_FILES, *map(str.encode, entries)):
        assert check(folder, place, content) is None, content[:60]


encoded = text.map(lambda said: said.encode("utf-8", "replace"))


@given(place=st.sampled_from(sorted(PLACES)), content=st.binary(max_size=64) | encoded)
def test_arbitrary_bytes(folder, place, content):
    """K3."""
    check(folder, place, content)


class Pairs(tuple):
    """An object as it may stand in a file: a key may stand there twice."""


# Tokens, sound and not: what parsers, encoders and recursive functions stumble over.
numbers = ["-0", "1e999", "-1e-999", "9" * 5000, "NaN", "-Infinity", "0x10", "1_000", "٣"]
strings = [r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', '"\u2028"', '"unended', "'x'", '"a\nb"', f'"{SECRET}\\q"']
deep = ["[" * depth + "]" * depth for depth in (50, 900, 5000)] + [
    '{"a":' * depth + "1" + "}" * depth for depth in (60, 950)
]
others = ["", "undefined", "null", "true", ",", "//", "/* x", "{", "]", "2025-01-01", "[1,,2]", '{"a":1,}']
tokens = st.sampled_from([*numbers, *strings, *deep, *others]) | text.map(json.dumps) | st.floats().map(json.dumps)
keys = names | st.sampled_from(["", "a", "\ud800", "a\n", "servers"])
trees = st.recursive(
    tokens,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(keys, inner), max_size=4).map(Pairs),
    max_leaves=6,
)
roots = st.sampled_from([*sorted(set(PLACES.values())), "mcp-servers", ""])
openings = st.sampled_from(["", "\ufeff", " ", "// x\n", "\0", "#", "[", "/*", "\x1b"])
codecs = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1", "utf-7"])


def spelled(value, between=": ", comma=", "):
    match value:
        case Pairs():
            return "{" + comma.join(f"{json.dumps(key)}{between}{spelled(part, between)}" for key, part in value) + "}"
        case list():
            return "[" + comma.join(spelled(part, between) for part in value) + "]"
        case _:
            return value


@given(
    place=st.sampled_from(ALL_PLACES),
    servers=st.lists(st.tuples(keys, trees), max_size=4).map(Pairs) | trees,
    root=st.none() | roots,
    opening=openings,
    codec=codecs,
)
@example(place=".mcp.json", servers="", root=None, opening="", codec="utf-8")
@example(place=".codex/config.toml", servers=deep[2], root=None, opening="", codec="utf-8")
@example(place="opencode.jsonc", servers=Pairs([("a", deep[1]), ("a", "1")]), root=None, opening="", codec="utf-8")
def test_any_text_in_any_place(place, servers, root, opening, codec):
    """K1, K3: two keys alike, depth, numbers and halves of characters nobody can hold, marks, other encodings: the only
    error is ConfigError, and it names the file, and the server and the field where it is a server's; what is found is
    one error for the file."""
    toml_file = place.endswith("toml")
    wanted = ROOTS[place] if root is None else root
    said = (
        f"{json.dumps(wanted)} = {spelled(servers, ' = ')}"
        if toml_file
        else f"{{{json.dumps(wanted)}: {spelled(servers)}}}"
    )
    with tempfile.TemporaryDirectory() as name:
        check(Path(name), place, (opening + said).encode(codec, "replace"))
        check_found(Path(name), place)


def check_found(folder, place):
    config = discover_config(folder, user=False)
    assert len(config.errors) + len(config.files) <= 1
    for error in config.errors:
        assert error.startswith(f"{folder / place}: ")
        assert "\n" not in error
        assert SECRET not in error
    if place in PROJECT_PLACES and place not in SETTINGS_PLACES:
        assert len(config.errors) + len(config.files) == 1


def test_every_place_is_tried():
    """K1: of every host, the project's and the user's."""
    assert {place for dialect in DIALECTS for place in (*dialect.project, *dialect.user)} < set(ALL_PLACES)


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
