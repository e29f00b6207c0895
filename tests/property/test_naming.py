"""Names of tools for any servers and tools at all."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.tools import naming
from mcp_nursery.supervisor.tools.naming import MAX_LENGTH, clean, possible_owners, public_names

PIECES = [
    "a",
    "b",
    "c",
    "A",
    "_",
    "-",
    ".",
    " ",
    "é",
    "\n",
    "a_b",
    "b_c",
    "server",
    "tool",
    "mcp_",
    "_deadbeef",
    "x" * 30,
]
names = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=4).map("".join),
    st.text(st.sampled_from("ab_"), max_size=5),
    st.text(st.characters(), max_size=100),
)
templates = st.sampled_from(
    [
        "mcp_{server}_{tool}",
        "mcp__{server}__{tool}",
        "{tool}",
        "{tool}_{server}",
        "{server}{tool}",
        "_{server}-{tool}_",
        "{tool}_deadbeef",
        "x" * 32 + "{tool}{server}",
    ]
)
worlds = st.dictionaries(names, st.lists(names, max_size=6), min_size=1, max_size=5)

World = dict[str, list[str]]


def name_all(world: World, template: str) -> dict[tuple[str, str], str]:
    return {
        (server, tool): name
        for server, tools in world.items()
        for tool, name in public_names(server, tools, list(world), template).items()
    }


def pairs(world: World) -> set[tuple[str, str]]:
    return {(server, tool) for server, tools in world.items() for tool in tools}


@given(worlds, templates)
def test_every_tool_has_a_name_of_its_own(world: World, template: str) -> None:
    named = name_all(world, template)
    assert named.keys() == pairs(world)
    assert len(set(named.values())) == len(named)
    for name in named.values():
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name, re.ASCII)


@given(worlds, templates, st.data())
def test_order_does_not_matter(world: World, template: str, data: st.DataObject) -> None:
    shuffled = {server: data.draw(st.permutations(world[server])) for server in data.draw(st.permutations(list(world)))}
    assert name_all(shuffled, template) == name_all(world, template)


@given(worlds, templates, st.data())
def test_other_servers_tools_do_not_matter(world: World, template: str, data: st.DataObject) -> None:
    server = data.draw(st.sampled_from(list(world)))
    grown = {**world, server: [*world[server], *data.draw(st.lists(names, min_size=1))]}
    before, after = name_all(world, template), name_all(grown, template)
    assert {pair: name for pair, name in after.items() if pair[0] != server} == {
        pair: name for pair, name in before.items() if pair[0] != server
    }


@given(worlds, templates, names, st.lists(names, min_size=1))
def test_another_server_never_takes_over_a_name(world: World, template: str, newcomer: str, tools: list[str]) -> None:
    before = name_all(world, template)
    after = name_all({newcomer: tools, **world}, template)
    owner = {name: pair for pair, name in after.items()}
    for pair, name in before.items():
        assert owner.get(name, pair) == pair


@given(st.lists(names), names, templates)
def test_another_tool_renames_only_tools_that_gave_up_the_servers_name(
    tools: list[str], newcomer: str, template: str
) -> None:
    before = public_names("a", tools, ["a"], template)
    after = public_names("a", [*tools, newcomer], ["a"], template)
    for tool, name in before.items():
        assert after[tool] == name or clean(tool, "").lower().startswith(("a_", "a-"))


@given(names)
def test_cleaning_twice_changes_nothing(name: str) -> None:
    once = clean(name, "x")
    assert clean(once, "x") == once
    assert "__" not in once
    assert once == once.strip("_")
    assert once


def could_come_from(plain: str, others: set[tuple[str, str]]) -> bool:
    """The definition, one server after the other."""
    for head, tail in others:
        if plain.startswith(head) and plain.endswith(tail):
            rest = plain[len(head) : len(plain) - len(tail)]
            if rest and clean(rest, "") == rest:
                return True
    return False


class DefinedFrames:
    """The same question as of `naming._Frames`, answered by looking at every other server."""

    def __init__(self, template: str, servers: frozenset[str]) -> None:
        self.by_server = {each: naming._around_tool(template, clean(each, "server")) for each in servers}

    def could_name(self, plain: str, *, but: str) -> bool:
        return could_come_from(plain, {frame for each, frame in self.by_server.items() if each != but})

    def rivals_of(self, server: str) -> frozenset[str]:
        """All: each name is asked about."""
        return frozenset([server])


crowds = st.lists(names, min_size=1, max_size=12, unique=True)


@given(st.lists(names, max_size=6), crowds, templates, st.sets(names, max_size=2))
def test_names_are_those_of_asking_every_server(tools, servers, template, reserved):
    """Also in a crowd whose names are beginnings of each other, and alike once they are cleaned."""
    for server in (servers[0], "another"):
        indexed = public_names(server, tools, servers, template, reserved)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(naming, "_frames", DefinedFrames)
            naming._names.cache_clear()
            assert public_names(server, tools, servers, template, reserved) == indexed


@given(crowds, templates, st.data())
def test_whether_another_could_name_it_is_found_as_by_asking_every_server(servers, template, data):
    """Of any text that could be a name, and of what is nearly one."""
    everyone = frozenset(servers)
    defined, indexed = DefinedFrames(template, everyone), naming._frames(template, everyone)
    head, tail = defined.by_server[data.draw(st.sampled_from(servers))]
    rest = data.draw(st.one_of(names, names.map(lambda name: clean(name, ""))))
    plain = data.draw(st.sampled_from([f"{head}{rest}{tail}", f"{head}{tail}", f"{rest}{tail}", f"{head}{rest}"]))
    for server in (servers[0], "another"):
        if len(plain) <= MAX_LENGTH:  # nobody asks about others
            assert indexed.could_name(plain, but=server) == defined.could_name(plain, but=server)


@given(world=worlds, template=templates)
def test_a_name_tells_who_can_have_it(world, template):
    """T2, T3: who has it is among them, and alone unless there is a hash."""
    for (server, _), name in name_all(world, template).items():
        owners = possible_owners(name, list(world), template)
        assert server in owners
        assert owners == [server] or re.search("_[0-9a-f]{8}$", name)
    assert possible_owners("", list(world), template) == []
