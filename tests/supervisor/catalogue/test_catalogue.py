"""The catalogue as a pure function of snapshots."""

import itertools
from types import SimpleNamespace

import pytest
from attrs import evolve
from mcp_types import Prompt as PromptDefinition
from mcp_types import Tool as Definition

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.messages import Definitions, Owner
from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor.catalogue import server_tools
from mcp_nursery.supervisor.catalogue.catalogue import NO_TOOLS, Catalogue, replace_parts
from mcp_nursery.supervisor.catalogue.server_tools import ServerTools, part_of
from mcp_nursery.supervisor.decisions.state_machine import Snapshot
from mcp_nursery.supervisor.spec import ServerSpec
from mcp_nursery.supervisor.tools.naming import DEFAULT_TEMPLATE, public_names
from mcp_nursery.supervisor.tools.pins import Review

S = ServerState
NOWHERE = SimpleNamespace(kind="none", connector=None)


def definition(name: str, **rest) -> Definition:
    return Definition(name=name, input_schema={"type": "object"}, **rest)


def server(name: str, *tools: str, state: ServerState = S.CONNECTED, incarnation: int = 1, **options) -> Snapshot:
    return Snapshot(
        ServerSpec(name, NOWHERE, **options),
        state,
        incarnation=incarnation,
        owner=Owner(incarnation, None, None) if state is S.CONNECTED else None,  # type: ignore[arg-type]
        definitions=Definitions(tuple(definition(tool) for tool in tools)),
    )


def build(*snapshots: Snapshot, template: str = DEFAULT_TEMPLATE) -> Catalogue:
    servers = frozenset(snapshot.spec.name for snapshot in snapshots)
    return replace_parts(NO_TOOLS, [build_part(snapshot, servers, template=template) for snapshot in snapshots])


def build_part(snapshot: Snapshot, servers, **options) -> ServerTools:
    return at_once(part_of(snapshot, frozenset(servers), **options))


def all_the_same(server, tools, *rest):
    """In the place of `public_names`."""
    return dict.fromkeys(tools, "same")


ROUTES = [("same",), ("one", "a"), ("two", "b"), ("three", "b")]


def routed(catalogue: Catalogue) -> dict[str, tuple[int, set[str]]]:
    """What the router makes of it: the live incarnation of each server, and its tools."""
    parts = catalogue.parts.items()
    return {server: (part.owner.incarnation, set(part.own)) for server, part in parts if part.owner is not None}


def names(catalogue: Catalogue) -> list[str]:
    return [tool.name for tool in catalogue.tools]


def test_nothing():
    empty = build()
    assert (empty.tools, dict(empty.homes), dict(empty.parts), empty.near("x")) == ((), {}, {}, [])


def test_sorted_by_name_in_any_order():
    """T4: the list does not depend on the order of the servers, nor of their tools."""
    servers = [server("b", "z", "a"), server("a", "m"), server("c", "k", "b")]
    lists = {tuple(names(build(*order))) for order in itertools.permutations(servers)}
    assert lists == {("mcp_a_m", "mcp_b_a", "mcp_b_z", "mcp_c_b", "mcp_c_k")}
    turned = [server("b", "a", "z"), server("a", "m"), server("c", "b", "k")]
    assert tuple(names(build(*turned))) in lists


def test_names_of_two_servers_never_meet():
    """T3: `a_b` + `c` and `a` + `b_c` could both be `mcp_a_b_c`: each is hashed, in any order, connected or not."""
    both = [server("a_b", "c"), server("a", "b_c")]
    forward, backward = build(*both), build(*reversed(both))
    assert names(forward) == names(backward)
    assert len(set(names(forward))) == 2
    assert "mcp_a_b_c" not in names(forward)
    alone = build(server("a_b", "c"), server("a", state=S.STOPPED))
    assert names(alone)[0] in names(forward)


def test_a_later_server_takes_over_no_name():
    """T3: connecting changes nobody's names: they depend on the configured set alone."""
    early = build(server("a_b", "c"), server("a", state=S.CONNECTING))
    late = build(server("a_b", "c"), server("a", "b_c"))
    assert early.find(names(early)[0]).server == "a_b"
    assert late.find(names(early)[0]).server == "a_b"


def test_raw_names_reach_every_tool():
    """T3: (server, its own name) is a route too, whatever the public name."""
    long, odd = "x" * 200, "größe\n"
    catalogue = build(server("lab", long, odd, "a.b"))
    for raw in (long, odd, "a.b"):
        tool = catalogue.find(raw, "lab")
        assert tool is not None
        assert tool.tool == raw
        assert len(tool.name) <= 64
        assert catalogue.find(tool.name) is tool


def test_without_the_server_in_the_template():
    """T3, T17: every name has a hash as soon as two servers are configured."""
    assert names(build(server("a", "one"), template="{tool}")) == ["one"]
    two = names(build(server("a", "one"), server("b", "one"), template="{tool}"))
    assert len(set(two)) == 2
    assert all(name.startswith("one_") for name in two)


def test_a_name_that_two_tools_would_have(monkeypatch):
    """T3: neither gets it (a collision of hashes); both are there by their own names, and only there."""
    monkeypatch.setattr(server_tools, "public_names", all_the_same)
    catalogue = build(server("a", "one"), server("b", "two"))
    assert (catalogue.tools, catalogue.find("same")) == ((), None)
    assert catalogue.find("one", "a").tool == "one"
    assert catalogue.find("two", "b").tool == "two"
    assert routed(catalogue) == {"a": (1, {"one"}), "b": (1, {"two"})}


def test_a_name_that_is_contested_for_a_while(monkeypatch):
    """T3: who comes later takes over nothing, and when its tool goes the name is its first owner's again."""
    monkeypatch.setattr(server_tools, "public_names", all_the_same)
    catalogue = build(server("a", "one"), server("b"))
    for later in (server("b", "two"), server("b", "three"), server("b"), server("b", "two", state=S.STOPPED)):
        catalogue = replace_parts(catalogue, [build_part(later, ["a", "b"], template=DEFAULT_TEMPLATE)])
        fresh = build(server("a", "one"), later)
        assert dict(catalogue.homes) == dict(fresh.homes)
        assert [catalogue.find(*key) for key in ROUTES] == [fresh.find(*key) for key in ROUTES]
        assert routed(catalogue) == routed(fresh)
        assert (catalogue.find("same") is None) is bool(later.definitions.tools)


@pytest.mark.parametrize("state", [S.FAILED, S.STOPPED, S.DISABLED, S.BLOCKED])
def test_nobody_gets_the_name_of_what_is_not_shown(state, monkeypatch):
    """T3: a server cannot wait until another is away: hashes can be made to collide."""
    monkeypatch.setattr(server_tools, "public_names", all_the_same)
    away, held = server("a", "one", state=state), Review(held={"one": "it has changed"})
    for owner in (away, evolve(server("a", "one"), review=held), server("a", "one", deny=["one"])):
        catalogue = build(owner, server("b", "two"))
        assert (catalogue.find("same"), catalogue.tools) == (None, ())
    prompts = [Definitions(prompts=(PromptDefinition(name=each),)) for each in ("one", "two")]
    catalogue = build(*(evolve(one, definitions=each) for one, each in zip((away, server("b")), prompts, strict=True)))
    assert (catalogue.find_prompt("same"), catalogue.prompts) == (None, ())
    assert catalogue.departed_prompt("same") == ("a", "one")


def test_owners_are_of_connected_servers_only():
    """G13: routes of others are known, and lead nowhere yet."""
    catalogue = build(server("a", "one", incarnation=4), server("b", "one", state=S.WAITING))
    assert routed(catalogue) == {"a": (4, {"one"})}
    assert catalogue.find("mcp_b_one") is not None


@pytest.mark.parametrize("state", [S.FAILED, S.STOPPED, S.DISABLED, S.BLOCKED])
def test_departed_tools_are_remembered(state):
    """G13: so that a call hears of the server's state and not of an unknown tool."""
    catalogue = build(server("a", "one", state=state), server("b", "one"))
    assert catalogue.departed("mcp_a_one") == catalogue.departed("one", "a") == ("a", "one")
    assert catalogue.departed("mcp_b_one") is None
    assert catalogue.parts["a"].tools == ()


def test_replacing_one_part():
    """G4: all others are the same objects."""
    before = build(server("a", "one"), server("b", "two"), server("c", "three"))
    part = build_part(server("b", "four"), before.parts.keys(), template=DEFAULT_TEMPLATE)
    after = replace_parts(before, [part])
    assert names(after) == ["mcp_a_one", "mcp_b_four", "mcp_c_three"]
    assert after.parts["a"] is before.parts["a"]
    assert after.parts["c"] is before.parts["c"]
    assert names(before) == ["mcp_a_one", "mcp_b_two", "mcp_c_three"]


def test_a_part_made_from_an_earlier_one_is_what_a_new_one_would_be():
    """G4: keeping the named tools where nothing changed is a saving, not a difference."""
    first = server("a", "one", "two")
    for state in ServerState:
        then = Snapshot(first.spec, state, definitions=first.definitions)
        part = build_part(first, ["a"], template=DEFAULT_TEMPLATE)
        kept = build_part(then, ["a"], template=DEFAULT_TEMPLATE, before=(first, part))
        assert kept == build_part(then, ["a"], template=DEFAULT_TEMPLATE)


@pytest.mark.parametrize("template", [DEFAULT_TEMPLATE, "{tool}"])
def test_names_are_kept_only_where_they_would_be_made_again(template):
    """G4: whatever of tools, filters and servers is another, the part is what a new one would be."""
    some = [server("a", *tools) for tools in ((), ("b_c", "d"), ("d", "b_c"), ("b_c", "a_b_c"))]
    some += [server("a", "b_c", "d", deny=["d"]), server("a", "b_c", "d", state=S.STOPPED)]
    for then, now in itertools.product(some, some):
        for before, after in itertools.product((["a"], ["a", "x"], ["a", "a_b"]), repeat=2):
            part = build_part(then, before, template=template)
            again = build_part(now, after, template=template, before=(then, part))
            assert again == build_part(now, after, template=template)


def test_names_follow_naming():
    """T2: the catalogue adds nothing of its own."""
    tools = ["git_status", "status", "a b", "x" * 100]
    catalogue = build(server("git", *tools))
    assert {tool.tool: tool.name for tool in catalogue.tools} == public_names("git", tools, ["git"])


def test_definition_hash():
    """T8: it changes with whatever the server declared, and with nothing else."""
    base = build(server("a", "one")).tools[0]
    again = build(server("a", "one", state=S.WAITING), server("b")).tools[0]
    assert again.definition_hash == base.definition_hash
    other = Snapshot(
        ServerSpec("a", NOWHERE), S.CONNECTED, definitions=Definitions((definition("one", description="new"),))
    )
    assert build(other).tools[0].definition_hash != base.definition_hash


def test_near_names():
    catalogue = build(server("lab", "echo"))
    assert catalogue.near("ecko", "lab") == ["echo"]
    assert catalogue.near("mcp_lab_ecko") == ["mcp_lab_echo"]


def test_near_names_of_a_tool_that_was_called_as_its_server_calls_it():
    catalogue = build(*(server(name, "echo", "other") for name in "abcd"))
    assert catalogue.near("echo") == ["mcp_a_echo", "mcp_b_echo", "mcp_c_echo"]
    assert catalogue.near("nothing like it") == []
