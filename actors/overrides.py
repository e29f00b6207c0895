"""The decorator for methods that a base class documents. Only checkers load `typing_extensions`: it takes 5 ms."""

from typing import TYPE_CHECKING, TypeVar

__all__ = ["override"]

if TYPE_CHECKING:
    from typing_extensions import override
else:
    T = TypeVar("T")

    def override(method: T) -> T:
        """Mark a method as one of a base class, or of a protocol that the class names as its base."""
        return method
