"""How tasks talk: a bounded mailbox over a Trio memory channel."""

import logging
import math
from typing import Final, Generic, TypeVar

import trio
from attrs import frozen

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")


@frozen
class MailboxStatistics:
    """A mailbox at one moment."""

    waiting: int
    """Messages not taken yet."""
    capacity: float
    """Messages it holds before it refuses."""
    senders_blocked: int
    """Tasks that wait for a place."""


class Mailbox(Generic[T]):
    """A queue with one reader. The reader takes whole batches, so that one wake-up serves all that waits."""

    def __init__(self, capacity: float) -> None:
        self._send, self._receive = trio.open_memory_channel[T](capacity)

    def put_nowait(self, message: T) -> None:
        """Leave a message.

        Raises:
            trio.WouldBlock: The mailbox is full.
            trio.BrokenResourceError: The reader is gone.
        """
        self._send.send_nowait(message)

    async def put(self, message: T) -> None:
        """Leave a message, waiting for a place.

        Raises:
            trio.BrokenResourceError: The reader is gone.
        """
        await self._send.send(message)

    async def take(self, limit: float = math.inf) -> list[T]:
        """Wait for a message, then take all that are there, at most `limit`."""
        batch = [await self._receive.receive()]
        while len(batch) < limit:
            try:
                batch.append(self._receive.receive_nowait())
            except (trio.WouldBlock, trio.ClosedResourceError):
                break  # closed by `close`, which returned what was still there
        return batch

    def close(self) -> list[T]:
        """Refuse from now on; what nobody took is returned."""
        left: list[T] = []
        try:
            while True:
                left.append(self._receive.receive_nowait())
        except (trio.WouldBlock, trio.ClosedResourceError):
            self._receive.close()
            return left

    def statistics(self) -> MailboxStatistics:
        """The mailbox at this moment."""
        channel = self._send.statistics()
        return MailboxStatistics(
            waiting=channel.current_buffer_used,
            capacity=channel.max_buffer_size,
            senders_blocked=channel.tasks_waiting_send,
        )
