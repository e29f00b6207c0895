"""What is read without the SDK's models is what they would read; what is doubtful goes to them."""

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.session import models, plain
from mcp_nursery.actors.session.base import NotValid
from mcp_nursery.actors.session.lazy_definitions import LazyDefinition

VERSIONS = ["2024-11-05", "2025-11-25", "2026-07-28"]
ICON = {"src": "https://x/i.png", "mimeType": "image/png", "sizes": ["48x48", "any"], "theme": "dark"}
INFO = {
    "name": "lab",
    "title": "Lab",
    "version": "7",
    "description": "d",
    "websiteUrl": "https://x",
    "icons": [ICON, {"src": "data:,"}],
}
CAPABILITIES = {
    "experimental": {"x": {"y": [1]}},
    "logging": {},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": False},
    "tools": {"listChanged": True},
    "completions": {},
    "extensions": {"io.x/y": {}},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
CACHING = {"resultType": "complete", "ttlMs": 5, "cacheScope": "private"}
META = {"io.modelcontextprotocol/serverInfo": INFO, "more": None}
HELLOS = {
    "initialize": {
        "_meta": {"a": 1},
        "protocolVersion": "2025-11-25",
        "capabilities": CAPABILITIES,
        "serverInfo": INFO,
        "instructions": "be kind",
    },
    "server/discover": {
        "_meta": META,
        "supportedVersions": ["2026-07-28"],
        "capabilities": CAPABILITIES,
        "instructions": "be kind",
        **CACHING,
    },
}
NOTED = {"audience": ["user", "assistant"], "priority": 0.5, "lastModified": "2025-01-01T00:00:00Z"}
ENTRIES = {
    "tools": {
        "name": "add",
        "title": "Add",
        "description": "adds",
        "inputSchema": {"type": "object"},
        "execution": {"taskSupport": "optional"},
        "outputSchema": {"type": "object"},
        "icons": [ICON],
        "annotations": {
            "title": "Add",
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
        "_meta": {"x": [None]},
    },
    "resources": {
        "name": "one",
        "title": "One",
        "uri": "note://one",
        "description": "d",
        "mimeType": "text/plain",
        "size": 5,
        "icons": [ICON],
        "annotations": NOTED,
        "_meta": {},
    },
    "templates": {
        "name": "any",
        "title": "Any",
        "uriTemplate": "note://{id}",
        "description": "d",
        "mimeType": "text/plain",
        "icons": [ICON],
        "annotations": NOTED,
        "_meta": {},
    },
    "prompts": {
        "name": "greet",
        "title": "Greet",
        "description": "d",
        "arguments": [{"name": "who", "title": "Who", "description": "d", "required": True}],
        "icons": [ICON],
        "_meta": {},
    },
}
PAGES = {version: {"_meta": {}, "nextCursor": "next", **CACHING} for version in VERSIONS}

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["\ud800", "complete", "private", "user", "dark", 0, 1, 1.0, "true", "5", [], {}]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def changed(draw, whole):
    """A value in which up to two parts, at any depth, are left out, replaced or added to."""
    value = copy.deepcopy(whole)
    for _ in range(draw(st.integers(0, 2))):
        at = value
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(at[key], (dict, list)) and draw(st.booleans()):
                at = at[key]
                continue
            match draw(st.sampled_from(["remove", "replace", "add"])):
                case "remove":
                    del at[key]
                case "replace":
                    at[key] = draw(anything)
                case "add" if isinstance(at, dict):
                    at[draw(st.text(max_size=5))] = draw(anything)
            break
    return value


@pytest.mark.parametrize("method", HELLOS)
def test_a_usual_hello_is_plain(method):
    assert plain.read_hello(method, HELLOS[method]) == models.read_hello(method, HELLOS[method])


@pytest.mark.parametrize("kind", ENTRIES)
def test_a_usual_entry_is_plain(kind):
    assert plain.is_plain_entry(kind, ENTRIES[kind])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_usual_page_is_plain(version):
    plain.read_page("tools/list", {**PAGES[version], "tools": []}, version)


@pytest.mark.parametrize("raw", [{}, {"tools": None}, {"tools": {}}, {"prompts": []}])
def test_a_page_without_its_list_is_for_the_models(raw):
    with pytest.raises(plain.Doubtful):
        plain.read_page("tools/list", raw, "2025-11-25")


@pytest.mark.parametrize(
    ("raw", "version"),
    [({"_meta": {}}, "2025-11-25"), ({"resultType": "complete"}, "2025-11-25"), ({}, "2026-07-28")],
)
def test_an_empty_answer_that_says_more_is_for_the_models(raw, version):
    plain.check_empty("ping", {"more": 1}, "2025-11-25")
    with pytest.raises(plain.Doubtful):
        plain.check_empty("ping", raw, version)


@pytest.mark.parametrize("value", [math.inf, -math.inf, [1, {"a": math.inf}], math.nan])
def test_a_number_beyond_a_float_is_for_the_models(value):
    """They write null for it."""
    raw = copy.deepcopy(HELLOS["server/discover"])
    raw["capabilities"]["experimental"] = {"x": {"more": value}}
    with pytest.raises(plain.Doubtful):
        plain.read_hello("server/discover", raw)


@pytest.mark.parametrize("method", HELLOS)
@given(data=st.data())
def test_a_hello_that_is_plain_is_read_as_the_sdk_reads_it(method, data):
    raw = data.draw(changed(HELLOS[method]))
    try:
        said = plain.read_hello(method, raw)
    except plain.Doubtful:
        return
    assert said == models.read_hello(method, raw)
    assert list(said["capabilities"]) == list(models.read_hello(method, raw)["capabilities"])


@given(changed(INFO))
def test_a_name_that_is_plain_is_read_as_the_sdk_reads_it(raw):
    try:
        said = plain.read_implementation(raw)
    except plain.Doubtful:
        return
    assert said == models.read_implementation(raw)
    assert list(said) == list(models.read_implementation(raw))


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_page_that_is_plain_is_read_as_the_sdk_reads_it(version, data):
    raw = data.draw(changed(PAGES[version]))
    try:
        said = plain.read_page("tools/list", {**raw, "tools": []}, version)
    except plain.Doubtful:
        return
    theirs = models.read_page("tools/list", {**raw, "tools": []}, version)
    assert {key: said[key] for key in ("nextCursor", "ttlMs") if key in said} == theirs


@pytest.mark.parametrize("kind", ENTRIES)
@given(data=st.data())
def test_an_entry_that_is_plain_is_one_for_the_sdk(kind, data):
    raw = data.draw(changed(ENTRIES[kind]))
    if plain.is_plain_entry(kind, raw):
        real = models.definition_of(kind, raw)
        said = LazyDefinition(kind, raw)
        assert said == real
        for name in (
            "name",
            "uri",
            "uri_template",
            "title",
            "description",
            "mime_type",
            "size",
            "input_schema",
            "meta",
        ):
            if hasattr(real, name):
                assert getattr(said, name) == getattr(real, name)


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (lambda raw: models.read_hello("initialize", raw), {**HELLOS["initialize"], "serverInfo": {"name": "x"}}),
        (lambda raw: models.read_hello("server/discover", raw), {**HELLOS["server/discover"], "capabilities": 5}),
        (lambda raw: models.read_page("tools/list", raw, "2025-11-25"), {"tools": "none"}),
        (lambda raw: models.read_page("tools/list", raw, "2026-07-28"), {"tools": []}),
        (lambda raw: models.definition_of("tools", raw), {"name": "x"}),
        (lambda raw: models.check_empty("ping", raw, "2025-11-25"), {"_meta": 5}),
    ],
)
def test_what_the_sdk_refuses_is_not_valid(read, raw):
    with pytest.raises(NotValid) as caught:
        read(raw)
    member, _, problem = caught.value.problem.rpartition(": ")
    assert member in str(caught.value)
    assert problem in str(caught.value)


def test_a_negative_time_to_live_is_none_at_all():
    raw = {**HELLOS["server/discover"], "ttlMs": -5}
    assert models.read_hello("server/discover", raw)["ttlMs"] == 0
    assert models.read_page("tools/list", {"tools": [], **CACHING, "ttlMs": -1.5}, "2026-07-28")["ttlMs"] == 0


def test_what_a_later_version_says_of_a_page_does_not_hold_before():
    raw = {"tools": [], "ttlMs": "soon", "cacheScope": 5}
    assert models.read_page("tools/list", raw, "2025-11-25") == {}


def test_a_name_that_is_none_is_no_name():
    assert models.read_implementation({"name": 5}) is None
