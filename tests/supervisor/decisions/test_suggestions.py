"""What may have been meant by a name that nobody has."""

import cProfile
import pstats

import pytest

from mcp_nursery.supervisor.decisions.suggestions import NearNames, near_names

CROWD = [f"mcp_s{server:04}_{tool}" for server in range(500) for tool in ("echo", "search_code", "list")]


def test_near_names():
    assert near_names("mcp_lab_ecko", ["mcp_lab_echo", "zzz"]) == ["mcp_lab_echo"]
    assert len(near_names("aa", ["aa1", "aa2", "aa3", "aa4"])) == 3
    assert near_names("x", []) == []
    assert near_names("x" * 100, ["x" * 90, "y"]) == ["x" * 90]


@pytest.mark.parametrize(
    "typed",
    [
        "mcp_s0123_search_coda",
        "mcp_s0123_serch_code",
        "mcp_s0123_search-code",
        "mcp_0123_search_code",
        "nmcp_s0123_search_code",
        "mcp_s0123_search_code_",
        "mcp_s0123_saerch_code",
    ],
)
def test_one_slip_in_a_crowd(typed):
    """Wherever it is: what is before it, or what is behind it, is as it should be."""
    assert near_names(typed, CROWD)[0] == "mcp_s0123_search_code"


def test_how_many_are_compared_does_not_depend_on_how_many_there_are():
    """To compare ten thousand names of a server's choice took seconds, in the host's task."""

    def work(many: int) -> int:
        names, profile = NearNames(f"tool{number:05}" for number in range(many)), cProfile.Profile()
        assert profile.runcall(names.of, "tool00042x")[0] == "tool00042"
        return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]

    assert work(10_000) < 2 * work(100)
