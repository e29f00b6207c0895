"""The router: from a server's name to the mailbox of its live incarnation, which refuses calls when it is full: for the
user `ServerBusy`. It never awaits an answer."""

import sys
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Protocol

import trio

from mcp_nursery.actors.records import define, field

from .mailbox import Mailbox, MailboxStatistics
from .messages import CALL_TOOL, Owner, Request
from .outcomes import Busy, Unrouted

_CAPACITY = 256
"""Calls in the router's mailbox; callers wait for a place."""

_ROOM_FOR_CALLS = 200
"""Stack frames left for a hand-over, which needs 30."""

_PASS = 128
"""Calls handed on in one pass: half a server's mailbox, since the router may do two passes before a woken server
runs."""


class Route(Protocol):
    """One server as the router sees it. Immutable."""

    @property
    def owner(self) -> Owner | None:
        """The live incarnation of the server, if any."""
        ...

    @property
    def own(self) -> Container[str]:
        """The tools that may be called, by the server's own names."""
        ...


@define(eq=False)
class RouterActor:
    """The actor that hands each call to its owner. Callers wait for a place here; only the owner's mailbox refuses."""

    _mailbox: Mailbox[Sequence[Request]] = field(factory=lambda: Mailbox(_CAPACITY), init=False)
    _routes: Mapping[str, Route] = field(factory=dict[str, Route], init=False)
    _calls: deque[Request] = field(factory=deque[Request], init=False)
    """Calls taken and not handed on yet."""

    def swap(self, routes: Mapping[str, Route]) -> None:
        """Replace the routes, by server name; calls that already wait are routed by the new ones. The mapping must not
        change afterwards."""
        self._routes = routes

    async def submit(self, calls: Sequence[Request]) -> None:
        """Hand calls to the router, as one message. Each outcome comes to its slot, also when nobody owns the tool.

        Raises:
            trio.BrokenResourceError: The router has ended.
        """
        # No checkpoint here: the caller's wait for the outcome is one.
        if not _is_deep() and self._mailbox.hand_over([calls]):
            return
        try:
            self._mailbox.put_nowait(calls)
        except trio.WouldBlock:
            await self._mailbox.put(calls)

    async def run(self) -> None:
        """Route until cancelled. Calls that wait then end as `Unrouted`."""
        try:
            while True:
                self._hand_on(await self._mailbox.take(_PASS, handler=self._handle))
                while self._calls:
                    await trio.lowlevel.checkpoint()
                    self._hand_on(())
        finally:
            for calls in (self._calls, *self._mailbox.close()):
                for call in calls:
                    call.slot.resolve(Unrouted())

    def statistics(self) -> MailboxStatistics:
        """The statistics of the router's mailbox."""
        return self._mailbox.statistics()

    def _handle(self, messages: Sequence[Sequence[Request]]) -> bool:
        """Hand calls over to owners at rest; False if too many. The rest wait for a pass, which routes them anew: by
        then their owners may be others, or may have lost the tools."""
        calls = [call for message in messages for call in message]
        if len(calls) > _PASS:
            return False
        rest = [call for _, batch in self._hand_over(calls) for call in batch]
        if rest:
            for call in rest:
                call.slot.unroute()
            self._mailbox.put_nowait(rest)
        return True

    def _hand_on(self, messages: Sequence[Sequence[Request]]) -> None:
        """Do one pass."""
        for calls in messages:
            self._calls.extend(calls)
        taken = [self._calls.popleft() for _ in range(min(_PASS, len(self._calls)))]
        for mailbox, batch in self._hand_over(taken):
            for call in batch:
                try:
                    mailbox.put_nowait(call)
                except trio.WouldBlock:
                    call.slot.resolve(Busy())
                except trio.BrokenResourceError:
                    call.slot.resolve(Unrouted())

    def _hand_over(self, calls: Sequence[Request]) -> list[tuple[Mailbox[Request], list[Request]]]:
        """Hand calls over to owners at rest, in one write each. Calls of other owners are returned, in order."""
        batches: dict[Mailbox[Request], list[Request]] = {}
        for call in calls:
            slot, route = call.slot, self._routes.get(call.server)
            if slot.decided:
                continue
            owner = None if route is None else route.owner
            is_listed = route is not None and call.name in route.own
            # Only tools have to be listed, and not even they in a relayed call: its server judges it.
            if owner is None or not (is_listed or call.method != CALL_TOOL or slot.relay is not None):
                slot.resolve(Unrouted())
                continue
            slot.route(owner.incarnation, owner.control)
            batches.setdefault(owner.mailbox, []).append(call)
        return [(mailbox, batch) for mailbox, batch in batches.items() if not mailbox.hand_over(batch)]


def _is_deep() -> bool:
    """True if the caller's stack is almost full: a `RecursionError` is to be raised in the caller's code, not in that
    of the router or of a server's actor, which a hand-over runs on top of it."""
    try:
        sys._getframe(sys.getrecursionlimit() - _ROOM_FOR_CALLS)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    except ValueError:
        return False
    return True
