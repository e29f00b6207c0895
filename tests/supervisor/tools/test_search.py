"""T21: finding tools by words, among five hundred."""

import sqlite3
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.actors.pieces import at_once
from mcp_nursery.supervisor import ConfigError
from mcp_nursery.supervisor.tools.search import ToolIndex, words

from .many_tools import SERVICES, VERBS, WANTED, declared, five_hundred, named


@pytest.fixture
def index():
    made = ToolIndex()
    yield made
    made.close()


@pytest.fixture(scope="module")
def many():
    made = ToolIndex()
    tools = list(five_hundred())
    at_once(made.follow(tools))
    yield made, {tool.name: f"{tool.server}/{tool.tool}" for tool in tools}
    made.close()


def found(index, tools, query, limit=5):
    at_once(index.follow(tools))
    by_name = {tool.name: tool.tool for tool in tools}
    return [by_name[name] for name in index.find(query, limit)]


@pytest.mark.parametrize("query", WANTED)
def test_the_right_one_of_five_hundred_is_among_the_first_five(query, many):
    index, names = many
    assert len(names) == 500
    assert WANTED[query] in [names[name] for name in index.find(query, 5)]


def test_each_of_five_hundred_is_first_for_its_own_words_and_its_own_name(many):
    index, names = many
    for public, name in names.items():
        server, tool = name.split("/")
        verb = next(verb for verb in VERBS if tool.startswith(verb))
        assert index.find(f"{server}: {verb} {tool.removeprefix(verb)}".replace("_", " "), 1) == [public]
        assert index.find(f" {public} ", 1) == [public]
    assert len(names) == sum(map(len, SERVICES.values())) * len(VERBS)


def test_words_are_split_where_people_would():
    assert list(words("getUser_byID HTTPServer v2")) == [
        *("getUser", "get", "User"),
        *("byID", "by", "ID"),
        *("HTTPServer", "HTTP", "Server", "v2"),
    ]
    assert list(words("查找文件 files")) == ["查", "找", "文", "件", "files"]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("user", "getUserById"),
        ("GETUSERBYID", "getUserById"),
        ("github", "sync"),
        ("repositories", "repository_list"),
        ("repo", "repository_list"),
        ("café", "lunch"),
        ("文件", "wenjian"),
        ("thermometer", "read_sensor"),
        ("wavelength", "lamp"),
        ("celsius", "measure"),
    ],
)
def test_what_a_tool_is_found_by(query, best, index):
    lamp = {"type": "object", "properties": {"beam": {"properties": {"wavelength": {"type": "number"}}}}}
    tools = [
        named("a", declared("getUserById", "One of them.")),
        named("a", declared("sync", "With GitHub.")),
        named("a", declared("repository_list", "Lists.")),
        named("a", declared("lunch", "Finds a cafe.")),
        named("a", declared("wenjian", "查找文件")),
        named("a", declared("read_sensor", "Reads.", _meta={"anthropic/searchHint": "thermometer\nheat"})),
        named("a", declared("lamp", "Shines.", output_schema=lamp)),
        named("a", declared("measure", "Measures.", [("unit", "Kelvin or Celsius.")])),
    ]
    assert found(index, tools, query)[:1] == [best]


def test_a_word_said_a_hundred_times_counts_once(index):
    tools = [
        named("a", declared("shout", "invoice " * 100)),
        named("a", declared("send_invoice", "Sends it.")),
        *(named("a", declared(f"other{n}", "Nothing.")) for n in range(20)),
    ]
    assert found(index, tools, "invoice") == ["send_invoice", "shout"]


def test_it_follows_what_changes(index):
    one, two = (named("a", declared(name, "It does.")) for name in ("alpha", "beta"))
    assert found(index, [one, two], "does") == ["alpha", "beta"]
    assert found(index, [two], "does") == ["beta"]
    other = named("a", declared("beta", "It sleeps."))
    assert found(index, [other], "does") == []
    assert found(index, [other], "sleep") == ["beta"]


def test_one_that_is_left_half_done_is_done_again(index):
    tools = list(islice(five_hundred(), 50))
    work = index.follow(tools)
    for _ in range(20):
        next(work)
    work.close()
    at_once(index.follow(tools))
    assert {name for tool in tools for name in index.find(tool.name, 1)} == {tool.name for tool in tools}


def test_who_brings_a_closed_one_up_to_date_stops():
    index = ToolIndex()
    work = index.follow(five_hundred())
    next(work)
    index.close()
    at_once(work)


@given(st.text(st.characters(), max_size=60) | st.text(alphabet="\"*^():-+ANDORTNE{}'; \0", max_size=40))
def test_whatever_is_looked_for_is_data(query):
    index = ToolIndex()
    try:
        assert set(found(index, [named("a", declared("alpha", "NEAR and OR, NOT"))], query)) <= {"alpha"}
    finally:
        index.close()


def test_words_of_the_language_of_queries_are_words(index):
    tools = [named("a", declared(name, "It does.")) for name in ("near_me", "not_me")]
    assert set(found(index, tools, "NEAR(me, 2) AND NOT name:not")) == {"near_me", "not_me"}
    assert found(index, tools, "near \ud800") == ["near_me"]
    assert found(index, tools, 'near" OR "x') == ["near_me"]
    assert found(index, tools, "") == found(index, tools, "!!!") == []


def test_a_sqlite_without_fts5_is_told(monkeypatch):
    class Without(sqlite3.Connection):
        def execute(self, *args):
            raise sqlite3.OperationalError("no such module: fts5")

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, factory=Without, **more))
    with pytest.raises(ConfigError, match=r"no such module: fts5.* needs FTS5"):
        ToolIndex()
