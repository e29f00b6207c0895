"""The router: from a public tool name to the mailbox of the incarnation that owns it. It never awaits an answer."""

from collections.abc import Mapping

import trio

from .mailbox import Mailbox, MailboxStatistics
from .messages import Busy, CallTool, Owner, RouteKey, Unrouted

_CAPACITY = 256
"""Calls in the router's mailbox; callers wait for a place."""

_PASS = 128
"""Calls handed on in one pass: half a server's mailbox, as the router may pass twice before a woken server runs."""


class RouterActor:
    """Looks up and hands on. Callers wait for a place here; only the owner's mailbox refuses."""

    def __init__(self) -> None:
        self._mailbox: Mailbox[CallTool] = Mailbox(_CAPACITY)
        self._owners: Mapping[RouteKey, Owner] = {}

    def swap(self, owners: Mapping[RouteKey, Owner]) -> None:
        """Route by `owners` from now on, calls that wait already included. The mapping must not change any more."""
        self._owners = owners

    async def submit(self, call: CallTool) -> None:
        """Hand a call to the router. Its outcome comes to the call's slot, also when nobody owns the tool.

        Raises:
            trio.BrokenResourceError: The router has ended.
        """
        await self._mailbox.put(call)

    async def run(self) -> None:
        """Route until cancelled. Calls that wait then come back unrouted."""
        try:
            while True:
                for call in await self._mailbox.take(_PASS):
                    self._hand_on(call)
        finally:
            for call in self._mailbox.close():
                call.slot.resolve(Unrouted())

    def statistics(self) -> MailboxStatistics:
        """How full the router's mailbox is."""
        return self._mailbox.statistics()

    def _hand_on(self, call: CallTool) -> None:
        if call.slot.abandoned:
            return
        owner = self._owners.get(call.key)
        if owner is None:
            call.slot.resolve(Unrouted())
            return
        call.slot.incarnation = owner.incarnation
        call.slot.owner = owner.cancels
        try:
            owner.mailbox.put_nowait(call)
        except trio.WouldBlock:
            call.slot.resolve(Busy())
        except trio.BrokenResourceError:
            call.slot.resolve(Unrouted())
