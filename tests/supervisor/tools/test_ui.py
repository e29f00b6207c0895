"""What a tool's `_meta` says of its page and its callers, whatever is written there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.tools.ui import ToolUI, is_for_models, ui_of

PAGE = "ui://board.html"
BOTH = frozenset(["model", "app"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["ui", "app", "model", PAGE, ""]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["ui", "resourceUri", "visibility"]), inner),
)


@pytest.mark.parametrize(
    ("meta", "ui"),
    [
        (None, None),
        ({}, None),
        ({"other": 1}, None),
        ({"ui": {}}, None),
        ({"ui": {"visibility": ["app", "model"]}}, None),
        ({"ui": {"resourceUri": PAGE}}, ToolUI(PAGE, BOTH)),
        ({"ui/resourceUri": PAGE}, ToolUI(PAGE, BOTH)),
        ({"ui": {"resourceUri": PAGE}, "ui/resourceUri": "ui://old.html"}, ToolUI(PAGE, BOTH)),
        ({"ui": {"visibility": ["app"]}, "ui/resourceUri": PAGE}, ToolUI(PAGE, frozenset(["app"]))),
        ({"ui": {"resourceUri": PAGE, "visibility": ["model"]}}, ToolUI(PAGE, frozenset(["model"]))),
        ({"ui": {"resourceUri": PAGE, "visibility": None}}, ToolUI(PAGE, BOTH)),
        # what cannot be read
        ("ui", None),
        ({"ui": ["app"], "ui/resourceUri": 7}, None),
        ({"ui": {"resourceUri": "https://example.com/board.html"}}, None),
        ({"ui": {"resourceUri": {}, "visibility": "app"}}, ToolUI(None, frozenset())),
        ({"ui": {"visibility": {"model": True}}}, ToolUI(None, frozenset())),
        ({"ui": {"visibility": []}}, ToolUI(None, frozenset())),
        ({"ui": {"visibility": ["app", "somebody", {}, 3]}}, ToolUI(None, frozenset(["app"]))),
    ],
)
def test_what_is_declared(meta, ui):
    assert ui_of(meta) == ui
    assert is_for_models(meta) is (ui is None or "model" in ui.visibility)


def test_no_question_about_it_is_long():
    assert len(ToolUI("ui://" + "x" * 1_000_000, frozenset()).summary) < 300


@given(JSON)
def test_whatever_is_declared_can_be_read(meta):
    ui = ui_of(meta)
    assert ui is None or (ui.visibility <= BOTH and ui != ToolUI(None, BOTH))
