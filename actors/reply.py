"""The slot in which a caller waits for the one outcome of its call, and the progress that comes before it.

The life of a slot
------------------

A call is made in the caller's task and answered in an actor's. Between the two there is one object, the `ReplySlot`.
The caller makes it and waits in it; all others write to it, and none of them ever waits for the caller:

    made        by the caller, who sends it along in a `Request`
    routed      by the router, which assigns an incarnation and the mailbox to which giving up is reported
    begun       by the endpoint, which numbers the request and names the codec that reads the result
    sent        by the outbox, when the write of its frame begins
    decided     once, by the first of four: the endpoint with an outcome, the timer, the caller that gives up,
                the supervisor that takes back what may not be sent any more

Whether the server may have acted is the one fact that nobody can find out afterwards, and calling a tool twice is the
worst fault there is. So `delivery` is derived from these steps and from nothing else:

    NOT_SENT    no byte of the frame has been handed to the system
    UNKNOWN     the write has begun: the server may have read it, all of it, before it was lost
    ANSWERED    the outcome came from the server

It is right at every moment: only the slot's own methods write its fields, and none waits between two writes. An outbox
that drops a frame before its write leaves the slot as NOT_SENT; over HTTP a server may refuse a request unread, and
`mark_refused` takes the step back.

Giving up is synchronous too. A caller that is cancelled puts its slot into the owner's mailbox for cancelled slots,
which never refuses, and is gone; the owner withdraws the frame if its write has not begun, and has the server
notified if it has. A server that does not read therefore never holds up a caller, and teardown goes on inside the
actor.

An outcome that comes after the decision changes nothing: `resolve` and `cancel` look at `decided` first. The race
between the answer and the deadline is decided by the order in which the two run, and both sides see the same winner.

Progress and notifications wait in the slot ahead of the outcome, charged to the connection's account, and beyond their
bounds the oldest are lost. Their callbacks run in the caller's task, so a slow one delays its own call alone.
"""

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final, Protocol

import trio

from mcp_nursery.actors.records import define, field, frozen

from .account import PROGRESS_KIND as PROGRESS_KEPT
from .account import Account
from .deadlines import Deadline
from .enums import Delivery
from .limits import MOST_KEPT
from .mailbox import Mailbox
from .outcomes import Answered, Expired, Malformed, Outcome, Rejected, Unrouted
from .pieces import Steps

logger: Final = logging.getLogger(__name__)

ProgressCallback = Callable[[float, float | None, str | None], Awaitable[None]]
"""Called in the caller's task with (progress, total, message), in the order the server sent them."""

NoticeCallback = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Called in the caller's task with (method, params) of a notification about a relayed request."""

PROGRESS: Final = "notifications/progress"

_PROGRESS_BACKLOG = 1024
"""Progress reports that may wait for a slow callback; beyond that, or where they take too many bytes, the oldest are
dropped."""
_PROGRESS_OVERHEAD: Final = 256
"""Bytes that one report takes besides its message."""


class IdleLimit:
    """A limit that cancels a block after `seconds` without progress, counted by arrival, however busy the caller is."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.scope: Final = trio.CancelScope()
        self.restart()

    def restart(self) -> None:
        """Start again: progress has come."""
        self.scope.deadline = trio.current_time() + self.seconds

    def stop(self) -> None:
        """Lift the limit: the outcome has come, or the server waits for an answer of ours."""
        self.scope.deadline = math.inf


class Codec(Protocol):
    """The writer of requests of one kind to one incarnation, and the reader of their results."""

    def frame(
        self, request_id: int | str, params: bytes, meta: Mapping[str, Any], *, wants_progress: bool = False
    ) -> bytes:
        """The whole request, with the `_meta` of the caller and of the protocol."""
        ...

    def headers(self, params: bytes) -> Mapping[str, str]:
        """The headers of a request, where frames have headers."""
        ...

    def result(
        self, raw: dict[str, Any], *, small: bool = False, on_unchecked: Callable[[], None] | None = None
    ) -> Steps[Any]:
        """The typed result, validated."""
        ...

    def made_task(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """The task in an answer, if the server was told that it may answer with one; None if it is none."""
        ...


AskPeer = Callable[[str, str, Mapping[str, Any] | None], Awaitable[Mapping[str, Any]]]
"""Answers a question of the server: `(key, method, params)`, where the key names the question. A raised `MCPError` is
the answer, too."""


@frozen(eq=False)
class Relay:
    """The party for whom a request is made."""

    principal: Hashable
    """The principal of the request: messages for one principal never go to another."""
    ask: AskPeer | None = None
    """Answers the server's questions; None: they are refused."""
    on_unclear: Callable[[], None] | None = None
    """Called when the server asks a question that names no request."""
    listens: bool = False
    """True if the request is a stream of notifications: the server does nothing for it, and need never answer it."""
    follows_tasks: bool = False
    """True if the party leaves it to us to follow a task that the server makes of the request."""
    task: str | None = None
    """The id of the task whose result the request waits for, if it does."""


@define(eq=False, repr=False, kw_only=True)
class ReplySlot:
    """The slot in which one caller waits. Decided once: by the outcome, the time limit, or the caller giving up; see
    the head of this module.

    A caller with many calls waits in none of its slots: each slot calls its `listener` when it is decided.
    """

    wants_progress: bool = False
    """True if the caller listens for progress."""
    relay: Relay | None = None
    """The party for whom it is relayed, if any: then all messages about it are kept as they came."""
    _idle: IdleLimit | None = field(default=None, alias="idle")
    _listener: Callable[[], None] | None = field(default=None, alias="listener")
    decided: bool = field(default=False, init=False)
    """True if there is an outcome, or nobody waits for one any more. Written by `resolve` and `cancel`."""
    outcome: Outcome | None = field(default=None, init=False)
    """The outcome, once decided. Written by `resolve`, `expire` and `withdraw`."""
    cancelled: bool = field(default=False, init=False)
    """True if nobody waits for the server any more. Written by `cancel`, `expire` and `withdraw`."""
    reason: str | None = field(default=None, init=False)
    """The reason given to `CancelScope.cancel` when a relayed request was given up. Written by `wait`."""
    sent: bool = field(default=False, init=False)
    """True once its frame's write has begun, unless the server has refused it since. Written by `mark_sent`,
    `mark_refused` and `take_over`."""
    waits_since: float | None = field(default=None, init=False)
    """The time since which a call with a time limit waits, on Trio's clock: when handed on, then when the write of its
    frame began. Written by `limit` and `mark_sent`."""
    deadline: Deadline | None = field(default=None, init=False)
    """The deadline of its call; None without a limit. Written by `limit`."""
    heard: bool = field(default=False, init=False)
    """True if the server has sent a message about it before its outcome. Written by `report` and `note`."""
    incarnation: int | None = field(default=None, init=False)
    """The incarnation that it was routed to. Written by `route`, `unroute`, `follow` and `take_over`."""
    request_id: int | str | None = field(default=None, init=False)
    """The request's id, once numbered. Written by `begin`."""
    codec: Codec | None = field(default=None, init=False)
    """The codec that reads the result. Written by `begin`, `follow` and `take_over`."""
    control: Mailbox[Any] | None = field(default=None, init=False)
    """The owner's mailbox for cancelled slots, which `Service` in `service.py` reads: see `Owner.control`.
    Written by `route` and `unroute`."""
    _questions: int = field(default=0, init=False)
    """Questions of the server that wait for an answer, and may be about it."""
    _asked_at: float = field(default=0.0, init=False)
    """The time at which the first of them came."""
    _unwanted: bool = field(default=False, init=False)
    """True if it is not to be sent again, should the server refuse its frame."""
    _said: deque[tuple[int, tuple[Any, ...]]] | None = field(default=None, init=False)
    """The server's messages that wait for the caller: the bytes that each keeps, and the arguments of `wait`'s
    callback."""
    _account: Account | None = field(default=None, init=False)
    """The account that they are charged to. Written by `begin`."""
    _task: trio.lowlevel.Task | None = field(default=None, init=False)

    def route(self, incarnation: int, control: Mailbox[Any]) -> None:
        """Assign the call to this incarnation, which is notified through `control` if the caller gives up."""
        self.incarnation, self.control = incarnation, control

    def unroute(self) -> None:
        """Take the assignment back: the incarnation has not taken the call."""
        self.incarnation = self.control = None

    def follow(self, earlier: "ReplySlot") -> None:
        """Wait for the next answer of the same incarnation, after that in the earlier slot."""
        self.incarnation, self.codec = earlier.incarnation, earlier.codec

    def take_over(self, incarnation: int, codec: Codec) -> None:
        """Stand for a call that another host has sent: this incarnation says what becomes of it."""
        self.incarnation, self.codec, self.sent = incarnation, codec, True

    def begin(self, request_id: int | str, codec: Codec | None, account: Account | None = None) -> None:
        """Record the request's id, its codec if it is a caller's, and the account that messages about it are charged
        to."""
        self.request_id, self.codec, self._account = request_id, codec, account

    def mark_sent(self) -> None:
        """Record that the frame's write begins: from now on the server may have acted."""
        self.sent = True
        if self.waits_since is not None:
            self.waits_since = trio.current_time()

    def mark_refused(self) -> None:
        """Record that the server refused the frame before acting: it counts as not sent, until sent again. A call that
        was to be withdrawn ends here."""
        self.sent = False
        if self._unwanted:
            self.withdraw()

    def limit(self, now: float, deadline: Deadline | None) -> None:
        """Record when a call with a time limit is handed on: its wait may count."""
        self.waits_since, self.deadline = now, deadline

    def pause(self) -> None:
        """Let the server's time stand still: it has asked something that may be about the call, and waits."""
        self._questions += 1
        if self._questions == 1 and not self.decided:
            self._asked_at = trio.current_time()
            if self._idle is not None:
                self._idle.stop()
            if self.deadline is not None:
                self.deadline.pause()

    def resume(self) -> None:
        """Let the server's time go on, once all of its questions have their answers."""
        self._questions -= 1
        if not self._questions and not self.decided:
            self._go_on()
            if self._idle is not None:
                self._idle.restart()
            if self.deadline is not None:
                self.deadline.timer.watch(self, self.deadline.at)

    def _go_on(self) -> None:
        if self.deadline is not None:
            self.deadline.resume()
        since = self.waits_since
        if since is not None:
            self.waits_since = since + trio.current_time() - self._asked_at

    @property
    def delivery(self) -> Delivery:
        """The delivery as known now: whether the server may have acted."""
        if isinstance(self.outcome, (Answered, Rejected, Malformed)):
            return Delivery.ANSWERED
        return Delivery.UNKNOWN if self.sent else Delivery.NOT_SENT

    def resolve(self, outcome: Outcome) -> None:
        """Decide the slot, unless it is decided already."""
        if not self.decided:
            self.decided, self.outcome = True, outcome
            if self._questions:
                self._go_on()
            if self._idle is not None:
                self._idle.stop()
            self._wake()

    def expire(self) -> None:
        """Decide the slot as `Expired`, even if the caller has just given up because its time is over; notify the owner
        as `cancel` does."""
        if self.outcome is None:
            self._take_back(Expired())

    def withdraw(self) -> None:
        """Take back a call whose write has not begun: it ends as `Unrouted`, and its owner is notified as by `cancel`.
        One whose write has begun goes on, unless the server refuses its frame."""
        if self.sent:
            self._unwanted = True
        elif not self.decided:
            self._take_back(Unrouted())
            self.unroute()

    def _take_back(self, outcome: Outcome) -> None:
        self.cancel()
        self.outcome = outcome
        self._wake()

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Queue a progress report, ahead of any later outcome."""
        if self.relay is not None:
            said = {"progress": progress, "total": total, "message": message}
            self.note(PROGRESS, {key: value for key, value in said.items() if value is not None})
        elif self.wants_progress:
            self._tell(len(message or ""), progress, total, message)
            self._restart()

    def note(self, method: str, params: Mapping[str, Any], size: int = 0) -> None:
        """Queue a notification about a relayed request, which keeps `size` bytes, ahead of any later outcome."""
        if self.relay is not None:
            self._tell(size, method, params)
            if method == PROGRESS:
                self._restart()

    def _tell(self, size: int, *said: Any) -> None:
        if self.decided:
            return
        if self._said is None:
            self._said = deque()
        self.heard = True
        if len(self._said) == _PROGRESS_BACKLOG:
            self._take_said()
        size += _PROGRESS_OVERHEAD
        while self._account is not None and not self._account.take(PROGRESS_KEPT, size, MOST_KEPT):
            if not self._said:
                return
            self._take_said()
        self._said.append((size, said))
        self._wake()

    def _take_said(self) -> tuple[Any, ...]:
        assert self._said  # the caller has checked
        size, said = self._said.popleft()
        if self._account is not None:
            self._account.give_back(PROGRESS_KEPT, size)
        return said

    def _restart(self) -> None:
        if self._idle is not None and not self.decided and not self._questions:
            self._idle.restart()

    async def wait(self, on_said: ProgressCallback | NoticeCallback | None = None) -> Outcome:
        """Run the callback for each message, in order, then return the outcome. The caller's deadline is the call's.

        However the wait ends without an outcome, the owner is notified: before the frame's write begins the call is
        withdrawn, afterwards the server gets `notifications/cancelled`.
        """
        try:
            while True:
                while self._said:
                    said = self._take_said()
                    if on_said is not None:
                        await report_to(on_said, *said)
                if self.outcome is not None:
                    return self.outcome
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)
        except trio.Cancelled as cancelled:
            if self.relay is not None and cancelled.source == "explicit":  # other reasons are Trio's or our host's
                self.reason = cancelled.reason
            raise
        finally:
            self.cancel()
            while self._said:
                self._take_said()

    def cancel(self) -> None:
        """Give up the call: have it withdrawn, or the server notified that it is cancelled. Never waits."""
        if self.decided:
            return
        self.decided = self.cancelled = True
        if self._questions:
            self._go_on()
        if self.control is not None:
            try:
                self.control.put_nowait(self)
            except trio.BrokenResourceError:
                return  # the incarnation is gone, and with it the server that could be notified

    def _wake(self) -> None:
        if self._listener is not None:
            self._listener()
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


async def report_to(on_said: Callable[..., Awaitable[None]], *said: Any) -> None:
    """Run a callback with a message of the server about a call. An error in it is logged."""
    try:
        await on_said(*said)
    except Exception:
        logger.exception("a progress callback raised; the call goes on")
