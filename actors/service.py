"""The service of a connected server: the tasks that start its calls, follow cancellations and watch its lists."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from .list_refresh import ListRefresh
from .liveness import Liveness, keep_watch
from .mailbox import Mailbox
from .messages import FollowUp, Owner, Question, Request
from .outcomes import Loss
from .reply import ReplySlot

if TYPE_CHECKING:
    from .session.connection import Connection

_CONTROL_AT_ONCE = 256
"""Abandoned calls and requests for input that are processed in one turn of the loop."""

STOPPED = Loss("stopped")
_CLOSED = Loss("the connection was closed")


class Service:
    """The work of an actor for the callers of its server while that is connected. Run in the task of the actor.
    `mailbox_size` calls may wait, and `max_in_flight` may be with the server at once. `updated` is called when
    resources change: see `Connection.keep_subscribed`."""

    def __init__(
        self,
        connection: "Connection",
        *,
        incarnation: int,
        mailbox_size: int,
        max_in_flight: int,
        refresh: ListRefresh,
        updated: Callable[[str, bool], None] | None,
    ) -> None:
        self._connection = connection
        self._max_in_flight = max_in_flight
        self._refresh = refresh
        self._updated = updated
        self._subscribing = False
        self._mailbox: Mailbox[Request] = Mailbox(mailbox_size)
        self.owner: Owner = Owner(incarnation, self._mailbox, Mailbox(math.inf))
        self._questions: dict[ReplySlot, trio.CancelScope] = {}
        """The host's callbacks that are running, by the slots that wait for their answers."""
        self._nursery: trio.Nursery | None = None
        """The tasks of the service, while the server is connected."""
        self._draining = trio.CancelScope()
        """The scope of the drain, with the earliest deadline that a stop has set."""
        self._stopping = False
        """True once calls are no longer started."""
        self._why = STOPPED
        """Their outcome then."""

    @property
    def is_open(self) -> bool:
        """True while tasks can start here."""
        return self._nursery is not None

    async def run(
        self, lost: Callable[[Loss], None], liveness: Liveness | None = None, *, announces_roots: bool = False
    ) -> None:
        """Serve until the connection is lost, or a stop has drained it. `lost` is called with the loss in the step in
        which it is noticed. Without `liveness`, a silent connection is not probed. With `announces_roots`, the host's
        roots have changed since the handshake."""
        async with trio.open_nursery() as nursery:
            self._nursery, connection = nursery, self._connection
            self._refresh.open(connection, nursery)
            nursery.start_soon(self._work)
            nursery.start_soon(self._follow_control)
            nursery.start_soon(connection.watch_lists, self._refresh.changed, self._refresh.look)
            if liveness is not None:
                nursery.start_soon(keep_watch, connection, liveness)
            if announces_roots:
                self.announce_roots()
            try:
                loss = await connection.lost()
            finally:
                self._nursery = None  # also when a task has crashed: nothing can start here any more
            nursery.cancel_scope.cancel()  # before what its tasks read from is closed
            lost(loss)

    def stop(self, drain: float) -> None:
        """Refuse what is not sent, and end once what is sent is answered, or after `drain` seconds. A later stop may
        shorten the drain, and never prolongs it."""
        self._draining.deadline = min(self._draining.deadline, trio.current_time() + drain)
        if self._nursery is not None and not self._stopping:
            self._stopping = True
            self._nursery.start_soon(self._drain, self._nursery.cancel_scope)

    def close(self, why: Loss) -> None:
        """Refuse all that waits, and what comes."""
        self._stopping, self._why = True, why
        calls, control = self._mailbox.close(), self.owner.control.close()
        self._refuse([*calls, *(message for message in control if not isinstance(message, ReplySlot))])
        self._cancel_questions()

    def announce_roots(self) -> None:
        """Notify the server that the host's roots changed."""
        if self._nursery is not None:
            self._nursery.start_soon(self._connection.announce_roots)

    def tell(self, method: str, params: Mapping[str, Any] | None, done: Callable[[], object]) -> None:
        """Send the server a notification, and call `done` when it is sent or dropped."""
        if self._nursery is None:
            done()
        else:
            self._nursery.start_soon(self._tell, method, params, done)

    async def _tell(self, method: str, params: Mapping[str, Any] | None, done: Callable[[], object]) -> None:
        try:
            await self._connection.tell(method, params)
        finally:
            done()

    def subscribe(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and to no others."""
        if self._nursery is None or self._updated is None:
            return
        if uris and not self._subscribing:  # most servers need no task for that
            self._subscribing = True
            self._nursery.start_soon(self._connection.keep_subscribed, self._updated)
        if self._subscribing:
            self._connection.set_watched(uris)

    async def _work(self) -> None:
        """Start calls as soon as there is room for them, until the mailbox is closed."""
        while True:
            await self._connection.room(self._max_in_flight)
            try:
                calls = await self._mailbox.take(room=self._room, handler=self._start_at_rest)
            except trio.ClosedResourceError:
                if not self._stopping:  # the mailbox is open: starting a call has raised it
                    raise
                return
            self._start(calls)
            del calls  # a call may be large

    def _room(self) -> int:
        return self._max_in_flight - self._connection.in_flight

    def _start_at_rest(self, calls: Sequence[Request]) -> bool:
        """Start calls handed over; False without room. One place is left for a call that wakes `_work`."""
        if self._stopping or self._connection.in_flight + len(calls) >= self._max_in_flight:
            return False
        self._start(calls)
        return True

    def _start(self, calls: Sequence[Request]) -> None:
        if self._stopping:  # handed over in the moment of the stop
            self._refuse(calls)
            return
        self._refresh.note_calls(calls)
        try:
            self._connection.submit([call for call in calls if not call.slot.decided])
        except Exception:
            self._refuse(calls)  # those that the connection has not taken
            raise

    async def _follow_control(self) -> None:
        """Cancel the calls of cancelled slots, and continue those that the server answered with requests for input."""
        while True:
            batch = await self.owner.control.take(_CONTROL_AT_ONCE)
            self._cancel([message for message in batch if isinstance(message, ReplySlot)])
            self._go_on([message for message in batch if not isinstance(message, ReplySlot)])
            del batch  # a request for input may be large

    def _go_on(self, messages: Sequence[FollowUp]) -> None:
        """Continue calls that the server answered with requests for input."""
        if self._stopping or self._nursery is None:
            self._refuse(messages)
            return
        for message in messages:
            if message.slot.decided:
                continue
            if isinstance(message, Question):
                self._questions[message.slot] = trio.CancelScope()
                self._nursery.start_soon(self._ask_host, message)
            else:
                self._refresh.note_calls([message.call])
                self._connection.send_round(message)

    def _cancel(self, slots: Sequence[ReplySlot]) -> None:
        """Cancel the calls of callers that gave up, and the callbacks that they wait for."""
        for slot in slots:
            if slot in self._questions:
                self._questions[slot].cancel()
        self._connection.cancel(*(slot for slot in slots if slot not in self._questions))

    async def _ask_host(self, question: Question) -> None:
        """Have the host answer one request for input, while somebody waits for the call."""
        slot = question.slot
        try:
            with self._questions[slot]:
                slot.resolve(await self._connection.answer(question))
        finally:
            del self._questions[slot]
            slot.resolve(_CLOSED)

    async def _drain(self, serving: trio.CancelScope) -> None:
        self._refuse(self._mailbox.close())
        self._cancel_questions()
        self._connection.withdraw_unsent()
        with self._draining:
            await self._connection.idle()
        serving.cancel()  # before what its tasks read from is closed
        self.close(STOPPED)  # a callback may take its time to end

    def _cancel_questions(self) -> None:
        """Cancel the host's callbacks."""
        for slot, scope in self._questions.items():
            slot.resolve(self._why)
            scope.cancel()

    def _refuse(self, messages: Sequence[Request | FollowUp]) -> None:
        for message in messages:
            message.slot.resolve(self._why)
