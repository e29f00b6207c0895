"""G4, P1: what servers offer besides tools is the same in whatever order they connect; which URIs are of a template."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import Prompt, Resource, ResourceTemplate

from mcp_nursery.actors import fairness
from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.messages import Definitions
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor import ServerSpec, open_supervisor
from mcp_nursery.supervisor.catalogue.catalogue import NO_TOOLS, replace_parts
from mcp_nursery.supervisor.catalogue.server_tools import part_of
from mcp_nursery.supervisor.decisions.state_machine import Snapshot
from mcp_nursery.supervisor.errors import UnknownResource
from mcp_nursery.supervisor.gateway.views.all import All
from mcp_nursery.supervisor.resources import ResourceTemplate as Template
from mcp_nursery.supervisor.testing import ScriptedServer

from ...lab.specs import nothing, spec

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
        part = at_once(part_of(snapshots[name], SERVERS, template="mcp_{server}_{tool}"))
        catalogue = replace_parts(catalogue, [part])
    uris = ("x:/1", "x:/2", "y:/1", "x:/1/7", "z:/")
    claimants = {uri: at_once(catalogue.claimants_of(uri, NAMES)) for uri in uris}
    return catalogue.resources, catalogue.resource_templates, catalogue.prompts, claimants


@given(st.permutations(NAMES), st.fixed_dictionaries({name: st.tuples(URIS, PROMPTS) for name in NAMES}))
def test_the_order_of_connecting_says_nothing(order, offered):
    snapshots = {name: snapshot(name, *each) for name, each in offered.items()}
    found = shown(order, snapshots)
    assert found == shown(NAMES, snapshots)
    *_, claimants = found
    assert claimants["x:/1"] == [name for name in NAMES if "x:/1" in offered[name][0]]
    assert claimants["x:/1/7"] == claimants["x:/1"]
    assert not claimants["z:/"]


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
    assert template_of(template).matches(uri) is fits


def template_of(text):
    return Template("lab", text, None, available=True)


def test_a_template_of_a_server_does_not_take_long_with_a_long_uri():
    assert not template_of("x:" + "{a}a" * 1000 + "b").matches("x:" + "a" * 8000)
    assert template_of("x:{+a}").matches("x:" + "a" * 8000)
    assert not template_of("x:{+a}").matches("x:" + "a" * 9000)


MANY = {f"x:{'{a}-' * 63}{{b}}{n}": nothing for n in range(500)}


async def test_a_uri_is_held_against_many_templates_in_turns(autojump_clock, monkeypatch):
    """Some of a thousand expressions each stopped a gateway for two seconds, at each read of an unlisted URI."""
    monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)
    server = ScriptedServer(resources=MANY, tools={})
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with (
        open_supervisor([spec(server)], gate=10) as supervisor,
        trio.open_nursery() as nursery,
    ):
        assert len(supervisor.resource_templates) == len(MANY)
        nursery.start_soon(count)
        for uri in ("y:unlisted", f"x:{'b-' * 80}"):
            for read in (supervisor.read_resource, All(supervisor).resource_of):
                turns = 0
                with pytest.raises(UnknownResource):
                    await read(uri + read.__name__)  # not one that is remembered
                assert turns >= len(MANY)
        nursery.cancel_scope.cancel()


async def test_a_template_of_too_many_expressions_is_left_out(autojump_clock, caplog):
    server = ScriptedServer(resources={f"x:{'{a}/' * count}": nothing for count in (64, 65)})
    async with open_supervisor([spec(server)], gate=10) as supervisor:
        assert [each.uri_template.count("{") for each in supervisor.resource_templates] == [64]
    assert "its URI template has more than 64 expressions" in caplog.text
