"""Markup: text is escaped wherever it stands."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.cli.web.markup import Html, h, join


class Reader(HTMLParser):
    """Reads markup as a browser does: elements with their attributes, and text."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.seen.append(data)


def read(markup):
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader.seen


pieces = st.sampled_from(["<", ">", '"', "'", "&", "script", "=", "onload", " ", "/", "\n", "]]>", "<!--"])
hostile = st.lists(pieces | st.text(max_size=3)).map("".join)


@given(hostile, hostile)
def test_text_is_one_text_and_attributes_are_one_attribute(text, value):
    text, value = (each.replace("\r", "").replace("\0", "") for each in (text, value))
    first, *rest = read(h("p", text, title=value))
    assert first == ("p", {"title": value})
    assert "".join(rest) == text


def test_what_is_markup_stays_markup():
    inner = h("b", "<i>")
    assert h("p", inner, [inner, "&"], None, 3) == "<p><b>&lt;i&gt;</b><b>&lt;i&gt;</b>&amp;3</p>"
    assert isinstance(join(inner, "<"), Html)
    assert join(inner + "<") == "&lt;b&gt;&amp;lt;i&amp;gt;&lt;/b&gt;&lt;"  # a sum is text again


@pytest.mark.parametrize(
    ("attributes", "written"),
    [
        ({"class_": "a", "data_since": 3}, '<p class="a" data-since="3"></p>'),
        ({"hidden": True, "open": False, "id": None}, "<p hidden></p>"),
    ],
)
def test_attributes(attributes, written):
    assert h("p", **attributes) == written


def test_elements_without_content_have_no_end():
    assert h("input", name="a") == '<input name="a">'
