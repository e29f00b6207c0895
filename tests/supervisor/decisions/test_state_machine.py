"""The table of transitions, state by state, the sets of states, and what each event makes of a server."""

import math

import pytest

from mcp_nursery.actors.enums import ExitKind, ServerState
from mcp_nursery.actors.messages import ExitReason
from mcp_nursery.actors.outcomes import Loss
from mcp_nursery.supervisor import RestartPolicy, ServerSpec, StdioTransport
from mcp_nursery.supervisor.decisions.state_machine import (
    BEGINNINGS,
    CALLS_WAIT,
    KEEPS_TOOLS,
    LEFT_BY_NOBODY,
    TRANSITIONS,
    IllegalTransition,
    StateMachine,
    check_beginning,
    check_transition,
)

S = ServerState
EVERY = frozenset(ServerState)

# A row is an old state, a column a new one: `x` may follow, `.` may not, `=` is the state itself.
MATRIX = """
            disabled blocked idle connecting connected needs_auth waiting failed stopped
disabled       =        .      .       x         .          .        .       .      x
blocked        .        =      .       x         .          .        .       .      x
idle           .        .      =       x         .          .        .       .      x
connecting     .        x      .       =         x          x        x       x      x
connected      .        .      x       x         =          x        x       x      x
needs_auth     .        .      .       x         .          =        .       .      x
waiting        .        .      .       x         .          .        =       .      x
failed         .        .      .       x         .          .        .       =      x
stopped        .        .      .       x         .          .        .       .      =
"""


def cells() -> list[tuple[ServerState, ServerState, str]]:
    head, *rows = [line.split() for line in MATRIX.strip().splitlines()]
    return [(S(row[0]), S(new), mark) for row in rows for new, mark in zip(head, row[1:], strict=True)]


def test_the_matrix_is_whole():
    assert len(cells()) == len(EVERY) ** 2


@pytest.mark.parametrize(("old", "new", "mark"), cells(), ids=str)
def test_every_way_between_two_states(old: ServerState, new: ServerState, mark: str):
    if mark == ".":
        with pytest.raises(IllegalTransition, match=f"^{old} -> {new}$"):
            check_transition(old, new)
    else:
        check_transition(old, new)
    assert (new in TRANSITIONS[old]) == (mark == "x")


def entered_from(state: ServerState) -> set[ServerState]:
    return {old for old, ways in TRANSITIONS.items() if state in ways}


def test_every_state_has_its_row_and_names_itself_in_none():
    assert set(TRANSITIONS) == EVERY
    assert all(old not in ways for old, ways in TRANSITIONS.items())


def test_only_an_attempt_leads_to_connected():
    assert entered_from(S.CONNECTED) == {S.CONNECTING}


def test_every_other_state_can_be_started_and_stopped_in_one_step():
    assert entered_from(S.CONNECTING) == EVERY - {S.CONNECTING}
    assert entered_from(S.STOPPED) == EVERY - {S.STOPPED}


def test_only_what_ran_waits_fails_or_is_refused():
    for state in (S.WAITING, S.FAILED, S.NEEDS_AUTH):
        assert entered_from(state) == {S.CONNECTING, S.CONNECTED}


def test_only_a_connected_server_becomes_idle():
    assert entered_from(S.IDLE) == {S.CONNECTED}


def test_disabled_is_a_fact_of_the_configuration():
    assert entered_from(S.DISABLED) == set()


@pytest.mark.parametrize("state", ServerState)
def test_where_a_new_configuration_begins(state: ServerState):
    """L18: wherever the server stood before: idle if it is lazy, disabled, or else connecting."""
    assert {S.IDLE, S.DISABLED, S.CONNECTING} == BEGINNINGS
    if state in BEGINNINGS:
        check_beginning(state)
    else:
        with pytest.raises(IllegalTransition, match=f"^begins in {state}$"):
            check_beginning(state)


def test_only_an_attempt_can_turn_out_not_to_be_agreed_to():
    """K7."""
    assert entered_from(S.BLOCKED) == {S.CONNECTING}


def test_a_stopped_server_is_never_resurrected_but_by_a_start():
    assert TRANSITIONS[S.STOPPED] == {S.CONNECTING}


def test_tools_are_kept_or_dropped_as_the_design_says():
    assert {S.CONNECTING, S.WAITING, S.IDLE, S.NEEDS_AUTH} | {S.CONNECTED} == KEEPS_TOOLS
    assert {S.FAILED, S.STOPPED, S.DISABLED, S.BLOCKED} == EVERY - KEEPS_TOOLS


def test_calls_wait_by_default_in_connecting_and_idle():
    assert {S.CONNECTING, S.IDLE} == CALLS_WAIT


def test_what_nobody_leaves_cannot_move_by_itself():
    """The rest is connected, being connected, due (`waiting`) or started by the next call (`idle`)."""
    assert EVERY - {S.CONNECTED, S.CONNECTING, S.WAITING, S.IDLE} == LEFT_BY_NOBODY
    assert LEFT_BY_NOBODY.isdisjoint(CALLS_WAIT)
    assert {S.NEEDS_AUTH} == LEFT_BY_NOBODY & KEEPS_TOOLS
    for state in LEFT_BY_NOBODY:
        assert TRANSITIONS[state] <= {S.CONNECTING, S.STOPPED}


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        TRANSITIONS[S.STOPPED] = frozenset(EVERY)


def test_an_illegal_transition_is_a_bug_not_an_error_of_the_user():
    assert issubclass(IllegalTransition, AssertionError)


# -- events -------------------------------------------------------------------------------------------------------


def machine(**options) -> StateMachine:
    return StateMachine.configured(ServerSpec("lab", StdioTransport("lab"), **options), RestartPolicy((2, 5)), now=0)


def lost(at: float, kind: ExitKind = ExitKind.LOST, **loss) -> ExitReason:
    return ExitReason(kind, Loss("gone with s3cret", **loss), at)


def redact(text: str) -> str:
    return text.replace("s3cret", "…")


def test_an_event_changes_no_machine():
    before = machine()
    after = before.incarnated().ended(lost(1), redact)
    assert (before.snapshot.state, before.due, before.snapshot.incarnation) == (S.CONNECTING, 0, 1)
    assert (after.snapshot.state, after.due, after.snapshot.error) == (S.WAITING, 3, "gone with …")


def test_a_refused_probe_is_no_failure():
    """The next incarnation belongs to the same attempt, and begins at once."""
    after = machine().incarnated().ended(lost(1, ExitKind.PROBE_REFUSED), redact)
    assert (after.snapshot.state, after.snapshot.attempt, after.due) == (S.CONNECTING, 1, 1)


@pytest.mark.parametrize(
    ("kind", "state", "due"),
    [
        (ExitKind.NEEDS_AUTH, S.NEEDS_AUTH, 901),
        (ExitKind.REFUSED, S.BLOCKED, math.inf),
    ],
)
def test_an_end_that_another_start_cannot_mend_is_not_retried(kind: ExitKind, state: ServerState, due: float):
    """One that lacks authorisation is asked again after a while, which nobody waits for."""
    after = machine(revive=7).incarnated().ended(lost(1, kind), redact)
    assert (after.snapshot.state, after.due) == (state, due)
    assert (after.snapshot.due_at, after.snapshot.abandoned) == (None, True)
    assert (after.authorised(now=5) is None) is (state is not S.NEEDS_AUTH)


def test_what_is_missing_on_this_machine_may_come_and_what_a_spec_says_stays():
    failed = machine(revive=("on_call", 7)).incarnated().ended(lost(1, ExitKind.UNUSABLE), redact)
    assert (failed.snapshot.state, failed.due, failed.snapshot.revives_on_call) == (S.FAILED, 8, True)
    assert failed.snapshot.keeps_tools
    never = machine(revive=("on_call", 7)).withheld().ended(lost(1, ExitKind.UNUSABLE), redact)
    assert (never.snapshot.state, never.due, never.snapshot.abandoned) == (S.FAILED, math.inf, True)
    assert (never.snapshot.revives_on_call, never.snapshot.keeps_tools) == (False, False)


def test_a_server_that_calls_revive_starts_with_a_whole_ladder():
    failed = machine(revive="on_call", restart="temporary").incarnated().ended(lost(1), redact)
    assert (failed.snapshot.state, failed.due) == (S.FAILED, math.inf)
    woken = failed.woken(now=4)
    assert woken is not None
    assert (woken.snapshot.state, woken.snapshot.woken, woken.snapshot.attempt, woken.due) == (S.CONNECTING, True, 1, 4)


def test_only_what_is_idle_or_revived_by_calls_is_woken():
    assert machine().woken(now=1) is machine().stopped().woken(now=1) is None
    assert machine(lazy=True).woken(now=1) is not None


def test_another_configuration_counts_incarnations_on():
    again = machine().incarnated().reconfigured(ServerSpec("lab", StdioTransport("other")), RestartPolicy(()), now=9)
    assert (again.snapshot.state, again.snapshot.incarnation, again.due) == (S.CONNECTING, 2, 9)
    assert again.incarnated().snapshot.incarnation == 2
    assert again.stopped().started(10).snapshot.incarnation == 2  # what has not begun is not counted
    assert again.incarnated().ended(lost(10), redact).snapshot.state is S.FAILED


def test_an_event_that_the_table_does_not_have_is_refused():
    with pytest.raises(IllegalTransition, match=r"^stopped -> idle$"):
        machine().stopped().idle(now=1)


def test_only_a_delay_that_is_still_to_come_is_skipped():
    spec = ServerSpec("x", StdioTransport("x"))
    connecting = StateMachine.configured(spec, RestartPolicy(delays=(2,)), 0).incarnated()
    waiting = connecting.ended(ExitReason(ExitKind.CONNECT_FAILED, Loss("no"), at=1), str)
    skipped = waiting.delay_skipped(2.5)
    assert (waiting.due, skipped.due, skipped.snapshot.due_at) == (3, 2.5, 2.5)
    assert [waiting.delay_skipped(3), waiting.delay_skipped(4), connecting.delay_skipped(0)] == [None] * 3
