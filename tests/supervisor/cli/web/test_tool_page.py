"""The answer of a tool on its page: text, tables, JSON, and what a model would see."""

import re
from base64 import b64encode

from mcp_types import ImageContent, TextContent

from mcp_nursery.supervisor import ToolResult
from mcp_nursery.supervisor.cli.web.tool_page import LARGEST_IMAGE, MOST_RESULT_COLUMNS, MOST_RESULT_ROWS, result_of


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


def image(kind, data):
    return ImageContent(type="image", data=data, mime_type=kind)


def test_images_are_shown_but_those_that_may_hold_a_script_or_are_large():
    kept = []

    def keep(kind, content):
        kept.append((kind, content))
        return f"/ui/image?id={len(kept)}"

    png = b64encode(b"\x89PNG and more").decode()
    content = [
        *[TextContent(type="text", text="a word")] * 9,
        image("image/png", png),
        image("image/svg+xml", png),
        image("image/png", "no base64 <"),
        image("image/png", "A" * (2 * LARGEST_IMAGE)),
        image("image/webp", png),
    ]
    shown = result_of(ToolResult("", content, None, False, 0.02, "lab", "search", 1, 10), keep)
    assert kept == [("image/png", b"\x89PNG and more"), ("image/webp", b"\x89PNG and more")]
    assert re.findall(r'<img src="([^"]*)"', shown) == ["/ui/image?id=1", "/ui/image?id=2"]


def test_the_text_for_a_model_is_cut_and_marked():
    shown = answer(None, "0123456789 and more")
    assert "What a model sees" in shown
    assert shown.count("0123456789 and more") == 1
    assert "untrusted" in shown
