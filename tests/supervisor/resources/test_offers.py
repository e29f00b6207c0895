"""G4, P1: what servers offer besides tools is the same in whatever order they connect; which URIs are of a template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import Prompt, Resource, ResourceTemplate

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.messages import Definitions
from mcp_nursery.supervisor import ServerSpec
from mcp_nursery.supervisor.catalogue.catalogue import NO_TOOLS, replace_parts
from mcp_nursery.supervisor.catalogue.server_tools import part_of
from mcp_nursery.supervisor.decisions.state_machine import Snapshot
from mcp_nursery.supervisor.resources import matches
from mcp_nursery.supervisor.testing import ScriptedServer

NAMES = ("a", "b", "c")
SERVERS = frozenset(NAMES)
URIS = st.lists(st.sampled_from(["x:/1", "x:/2", "y:/1"]), unique=True)
PROMPTS = st.lists(st.sampled_from(["greet", "a_greet", "b greet"]), unique=True)


def snapshot(name, uris, prompts, state=ServerState.CONNECTED):
    declared = Definitions(
        resources=tuple(Resource(name=uri, uri=uri) for uri in uris),
        templates=tuple(ResourceTemplate(name=uri, uri_template=f"{uri}/{{n}}") for uri in uris),
        prompts=tuple(Prompt(name=prompt) for prompt in prompts),
    )
    return Snapshot(ServerSpec(name, ScriptedServer().transport), state, definitions=declared)


def shown(order, snapshots):
    """What the catalogue says, after servers have come one after the other."""
    catalogue = NO_TOOLS
    for name in order:
        part = part_of(snapshots[name], SERVERS, template="mcp_{server}_{tool}")
        catalogue = replace_parts(catalogue, [part])
    owners = {uri: catalogue.owner_of(uri, NAMES) for uri in ("x:/1", "x:/2", "y:/1", "x:/1/7", "z:/")}
    return catalogue.resources, catalogue.resource_templates, catalogue.prompts, owners


@given(st.permutations(NAMES), st.fixed_dictionaries({name: st.tuples(URIS, PROMPTS) for name in NAMES}))
def test_the_order_of_connecting_says_nothing(order, offered):
    snapshots = {name: snapshot(name, *each) for name, each in offered.items()}
    found = shown(order, snapshots)
    assert found == shown(NAMES, snapshots)
    *_, owners = found
    assert owners["x:/1"] == next((name for name in NAMES if "x:/1" in offered[name][0]), None)
    assert owners["x:/1/7"] == owners["x:/1"]
    assert owners["z:/"] is None


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("note:/{day}", "note:/monday", True),
        ("note:/{day}", "note:/", False),
        ("note:/{day}", "note:/a/b", False),
        ("note:/{day}", "other:/a", False),
        ("note:/{+path}", "note:/a/b?c", True),
        ("note:/{a}/{b}.txt", "note:/1/2.txt", True),
        ("note:/{a}/{b}.txt", "note:/1/2.md", False),
        ("note:/{a}-{b}", "note:/1-2-3", True),
        ("note:/list{?page}", "note:/list", True),
        ("note:/list{?page}", "note:/list?page=2", True),
        ("note:/plain", "note:/plain", True),
        ("note:/plain", "note:/plainer", False),
        ("{a}{a}", "x", False),
    ],
)
def test_which_uri_comes_of_a_template(template, uri, fits):
    assert matches(template, uri) is fits


def test_a_template_of_a_server_does_not_take_long_with_a_long_uri():
    assert not matches("x:" + "{a}a" * 1000 + "b", "x:" + "a" * 8000)
