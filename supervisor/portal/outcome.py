"""The outcome of something that runs in another thread."""

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

from mcp_nursery.actors.errors import leaves

T = TypeVar("T")


class ThreadOutcome(Generic[T]):
    """A value, or an error."""

    __slots__ = ("error", "value")

    def __init__(self, value: T | None = None, error: BaseException | None = None) -> None:
        self.value: Final = value
        self.error: Final = error

    def unwrap(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # there is no error


async def run_to_outcome(
    function: Callable[[], Awaitable[T]],
    finish: Callable[[ThreadOutcome[T]], object],
    cancelled: Callable[[], BaseException],
) -> None:
    """Run a function, and pass its outcome on to `finish`, whatever it is, once. If the function was cancelled, its
    outcome is the error that `cancelled` makes."""
    outcome: ThreadOutcome[T] | None = None
    try:
        outcome = ThreadOutcome(await function())
    except BaseException as error:
        if all(isinstance(each, trio.Cancelled) for each in leaves(error)):
            raise
        outcome = ThreadOutcome(error=error)
    finally:
        finish(outcome or ThreadOutcome(error=cancelled()))
