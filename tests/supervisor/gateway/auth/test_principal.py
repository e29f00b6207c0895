"""Who a client is, and what it may use."""

import time

import pytest

from mcp_nursery.supervisor.gateway.auth.principal import Access, Principal, bearer_of, path_of


@pytest.mark.parametrize(
    ("allow", "tools", "has_server", "has_all_of", "has_metrics"),
    [
        (None, {"read", "write"}, True, True, True),
        ([], set(), False, False, False),
        (["*/*"], {"read", "write"}, True, True, False),
        (["git/*"], {"read", "write"}, True, True, False),
        (["git/r*"], {"read"}, True, False, False),
        (["g*/r*", "*/write"], {"read", "write"}, True, False, False),
        (["other/*", "git/read"], {"read"}, True, False, False),
        (["other/*"], set(), False, False, False),
        (["/metrics"], set(), False, False, True),
        (["git/*", "/metrics"], {"read", "write"}, True, True, True),
    ],
)
def test_what_globs_allow(allow, tools, has_server, has_all_of, has_metrics):
    access = Access(allow)
    assert {tool for tool in ("read", "write") if access.has_tool("git", tool)} == tools
    assert (access.has_server("git"), access.has_all_of("git")) == (has_server, has_all_of)
    assert access.has_metrics == has_metrics


def test_many_globs_cost_little_for_each_tool():
    """A list of thousands of tools is cut to them in one go."""
    access = Access([f"server-{of}/tool_{number}_*" for of in range(10) for number in range(20)])
    before = time.process_time()
    has = sum(access.has_tool(f"server-{number % 50}", f"tool_{number}_x") for number in range(5_000))
    assert time.process_time() - before < 0.2
    assert has == 10


def test_a_glob_names_a_server_and_a_tool():
    with pytest.raises(ValueError, match="not 'git'"):
        Access(["git/*", "git"])


@pytest.mark.parametrize(
    ("path", "root", "under"),
    [
        ("/mcp", "", "/mcp"),
        ("/app/mcp", "/app", "/mcp"),
        ("/app/mcp", "/app/", "/mcp"),
        ("/app", "/app", ""),
        ("/application/mcp", "/app", "/application/mcp"),
        ("/mcp", "/app", "/mcp"),  # of a server that leaves it out
    ],
)
def test_a_path_is_under_the_one_that_the_application_is_mounted_at(path, root, under):
    assert path_of({"path": path, "root_path": root}) == under


@pytest.mark.parametrize(
    ("given", "token"),
    [
        ([b"Bearer abc"], "abc"),
        ([b"bEARER  abc "], "abc"),
        ([b"Bearer "], None),
        ([b"Basic abc"], None),
        ([b"abc"], None),
        ([b"Bearer abc", b"Bearer abc"], None),
        ([], None),
    ],
)
def test_a_request_has_one_bearer_token_or_none(given, token):
    headers = [(b"host", b"x"), *((b"Authorization", each) for each in given)]
    assert bearer_of({"headers": headers}) == token


def test_clients_are_one_whose_token_is_one():
    """Until when it holds makes no other client of it."""
    ann = Principal("ann", key="1", expires=5)
    assert ann == Principal("ann", key="1", expires=6)
    assert hash(ann) == hash(Principal("ann", key="1"))
    assert ann not in (Principal("bob", key="1"), Principal("ann", key="2"), Principal("ann", Access([]), key="1"))
