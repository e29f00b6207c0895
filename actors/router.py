"""The router: from a public tool name to the mailbox of the incarnation that owns it. It never awaits an answer."""

from collections import deque
from collections.abc import Iterable, Mapping

import trio

from .mailbox import Mailbox, MailboxStatistics
from .messages import Bulk, CallTool, Owner, RouteKey
from .outcomes import Busy, Unrouted

_CAPACITY = 256
"""Calls in the router's mailbox; callers wait for a place."""

_PASS = 128
"""Calls handed on in one pass: half a server's mailbox, as the router may pass twice before a woken server runs."""


class RouterActor:
    """Looks up and hands on. Callers wait for a place here; only the owner's mailbox refuses."""

    def __init__(self) -> None:
        self._mailbox: Mailbox[CallTool | Bulk] = Mailbox(_CAPACITY)
        self._owners: Mapping[RouteKey, Owner] = {}
        self._calls: deque[CallTool] = deque()
        """Taken from the mailbox and not handed on yet."""

    def swap(self, owners: Mapping[RouteKey, Owner]) -> None:
        """Route by `owners` from now on, calls that wait already included. The mapping must not change any more."""
        self._owners = owners

    async def submit(self, call: CallTool | Bulk) -> None:
        """Hand calls to the router. Each outcome comes to the call's slot, also when nobody owns the tool.

        Raises:
            trio.BrokenResourceError: The router has ended.
        """
        try:
            self._mailbox.put_nowait(call)  # no checkpoint: the one that follows is the wait for the outcome
        except trio.WouldBlock:
            await self._mailbox.put(call)

    async def run(self) -> None:
        """Route until cancelled. Calls that wait then come back unrouted."""
        try:
            while True:
                self._take(await self._mailbox.take(_PASS))
                await self._hand_on_all()
        finally:
            self._take(self._mailbox.close())
            for call in self._calls:
                call.slot.resolve(Unrouted())

    def statistics(self) -> MailboxStatistics:
        """How full the router's mailbox is."""
        return self._mailbox.statistics()

    def _take(self, messages: Iterable[CallTool | Bulk]) -> None:
        for message in messages:
            self._calls.extend(message.calls if isinstance(message, Bulk) else (message,))

    async def _hand_on_all(self) -> None:
        while self._calls:
            for _ in range(min(_PASS, len(self._calls))):
                self._hand_on(self._calls.popleft())
            if self._calls:
                await trio.lowlevel.checkpoint()

    def _hand_on(self, call: CallTool) -> None:
        if call.slot.decided:
            return
        owner = self._owners.get(call.key)
        if owner is None:
            call.slot.resolve(Unrouted())
            return
        call.slot.route(owner.incarnation, owner.control)
        try:
            owner.mailbox.put_nowait(call)
        except trio.WouldBlock:
            call.slot.resolve(Busy())
        except trio.BrokenResourceError:
            call.slot.resolve(Unrouted())
