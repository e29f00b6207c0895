"""The mailbox by which tasks talk: bounded, over a Trio memory channel."""

import math
from typing import Generic, TypeVar

import trio
from attrs import frozen

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
        self._untaken = 0
        """No fewer than the messages that can be taken: to look for one more in the channel costs an exception."""

    def put_nowait(self, message: T) -> None:
        """Leave a message.

        Raises:
            trio.WouldBlock: The mailbox is full.
            trio.BrokenResourceError: The reader is gone.
        """
        self._send.send_nowait(message)
        self._untaken += 1

    async def put(self, message: T) -> None:
        """Leave a message, waiting for a place.

        Raises:
            trio.BrokenResourceError: The reader is gone.
        """
        self._untaken += 1
        try:
            await self._send.send(message)
        except BaseException:
            self._untaken -= 1
            raise

    async def take(self, limit: float = math.inf) -> list[T]:
        """Wait for a message, then take all that are there, at most `limit`."""
        batch = [await self._receive.receive()]
        while len(batch) < limit and len(batch) < self._untaken:
            try:
                batch.append(self._receive.receive_nowait())
            except (trio.WouldBlock, trio.ClosedResourceError):
                break  # whoever left it is being cancelled; or closed by `close`, which returned what was still there
        self._untaken -= len(batch)
        return batch

    def close(self) -> list[T]:
        """Refuse from now on; what nobody took is returned."""
        left: list[T] = []
        try:
            while True:
                left.append(self._receive.receive_nowait())
        except (trio.WouldBlock, trio.ClosedResourceError):
            self._receive.close()
            self._untaken = 0
            return left

    def statistics(self) -> MailboxStatistics:
        """The mailbox at this moment."""
        channel = self._send.statistics()
        return MailboxStatistics(
            waiting=channel.current_buffer_used,
            capacity=channel.max_buffer_size,
            senders_blocked=channel.tasks_waiting_send,
        )
