"""When a server is over a limit of its memory or age, and when it is renewed for that."""

import math

import pytest

from mcp_nursery.actors.errors import ConfigError
from mcp_nursery.supervisor.decisions.renewal_limits import Limits, excess_of, next_look

GIB = 1 << 30
TOO_MUCH = "its processes take 1025 MiB, more than 1024 MiB (limits.memory)"
TOO_OLD = "connected for 100 s (limits.age)"
IN_USE = "; it is renewed once nobody uses it"
TOO_SOON = "; it was renewed less than 600 s ago, and is not yet renewed again"


@pytest.mark.parametrize(
    ("limits", "facts", "said"),
    [
        (Limits(), {"memory": 9 * GIB}, None),
        (Limits(memory=GIB), {}, None),
        (Limits(memory=GIB), {"memory": GIB}, None),
        (Limits(memory=GIB), {"memory": GIB + 1}, f"renewed: {TOO_MUCH}"),
        (Limits(memory=GIB), {"memory": GIB + 1, "in_use": True}, TOO_MUCH + IN_USE),
        (Limits(memory=GIB, age=101), {"memory": GIB}, None),
        (Limits(age=100), {}, f"renewed: {TOO_OLD}"),
        (Limits(age=100), {"in_use": True}, TOO_OLD + IN_USE),
        (Limits(age=100), {"renewed_at": 1000}, f"renewed: {TOO_OLD}"),
        (Limits(memory=GIB), {"memory": GIB + 1, "renewed_at": 501}, TOO_MUCH + TOO_SOON),
        (Limits(memory=GIB), {"memory": GIB + 1, "renewed_at": 501, "in_use": True}, TOO_MUCH + TOO_SOON),
        (Limits(memory=GIB), {"memory": GIB + 1, "renewed_at": 500}, f"renewed: {TOO_MUCH}"),
    ],
)
def test_the_excess_of_a_server(limits, facts, said):
    now = {"memory": None, "connected_at": 1000, "renewed_at": -math.inf, "in_use": False, "now": 1100}
    excess = excess_of(limits, **(now | facts))
    assert said == (None if excess is None else str(excess))


def test_all_servers_are_looked_at_in_the_same_moment():
    assert [next_look(now) for now in (0, 29.9, 30, 59.9)] == [30, 30, 60, 60]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "1GiB", math.inf])
def test_a_limit_of_memory_is_a_number_of_bytes(wrong):
    with pytest.raises(ConfigError, match="field 'memory': must be bytes >= 1, not "):
        Limits(memory=wrong)


@pytest.mark.parametrize("wrong", [0, -60, 59.9, True, "60", math.inf, math.nan, 10**400])
def test_a_limit_of_age_is_a_minute_or_more(wrong):
    with pytest.raises(ConfigError, match="field 'age': must be finite seconds >= 60, not "):
        Limits(age=wrong)
