"""The wake-up of one task by other threads."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import trio


class _SendingEnd(socket.socket):
    """A socket that is closed when the last thread that writes to it has released it: from then on another file may
    have its number. A lock would be held while handlers of signals run."""

    def __del__(self) -> None:
        self.close()


class Wakeup:
    """The wake-up of one task of this Trio loop from any thread, for a block of the loop's own."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        there, self._here = socket.socketpair()
        self._there: _SendingEnd | None = _SendingEnd(fileno=there.detach())
        """The sending end; None once Trio is asked instead."""
        self._there.settimeout(0)
        self._here.settimeout(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._there = None
        self._here.close()

    def wake(self, run: Callable[[], object]) -> None:
        """Wake the task, which will call `run`. In any thread, and in handlers of signals.

        Raises:
            trio.RunFinishedError: The loop has ended.
        """
        there = self._there
        if there is None:
            self._token.run_sync_soon(run)
            return
        # Enough wake-ups are on their way, or Trio was asked meanwhile.
        with suppress(BlockingIOError, BrokenPipeError):
            there.send(b"\0")

    async def wait(self) -> None:
        """Wait until the task is woken."""
        await trio.lowlevel.wait_readable(self._here)
        with suppress(BlockingIOError):  # a loop may wake for nothing
            self._here.recv(64)

    def leave_to_trio(self, run: Callable[[], object]) -> None:
        """Have Trio itself call `run`, now and whenever somebody wakes the task, which ends."""
        self._there = None
        self._token.run_sync_soon(run)
