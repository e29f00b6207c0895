"""The answer of a tool on its page: text, tables, JSON, and what a model would see."""

import re
from base64 import b64encode

import pytest
from mcp_types import ImageContent, TextContent

from mcp_nursery.supervisor import ToolResult
from mcp_nursery.supervisor.cli.web.layout import LONGEST_PHRASE
from mcp_nursery.supervisor.cli.web.tool_page import (
    LARGEST_IMAGE,
    LONGEST_RESULT,
    MOST_RESULT_COLUMNS,
    MOST_RESULT_ROWS,
    result_of,
)


def answer(structured, text="two of them"):
    return result_of(ToolResult(text, [], structured, False, 0.02, "lab", "search", 1, 10), lambda *_: "/ui")


def test_a_list_of_objects_is_a_table():
    shown = answer({"found": [{"title": "<b>", "pages": 3}, {"title": "b", "late": None}], "total": 2})
    assert shown.count("<tr>") == 3
    assert "<td>&lt;b&gt;</td><td>3</td>" in shown
    assert "late" not in shown.partition("<pre")[0]  # nothing stands there
    assert "&quot;total&quot;: 2" in shown


def test_what_is_no_table_is_json():
    for structured in ({"found": [{"deep": []}]}, {"found": []}, {"found": [1]}, [{"a": 1}], "text", None):
        assert "<table" not in answer(structured)
    wide = {"found": [dict.fromkeys(map(str, range(MOST_RESULT_COLUMNS + 1)), 1)]}
    assert "<table" not in answer(wide)
    assert answer({"found": [{"a": 1}] * (MOST_RESULT_ROWS + 9)}).count("<tr>") == MOST_RESULT_ROWS + 1


@pytest.mark.timeout(30)  # each row against each name in all of them took more than a minute
def test_a_list_whose_objects_share_no_names_holds_up_nobody():
    assert "<table" not in answer({"found": [{f"{row} {key}": 1 for key in range(500)} for row in range(200)]})


def test_all_tables_together_have_a_bound():
    row = {str(column): "x" * LONGEST_PHRASE for column in range(MOST_RESULT_COLUMNS)}
    shown = answer({str(number): [row] * 3 for number in range(50)}).partition("<pre")[0]
    assert 0 < shown.count("<table") < 50
    assert shown.count("x") <= LONGEST_RESULT


def image(kind, data):
    return ImageContent(type="image", data=data, mime_type=kind)


def test_images_are_shown_but_those_that_may_hold_a_script_or_are_large():
    kept = []

    def keep(kind, content):
        kept.append((kind, content))
        return f"/ui/image?id={len(kept)}"

    png = b64encode(b"\x89PNG and more").decode()
    whole = bytes(LARGEST_IMAGE)
    content = [
        *[TextContent(type="text", text="a word")] * 9,
        image("image/png", png),
        image("image/svg+xml", png),
        image("image/png", "no base64 <"),
        image("image/png", "A" * (2 * LARGEST_IMAGE)),
        image("image/png", b64encode(whole + b"1").decode()),
        image("image/png", ""),
        image("image/webp", png),
        image("image/gif", b64encode(whole).decode()),
    ]
    shown = result_of(ToolResult("", content, None, False, 0.02, "lab", "search", 1, 10), keep)
    small = b"\x89PNG and more"
    assert kept == [("image/png", small), ("image/webp", small), ("image/gif", whole)]
    assert re.findall(r'<img src="([^"]*)"', shown) == [f"/ui/image?id={number}" for number in (1, 2, 3)]


def test_the_text_for_a_model_is_cut_and_marked():
    shown = answer(None, "0123456789 and more")
    assert "What a model sees" in shown
    assert shown.count("0123456789 and more") == 1
    assert "untrusted" in shown
