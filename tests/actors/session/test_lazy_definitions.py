"""Definitions from the cache are those that a server gave, whoever looks at them."""

import pytest
from mcp_types import Prompt, Resource, ResourceTemplate, Tool

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.actors.session.lazy_definitions import LazyDefinition, cached_definitions_steps
from mcp_nursery.actors.session.models import definition_of
from mcp_nursery.supervisor.tools.pins import pinned_text

TOOL = {
    "name": "add",
    "title": "Add",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "annotations": {"readOnlyHint": True, "title": "Adds", "x": 1},
    "_meta": {"anthropic/alwaysLoad": True},
    "x-more": {"kept": [1]},
}
ALL = [
    ("tools", TOOL, Tool),
    ("tools", {"name": "bare", "inputSchema": {}}, Tool),
    ("resources", {"uri": "note://one", "name": "one", "mimeType": "text/plain"}, Resource),
    ("templates", {"uriTemplate": "note://{id}", "name": "any"}, ResourceTemplate),
    ("prompts", {"name": "greet", "arguments": [{"name": "who"}]}, Prompt),
]


def recalled(*listed):
    return at_once(cached_definitions_steps(listed))


@pytest.mark.parametrize(("kind", "said", "type_"), ALL)
def test_it_has_what_the_sdks_type_has(kind, said, type_):
    (each,) = getattr(recalled((kind, said)), kind)
    real = definition_of(kind, said)
    assert isinstance(real, type_)
    assert each == real
    assert real == each
    assert each == LazyDefinition(kind, dict(said))
    assert each != LazyDefinition(kind, {**said, "title": "another"})
    for name in type_.model_fields:
        assert getattr(each, name) == getattr(real, name)
    cached = {"by_alias": True, "mode": "json", "exclude_unset": True}
    assert each.model_dump(**cached) == real.model_dump(**cached) == said
    assert each.model_dump() == real.model_dump()


@pytest.mark.parametrize("said", [TOOL, ALL[1][1], {**TOOL, "annotations": {"readOnlyHint": None}}])
def test_it_is_pinned_as_it_was(said):
    assert pinned_text(LazyDefinition("tools", said)) == pinned_text(definition_of("tools", said))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("tools", {"name": "a"}),
        ("tools", {"name": 5, "inputSchema": {}}),
        ("tools", {"name": "a", "inputSchema": {}, "description": 5}),
        ("tools", []),
        ("towels", {"name": "a"}),
        ("resources", {"name": "a"}),
    ],
)
def test_what_is_no_entry_is_refused(kind, said):
    with pytest.raises(ValueError, match=kind):
        recalled((kind, said))


def test_what_comes_twice_counts_once():
    assert len(recalled(("prompts", {"name": "a"}), ("prompts", {"name": "a"})).prompts) == 1
