"""The wake-up of one task by other threads."""

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Self

import trio


class Wakeup:
    """Wakes one task of this Trio loop from any thread, for a block of the loop's own."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._there, self._here = socket.socketpair()
        self._there.settimeout(0)
        self._here.settimeout(0)
        self._lock = RLock()  # nobody may write to a socket that is closed meanwhile: another may have its number then
        self._is_left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._there.close()
        self._here.close()

    def wake(self, run: Callable[[], object]) -> None:
        """Wake the task, which will call `run`. In any thread.

        Raises:
            trio.RunFinishedError: The loop has ended.
        """
        with self._lock:
            if not self._is_left:
                with suppress(BlockingIOError):  # enough wake-ups are on their way
                    self._there.send(b"\0")
                return
        self._token.run_sync_soon(run)

    async def wait(self) -> None:
        """Wait until the task is woken."""
        await trio.lowlevel.wait_readable(self._here)
        with suppress(BlockingIOError):  # a loop may wake for nothing
            self._here.recv(64)

    def leave_to_trio(self, run: Callable[[], object]) -> None:
        """Have Trio itself call `run`, now and whenever somebody wakes the task: it ends."""
        with self._lock:
            self._is_left = True
        self._token.run_sync_soon(run)
