"""What the SDK's transports have in common for us: a session to open, and three facts that differ."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

from mcp.client import ClientSession

from ..messages import Era
from .callbacks import SessionCallbacks
from .changes import ToolChanges
from .exchange import Witness


class Driver(ABC):
    """A server that the SDK reaches for us, by one transport."""

    __slots__ = ()

    transport: ClassVar[str]
    """How it is reached: `http`, `sse` or `in-process`."""
    undoes_its_start: ClassVar[bool] = False
    """Whether an opening that nobody waits for any more is to be given time to end by itself."""
    era: ClassVar[Era | None] = None
    """The only era this transport knows; None if it knows all, or if the SDK asks by itself."""

    @abstractmethod
    def session(
        self, witness: Witness, changes: ToolChanges, callbacks: SessionCallbacks
    ) -> AbstractAsyncContextManager[ClientSession]:
        """Open a session, entered and left in one task.

        Raises:
            StartFailed: On entering: it cannot be opened, and no answer of the server's says why.
        """
        ...
