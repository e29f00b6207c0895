"""The tasks of servers that nobody waits for any more: each server is told, at once or when it is connected again."""

from collections import OrderedDict

import trio

from mcp_nursery.actors.deadlines import Deadline, Timer
from mcp_nursery.actors.jsonrpc.codec import encode
from mcp_nursery.actors.messages import Owner, Request, Round
from mcp_nursery.actors.records import define, field, frozen
from mcp_nursery.actors.reply import ReplySlot

CANCEL_WITHIN = 10.0
"""Seconds that a server may take to answer `tasks/cancel`."""
CANCEL_LATER = 60.0
"""Seconds for which a server that is away is to be told, if it comes back."""
MOST_TASKS_GIVEN_UP = 100
"""Tasks of one server that is away."""


@frozen
class _GivenUp:
    until: float
    timer: Timer


@define(eq=False)
class GivenUpTasks:
    """The tasks that servers are still to be told about, by server and id."""

    _waiting: dict[str, OrderedDict[str, _GivenUp]] = field(factory=dict[str, OrderedDict[str, _GivenUp]], init=False)

    def cancel(self, server: str, owner: Owner | None, task: str, timer: Timer) -> None:
        """Have a server told to cancel a task: its live incarnation, or the next. Never waits; nobody learns whether it
        was."""
        if owner is not None and _send(server, owner, task, timer):
            return
        waiting = self._waiting.setdefault(server, OrderedDict())
        waiting[task] = _GivenUp(trio.current_time() + CANCEL_LATER, timer)
        if len(waiting) > MOST_TASKS_GIVEN_UP:
            waiting.popitem(last=False)

    def connected(self, server: str, owner: Owner) -> None:
        """Tell an incarnation of a server what it is to be told."""
        for task, given_up in self._waiting.pop(server, OrderedDict[str, _GivenUp]()).items():
            if trio.current_time() < given_up.until:
                _send(server, owner, task, given_up.timer)

    def forget(self, server: str) -> None:
        """Tell a server nothing more: it was removed, or is another."""
        self._waiting.pop(server, None)


def _send(server: str, owner: Owner, task: str, timer: Timer) -> bool:
    """Send `tasks/cancel`, whose answer nobody waits for; False if this incarnation is ending."""
    slot, now = ReplySlot(), trio.current_time()
    slot.limit(now, Deadline(now + CANCEL_WITHIN, timer, stands_still=False))
    slot.route(owner.incarnation, owner.control)
    request = Request(server, "tasks/cancel", "", encode({"taskId": task}), {}, slot, limited=True)
    try:
        owner.control.put_nowait(Round(request))
    except trio.BrokenResourceError:
        return False
    timer.watch(slot, now + CANCEL_WITHIN)
    return True
