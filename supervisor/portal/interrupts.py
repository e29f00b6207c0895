"""Ctrl-C while servers end."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Generator[None, None, None]:
    """Hold off Ctrl-C while the block lasts, in the thread that would get it: pressed again while servers end, it would
    leave them behind. The block has to be bounded."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[-1])
