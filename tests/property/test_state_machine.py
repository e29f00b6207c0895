"""The table of transitions against a model that knows only what a connection can do, not the table.

The model of a server is one fact: is its transport absent, being opened, or open? Every state but the current one may
follow or may not by that fact alone:

- `connecting`: somebody or the policy starts it, whatever it does now;
- `connected`: only an attempt can succeed;
- `waiting`, `failed`, `needs_auth`: only what runs can be lost, give up or be refused;
- `idle`: only what is connected can be found idle;
- `stopped`: stopping is always allowed;
- `blocked`: only an attempt can turn out not to be agreed to;
- `disabled`: a fact of the configuration, where a server begins and never where it goes.

A changed configuration is no way from state to state: the server begins again, wherever it stood.
"""

from enum import Enum, auto

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.supervisor.decisions.state_machine import (
    BEGINNINGS,
    CALLS_WAIT,
    KEEPS_TOOLS,
    LEFT_BY_NOBODY,
    TRANSITIONS,
    IllegalTransition,
    check_beginning,
    check_transition,
)

S = ServerState


class Transport(Enum):
    ABSENT = auto()
    OPENING = auto()
    OPEN = auto()


def may_follow(transport: Transport, new: ServerState) -> bool:
    """By the rules in the head of this module."""
    match new:
        case S.CONNECTING | S.STOPPED:
            return True
        case S.CONNECTED | S.BLOCKED:
            return transport is Transport.OPENING
        case S.IDLE:
            return transport is Transport.OPEN
        case S.WAITING | S.FAILED | S.NEEDS_AUTH:
            return transport is not Transport.ABSENT
        case _:
            return False


class LivingServer(RuleBasedStateMachine):
    """A server's life told as acts; after each, every imaginable next state is tried on the table."""

    @initialize(first=st.sampled_from(sorted(BEGINNINGS)))
    def begin(self, first: ServerState) -> None:
        self._begin(first)

    @rule(first=st.sampled_from(sorted(BEGINNINGS)))
    def a_reload_changes_it(self, first: ServerState) -> None:
        self._begin(first)

    def _begin(self, first: ServerState) -> None:
        check_beginning(first)
        self.state = first
        self.transport = Transport.OPENING if first is S.CONNECTING else Transport.ABSENT

    def _go(self, new: ServerState, transport: Transport) -> None:
        check_transition(self.state, new)
        self.state, self.transport = new, transport

    @rule()
    def a_person_starts_it(self) -> None:
        self._go(S.CONNECTING, Transport.OPENING)

    @rule()
    def a_person_stops_it(self) -> None:
        self._go(S.STOPPED, Transport.ABSENT)

    @precondition(lambda self: self.state in {S.WAITING, S.IDLE})
    @rule()
    def a_due_time_or_a_call_starts_it(self) -> None:
        assert self.state not in LEFT_BY_NOBODY
        self._go(S.CONNECTING, Transport.OPENING)

    @precondition(lambda self: self.transport is Transport.OPENING)
    @rule()
    def handshake_and_every_page_of_tools_succeed(self) -> None:
        self._go(S.CONNECTED, Transport.OPEN)

    @precondition(lambda self: self.transport is Transport.OPENING)
    @rule()
    def nobody_agrees_that_it_starts(self) -> None:
        self._go(S.BLOCKED, Transport.ABSENT)

    @precondition(lambda self: self.transport is Transport.OPEN)
    @rule()
    def nobody_called_for_long(self) -> None:
        self._go(S.IDLE, Transport.ABSENT)

    @precondition(lambda self: self.transport is not Transport.ABSENT)
    @rule(outcome=st.sampled_from([S.WAITING, S.FAILED, S.NEEDS_AUTH]))
    def the_incarnation_ends(self, outcome: ServerState) -> None:
        self._go(outcome, Transport.ABSENT)

    @rule()
    def new_facts_in_the_same_state(self) -> None:
        self._go(self.state, self.transport)

    @invariant()
    def the_table_allows_what_the_model_allows(self) -> None:
        for new in ServerState:
            if new is self.state or may_follow(self.transport, new):
                check_transition(self.state, new)
            else:
                with pytest.raises(IllegalTransition):
                    check_transition(self.state, new)

    @invariant()
    def a_server_that_nobody_will_leave_has_no_transport(self) -> None:
        if self.state in LEFT_BY_NOBODY:
            assert self.transport is Transport.ABSENT
            assert TRANSITIONS[self.state] <= {S.CONNECTING, S.STOPPED}

    @invariant()
    def a_running_server_keeps_its_tools_and_calls_wait_only_for_what_can_come(self) -> None:
        if self.transport is not Transport.ABSENT:
            assert self.state in KEEPS_TOOLS
        if self.state in CALLS_WAIT:
            assert self.state in KEEPS_TOOLS
            assert self.state not in LEFT_BY_NOBODY


TestLivingServer = LivingServer.TestCase
