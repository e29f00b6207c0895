"""One request of ours on its way through the SDK, and what HTTP saw of it."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import trio

from ..failures import Evidence
from ..mailbox import ReplySlot

_CURRENT: ContextVar["Exchange | None"] = ContextVar("mcp_nursery_exchange", default=None)


class Exchange:
    """A request that waits for its answer.

    The SDK sends from tasks of its own, but in the context of the task that asked: that links what comes of an HTTP
    request to who waits for it.
    """

    def __init__(self, slot: ReplySlot | None = None, *, limited: bool = False) -> None:
        self.slot = slot
        """The caller's, if it is a tool call."""
        self.limited = limited
        """The caller set a time limit."""
        self.evidence: Evidence | None = None
        """What went wrong last, if anything."""
        self.scope = trio.CancelScope()

    @contextmanager
    def under_way(self) -> Generator[None, None, None]:
        """Ask within this block. Cancelling the scope ends it silently; then `evidence` may say why."""
        token = _CURRENT.set(self)
        try:
            with self.scope:
                yield
        finally:
            _CURRENT.reset(token)

    def fail(self, evidence: Evidence) -> None:
        """The request failed: what is known is kept for whoever waits."""
        self.evidence = evidence
        if evidence.unsent and self.slot is not None:
            self.slot.sent = False

    def give_up(self, evidence: Evidence) -> None:
        """As `fail`, and no answer can come any more."""
        self.fail(evidence)
        self.scope.cancel()


def current_exchange() -> Exchange | None:
    """The exchange that the running code sends for."""
    return _CURRENT.get()


class Witness(Protocol):
    """The connection, as told of by its HTTP client. Synchronous, never fails."""

    @property
    def is_lost(self) -> bool:
        """Nothing needs to be sent any more."""
        ...

    @property
    def is_open(self) -> bool:
        """The conversation has been opened."""
        ...

    def hear(self) -> None:
        """Something came from the server."""
        ...

    def in_session(self) -> None:
        """Requests carry a session id from now on."""
        ...

    def see(self, evidence: Evidence, *, stream: bool = False) -> None:
        """Something failed; `stream`: on the stream that the server speaks on unasked, on an open conversation."""
        ...
