"""The record of every process that is started, by which the next host finds what a killed host left behind."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .table import ProcessId


class Ledger(Protocol):
    """Keeps word of process trees by the value of their marker variable."""

    async def starting(self, marker: str) -> None:
        """A tree is about to be started; returns once that is written down, or cannot be."""
        ...

    def started(self, marker: str, leader: "ProcessId") -> None:
        """Its first process runs, and leads its session and group. Never waits."""
        ...

    def ended(self, marker: str) -> None:
        """Nobody of it is left. Never waits."""
        ...


class NoLedger:
    """Keeps nothing."""

    async def starting(self, marker: str) -> None:
        """Keep nothing."""

    def started(self, marker: str, leader: "ProcessId") -> None:
        """Keep nothing."""

    def ended(self, marker: str) -> None:
        """Keep nothing."""


LEDGER: ContextVar[Ledger] = ContextVar("mcp_nursery_ledger", default=NoLedger())  # noqa: B039 - it holds nothing
"""For the processes that the current task and its children start."""
