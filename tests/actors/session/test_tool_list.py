"""Every page of `tools/list`."""

import logging

import pytest
import trio

from mcp_nursery.actors import fairness
from mcp_nursery.actors.enums import ListKind
from mcp_nursery.actors.limits import USUAL, CostLimits
from mcp_nursery.actors.protocol import JsonRpcError
from mcp_nursery.actors.session.base import NotValid
from mcp_nursery.actors.session.handshake import negotiate
from mcp_nursery.actors.session.lists import Lists, ListTooLarge

from ...lab.sessions import CACHING, answers, discovery, greeting, listing, refuses, session


@pytest.fixture(params=["modern", "handshake"])
def opening(request):
    return (
        {"server_discover": answers(discovery())} if request.param == "modern" else {"initialize": answers(greeting())}
    )


async def every_page(lab, client, limits=USUAL):
    lists = Lists(client, lab.endpoint, limits=limits, server="lab")
    await lists.fetch(ListKind.TOOLS)
    return lists.definitions.tools


async def listed(*pages, **script):
    """The names of the tools, and the cursors that were sent; None for a first page."""
    async with session(tools_list=pages, **script) as (lab, client):
        await negotiate(client, None)
        tools = await every_page(lab, client)
        cursors = [message.get("params", {}).get("cursor") for message in lab.heard_of("tools/list")]
        return [tool.name for tool in tools], cursors


async def test_all_pages_in_the_servers_order(opening):
    pages = listing("z", "y", cursor="next"), listing("a", cursor="more"), listing("b")
    assert await listed(*pages, **opening) == (["z", "y", "a", "b"], [None, "next", "more"])


async def test_one_page_and_none(opening):
    assert await listed(listing("a"), **opening) == (["a"], [None])
    assert await listed(listing(), **opening) == ([], [None])


async def test_an_empty_cursor_is_a_cursor(opening):
    assert await listed(listing("a", cursor=""), listing("b"), **opening) == (["a", "b"], [None, ""])


@pytest.mark.parametrize("cursor", ["", "again"])
async def test_a_cursor_that_comes_again_ends_the_list(cursor, opening):
    tools, cursors = await listed(listing("a", cursor=cursor), listing("b", cursor=cursor), **opening)
    assert (tools, cursors) == (["a", "b"], [None, cursor])


async def test_cursors_that_go_in_a_circle_end(opening):
    pages = listing("a", cursor="1"), listing("b", cursor="2"), listing("c", cursor="1")
    assert await listed(*pages, **opening) == (["a", "b", "c"], [None, "1", "2"])


async def test_a_name_that_comes_twice_counts_once_the_first_time(opening, caplog):
    second = answers({"tools": [{"name": "a", "inputSchema": {"type": "object"}, "title": "other"}], **CACHING})
    async with session(tools_list=[listing("a", "b", "a", cursor="x"), second], **opening) as (lab, client):
        await negotiate(client, None)
        tools = await every_page(lab, client)
    assert [(tool.name, tool.title) for tool in tools] == [("a", None), ("b", None)]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == "dropped a tool named 'a' and 1 more: the server has another tool of that name"


async def test_a_server_that_invents_cursors_for_ever_ends_at_the_page_limit(autojump_clock):
    async with session(initialize=answers(greeting())) as (lab, client):
        await negotiate(client, None)
        pages = [listing(f"tool-{n}", cursor=f"cursor-{n}") for n in range(1500)]
        lab.script["tools/list"] = pages
        tools = await every_page(lab, client)
        assert len(tools) == len(lab.heard_of("tools/list")) == 1000


async def test_a_page_without_a_new_name_ends_the_list(opening):
    """A server that ignored the cursor and made up another was asked for 626 pages."""
    pages = [listing("a", "b", cursor=f"cursor-{n}") for n in range(9)]
    assert await listed(*pages, **opening) == (["a", "b"], [None, "cursor-0"])
    pages = listing("a", cursor="1"), listing("a", "b", cursor="2"), listing("b", cursor="3"), listing("c")
    assert await listed(*pages, **opening) == (["a", "b"], [None, "1", "2"])


async def test_a_few_pages_may_be_empty(opening):
    """A server that leaves out what a client may not see may send one."""
    empty = [listing(cursor=f"cursor-{n}") for n in range(9)]
    assert (await listed(listing("a", cursor="x"), *empty[:3], listing("b"), **opening))[0] == ["a", "b"]
    tools, cursors = await listed(listing("a", cursor="x"), *empty, listing("b"), **opening)
    assert (tools, len(cursors)) == (["a"], 5)


async def test_what_is_left_out_does_not_count(opening):
    """The limit is for what is kept: a server that repeats itself keeps its tools."""
    twice = listing(*["a", "b", "c"] * 9, cursor="x"), listing("c", "d")
    async with session(tools_list=twice, **opening) as (lab, client):
        await negotiate(client, None)
        tools = await every_page(lab, client, CostLimits(definitions=4, kept=500))
    assert [tool.name for tool in tools] == ["a", "b", "c", "d"]


async def failed(error, *pages, **script):
    async with session(tools_list=pages, **script) as (lab, client):
        await negotiate(client, None)
        with pytest.raises(error) as caught:
            await every_page(lab, client)
        return caught.value


async def test_a_page_that_is_refused_is_the_end_of_the_listing(opening):
    raised = await failed(JsonRpcError, listing("a", cursor="x"), refuses(-32000, message="no more"), **opening)
    assert raised.message == "no more"


@pytest.mark.parametrize("page", [{}, {"tools": "none"}, {"tools": [{"title": "nameless"}]}])
async def test_a_page_that_is_none_is_the_end_of_the_listing(page, opening):
    await failed(NotValid, answers({**page, **CACHING}), **opening)


async def test_an_entry_that_is_not_valid_costs_no_other(opening, caplog):
    """T1: a server whose fifty tools nobody can use for one of them is of no use."""
    odd = [
        {"inputSchema": {}},
        5,
        None,
        {"name": "b", "inputSchema": {}, "title": 5},
        {"name": "c", "description": [1]},
    ]
    pages = answers({"tools": odd, "nextCursor": "x", **CACHING}), listing("a")
    assert await listed(*pages, **opening) == (["a"], [None, "x"])
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    problem = "its definition is not valid MCP"
    assert warnings == [
        f"dropped a tool named '?': {problem}: name: Field required",
        f"dropped a tool named '?' and 1 more: {problem}: Input should be a valid dictionary or instance of Tool",
        f"dropped a tool named 'b': {problem}: title: Input should be a valid string",
        f"dropped a tool named 'c': {problem}: description: Input should be a valid string",
    ]


def nested(levels):
    value = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("where", ["inputSchema", "outputSchema", "_meta"])
async def test_a_tool_that_is_nested_too_deep_is_left_out(where, opening, caplog):
    """Nobody could hash, show or pass on its definition."""
    tools = [
        {"name": name, "inputSchema": {"type": "object"}, where: {"type": "object", "a": nested(levels)}}
        for name, levels in (("deep", 199), ("fits", 197))
    ]
    assert await listed(answers({"tools": tools, **CACHING}), **opening) == (["fits"], [None])
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == "dropped a tool named 'deep': nested deeper than 200 levels"


async def test_a_tool_whose_name_is_a_whole_text_is_left_out(opening, caplog):
    """It would stand in every error, log line and key of a cache."""
    tools = [{"name": "x" * length, "inputSchema": {"type": "object"}} for length in (1025, 1024)]
    assert await listed(answers({"tools": tools, **CACHING}), **opening) == (["x" * 1024], [None])
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().endswith("xx: its name is longer than 1024 characters")
    assert len(record.getMessage()) < 200


@pytest.mark.parametrize("half", ["\ud800", "cut \ud83d"])
async def test_half_a_character_costs_nobody_a_tool(half, opening):
    """In a name it ended the supervisor, in a cursor too, and in a description it cost the server all its tools."""
    whole = half[:-1] + "\ufffd"
    tools = [{"name": half, "description": half, "inputSchema": {"type": "object", "title": half}}]
    first = answers({"tools": tools, "nextCursor": half, **CACHING})
    assert await listed(first, listing("b"), **opening) == ([whole, "b"], [None, whole])


def numbered(page, count, **more):
    return listing(*(f"{page}-{number}" for number in range(count)), cursor=str(page), **more)


@pytest.mark.parametrize(("limits", "most"), [(USUAL, 5000), (CostLimits(definitions=7), 7)])
async def test_no_more_tools_than_one_turn_can_bear(limits, most, opening):
    """As many are taken; of one more no page is asked for."""
    fits = [numbered(0, most - 2), listing("a", "b")]
    async with session(tools_list=fits, **opening) as (lab, client):
        await negotiate(client, None)
        assert len(await every_page(lab, client, limits)) == most
    beyond = [numbered(0, most - 2), numbered(1, 3), listing("z")]
    async with session(tools_list=beyond, **opening) as (lab, client):
        await negotiate(client, None)
        with pytest.raises(ListTooLarge) as refused:
            await every_page(lab, client, limits)
        assert len(lab.heard_of("tools/list")) == 2
    more = "(max_definitions, or maxDefinitions in a file, allows more)"
    words = f"its tool definitions exceed {most:,} entries, the limit for one server {more}"
    assert refused.value.message == words


def large(name, size, **more):
    tool = {"name": name, "description": "d" * size, "inputSchema": {"type": "object"}}
    return answers({"tools": [tool], **CACHING, **more})


async def test_all_pages_together_have_a_budget_of_bytes(opening):
    """Sixty pages of 40 MB took 4.8 GB."""
    pages = [large(f"t{number}", 300_000, nextCursor=str(number)) for number in range(9)]
    async with session(tools_list=pages, **opening) as (lab, client):
        await negotiate(client, None)
        with pytest.raises(ListTooLarge, match="its tool definitions exceed 1 MiB, the limit for one server"):
            await every_page(lab, client, CostLimits(kept=1 << 20))
        assert len(lab.heard_of("tools/list")) == 4


async def test_a_list_without_a_valid_entry_is_refused(opening):
    pages = [answers({"tools": [{"name": 5}] * 60, **more, **CACHING}) for more in ({"nextCursor": "x"}, {})]
    await failed(NotValid, *pages, **opening)


async def test_others_run_while_many_tools_are_looked_at(opening, monkeypatch):
    monkeypatch.setattr(fairness, "_SLICE_SECONDS", 0)
    others = []

    async def run():
        while True:
            others.append(1)
            await trio.lowlevel.checkpoint()

    async with session(tools_list=[listing(*(f"t{n}" for n in range(3000)))], **opening) as (lab, client):
        await negotiate(client, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            assert len(await every_page(lab, client)) == 3000
            nursery.cancel_scope.cancel()
    assert len(others) > 3000 // 50
