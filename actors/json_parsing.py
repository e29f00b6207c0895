"""Parsing without garbage collection."""

import gc
import json
import math
from typing import Any, NoReturn, Self


class Uncollected:
    """A block without garbage collection from `begin` to its end: parsed values are not garbage yet.

    A collection is due after some new containers, and one message may bring thousands; those that outlive a few cause a
    full one, which looks at all objects of the host. Values dropped before the end of the block are freed without one.
    Nothing may be awaited in between.
    """

    def __init__(self) -> None:
        self._collects = False

    def __enter__(self) -> Self:
        return self

    def begin(self) -> None:
        """Stop garbage collection."""
        self._collects = self._collects or gc.isenabled()
        gc.disable()

    def end(self) -> None:
        """Resume garbage collection, if it was on before."""
        if self._collects:
            self._collects = False
            gc.enable()

    def __exit__(self, *_: object) -> None:
        self.end()


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse a text of others with `json`, whose options or errors are needed. No garbage is collected meanwhile: on the
    parser's deepest level finalizers of the host fail for want of stack.

    Raises:
        json.JSONDecodeError: It is not JSON.
        RecursionError: It is nested deeper than the stack.
    """
    with Uncollected() as pause:
        pause.begin()
        return json.loads(text, **options)


class NoJsonNumber(ValueError):
    """A number that JSON does not have."""


def refuse_constant(name: str) -> NoReturn:
    """An option of `parse_json`, as `parse_constant`: NaN and the infinities are refused.

    Raises:
        NoJsonNumber: Always.
    """
    raise NoJsonNumber(f"{name} is no JSON number")


def finite_number(text: str) -> float:
    """An option of `parse_json`, as `parse_float`: the number, unless it is beyond a float.

    Raises:
        ValueError: It is, as 1e999 is.
    """
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.60} is out of range")
    return number
