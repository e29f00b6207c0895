"""The functions that run in another thread for a caller, and their outcomes."""

from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Final, Generic, TypeVar

import trio

from mcp_nursery.actors.errors import SupervisorClosed, leaves

from .signals import Signal

T = TypeVar("T")


class Answer(Generic[T]):
    """The outcome of something that runs in another thread, a value or an error, and the signal that it is there."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._outcome: tuple[T | None, BaseException | None] | None = None

    @property
    def is_there(self) -> bool:
        """True once there is an outcome."""
        return self._outcome is not None

    def finish(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Set the outcome, in any thread; only the first counts."""
        if self._outcome is None:
            self._outcome = value, error
            self._signal.set()

    async def finish_with(self, function: Callable[[], Awaitable[T]], cancelled: BaseException) -> None:
        """Run a function in Trio, and set its outcome, whatever it is. `cancelled`: the error if it was cancelled."""
        try:
            self.finish(await function())
        except BaseException as error:
            if all(isinstance(each, (trio.Cancelled, GeneratorExit)) for each in leaves(error)):
                self.finish(error=cancelled)
                raise
            self.finish(error=error)

    def unwrap(self) -> T:
        """Return the value, or raise the error, once it is there."""
        assert self._outcome is not None
        value, error = self._outcome
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # there is no error


class ThreadRequest(Answer[T]):
    """A function that runs in the thread of a supervisor for a caller elsewhere."""

    def __init__(self, function: Callable[[], Awaitable[T]], signal: Signal) -> None:
        super().__init__(signal)
        self._function = function
        self.context: Final[Context] = copy_context()
        """The context of the caller, such as its trace."""
        self.scope: Final = trio.CancelScope()
        """The scope that it runs in."""
        self.has_begun: bool = False
        """True once a task was begun for it."""

    async def run(self) -> None:
        """Run it until it has its outcome."""
        with self.scope:
            await self.finish_with(self._function, SupervisorClosed())
