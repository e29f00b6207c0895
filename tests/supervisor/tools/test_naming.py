import re
import subprocess
import sys
from itertools import combinations

import pytest

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.tools import naming
from mcp_nursery.supervisor.tools.naming import check_template, clean, public_names, rivals_of

HASH = "_########"


def shape(name: str) -> str:
    """The name with a hash at its end made recognisable."""
    return re.sub(r"_[0-9a-f]{8}\Z", HASH, name)


@pytest.mark.parametrize(
    ("server", "tool", "servers", "template", "expected"),
    [
        ("time", "get_current_time", {"time"}, None, "mcp_time_get_current_time"),
        ("time", "get_current_time", {"time", "git"}, None, "mcp_time_get_current_time"),
        ("time", "get_current_time", set(), None, "mcp_time_get_current_time"),
        ("time", "get-current-time", {"time"}, None, "mcp_time_get-current-time"),
        ("time", "now", {"time"}, "mcp__{server}__{tool}", "mcp__time__now"),
        ("time", "now", {"time"}, "{tool}", "now"),
        ("my time", "now", {"my time"}, "{tool}", "now"),
        ("time", "now", {"time"}, "{tool}-by-{server}", "now-by-time"),
        # Cleaning.
        ("time", "get.now", {"time"}, None, "mcp_time_get_now" + HASH),
        ("time", "get__now", {"time"}, None, "mcp_time_get_now" + HASH),
        ("time", "_now_", {"time"}, None, "mcp_time_now" + HASH),
        ("my time", "now", {"my time"}, None, "mcp_my_time_now" + HASH),
        ("time", "日本", {"time"}, None, "mcp_time_tool" + HASH),
        ("日本", "now", {"日本"}, None, "mcp_server_now" + HASH),
        ("time", "", {"time"}, None, "mcp_time_tool" + HASH),
        # The server's name in the tool's.
        ("git", "git_status", {"git"}, None, "mcp_git_status"),
        ("git", "git-status", {"git"}, None, "mcp_git_status"),
        ("GitHub", "github_search", {"GitHub"}, None, "mcp_GitHub_search"),
        ("git", "git_git_status", {"git"}, None, "mcp_git_git_status"),
        ("git", "gitk", {"git"}, None, "mcp_git_gitk"),
        ("git", "git", {"git"}, None, "mcp_git_git"),
        ("git", "git-", {"git"}, None, "mcp_git_git-"),
        ("git", "git-_x", {"git"}, None, "mcp_git_x"),
        ("git", "git.status", {"git"}, None, "mcp_git_status" + HASH),
        ("git", "git_status", {"git"}, "{tool}", "git_status"),
        # Another server's names.
        ("a", "b_c", {"a", "a_b"}, None, "mcp_a_b_c" + HASH),
        ("a_b", "c", {"a", "a_b"}, None, "mcp_a_b_c" + HASH),
        ("a", "b", {"a", "a_b"}, None, "mcp_a_b"),
        ("a", "b_c", {"a", "a_b"}, "mcp__{server}__{tool}", "mcp__a__b_c"),
        ("a_b", "c", {"a.b", "a_b"}, None, "mcp_a_b_c" + HASH),
        ("a", "now", {"a", "b"}, "{tool}", "now" + HASH),
        ("a", "bc", {"a", "ab"}, "{server}{tool}", "abc" + HASH),
        ("a_b", "c", {"a", "a_b"}, "{server}{tool}", "a_bc"),
        ("b", "c_a", {"b", "a_b"}, "{tool}_{server}", "c_a_b" + HASH),
        ("b", "c", {"b", "x"}, "{tool}_{server}", "c_b"),
        # What looks like a hash.
        ("time", "now_deadbeef", {"time"}, None, "mcp_time_now_deadbeef" + HASH),
        ("time", "deadbeef", {"time"}, None, "mcp_time_deadbeef" + HASH),
        ("time", "now_DEADBEEF", {"time"}, None, "mcp_time_now_DEADBEEF"),
        ("time", "now_deadbee", {"time"}, None, "mcp_time_now_deadbee"),
        # Length.
        ("time", "x" * 55, {"time"}, None, "mcp_time_" + "x" * 55),
        ("time", "x" * 56, {"time"}, None, "mcp_time_" + "x" * 46 + HASH),
        ("s" * 90, "now", {"s" * 90}, None, "mcp_" + "s" * 47 + "_now" + HASH),
        ("s" * 90, "x" * 90, {"s" * 90}, None, "mcp_" + "s" * 16 + "_" + "x" * 34 + HASH),
        ("time", "x" * 45 + "_" + "x" * 20, {"time"}, None, "mcp_time_" + "x" * 45 + HASH),
        ("time", "x" * 90, {"time"}, "{tool}", "x" * 55 + HASH),
    ],
)
def test_name(server: str, tool: str, servers: set[str], template: str | None, expected: str) -> None:
    options = {} if template is None else {"template": template}
    name = public_names(server, [tool], servers, **options)[tool]
    assert (shape(name) if expected.endswith(HASH) else name) == expected
    assert len(name) <= 64


def test_a_name_never_changes() -> None:
    """A changed hash would break every approval that users have recorded."""
    assert public_names("a", ["b.c"], ["a"]) == {"b.c": "mcp_a_b_c_3d615f7b"}


def test_lone_surrogates_hash_unlike_the_character_they_would_pair_to() -> None:
    names = public_names("a", ["\U0001f600", "\ud83d\ude00"], ["a"])
    assert len(set(names.values())) == 2


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (["git_status", "status"], {"git_status": "mcp_git_status" + HASH, "status": "mcp_git_status"}),
        (["git_status", "GIT_status"], dict.fromkeys(["git_status", "GIT_status"], "mcp_git_status" + HASH)),
        (["git_status", "log"], {"git_status": "mcp_git_status", "log": "mcp_git_log"}),
        (["log", "log"], {"log": "mcp_git_log"}),
    ],
)
def test_stripping_gives_way_to_the_tool_that_has_the_name(tools: list[str], expected: dict[str, str]) -> None:
    assert {tool: shape(name) for tool, name in public_names("git", tools, ["git"]).items()} == expected


def test_tools_whose_hashes_collide_are_both_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "_digest", lambda server, tool: "01234567")
    assert public_names("a", ["x.y", "x y", "z"], ["a"]) == {"z": "mcp_a_z"}


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("", "must have {tool}"),
        ("mcp_{server}", "must have {tool}"),
        ("{tool}{tool}", "must have {tool} once"),
        ("{server}{tool}{server}", "{server} at most once"),
        ("{tool}{other}", "only letters"),
        ("{tool}.x", "only letters"),
        ("{{tool}}", "only letters"),
        ("{ser{tool}ver}", "only letters"),
        ("{tool!r}", "must have {tool}"),
        ("{tool}{server:>9}", "only letters"),
        ("é{tool}", "only letters"),
        ("{tool}\n", "only letters"),
        ("x" * 33 + "{tool}", "at most 32"),
    ],
)
def test_bad_template(template: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_template(template)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError):
        public_names("a", [], ["a"], template)


def test_good_templates() -> None:
    for template in ("mcp_{server}_{tool}", "{tool}", "{tool}-{server}", "x" * 32 + "{tool}{server}"):
        check_template(template)


def test_clean() -> None:
    assert clean("  a..b__c- ", "x") == "a_b_c-"
    assert clean("___", "x") == "x"


def test_imports_no_event_loop() -> None:
    code = (
        "import sys, mcp_nursery.supervisor.tools.naming; "
        "sys.exit(bool({'trio', 'mcp', 'mcp_types'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("template", ["mcp_{server}_{tool}", "{tool}", "{tool}_{server}", "x{tool}"])
def test_names_depend_on_the_rivals_alone(template):
    """Whoever comes or goes, a server's names are the same for as long as these are: nobody else is named again."""
    pool = ("a", "a b", "a_b", "b", "c_b")
    crowds = [frozenset(each) for size in range(len(pool)) for each in combinations(pool, size + 1)]
    for server in pool:
        named: dict[frozenset[str], set[tuple[str, ...]]] = {}
        for crowd in crowds:
            if server in crowd:
                names = public_names(server, ["a_b", "b_c", "b", "c"], crowd, template)
                named.setdefault(rivals_of(server, crowd, template), set()).add(tuple(names.values()))
        assert {len(each) for each in named.values()} == {1}
        assert len(named) < 16


def test_names_that_several_supervisors_ask_for_are_made_once():
    """Also where another server could have names alike; whatever one of them does with its own."""
    tools = [f"number_{n}" for n in range(50)]
    for servers in ({"lab", "other"}, {"lab", "lab_number"}):
        naming._names.cache_clear()
        names = public_names("lab", tools, servers)
        changed = dict(names)
        names.clear()
        assert public_names("lab", list(tools), frozenset(servers)) == changed
        assert (naming._names.cache_info().misses, naming._names.cache_info().hits) == (1, 1)
