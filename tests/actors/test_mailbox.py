"""Mailboxes and reply slots, in virtual time.

Rules of this module: no test sleeps to wait for another task (`wait_all_tasks_blocked` and explicit checkpoints order
things; only a slow callback sleeps, on a mock clock). Cancellation is tried at every scheduler step, not a lucky one.
"""

import ast
import itertools
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_nursery.actors import reply
from mcp_nursery.actors.account import Account
from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.limits import MOST_KEPT
from mcp_nursery.actors.mailbox import Mailbox, MailboxStatistics
from mcp_nursery.actors.outcomes import Answered, Busy, Loss, Malformed, Outcome, Rejected, Unlisted, Unrouted
from mcp_nursery.actors.reply import Relay, ReplySlot

from ..lab.scheduler import AtStep

ANSWER = Answered(result={"content": []})
REJECTION = Rejected(code=-32602, message="no")
LOSS = Loss("the connection was lost")


def held(*messages: object, capacity: float = math.inf) -> Mailbox[object]:
    mailbox = Mailbox[object](capacity)
    for message in messages:
        mailbox.put_nowait(message)
    return mailbox


def emptied(mailbox: Mailbox[ReplySlot]) -> list[ReplySlot]:
    return mailbox.close()


@asynccontextmanager
async def tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery that turns a deadlock into a failure instead of a hang."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            yield nursery


async def ignore(progress: float, total: float | None, message: str | None) -> None:
    """A progress callback that does nothing."""


# --- Mailbox ---------------------------------------------------------------------------------------------------------


async def test_one_take_gets_all_that_waits_in_order():
    assert await held(1, 2, 3).take() == [1, 2, 3]


async def test_a_take_gets_no_more_than_its_limit_and_leaves_the_rest():
    mailbox = held(1, 2, 3, 4, 5)
    with trio.fail_after(60):
        assert [await mailbox.take(2), await mailbox.take(2), await mailbox.take(2)] == [[1, 2], [3, 4], [5]]


async def test_a_take_waits_for_the_first_message_then_does_not_wait_for_more():
    mailbox, batches = Mailbox[int](4), []

    async def read() -> None:
        batches.append(await mailbox.take())

    async with tasks() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert batches == []
        mailbox.put_nowait(1)
        mailbox.put_nowait(2)
    assert batches == [[1, 2]]


async def test_a_full_mailbox_refuses_and_loses_nothing():
    mailbox = held(1, 2, capacity=2)
    with pytest.raises(trio.WouldBlock):
        mailbox.put_nowait(3)
    assert await mailbox.take() == [1, 2]
    mailbox.put_nowait(4)
    assert await mailbox.take() == [4]


async def test_an_unbounded_mailbox_never_refuses():
    assert await held(*range(10_000)).take() == list(range(10_000))


async def test_a_put_waits_for_a_place_and_is_served_in_turn():
    mailbox = held(0, capacity=1)
    async with tasks() as nursery:
        for number in (1, 2, 3):
            nursery.start_soon(mailbox.put, number)
            await wait_all_tasks_blocked()
        assert mailbox.statistics() == MailboxStatistics(waiting=1, capacity=1, senders_blocked=3)
        assert await mailbox.take(2) == [0, 1]
        await wait_all_tasks_blocked()
        assert mailbox.statistics().senders_blocked == 1
        assert await mailbox.take() == [2, 3]
    assert mailbox.statistics() == MailboxStatistics(waiting=0, capacity=1, senders_blocked=0)


async def test_a_cancelled_put_leaves_nothing_behind():
    mailbox = held(1, capacity=1)
    async with tasks() as nursery:
        nursery.start_soon(mailbox.put, 2)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await mailbox.take() == [1]


async def test_closing_returns_what_nobody_took_and_refuses_from_then_on():
    mailbox = held(1, 2)
    assert mailbox.close() == [1, 2]
    assert mailbox.close() == []
    with pytest.raises(trio.BrokenResourceError):
        mailbox.put_nowait(3)
    with pytest.raises(trio.BrokenResourceError):
        await mailbox.put(3)


async def test_closing_returns_the_messages_of_waiting_senders_too():
    """Each message is accounted for once: the sender's `put` succeeds, the closer gets the message."""
    mailbox = held(0, capacity=1)
    async with tasks() as nursery:
        for number in (1, 2):
            nursery.start_soon(mailbox.put, number)
            await wait_all_tasks_blocked()
        assert mailbox.close() == [0, 1, 2]


@given(st.random_module())
def test_a_take_cancelled_at_any_step_loses_no_message(schedule: object):
    """A message is in a batch that was returned, or still in the mailbox."""

    async def scenario(cancel_at: int) -> int:
        mailbox, taken = Mailbox[int](2), []

        async def read() -> None:
            while len(taken) < 5:
                taken.extend(await mailbox.take(2))

        async def write() -> None:
            for number in range(5):
                await mailbox.put(number)

        async with tasks() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(write)
            with scope, AtStep(cancel_at, scope.cancel) as steps:
                await read()
            left = [] if len(taken) == 5 else mailbox.close()
            nursery.cancel_scope.cancel()
        assert taken + left == list(range(len(taken) + len(left)))
        return steps.count

    each_step(scenario)


async def test_closing_under_a_reader_that_was_just_handed_a_message_loses_it_not():
    """The put woke the reader, the close came before the reader ran."""
    mailbox, taken = Mailbox[int](4), []

    async def read() -> None:
        taken.extend(await mailbox.take())

    async with tasks() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        mailbox.put_nowait(1)
        mailbox.put_nowait(2)
        left = mailbox.close()
    assert taken + left == [1, 2]


# --- Mailbox: handing over -------------------------------------------------------------------------------------------


WHOSE: ContextVar[str] = ContextVar("WHOSE")


@asynccontextmanager
async def reading(mailbox: Mailbox[int], handler: Callable[[Sequence[int]], bool]) -> AsyncIterator[list[list[int]]]:
    """A reader at rest, in a context of its own; gives the batches that it has taken."""
    batches: list[list[int]] = []

    async def read() -> None:
        WHOSE.set("reader")
        while True:
            batches.append(await mailbox.take(handler=handler))

    async with tasks() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        yield batches
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_a_reader_at_rest_handles_what_is_handed_over_at_once_in_its_own_context():
    mailbox, handled = Mailbox[int](4), []

    def handle(messages: Sequence[int]) -> bool:
        handled.append((*messages, WHOSE.get()))
        return True

    WHOSE.set("writer")
    async with reading(mailbox, handle) as batches:
        assert mailbox.hand_over([1, 2])
        assert handled == [(1, 2, "reader")]
        assert mailbox.hand_over([3])
        assert handled == [(1, 2, "reader"), (3, "reader")]
    assert batches == []


async def test_what_waits_goes_before_what_is_handed_over():
    mailbox, handled = Mailbox[int](4), []

    def handle(messages: Sequence[int]) -> bool:
        handled.extend(messages)
        return True

    assert not mailbox.hand_over([0])  # nobody reads
    async with reading(mailbox, handle) as batches:
        mailbox.put_nowait(1)
        assert not mailbox.hand_over([2])
        mailbox.put_nowait(2)
        await wait_all_tasks_blocked()
        assert batches == [[1, 2]]
        assert mailbox.hand_over([3])
    assert handled == [3]


async def test_a_handler_that_cannot_take_them_leaves_them_to_the_writer_and_may_take_others():
    mailbox = Mailbox[int](4)
    async with reading(mailbox, lambda messages: len(messages) < 2) as batches:
        assert not mailbox.hand_over([1, 2])
        assert mailbox.hand_over([3])
    assert batches == []


async def test_a_handler_leaves_messages_in_its_own_mailbox():
    mailbox = Mailbox[int](4)

    def handle(messages: Sequence[int]) -> bool:
        assert not mailbox.hand_over(messages)  # it is not at rest
        mailbox.put_nowait(messages[0])
        return True

    async with reading(mailbox, handle) as batches:
        assert mailbox.hand_over([1])
        assert not mailbox.hand_over([2])
    assert batches == [[1]]


async def test_a_handler_that_crashes_crashes_its_reader_and_no_writer():
    mailbox = Mailbox[int](4)

    def handle(_messages: Sequence[int]) -> bool:
        raise LookupError("a bug of ours")

    async def read() -> None:
        with pytest.raises(LookupError):
            await mailbox.take(handler=handle)

    async with tasks() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert mailbox.hand_over([1])


async def test_nothing_is_handed_over_once_a_mailbox_is_closed():
    mailbox = Mailbox[int](4)

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await mailbox.take(handler=lambda _: True)

    async with tasks() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        mailbox.close()
        assert not mailbox.hand_over([1])


async def test_nothing_is_handed_over_to_a_reader_that_was_cancelled():
    mailbox = Mailbox[int](4)
    async with tasks() as nursery:
        nursery.start_soon(partial(mailbox.take, handler=lambda _: True))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
        assert not mailbox.hand_over([1])


async def test_the_room_counts_when_there_is_a_message():
    mailbox, room = Mailbox[int](9), [0]
    async with tasks() as nursery:

        async def read() -> None:
            assert await mailbox.take(room=lambda: room[0]) == [1, 2]

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        for number in (1, 2, 3):
            mailbox.put_nowait(number)
        room[0] = 2


# --- ReplySlot: deciding ---------------------------------------------------------------------------------------------


async def test_an_outcome_that_is_there_already_is_returned():
    slot = ReplySlot()
    slot.resolve(ANSWER)
    assert await slot.wait(ignore) is ANSWER
    assert not slot.cancelled


async def test_a_waiting_caller_gets_the_outcome():
    slot, outcomes = ReplySlot(), []

    async def call() -> None:
        outcomes.append(await slot.wait(ignore))

    async with tasks() as nursery:
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        assert not slot.decided
        slot.resolve(REJECTION)
        assert slot.decided
    assert outcomes == [REJECTION]
    assert not slot.cancelled


async def test_the_first_of_two_outcomes_counts():
    slot, outcomes = ReplySlot(), []

    async def call() -> None:
        outcomes.append(await slot.wait(ignore))

    async with tasks() as nursery:
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        slot.resolve(ANSWER)
        slot.resolve(LOSS)
    assert outcomes == [ANSWER]
    slot.resolve(LOSS)
    assert slot.outcome is ANSWER


async def test_a_cancel_after_the_outcome_but_before_the_caller_ran_changes_nothing():
    slot, cancels, outcomes = ReplySlot(), Mailbox[ReplySlot](math.inf), []
    slot.route(1, cancels)

    async with tasks() as nursery:
        scope = trio.CancelScope()

        async def call() -> None:
            with scope:
                outcomes.append(await slot.wait(ignore))

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        slot.resolve(ANSWER)
        scope.cancel()
    assert outcomes == [ANSWER]
    assert not slot.cancelled
    assert emptied(cancels) == []


async def test_an_outcome_after_the_cancel_but_before_the_caller_ran_still_counts():
    """Decided once, at every moment: while nobody gave up in fact, the reply wins or the abort does, never both."""
    slot, cancels, outcomes = ReplySlot(), Mailbox[ReplySlot](math.inf), []
    slot.route(1, cancels)

    async with tasks() as nursery:
        scope = trio.CancelScope()

        async def call() -> None:
            with scope:
                outcomes.append(await slot.wait(ignore))

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        scope.cancel()
        slot.resolve(ANSWER)
    assert outcomes == []
    assert slot.outcome is ANSWER
    assert not slot.cancelled
    assert emptied(cancels) == []


OPERATIONS = ("hand on", "send", "answer", "lose", "cancel", "report")


@pytest.mark.parametrize("owner_gone", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_every_short_history_decides_a_slot_once(length: int, owner_gone: bool):
    """All histories of up to five operations: the first decision stands, the owner hears of it at most once."""
    for history in itertools.product(OPERATIONS, repeat=length):
        slot, cancels = ReplySlot(wants_progress=True), Mailbox[ReplySlot](math.inf)
        if owner_gone:
            cancels.close()
        for operation in history:
            apply(operation, slot, cancels)

        decisions = [at for at, operation in enumerate(history) if operation in {"answer", "lose", "cancel"}]
        first = decisions[0] if decisions else None
        decision = None if first is None else history[first]
        assert slot.decided == (decision is not None)
        assert slot.cancelled == (decision == "cancel")
        assert slot.outcome is {"answer": ANSWER, "lose": LOSS}.get(decision or "")
        told = decision == "cancel" and "hand on" in history[:first] and not owner_gone
        assert emptied(cancels) == ([slot] if told else [])
        sent = "send" in history
        expected = Delivery.ANSWERED if decision == "answer" else Delivery.UNKNOWN if sent else Delivery.NOT_SENT
        assert slot.delivery is expected


def apply(operation: str, slot: ReplySlot, cancels: Mailbox[ReplySlot]) -> None:
    match operation:
        case "hand on":
            slot.route(1, cancels)
        case "send":
            slot.mark_sent()
        case "answer":
            slot.resolve(ANSWER)
        case "lose":
            slot.resolve(LOSS)
        case "cancel":
            slot.cancel()
        case _:
            slot.report(1, None, None)


@pytest.mark.parametrize(
    ("sent", "outcome", "delivery"),
    [
        (False, None, Delivery.NOT_SENT),
        (False, Busy(), Delivery.NOT_SENT),
        (False, Unrouted(), Delivery.NOT_SENT),
        (False, Unlisted(), Delivery.NOT_SENT),
        (False, LOSS, Delivery.NOT_SENT),
        (True, None, Delivery.UNKNOWN),
        (True, LOSS, Delivery.UNKNOWN),
        (True, ANSWER, Delivery.ANSWERED),
        (True, REJECTION, Delivery.ANSWERED),
        (True, Malformed("not a result"), Delivery.ANSWERED),
    ],
)
def test_delivery_at_each_stage(sent: bool, outcome: Outcome | None, delivery: Delivery):
    slot = ReplySlot()
    slot.route(1, Mailbox(math.inf))
    if sent:
        slot.mark_sent()
    if outcome is not None:
        slot.resolve(outcome)
    assert slot.delivery is delivery


@pytest.mark.parametrize("sent", [False, True])
def test_delivery_after_giving_up(sent: bool):
    slot = ReplySlot()
    if sent:
        slot.mark_sent()
    slot.cancel()
    slot.resolve(ANSWER)
    assert slot.delivery is (Delivery.UNKNOWN if sent else Delivery.NOT_SENT)


# --- ReplySlot: giving up --------------------------------------------------------------------------------------------


async def test_giving_up_before_hand_on_tells_nobody():
    slot = ReplySlot()
    with trio.move_on_after(0) as scope:
        await slot.wait(ignore)
    assert scope.cancelled_caught
    assert slot.cancelled
    slot.resolve(ANSWER)
    assert slot.outcome is None


async def test_giving_up_after_hand_on_tells_the_owner_exactly_once(autojump_clock: MockClock):
    slot, cancels = ReplySlot(), Mailbox[ReplySlot](math.inf)
    slot.route(1, cancels)
    with trio.move_on_after(7):
        await slot.wait(ignore)
    assert trio.current_time() == 7
    slot.cancel()
    assert emptied(cancels) == [slot]


async def test_giving_up_when_the_incarnation_is_gone_raises_nothing():
    slot, cancels = ReplySlot(), Mailbox[ReplySlot](math.inf)
    slot.route(1, cancels)
    cancels.close()
    with trio.move_on_after(0) as scope:
        await slot.wait(ignore)
    assert scope.cancelled_caught
    assert slot.cancelled


async def test_a_caller_that_raises_in_its_callback_gives_up():
    """Exceptions are logged, but KeyboardInterrupt and its like end the call and the owner is told."""
    slot, cancels = ReplySlot(wants_progress=True), Mailbox[ReplySlot](math.inf)
    slot.route(1, cancels)
    slot.report(1, None, None)

    async def interrupt(progress: float, total: float | None, message: str | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), trio.fail_after(60):
        await slot.wait(interrupt)
    assert emptied(cancels) == [slot]


async def test_a_deadline_holds_while_the_callback_runs(autojump_clock: MockClock):
    slot, cancels = ReplySlot(wants_progress=True), Mailbox[ReplySlot](math.inf)
    slot.route(1, cancels)
    slot.report(1, None, None)

    async def hang(progress: float, total: float | None, message: str | None) -> None:
        await trio.sleep_forever()

    with trio.move_on_after(3):
        await slot.wait(hang)
    assert trio.current_time() == 3
    assert emptied(cancels) == [slot]


# --- ReplySlot: progress ---------------------------------------------------------------------------------------------


async def test_progress_comes_in_order_and_before_the_outcome():
    slot, events = ReplySlot(wants_progress=True), []

    async def note(*report: object) -> None:
        events.append(report)

    async def call() -> None:
        events.append(await slot.wait(note))

    slot.report(0.5, None, "before the caller waits")
    async with tasks() as nursery:
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        slot.report(1, 4, "while it waits")
        slot.report(2, 4, None)
        await wait_all_tasks_blocked()
        slot.report(3, 4, "in the outcome's moment")
        slot.resolve(ANSWER)
        slot.report(4, 4, "too late")
    assert events == [
        (0.5, None, "before the caller waits"),
        (1, 4, "while it waits"),
        (2, 4, None),
        (3, 4, "in the outcome's moment"),
        ANSWER,
    ]


async def test_a_slow_callback_delays_the_outcome_not_the_server(autojump_clock: MockClock):
    slot, events = ReplySlot(wants_progress=True), []

    async def slow(progress: float, total: float | None, message: str | None) -> None:
        await trio.sleep(10)
        events.append((progress, trio.current_time()))

    async def call() -> None:
        events.append((await slot.wait(slow), trio.current_time()))

    async with tasks() as nursery:
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        slot.report(1, None, None)
        await trio.sleep(5)
        slot.report(2, None, None)
        slot.report(3, None, None)
        slot.resolve(ANSWER)
        assert trio.current_time() == 5
    assert events == [(1, 10), (2, 20), (3, 30), (ANSWER, 30)]


async def test_a_raising_callback_is_logged_and_the_call_goes_on(caplog: pytest.LogCaptureFixture):
    slot, seen = ReplySlot(wants_progress=True), []

    async def raise_once(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        if progress == 1:
            raise RuntimeError("the host's bug")

    slot.report(1, None, None)
    slot.report(2, None, None)
    slot.resolve(ANSWER)
    with caplog.at_level(logging.ERROR):
        assert await slot.wait(raise_once) is ANSWER
    assert seen == [1, 2]
    [record] = caplog.records
    assert record.name == "mcp_nursery.actors.reply"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "the host's bug"


async def test_a_caller_that_did_not_ask_hears_no_progress():
    slot, seen = ReplySlot(), []

    async def note(*report: object) -> None:
        seen.append(report)

    assert not slot.wants_progress
    slot.report(1, None, None)
    slot.resolve(ANSWER)
    assert await slot.wait(note) is ANSWER
    assert seen == []


async def test_a_callback_too_far_behind_loses_the_oldest_reports():
    slot, seen = ReplySlot(wants_progress=True), []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    assert slot.wants_progress
    for number in range(1025):
        slot.report(number, None, None)
    slot.resolve(ANSWER)
    await slot.wait(note)
    assert seen == list(range(1, 1025))


# --- ReplySlot: cancelled at every scheduler step --------------------------------------------------------------------


def each_step(scenario) -> None:
    """Run `scenario(step)` with a cancellation after 0, 1, 2, … steps until it ends before."""
    for step in itertools.count():
        if trio.run(scenario, step, clock=MockClock(autojump_threshold=0)) <= step:
            return


@define
class Call:
    """One call as seen from outside, and a scripted owner for it."""

    slot: ReplySlot = field(factory=lambda: ReplySlot(wants_progress=True))
    cancels: Mailbox[ReplySlot] = field(factory=lambda: Mailbox(math.inf))
    seen: list[float] = field(factory=list)
    outcome: Outcome | None = None

    async def note(self, progress: float, total: float | None, message: str | None) -> None:
        await trio.lowlevel.checkpoint()
        self.seen.append(progress)

    async def caller(self) -> None:
        self.outcome = await self.slot.wait(self.note)

    async def owner(self) -> None:
        """Hand on, write, report twice, answer; a checkpoint apart, and true to the flag `cancelled`."""
        for act in self._acts():
            await trio.lowlevel.checkpoint()
            if self.slot.cancelled:
                return
            act()

    def _acts(self) -> Iterator:
        yield lambda: setattr(self.slot, "control", self.cancels)
        yield lambda: setattr(self.slot, "sent", True)
        yield lambda: self.slot.report(1, 2, None)
        yield lambda: self.slot.report(2, 2, None)
        yield lambda: self.slot.resolve(ANSWER)

    def check(self) -> str:
        """What must hold however the call ended; returns at which stage it did."""
        assert self.seen == [1, 2][: len(self.seen)]
        assert self.slot.decided
        told = emptied(self.cancels)
        if self.outcome is not None:
            assert (self.outcome, self.seen, told) == (ANSWER, [1, 2], [])
            return "answered"
        if not self.slot.cancelled:
            assert (self.slot.outcome, told) == (ANSWER, [])
            return "answered too late for the caller"
        assert self.slot.outcome is None
        assert told == ([] if self.slot.control is None else [self.slot])
        if self.slot.control is None:
            assert self.slot.delivery is Delivery.NOT_SENT
            return "taken back before hand-on"
        assert self.slot.delivery is (Delivery.UNKNOWN if self.slot.sent else Delivery.NOT_SENT)
        return "sent" if self.slot.sent else "handed on"


def test_a_caller_cancelled_at_every_step_leaves_nothing_undecided():
    stages: set[str] = set()

    @given(st.random_module())
    def any_schedule(schedule: object) -> None:
        async def scenario(cancel_at: int) -> int:
            call = Call()
            scope = trio.CancelScope()
            with AtStep(cancel_at, scope.cancel) as steps:
                async with tasks() as nursery:
                    nursery.start_soon(call.owner)
                    with scope:
                        await call.caller()
            stages.add(call.check())
            if not steps.acted:
                assert call.outcome is ANSWER
            return steps.count

        each_step(scenario)

    any_schedule()
    assert stages == {
        "taken back before hand-on",
        "handed on",
        "sent",
        "answered",
        "answered too late for the caller",
    }


def test_nobody_writes_the_fields_of_a_slot_but_its_methods():
    """R4: `delivery` is true at every moment because each field has one writer."""
    package = Path(reply.__file__).parent.parent
    fields = {one.name for one in attrs.fields(ReplySlot)}
    written = [
        f"{file.relative_to(package)}:{node.lineno}"
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in fields
        if ast.unparse(node.value).endswith("slot")
    ]
    assert written == []


async def test_what_is_said_to_a_slow_caller_keeps_so_many_bytes():
    """A thousand notifications of 60 KiB for each call waited for a client of the gateway that did not read. The
    oldest go, of this call alone."""
    account, slow, other = Account(), ReplySlot(relay=Relay("ann")), ReplySlot(relay=Relay("ann"))
    for slot in (slow, other):
        slot.begin(1, None, account)
    other.note("other", {}, 1000)
    for number in range(1000):
        slow.note("said", {"number": number}, 60 << 10)
    fits = (MOST_KEPT - 1256) // ((60 << 10) + 256)
    assert account.of("progress") <= MOST_KEPT
    heard = []

    async def hear(method, params):
        heard.append((method, params.get("number")))

    for slot in (slow, other):
        slot.resolve(ANSWER)
        assert await slot.wait(hear) is ANSWER
    assert heard == [*(("said", number) for number in range(1000 - fits, 1000)), ("other", None)]
    assert account.total == 0


async def test_what_nobody_hears_any_more_is_not_kept():
    account, slot = Account(), ReplySlot(relay=Relay("ann"))
    slot.begin(1, None, account)

    async def hear(method, params):
        await trio.sleep_forever()

    for _ in range(3):
        slot.note("said", {}, 1000)
    with trio.CancelScope() as scope:
        scope.cancel()
        await slot.wait(hear)
    assert account.total == 0
