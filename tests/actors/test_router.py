"""The router: names to mailboxes, refusals, and what becomes of every call it was given.

No test sleeps to wait: `wait_all_tasks_blocked` says when the router has done all it could.
"""

import itertools
import math
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define, field, frozen
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.mailbox import Mailbox
from mcp_nursery.actors.messages import Owner, Request
from mcp_nursery.actors.outcomes import Answered, Busy, Outcome, Unrouted
from mcp_nursery.actors.reply import Relay, ReplySlot
from mcp_nursery.actors.router import RouterActor

from ..lab.scheduler import AtStep
from ..lab.tool_requests import tool_request

ANSWER = Answered(result={"content": []})


def make_owner(incarnation: int = 1, *, capacity: float = 256) -> Owner:
    return Owner(incarnation, Mailbox(capacity), Mailbox(math.inf))


def make_call(server: str = "time", tool: str = "now") -> Request:
    return tool_request(server=server, tool=tool, arguments=None, meta={}, slot=ReplySlot())


def held(owner: Owner) -> list[Request]:
    """What the owner was handed; this is the end of its mailbox."""
    return owner.mailbox.close()


def told(owner: Owner) -> list[ReplySlot]:
    return owner.control.close()


@frozen
class Served:
    """A server with one tool."""

    owner: Owner | None
    own: Container[str] = frozenset({"now"})


def routes(owners: Mapping[str, Owner | None]) -> Mapping[str, Served]:
    return {server: Served(owner) for server, owner in owners.items()}


def router_for(owners: Mapping[str, Owner | None]) -> RouterActor:
    router = RouterActor()
    router.swap(routes(owners))
    return router


async def unwanted(progress: float, total: float | None, message: str | None) -> None:
    raise AssertionError("nobody reported progress")


@asynccontextmanager
async def tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery that turns a deadlock into a failure instead of a hang."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            yield nursery


@asynccontextmanager
async def running(router: RouterActor) -> AsyncIterator[trio.Nursery]:
    async with tasks() as nursery:
        nursery.start_soon(router.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def route(router: RouterActor, *calls: Request) -> None:
    """Submit the calls and let the router do all it can."""
    async with running(router) as nursery:
        for call in calls:
            nursery.start_soon(router.submit, [call])
        await wait_all_tasks_blocked()


# --- routing ---------------------------------------------------------------------------------------------------------


async def test_a_call_reaches_the_incarnation_of_its_server():
    time, other = make_owner(3), make_owner(1)
    router, call = router_for({"time": time, "git": other}), make_call()
    await route(router, call)
    assert (held(time), held(other)) == ([call], [])
    assert call.slot.incarnation == 3
    assert call.slot.control is time.control
    assert not call.slot.decided
    assert call.slot.delivery is Delivery.NOT_SENT


@pytest.mark.parametrize(
    ("server", "tool"), [("time", "then"), ("git", "now"), ("idle", "now"), ("", "now"), ("time", ""), ("now", "time")]
)
async def test_a_call_for_what_nobody_has_comes_back_unrouted(server: str, tool: str):
    """R1: no such server, one that is not connected, and a tool that its server has no more."""
    owner = make_owner()
    call = make_call(server, tool)
    await route(router_for({"time": owner, "idle": None}), call)
    assert call.slot.outcome == Unrouted()
    assert call.slot.delivery is Delivery.NOT_SENT
    assert call.slot.control is None
    assert held(owner) == []


async def test_a_call_that_its_owner_has_not_taken_is_routed_anew():
    """Its caller does not wait for another incarnation: that one is alive, and the tool is gone."""
    owner = make_owner()
    router, call = router_for({"time": owner}), make_call()
    async with running(router) as nursery:
        nursery.start_soon(lambda: owner.mailbox.take(handler=lambda _: False))
        await wait_all_tasks_blocked()
        await router.submit([call])
        assert call.slot.control is None
        router.swap({"time": Served(owner, own=frozenset())})
        await wait_all_tasks_blocked()
    assert call.slot.outcome == Unrouted()
    assert call.slot.incarnation is None


async def test_of_what_is_made_for_a_client_the_server_says_itself_whether_it_has_it():
    owner = make_owner()
    slot = ReplySlot(relay=Relay("ann"))
    call = tool_request(server="time", tool="then", arguments=None, meta={}, slot=slot)
    await route(router_for({"time": owner}), call)
    assert held(owner) == [call]


async def test_without_any_route_all_comes_back_unrouted():
    call = make_call()
    await route(RouterActor(), call)
    assert call.slot.outcome == Unrouted()


async def test_calls_of_one_caller_keep_their_order():
    owner = make_owner()
    router, calls = router_for({"time": owner}), [make_call() for _ in range(100)]
    async with running(router):
        for call in calls:
            await router.submit([call])
        await wait_all_tasks_blocked()
    assert held(owner) == calls


async def test_a_full_mailbox_refuses_and_the_other_servers_go_on():
    full, free = make_owner(capacity=2), make_owner(capacity=2)
    router = router_for({"full": full, "free": free})
    stalled = [make_call("full") for _ in range(3)]
    others = [make_call("free") for _ in range(2)]
    async with running(router):
        for call in stalled + others:
            await router.submit([call])
        await wait_all_tasks_blocked()
    assert [call.slot.outcome for call in stalled] == [None, None, Busy()]
    assert stalled[2].slot.delivery is Delivery.NOT_SENT
    assert held(full) == stalled[:2]
    assert held(free) == others


async def test_a_refused_call_that_is_given_up_tells_the_owner_nothing():
    owner = make_owner(capacity=0)
    call = make_call()
    await route(router_for({"time": owner}), call)
    assert call.slot.outcome == Busy()
    call.slot.cancel()
    assert told(owner) == []


async def test_a_dead_owner_is_no_owner():
    owner = make_owner()
    owner.mailbox.close()
    owner.control.close()
    call = make_call()
    await route(router_for({"time": owner}), call)
    assert call.slot.outcome == Unrouted()
    assert call.slot.delivery is Delivery.NOT_SENT


async def test_a_dead_owner_harms_no_other_call_of_the_pass():
    dead, alive = make_owner(), make_owner()
    dead.mailbox.close()
    calls = [make_call("alive"), make_call("dead"), make_call("alive")]
    router = router_for({"dead": dead, "alive": alive})
    async with running(router):
        for call in calls:
            await router.submit([call])
        await wait_all_tasks_blocked()
    assert held(alive) == [calls[0], calls[2]]
    assert calls[1].slot.outcome == Unrouted()


async def test_an_abandoned_call_is_not_handed_on():
    owner = make_owner()
    router, given_up, wanted = router_for({"time": owner}), make_call(), make_call()
    await router.submit([given_up])
    await router.submit([wanted])
    given_up.slot.cancel()
    await route(router)
    assert held(owner) == [wanted]
    assert given_up.slot.outcome is None
    assert given_up.slot.control is None
    assert told(owner) == []


async def test_swap_applies_to_calls_that_wait():
    old, new = make_owner(1), make_owner(2)
    router, call, removed = router_for({"time": old, "gone": old}), make_call(), make_call("gone")
    await router.submit([call])
    await router.submit([removed])
    router.swap(routes({"time": new}))
    await route(router)
    assert (held(old), held(new)) == ([], [call])
    assert call.slot.incarnation == 2
    assert call.slot.control is new.control
    assert removed.slot.outcome == Unrouted()


async def test_swap_leaves_calls_alone_that_were_handed_on():
    """A call of incarnation 1 stays one: its cancel goes to incarnation 1."""
    old, new = make_owner(1), make_owner(2)
    router, call, later = router_for({"time": old}), make_call(), make_call()
    async with running(router):
        await router.submit([call])
        await wait_all_tasks_blocked()
        router.swap(routes({"time": new}))
        await router.submit([later])
        await wait_all_tasks_blocked()
    call.slot.cancel()
    assert (call.slot.incarnation, later.slot.incarnation) == (1, 2)
    assert (told(old), told(new)) == ([call.slot], [])


# --- places and pressure ---------------------------------------------------------------------------------------------


async def test_callers_wait_for_a_place_and_are_all_served():
    owner = make_owner(capacity=math.inf)
    router, calls = router_for({"time": owner}), [make_call() for _ in range(300)]
    async with tasks() as nursery:
        for call in calls:
            nursery.start_soon(router.submit, [call])
        await wait_all_tasks_blocked()
        statistics = router.statistics()
        assert (statistics.waiting, statistics.capacity, statistics.senders_blocked) == (256, 256, 44)
        nursery.start_soon(router.run)
        await wait_all_tasks_blocked()
        assert router.statistics().waiting == router.statistics().senders_blocked == 0
        nursery.cancel_scope.cancel()
    assert set(map(id, held(owner))) == set(map(id, calls))


async def test_a_caller_that_waits_for_a_place_can_be_cancelled():
    owner = make_owner(capacity=math.inf)
    router, calls = router_for({"time": owner}), [make_call() for _ in range(256)]
    with trio.fail_after(60):
        for call in calls:
            await router.submit([call])
    late = make_call()
    with trio.move_on_after(0) as scope:
        await router.submit([late])
    assert scope.cancelled_caught
    await route(router)
    assert held(owner) == calls
    assert late.slot.control is None


@given(st.random_module())
def test_a_quiet_server_that_reads_serves_more_callers_than_its_mailbox_is_wide(schedule: object):
    """One pass of the router never overfills a quiet server: 300 callers in one tick, nobody is refused."""

    async def scenario() -> None:
        owner, taken = make_owner(), []

        async def serve() -> None:
            while True:
                taken.extend(await owner.mailbox.take())

        router, calls = router_for({"time": owner}), [make_call() for _ in range(300)]
        async with running(router) as nursery:
            nursery.start_soon(serve)
            await wait_all_tasks_blocked()
            for call in calls:
                nursery.start_soon(router.submit, [call])
            await wait_all_tasks_blocked()
        assert [call.slot.outcome for call in calls].count(Busy()) == 0
        assert len(taken) == 300

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_calls_that_wait_when_the_router_ends_come_back_unrouted():
    """Also those of callers that still waited for a place: their `submit` succeeds, and so has an outcome to follow."""
    owner = make_owner(capacity=math.inf)
    router, calls = router_for({"time": owner}), [make_call() for _ in range(260)]
    async with tasks() as nursery:
        for call in calls:
            nursery.start_soon(router.submit, [call])
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await router.run()
    assert [call.slot.outcome for call in calls] == [Unrouted()] * 260
    assert held(owner) == []


async def test_what_is_left_of_a_bulk_when_the_router_ends_comes_back_unrouted():
    owner, calls = make_owner(capacity=math.inf), [make_call() for _ in range(300)]
    router = router_for({"time": owner})
    async with running(router) as nursery:
        await router.submit(calls)
        while not owner.mailbox.statistics().waiting:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    handed_on = held(owner)
    assert handed_on == calls[: len(handed_on)]
    assert len(handed_on) < len(calls)
    assert all(isinstance(call.slot.outcome, Unrouted) for call in calls[len(handed_on) :])


async def test_a_waiting_caller_is_woken_when_the_router_ends():
    router, call, outcomes = RouterActor(), make_call(), []
    await router.submit([call])

    async def wait() -> None:
        outcomes.append(await call.slot.wait(unwanted))

    async with tasks() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await router.run()
    assert outcomes == [Unrouted()]


async def test_a_router_that_ended_takes_no_call():
    router = RouterActor()
    await route(router)
    with pytest.raises(trio.BrokenResourceError):
        await router.submit([make_call()])


async def test_a_call_handed_on_is_not_touched_by_the_routers_end():
    owner, call = make_owner(), make_call()
    await route(router_for({"time": owner}), call)
    assert call.slot.outcome is None


# --- cancelled at every scheduler step -------------------------------------------------------------------------------


@define
class Conversation:
    """Three calls of two callers on one server, one of which may be cancelled, and the router likewise."""

    owner: Owner = field(factory=lambda: make_owner(capacity=2))
    router: RouterActor = field(init=False)
    calls: list[Request] = field(factory=lambda: [make_call() for _ in range(3)])
    outcomes: dict[int, Outcome | str] = field(factory=dict)
    acted_on: list[Request] = field(factory=list)
    cancelled: list[ReplySlot] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.router = router_for({"time": self.owner})

    async def caller(self, number: int) -> None:
        """As a delivery does it: whatever happens from the submit on, the slot is decided."""
        slot = self.calls[number].slot
        try:
            await self.router.submit([self.calls[number]])
            self.outcomes[number] = await slot.wait(unwanted)
        except trio.BrokenResourceError:
            self.outcomes[number] = Unrouted()
        finally:
            slot.cancel()

    async def server(self) -> None:
        while True:
            for call in await self.owner.mailbox.take(1):
                if call.slot.cancelled:
                    continue
                call.slot.mark_sent()
                self.acted_on.append(call)
                await trio.lowlevel.checkpoint()
                call.slot.resolve(ANSWER)

    async def hear_cancels(self) -> None:
        while True:
            self.cancelled.extend(await self.owner.control.take())

    def check(self) -> set[str]:
        """Exactly one outcome a call, and each told the truth; returns how the calls ended."""
        cancelled = self.cancelled + told(self.owner)
        return {self._check(number, call, cancelled) for number, call in enumerate(self.calls)}

    def _check(self, number: int, call: Request, cancelled: list[ReplySlot]) -> str:
        slot, outcome, acted = call.slot, self.outcomes.get(number), self.acted_on.count(call)
        assert slot.decided or isinstance(outcome, Unrouted)
        assert acted <= 1
        assert cancelled.count(slot) == (1 if slot.cancelled and slot.control is not None else 0)
        if isinstance(outcome, Answered):
            assert acted == 1
            assert slot.delivery is Delivery.ANSWERED
            return "answered"
        if isinstance(outcome, Busy | Unrouted):
            assert acted == 0
            assert slot.delivery is Delivery.NOT_SENT
            return type(outcome).__name__.lower()
        assert outcome is None
        if slot.cancelled:
            assert slot.delivery is (Delivery.UNKNOWN if acted else Delivery.NOT_SENT)
        return "cancelled after sending" if acted else "cancelled before sending"


async def converse(step: int, *, cancel_router: bool) -> tuple[int, set[str]]:
    """Run a conversation, cancelling the router or the second caller at `step`; returns the steps it took."""
    talk, scope = Conversation(), trio.CancelScope()

    async def cancellable(function, *args) -> None:
        with scope:
            await function(*args)

    with AtStep(step, scope.cancel) as at_step:
        async with tasks() as services:
            services.start_soon(talk.server)
            services.start_soon(talk.hear_cancels)
            if cancel_router:
                services.start_soon(cancellable, talk.router.run)
            else:
                services.start_soon(talk.router.run)
            async with tasks() as callers:
                callers.start_soon(talk.caller, 0)
                callers.start_soon(talk.caller, 2)
                if cancel_router:
                    callers.start_soon(talk.caller, 1)
                else:
                    callers.start_soon(cancellable, talk.caller, 1)
            services.cancel_scope.cancel()
    endings = talk.check()
    if cancel_router:
        assert set(talk.outcomes) == {0, 1, 2}
    else:
        assert {0, 2} <= set(talk.outcomes)
    return at_step.count, endings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cancel_router", "endings"),
    [
        (False, {"answered", "cancelled before sending", "cancelled after sending"}),
        (True, {"answered", "unrouted"}),
    ],
    ids=["caller", "router"],
)
def test_cancelled_at_every_step_each_call_has_exactly_one_end(cancel_router: bool, endings: set[str]):
    seen: set[str] = set()

    @given(st.random_module())
    def any_schedule(schedule: object) -> None:
        for step in itertools.count():

            async def scenario(step: int = step) -> tuple[int, set[str]]:
                return await converse(step, cancel_router=cancel_router)

            steps, ends = trio.run(scenario, clock=MockClock(autojump_threshold=0))
            seen.update(ends)
            if steps <= step:
                return

    any_schedule()
    assert seen - {"busy"} == endings
