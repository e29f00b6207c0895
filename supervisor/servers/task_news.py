"""The tasks of servers that notify of changes: such a task is asked about when it has changed, and else hardly ever.

One request of each server, a stream of notifications (`subscriptions/listen`), has the tasks of all calls that wait
here. No task of ours waits for the stream: the reader of the connection marks a task as changed and wakes the call that
waits for the task, which asks how it is. So a notification need not be believed, and a lost one costs time alone. When
a stream ends, its tasks are asked about as often as before.
"""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

import trio
from attrs import define, field

from mcp_nursery.actors.extensions import TASK_CHANGED
from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.messages import ACKNOWLEDGED, LISTEN, Owner, Request, Round
from mcp_nursery.actors.outcomes import Rejected
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.reply import Relay, ReplySlot

LISTEN_AFTER = 10.0
"""Seconds for which a task is asked about before its server is listened to: most are over by then."""
STREAM_AGAIN = 5.0
"""Seconds between two streams of one server, for tasks that the first has not. The pause doubles with each stream that
ended before it was over."""
LONGEST_STREAM_PAUSE = 60.0
"""Seconds of such a pause at most."""
SELDOM = 600.0
"""Seconds between two requests about a task that is listened to and does not change."""
APART = 2.0
"""Seconds between two such requests to one server, whatever the number of its tasks."""
MOST_LISTENED = 10_000
"""Tasks of one server that are listened to."""


@define(eq=False)
class TaskEar:
    """One task that a call waits for, and what its server has notified of."""

    task: str
    _stream: "_Stream"
    agreed_at: float = math.inf
    """The time from which its server notifies of its changes; `inf` while it does not."""
    changed: bool = False
    """True if it may have changed since this was set to false."""
    lost_at: float = -math.inf
    """The time at which the last stream that had it ended."""
    _woken: trio.Event = field(factory=trio.Event, init=False)

    @property
    def seldom(self) -> float:
        """Seconds after which it is asked about all the same while its server notifies of its changes."""
        return max(SELDOM, APART * len(self._stream.ears))

    def want(self, owner: Owner | None) -> None:
        """Have this incarnation of its server asked for notifications, unless it was. Never waits."""
        self._stream.want(owner, self.task)

    async def woken(self) -> None:
        """Wait until one of its facts has changed."""
        await self._woken.wait()
        self._woken = trio.Event()

    def note_change(self) -> None:
        """Take notice that it may have changed."""
        self.changed = True
        self._woken.set()

    def set_agreed(self, *, agreed: bool) -> None:
        """Take notice that its server notifies of its changes from now on, or does so no more."""
        now, before = trio.current_time(), self.agreed_at < math.inf
        if agreed and not before:
            self.agreed_at = now
        elif before and not agreed:
            self.agreed_at, self.lost_at = math.inf, now
            self._woken.set()


@define(eq=False, repr=False, kw_only=True)
class _NewsSlot(ReplySlot):
    """The slot of a stream, whose notifications are taken as they come."""

    stream: "_Stream"
    asked: frozenset[str]
    """The tasks that the server was asked about."""

    @override
    def note(self, method: str, params: Mapping[str, Any], size: int = 0) -> None:
        if not self.decided:
            self.stream.hear(self, method, params)


@define(eq=False)
class _Stream:
    """The tasks of one server."""

    server: str
    ears: dict[str, list[TaskEar]] = field(factory=dict[str, list[TaskEar]], init=False)
    """The tasks that calls wait for, by id: a server may give two calls one."""
    _slot: _NewsSlot | None = field(default=None, init=False)
    """The stream that its server has acknowledged."""
    _opening: _NewsSlot | None = field(default=None, init=False)
    """The stream that its server has not acknowledged yet."""
    _deaf: int | None = field(default=None, init=False)
    """The incarnation that does not notify of tasks, or of no more."""
    _opened_at: float = field(default=-math.inf, init=False)
    _pause: float = field(default=STREAM_AGAIN, init=False)

    def want(self, owner: Owner | None, task: str) -> None:
        """Open a stream, unless there is one that has the task, its server refuses, or it was asked just now."""
        now = trio.current_time()
        if owner is None or owner.incarnation == self._deaf or now < self._opened_at + self._pause:
            return
        if any(slot is not None and task in slot.asked for slot in (self._slot, self._opening)):
            return
        if self._opening is not None:  # it was not acknowledged in time
            self._deaf = owner.incarnation
            self._opening.cancel()
            self._opening = None
            return
        self._opened_at = now
        names = list(islice(self.ears, MOST_LISTENED))
        slot = _NewsSlot(
            relay=Relay(None, listens=True), listener=lambda: self._ended(slot), stream=self, asked=frozenset(names)
        )
        slot.route(owner.incarnation, owner.control)
        params = encode({"notifications": {"taskIds": names}})
        try:
            owner.control.put_nowait(Round(Request(self.server, LISTEN, "", params, {}, slot, limited=False)))
        except trio.BrokenResourceError:  # this incarnation is ending
            return
        self._opening = slot

    def hear(self, slot: _NewsSlot, method: str, params: Mapping[str, Any]) -> None:
        """Take a notification of a stream."""
        if method == TASK_CHANGED:
            named = params.get("taskId")
            for ear in self.ears.get(named, ()) if isinstance(named, str) else ():
                ear.note_change()
        elif method == ACKNOWLEDGED:
            said = params.get("notifications")
            listed = cast("dict[str, Any]", said).get("taskIds") if isinstance(said, dict) else None
            named_all = cast("list[object]", listed) if isinstance(listed, list) else []
            self._acknowledge(slot, slot.asked & {each for each in named_all if isinstance(each, str)})

    def _acknowledge(self, slot: _NewsSlot, agreed: frozenset[str]) -> None:
        if slot is not self._opening:
            return
        self._opening = None
        if not agreed:
            self._deaf = slot.incarnation
            slot.cancel()
            return
        if self._slot is not None:
            self._slot.cancel()
        self._slot = slot
        for task, ears in self.ears.items():
            for ear in ears:
                ear.set_agreed(agreed=task in agreed)

    def _ended(self, slot: _NewsSlot) -> None:
        if isinstance(slot.outcome, Rejected):
            self._deaf = slot.incarnation
        if slot is self._opening:
            self._opening = None
        elif slot is self._slot:
            self._slot = None
            has_lasted = trio.current_time() - self._opened_at > self._pause
            self._pause = STREAM_AGAIN if has_lasted else min(2 * self._pause, LONGEST_STREAM_PAUSE)
            for ears in self.ears.values():
                for ear in ears:
                    ear.set_agreed(agreed=False)

    def close(self) -> None:
        """End the streams."""
        slots, self._slot, self._opening = (self._slot, self._opening), None, None
        for slot in slots:
            if slot is not None:
                slot.cancel()


@define(eq=False)
class TaskNews:
    """The tasks of all servers that calls wait for."""

    _streams: dict[str, _Stream] = field(factory=dict[str, _Stream], init=False)

    @contextmanager
    def ear(self, server: str, task: str) -> Generator[TaskEar, None, None]:
        """The notifications about a task of a server, for as long as a call waits for it."""
        stream = self._streams.get(server) or self._streams.setdefault(server, _Stream(server))
        ear = TaskEar(task, stream)
        stream.ears.setdefault(task, []).append(ear)
        try:
            yield ear
        finally:
            stream.ears[task].remove(ear)
            if not stream.ears[task]:
                del stream.ears[task]
            if not stream.ears:
                stream.close()
                self._streams.pop(server, None)
