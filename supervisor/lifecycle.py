"""The states of a server and the legal ways between them. Pure data, read by the keeper, the tests and the docs."""

from collections.abc import Mapping
from types import MappingProxyType

from mcp_nursery.actors.states import ServerState

_S = ServerState

TRANSITIONS: Mapping[ServerState, frozenset[ServerState]] = MappingProxyType(
    {
        _S.DISABLED: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.BLOCKED: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.IDLE: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.CONNECTING: frozenset({_S.CONNECTED, _S.WAITING, _S.FAILED, _S.STOPPED, _S.NEEDS_AUTH, _S.BLOCKED}),
        _S.CONNECTED: frozenset({_S.CONNECTING, _S.WAITING, _S.FAILED, _S.STOPPED, _S.IDLE, _S.NEEDS_AUTH}),
        _S.NEEDS_AUTH: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.WAITING: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.FAILED: frozenset({_S.CONNECTING, _S.STOPPED}),
        _S.STOPPED: frozenset({_S.CONNECTING}),
    }
)
"""From each state, the states that may follow it. A state may always follow itself: the same state with new facts."""

BEGINNINGS = frozenset({_S.DISABLED, _S.IDLE, _S.CONNECTING})
"""Where a server stands when its configuration is new, whatever it did before: a changed one begins again."""

KEEPS_TOOLS = frozenset({_S.CONNECTED, _S.CONNECTING, _S.WAITING, _S.IDLE, _S.NEEDS_AUTH})
"""States in which a server's last known tools stay visible and routed; in all others it has none."""

CALLS_WAIT = frozenset({_S.CONNECTING, _S.IDLE})
"""States in which a call waits for the server unless it says otherwise."""

LEFT_BY_NOBODY = frozenset({_S.DISABLED, _S.BLOCKED, _S.NEEDS_AUTH, _S.FAILED, _S.STOPPED})
"""States that only a person's act ends, unless `revive` ends `failed`. In `needs_auth` nothing is tried again on its
own, however long it lasts: somebody authorises, and reconnects."""


class IllegalTransition(AssertionError):
    """A keeper tried a way that the table does not have: a bug of ours."""


def check_beginning(new: ServerState) -> None:
    """Refuse a state in which no configuration begins.

    Raises:
        IllegalTransition: The state is not in `BEGINNINGS`.
    """
    if new not in BEGINNINGS:
        raise IllegalTransition(f"begins in {new}")


def check_transition(old: ServerState, new: ServerState) -> None:
    """Refuse a way between states that the table does not have.

    Raises:
        IllegalTransition: The way is not in `TRANSITIONS`.
    """
    if new is not old and new not in TRANSITIONS[old]:
        raise IllegalTransition(f"{old} -> {new}")
