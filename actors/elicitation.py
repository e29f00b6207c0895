"""Questions of a server that the host is at: one task each, for as long as somebody waits for the call."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from .messages import Question
from .outcomes import Loss
from .reply import ReplySlot
from .session.base import Connection

_CLOSED = Loss("the connection was closed")


class Asking:
    """The questions of one connection, by the slots in which callers wait for the answers."""

    def __init__(self, connection: Connection, nursery: trio.Nursery) -> None:
        self._connection = connection
        self._nursery = nursery
        self._scopes: dict[ReplySlot, trio.CancelScope] = {}

    def begin(self, question: Question) -> None:
        """Have the host asked, in a task of its own."""
        self._scopes[question.slot] = trio.CancelScope()
        self._nursery.start_soon(self._ask, question)

    def cancel(self, slot: ReplySlot) -> bool:
        """The caller gave up, and so does the callback. False if the slot waits for no callback."""
        scope = self._scopes.get(slot)
        if scope is not None:
            scope.cancel()
        return scope is not None

    def refuse(self, loss: Loss) -> None:
        """No answer is of use any more: tell the callers at once."""
        for slot, scope in self._scopes.items():
            slot.resolve(loss)
            scope.cancel()

    async def _ask(self, question: Question) -> None:
        slot = question.slot
        try:
            with self._scopes[slot]:
                slot.resolve(await self._connection.answer(question))
        finally:
            del self._scopes[slot]
            slot.resolve(_CLOSED)


@asynccontextmanager
async def open_asking(connection: Connection) -> AsyncGenerator[Asking, None]:
    """Let the server ask while the block lasts. Leaving it cancels the callbacks and waits until they have ended."""
    async with trio.open_nursery() as nursery:
        try:
            yield Asking(connection, nursery)
        finally:
            nursery.cancel_scope.cancel()
