"""URIs that name their server: what they are made of, where they stand, and that they are read back exactly. Pure."""

import re
from copy import deepcopy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor.gateway.views.shown_uris import (
    qualify,
    qualify_definition,
    qualify_result,
    split_qualified,
)

NAMES = st.one_of(st.text(min_size=1, max_size=20), st.sampled_from(["a", "A", "a+b", "a/b", "%61", "ui:", "\ud800"]))
TEXTS = st.one_of(
    st.text(max_size=50),
    st.sampled_from(["", "ui://", "ui://a+b", "UI://x", "mcp-server://a/b", "\x00", " ui://x", "x" * 10_000, "{+x}"]),
    st.builds("{}{}".format, st.sampled_from(["ui://", "note:", "file:///"]), st.text(max_size=20)),
)


@given(NAMES, TEXTS)
@example("my server", "note://today")
def test_a_shown_uri_is_of_its_server_alone(server, uri):
    shown = qualify(server, uri)
    assert split_qualified(shown) == (server, uri)
    assert shown.startswith("ui://") is uri.startswith("ui://")
    assert re.match(r"(ui|mcp-server)://[A-Za-z0-9._~%-]+[+/]", shown)


@given(TEXTS)
def test_what_is_read_back_was_shown_so(uri):
    named = split_qualified(uri)
    if named is not None and named[0]:
        server, own = named
        assert split_qualified(qualify(server, own)) == (server, own)


@given(NAMES, st.sampled_from(["ui://{+x}", "note://{day}/{?page}", "{+all}"]), st.text("abc/", max_size=5))
def test_what_a_shown_template_expands_to_is_what_its_own_expands_to(server, template, value):
    def expand(text):
        return re.sub(r"\{[^}]*\}", value, text)

    named = split_qualified(expand(qualify(server, template)))
    assert named == (server, expand(template))


LINK = {"type": "resource_link", "name": "x", "uri": "note://1"}
EMBEDDED = {"type": "resource", "resource": {"uri": "ui://1", "text": "x", "_meta": {"y": 1}}}
UI = {"ui": {"resourceUri": "ui://1", "visibility": ["app"]}, "ui/resourceUri": "ui://1", "other": "ui://1"}
SHOWN, PAGE = "mcp-server://a/note://1", "ui://a+1"


@pytest.mark.parametrize(
    ("method", "result", "uris"),
    [
        ("tools/call", {"content": [{"type": "text", "text": "ui://1"}, LINK, EMBEDDED]}, [SHOWN, PAGE]),
        ("tools/call", {"content": [], "_meta": UI, "structuredContent": {"uri": "ui://1"}}, [PAGE, PAGE]),
        ("tools/call", {"content": [], "_meta": {"openai/outputTemplate": "ui://1"}}, [PAGE]),
        ("prompts/get", {"messages": [{"content": LINK}, {"content": [EMBEDDED, LINK]}]}, [SHOWN, PAGE, SHOWN]),
        (
            "resources/read",
            {"contents": [{"uri": "note://1"}, {"uri": "https://x"}]},
            [SHOWN, "mcp-server://a/https://x"],
        ),
        (
            "tools/call",
            {"content": [LINK | {"uri": "HTTPS://x"}, LINK | {"uri": " https://x"}]},
            ["mcp-server://a/ https://x"],
        ),
        ("tools/call", {"content": [LINK | {"uri": SHOWN}]}, [f"mcp-server://a/{SHOWN}"]),
        ("tasks/get", {"result": {"content": [LINK, EMBEDDED], "_meta": UI}}, [SHOWN, PAGE, PAGE, PAGE]),
        ("tasks/get", {"status": "working", "result": 1}, []),
        ("vendor/method", {"content": [LINK]}, []),
    ],
)
def test_where_a_result_has_uris(method, result, uris):
    before = deepcopy(result)
    after = at_once(qualify_result(method, "a", result))
    assert result == before
    found = re.findall(r"'((?:mcp-server://a/|ui://a\+)[^']*)'", str(after))
    assert sorted(found) == sorted(uris)
    assert str(after).replace("mcp-server://a/", "").replace("ui://a+", "ui://") == str(before).replace(
        "mcp-server://a/", ""
    )


@pytest.mark.parametrize("wrong", [None, 1, ["x"], {"uri": 1}, {"uri": None}, {"uri": ["note://1"]}])
def test_what_is_no_uri_is_left_as_it_is(wrong):
    for result in (
        {"content": wrong, "_meta": wrong},
        {"content": [wrong, {"type": "resource", "resource": wrong}, {"type": "resource_link", "uri": wrong}]},
        {"content": [], "_meta": {"ui": wrong, "ui/resourceUri": wrong}},
    ):
        assert at_once(qualify_result("tools/call", "a", result)) == result
    for messages in (wrong, [wrong, {"content": wrong}, {"content": [wrong]}]):
        assert at_once(qualify_result("prompts/get", "a", {"messages": messages})) == {"messages": messages}


def test_a_definition_has_them_too():
    tool = {"name": "show", "_meta": UI}
    meta = qualify_definition("a", tool)["_meta"]
    assert meta == {"ui": {"resourceUri": PAGE, "visibility": ["app"]}, "ui/resourceUri": PAGE, "other": "ui://1"}
    assert qualify_definition("a", {"uri": "note://1"}) == {"uri": SHOWN}
    assert qualify_definition("a", {"uriTemplate": "ui://{x}"}) == {"uriTemplate": "ui://a+{x}"}
