"""K8: when a borrower ends, nobody notices but itself. Whatever happens, in two worlds that differ in nothing else."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor import NurseryError, Supervisor, open_supervisor
from mcp_nursery.supervisor.errors import SupervisorClosed
from mcp_nursery.supervisor.testing import run_virtual

from ..lab.world import (
    NEVER,
    Call,
    Record,
    Script,
    Step,
    Trace,
    World,
    calls,
    run_world,
    steps,
    times_of,
    worlds,
)

pytestmark = pytest.mark.slow

PHASE = 1 / 64
TRIES = 20
"""Worlds that one is compared with: two calls are in the other order in half of them."""


@frozen
class Borrowing:
    """A borrower: when it begins, what it calls, and when it ends and how."""

    at: int
    lasts: int
    servers: tuple[str, ...]
    calls: tuple[tuple[int, Call], ...] = ()
    """Each so many seconds after it began."""
    raises: bool = False
    """Whether it ends with an exception."""


seconds = st.integers(0, 12)
borrowings = st.lists(
    st.builds(
        Borrowing,
        seconds,
        seconds,
        st.sampled_from([("a",), ("b",), ("a", "b")]),
        st.lists(st.tuples(st.integers(0, 6), calls(["a", "b"])), max_size=3).map(tuple),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


class Crash(Exception):
    pass


class BorrowingWorld(World):
    """A world with borrowers. All that they call is given up at a certain time; then they end, or stay."""

    def __init__(self, scripts: Any, times: Any, borrowings: Sequence[Borrowing], *, stays: bool) -> None:
        super().__init__(scripts, times, 0.0)
        self.borrowings = borrowings
        self.stays = stays
        self.unequal: list[Any] = []

    async def _act_and_settle(self, hosts: trio.Nursery) -> None:
        begun = trio.current_time()
        for number, borrowing in enumerate(self.borrowings):
            hosts.start_soon(self._borrow, borrowing, begun, number)
        await super()._act_and_settle(hosts)

    async def _borrow(self, borrowing: Borrowing, begun: float, number: int) -> None:
        phase = (20 + 10 * number) * PHASE  # after all the steps of its second
        await trio.sleep_until(begun + borrowing.at + phase)
        known = [one.name for one in self.supervisor.status()]
        servers = [name for name in borrowing.servers if name in known]
        ends_at = begun + borrowing.at + borrowing.lasts + phase + 9 * PHASE
        try:
            async with open_supervisor(borrow=self.supervisor, servers=servers, gate=0) as child:
                with trio.move_on_at(ends_at):
                    async with trio.open_nursery() as callers:
                        callers.start_soon(self._look, child)
                        for order, (after, call) in enumerate(borrowing.calls, start=1):
                            at = begun + borrowing.at + after + phase + order * PHASE
                            callers.start_soon(self._call_through, child, call, at, 1000 * (number + 1) + order)
                if self.stays:
                    await trio.sleep_forever()
                if borrowing.raises:
                    raise Crash
        except Crash:
            assert borrowing.raises
        except SupervisorClosed:
            assert self.supervisor._servers.closed
        assert child.tools == ()
        assert not self.supervisor._servers.registry.borrowed or len(self.borrowings) > 1

    async def _look(self, child: Supervisor) -> None:
        """What it sees of a server is what the lender sees."""
        while True:
            for one in child.status():
                lent = next((each for each in self.supervisor.status() if each.name == one.name), None)
                mine, theirs = (
                    [tool.tool for tool in each.tools if tool.server == one.name] for each in (child, self.supervisor)
                )
                if one != lent or mine != theirs:
                    self.unequal.append((trio.current_time(), one, lent, mine, theirs))
            await trio.sleep(0.25)

    async def _call_through(self, child: Supervisor, call: Call, at: float, token: int) -> None:
        await trio.sleep_until(at)
        with trio.CancelScope() as scope:
            scope.deadline = NEVER if call.cancel_after is None else trio.current_time() + call.cancel_after
            try:
                await child.call_tool(
                    call.tool,
                    {"token": token},
                    server=call.server,
                    timeout=call.timeout,
                    idle_timeout=call.idle_timeout,
                    when_down=call.when_down,
                    resend=call.resend,
                )
            except NurseryError as error:
                self.trace.note("outcome", call.server, f"{token}: {error!r}")


def told(trace: Trace) -> list[str]:
    """All that the lender, its callers and its servers could notice while its block lasted, in the order of time: what
    comes first of one moment is Trio's affair."""
    lines: list[str] = []
    for one in trace.log:
        if one.what == "leave":
            return sorted(lines)
        detail = one.detail
        if isinstance(detail, Record):
            outcome = detail.outcome if detail.outcomes else None
            detail = (detail.token, type(outcome), str(outcome) if isinstance(outcome, Exception) else "")
        elif one.what in ("act", "answer"):
            detail = (detail.act, repr(detail.error))
        lines.append(f"{one.at} {one.what} {one.server} {detail!r}")
    raise AssertionError


def run(scripts: Sequence[Script], steps: Sequence[Step], borrowings: Sequence[Borrowing], *, stays: bool) -> Trace:
    world = BorrowingWorld(scripts, times_of(steps, phased=True), borrowings, stays=stays)
    trace = run_virtual(functools.partial(world.run, 0.0))
    assert world.unequal == []
    assert trace.tasks_after <= trace.tasks_before
    assert trace.in_flight == trace.router_waiting == 0
    return trace


@given(worlds("a", "b"), steps("a", "b"), borrowings)
def test_the_end_of_a_borrower_is_noticed_by_nobody(
    scripts: Sequence[Script], done: Sequence[Step], borrowings: Sequence[Borrowing]
) -> None:
    """Its calls given up, its block left, by an exception or not: the lender's world is what it is while it stays.

    Of calls that wait for one server and are released at once, Trio chooses whose turn is first, by chance. A server
    that goes deaf then has taken another one: so one world is compared with several, until one is the same.
    """
    left = told(run(scripts, done, borrowings, stays=False))
    assert any(left == told(run(scripts, done, borrowings, stays=True)) for _ in range(TRIES))


@given(worlds("a", "b"), steps("a", "b"), borrowings)
def test_a_borrower_that_calls_nothing_is_noticed_by_nobody(
    scripts: Sequence[Script], done: Sequence[Step], borrowings: Sequence[Borrowing]
) -> None:
    """As above: a server that goes deaf has taken one of those that were released at once, by chance."""
    silent = [Borrowing(each.at, each.lasts, each.servers, raises=each.raises) for each in borrowings]
    left = told(run(scripts, done, silent, stays=False))
    assert any(left == told(run_world(scripts, done, phased=True)) for _ in range(TRIES))
