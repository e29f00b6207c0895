"""The outcome of something that runs in another thread."""

from typing import Final, Generic, TypeVar

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
