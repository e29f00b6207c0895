"""What errors say, and to whom."""

import pytest

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.errors import BreakerOpen, ConfigError, NotApproved, ServerDown, UnknownServer


@pytest.mark.parametrize(
    ("error", "fact", "advice"),
    [
        (
            ServerDown(server="s", tool="t", state=ServerState.FAILED, error="boom"),
            "s: t: the server is failed (boom)",
            "reconnect starts it again, `revive` in its entry brings it back by itself",
        ),
        (
            ServerDown(server="s", state=ServerState.FAILED, error="boom", revived_by_calls=True),
            "s: the server is failed (boom)",
            "the next call of one of its tools starts it again",
        ),
        (
            ServerDown(server="s", state=ServerState.WAITING, error="boom", retry_in=2),
            "s: the server is waiting, restarts in 2.0 s (boom)",
            "",
        ),
        (ServerDown(server="s", state=ServerState.CONNECTING), "s: the server is connecting", ""),
        (
            BreakerOpen(server="s", tool="t", failures=3, retry_in=0),
            "s: t: the circuit breaker is open: 3 calls in a row failed; another call is trying",
            "reconnect starts the server afresh",
        ),
        (NotApproved("s", None, "no", advice="ask"), "s: not approved: no", "ask"),
        (ConfigError("no"), "no", ""),
        (UnknownServer("a", near=["b"]), "no server named 'a'; did you mean 'b'?", ""),
    ],
)
def test_what_happened_is_apart_from_what_a_program_can_do(error, fact, advice):
    assert (error.fact, error.advice) == (fact, advice)
    assert str(error) == (f"{fact}; {advice}" if advice else fact)
