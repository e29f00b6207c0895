"""The tasks of servers that notify of changes: such a task is asked about when it has changed, and else hardly ever.

A request to the server, a stream of notifications (`subscriptions/listen`), has the tasks of many calls that wait here.
No task of ours waits for the stream: the reader of the connection marks a task as changed and wakes the call that waits
for the task, which asks how it is. So a notification need not be believed, and a lost one costs time alone. When
a stream ends, its tasks are asked about as often as before.
"""

import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Self, cast
from weakref import WeakValueDictionary

import trio

from mcp_nursery.actors.deadlines import Deadline, Timer
from mcp_nursery.actors.extensions import TASK_CHANGED
from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.messages import ACKNOWLEDGED, LISTEN, Owner, Request, Round
from mcp_nursery.actors.outcomes import Rejected
from mcp_nursery.actors.overrides import override
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.reply import Relay, ReplySlot

from ..spec import ServerSpec

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
"""Seconds between two such requests to a server, with any number of tasks."""
MOST_IN_STREAM = 1_000
"""Tasks of one stream: as many as a gateway of ours lets a client subscribe to."""
MOST_NEWS_STREAMS = 12
"""Streams of one server. More tasks than these have are asked about as those of a server that does not notify."""
ASKED_AT_ONCE = 64
"""Requests about tasks that one server is sent at a time, and at most a quarter of its `max_in_flight`: calls come
through, however many tasks there are."""
LARGEST_STREAM = 900_000
"""Bytes of all ids of one stream, as JSON that is escaped: its acknowledgement has them too."""
REPLACED_FOR = 2.0
"""Seconds for which a stream is heard after another has its tasks: over HTTP, news may still be on their way."""


@define(eq=False)
class Turns:
    """The right to send one server a request about a task, which its tasks have in turn."""

    most: int = ASKED_AT_ONCE
    """Requests that are under way at a time."""
    _taken: int = field(default=0, init=False)
    _queue: "OrderedDict[TaskEar, None]" = field(factory=OrderedDict["TaskEar", None], init=False)

    def take(self, ear: "TaskEar", *, first: bool = False) -> bool:
        """Take the right for a task. False: another task has the turn, and this task is woken when its turn may have
        come. `first`: the task goes before all others."""
        self._queue.setdefault(ear)
        if first:
            self._queue.move_to_end(ear, last=False)
        if self._taken >= self.most or next(iter(self._queue)) is not ear:
            return False
        del self._queue[ear]
        self._taken += 1
        self._wake_next()
        return True

    def leave(self, ear: "TaskEar") -> None:
        """Wait for the right no longer."""
        self._queue.pop(ear, None)
        self._wake_next()

    def give_back(self) -> None:
        """Give the right back: the answer has come, or nobody waits for it."""
        self._taken -= 1
        self._wake_next()

    def _wake_next(self) -> None:
        if self._queue and self._taken < self.most:
            next(iter(self._queue)).wake()


@define(eq=False)
class _Nap:
    """One wait for news of a task, which a timer ends."""

    task: trio.lowlevel.Task
    decided: bool = field(default=False, init=False)
    deadline: Deadline | None = field(default=None, init=False)

    def expire(self) -> None:
        """End it, unless it is over."""
        if not self.decided:
            self.decided = True
            trio.lowlevel.reschedule(self.task)

    def abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        """Forget it: the task is cancelled."""
        self.decided = True
        return trio.lowlevel.Abort.SUCCEEDED


@define(eq=False)
class TaskEar:
    """One task that a call waits for, and what its server has notified of. A context manager, in which it is listened
    to."""

    task: str
    _server: "_ServerNews"
    agreed_at: float = math.inf
    """The time from which its server notifies of its changes; `inf` while it does not."""
    changed: bool = False
    """True if it may have changed since this was set to false."""
    lost_at: float = -math.inf
    """The time at which the last stream that had it ended."""
    _nap: _Nap | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._server.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.discard(self)

    @property
    def seldom(self) -> float:
        """Seconds after which it is asked about all the same while its server notifies of its changes."""
        return max(SELDOM, APART * len(self._server.ears))

    @property
    def turns(self) -> Turns:
        """The turns for requests that its server is to answer at once."""
        return self._server.turns

    @property
    def turns_of_people(self) -> Turns:
        """The turns for requests that its server answers when somebody has answered it."""
        return self._server.turns_of_people

    def want(self, owner: Owner | None, timer: Timer) -> None:
        """Have this incarnation of its server asked for notifications, unless it was. Never waits."""
        self._server.want(owner, self.task, timer)

    async def woken(self, at: float, timer: Timer) -> None:
        """Wait until one of its facts has changed, and at most until this time. A scope for each wait takes three times
        the memory, and a host may wait for thousands."""
        self._nap = nap = _Nap(trio.lowlevel.current_task())
        timer.watch(nap, at)
        await trio.lowlevel.wait_task_rescheduled(nap.abort)

    def note_change(self) -> None:
        """Take notice that it may have changed."""
        self.changed = True
        self.wake()

    def set_agreed(self, *, agreed: bool) -> None:
        """Take notice that its server notifies of its changes from now on, or does so no more."""
        now, before = trio.current_time(), self.agreed_at < math.inf
        if agreed and not before:
            self.agreed_at = now
        elif before and not agreed:
            self.agreed_at, self.lost_at = math.inf, now
            self.wake()

    def wake(self) -> None:
        """End its wait, if it waits."""
        if self._nap is not None:
            self._nap.expire()


@define(eq=False, repr=False, kw_only=True)
class _Stream(ReplySlot):
    """One request to be notified of some tasks, whose notifications are taken as they come."""

    of: "_ServerNews"
    asked: frozenset[str]
    """The tasks that the server was asked about."""
    instead_of: "list[_Stream]"
    """The streams whose tasks this one has too: they end after its server has agreed to this one, so that no change
    between the two is missed."""
    opened_at: float
    timer: Timer
    """The timer that ends it once another has its tasks."""
    agreed: frozenset[str] = frozenset()
    """The tasks that the server notifies of."""

    @override
    def note(self, method: str, params: Mapping[str, Any], size: int = 0) -> None:
        if not self.decided:
            self.of.hear(self, method, params)


@define(eq=False)
class _ServerNews:
    """The tasks of one server, in a few streams: the acknowledgement of a stream names all its tasks, and messages have
    a limit."""

    server: str
    ears: dict[str, list[TaskEar]] = field(factory=dict[str, list[TaskEar]], init=False)
    """The tasks that calls wait for, by id: a server may give two calls one."""
    turns: Turns = field(factory=Turns, init=False)
    turns_of_people: Turns = field(factory=Turns, init=False)
    _streams: list[_Stream] = field(factory=list[_Stream], init=False)
    """The streams that its server has acknowledged."""
    _opening: _Stream | None = field(default=None, init=False)
    """The stream that its server has not acknowledged yet."""
    _deaf: int | None = field(default=None, init=False)
    """The incarnation that does not notify of tasks, or of no more."""
    _opened_at: float = field(default=-math.inf, init=False)
    _pause: float = field(default=STREAM_AGAIN, init=False)

    def add(self, ear: TaskEar) -> None:
        """Add a task that a call waits for; another call may wait for it, or have waited."""
        self.ears.setdefault(ear.task, []).append(ear)
        ear.set_agreed(agreed=any(ear.task in stream.agreed for stream in self._streams))

    def discard(self, ear: TaskEar) -> None:
        """Forget a task, unless another call waits for it. With the last one the streams end."""
        self.ears[ear.task].remove(ear)
        if not self.ears[ear.task]:
            del self.ears[ear.task]
        if not self.ears:
            self._close()

    def want(self, owner: Owner | None, task: str, timer: Timer) -> None:
        """Open a stream, unless there is one that has the task, its server refuses, or it was asked just now."""
        now = trio.current_time()
        if owner is None or owner.incarnation == self._deaf or now < self._opened_at + self._pause:
            return
        if self._opening is not None:
            if now > self._opening.opened_at + LONGEST_STREAM_PAUSE:  # it will not be acknowledged any more
                self._deaf = owner.incarnation
                self._opening.cancel()
                self._opening = None
            return
        if any(task in stream.asked for stream in self._streams):
            return
        self._opened_at = now
        names, instead_of = self._next_stream()
        if len(self._streams) - len(instead_of) >= MOST_NEWS_STREAMS:
            return
        stream = _Stream(
            relay=Relay(None, listens=True),
            listener=lambda: self._ended(stream),
            of=self,
            asked=frozenset(names),
            instead_of=instead_of,
            opened_at=now,
            timer=timer,
        )
        stream.route(owner.incarnation, owner.control)
        params = encode({"notifications": {"taskIds": names}})
        try:
            owner.control.put_nowait(Round(Request(self.server, LISTEN, "", params, {}, stream, limited=False)))
        except trio.BrokenResourceError:  # this incarnation is ending
            return
        self._opening = stream

    def _next_stream(self) -> tuple[list[str], list[_Stream]]:
        """The tasks that no stream has, with those of the streams that have so few that all fit into one; and these."""
        had = frozenset[str]().union(*(stream.asked for stream in self._streams))
        names: list[str] = []
        left = LARGEST_STREAM
        for task in islice((task for task in self.ears if task not in had), MOST_IN_STREAM):
            if (left := left - _size(task)) < 0 and names:
                break
            names.append(task)
        instead_of: list[_Stream] = []
        living = {stream: [task for task in stream.asked if task in self.ears] for stream in self._streams}
        for stream in sorted(living, key=lambda each: len(living[each])):
            if len(names) + len(living[stream]) > MOST_IN_STREAM:
                break
            if (left := left - sum(map(_size, living[stream]))) < 0:
                break
            names += living[stream]
            instead_of.append(stream)
        return names, instead_of

    def hear(self, stream: _Stream, method: str, params: Mapping[str, Any]) -> None:
        """Take a notification of a stream."""
        if method == TASK_CHANGED:
            named = params.get("taskId")
            for ear in self.ears.get(named, ()) if isinstance(named, str) else ():
                ear.note_change()
        elif method == ACKNOWLEDGED and stream is self._opening:
            said = params.get("notifications")
            listed = cast("dict[str, Any]", said).get("taskIds") if isinstance(said, dict) else None
            named_all = cast("list[object]", listed) if isinstance(listed, list) else []
            self._acknowledge(stream, stream.asked & {each for each in named_all if isinstance(each, str)})

    def _acknowledge(self, stream: _Stream, agreed: frozenset[str]) -> None:
        self._opening = None
        if not agreed:
            self._deaf = stream.incarnation
            stream.cancel()
            return
        for replaced in stream.instead_of:
            if replaced in self._streams:
                self._streams.remove(replaced)
                replaced.timer.watch(replaced, trio.current_time() + REPLACED_FOR)
        stream.agreed, stream.instead_of = agreed, []
        self._streams.append(stream)
        self._tell(stream.asked, agreed)

    def _ended(self, stream: _Stream) -> None:
        if isinstance(stream.outcome, Rejected):
            self._deaf = stream.incarnation
        if stream is self._opening:
            self._opening = None
        elif stream in self._streams:
            self._streams.remove(stream)
            has_lasted = trio.current_time() - stream.opened_at > self._pause
            self._pause = STREAM_AGAIN if has_lasted else min(2 * self._pause, LONGEST_STREAM_PAUSE)
            self._tell(stream.agreed, frozenset())

    def _tell(self, tasks: Iterable[str], agreed: frozenset[str]) -> None:
        for task in tasks:
            for ear in self.ears.get(task, ()):
                ear.set_agreed(agreed=task in agreed)

    def _close(self) -> None:
        streams, self._streams = self._streams, []
        if self._opening is not None:
            streams.append(self._opening)
            self._opening = None
        for stream in streams:
            stream.cancel()


def _size(task: str) -> int:
    return len(json.dumps(task)) + 1


@define(eq=False)
class TaskNews:
    """The tasks of all servers that calls wait for."""

    _servers: WeakValueDictionary[str, _ServerNews] = field(factory=WeakValueDictionary[str, _ServerNews], init=False)
    """The servers, each for as long as a call waits for a task of it."""

    def ear(self, server: str, task: str, spec: ServerSpec | None) -> TaskEar:
        """The notifications about a task of a server, which has this spec."""
        news = self._servers.get(server) or self._servers.setdefault(server, _ServerNews(server))
        if spec is not None:
            most = min(ASKED_AT_ONCE, max(1, spec.max_in_flight // 4))
            news.turns.most = news.turns_of_people.most = most
        return TaskEar(task, news)

    def wake(self) -> None:
        """End all waits: the block is being left."""
        for news in tuple(self._servers.values()):
            for ears in news.ears.values():
                for ear in ears:
                    ear.wake()
