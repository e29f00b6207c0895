"""Checks of arguments and settings: an invalid value is refused where it comes in.

Otherwise a misspelt choice would act like the one that the code falls through to: with `resend="Never"` a call could
be executed twice.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from mcp_nursery.actors.records import Attribute

from .errors import ConfigError

LARGEST = sys.float_info.max
"""The largest number of seconds, but for infinity: integers beyond it become no float."""

Check = Callable[[object], str | None]
"""Returns what is wanted instead of a value; None if it is valid."""


def one_of(choices: Any, *, optional: bool = False) -> Check:
    """One of the values of a `Literal`, or None if it is `optional`."""
    allowed = (*get_args(choices), *([None] if optional else []))
    wanted = " or ".join(", ".join(map(repr, allowed)).rsplit(", ", 1))
    return lambda value: None if value in allowed else wanted


def true_or_false(value: object) -> str | None:
    """True or False, and nothing that only counts as one of them: `"no"` would count as true."""
    return None if isinstance(value, bool) else "True or False"


def seconds(value: object) -> str | None:
    """Seconds, 0 or more."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        return "seconds >= 0"
    return None if isinstance(value, float) or value <= LARGEST else "seconds within the range of a float"


def seconds_or_none(value: object) -> str | None:
    """Seconds, 0 or more, or None."""
    return None if value is None else seconds(value)


def finite_seconds_or_none(value: object) -> str | None:
    """Finite seconds, 0 or more, or None."""
    return None if value is None else "seconds >= 0" if value == math.inf else seconds_or_none(value)


def at_least_one(value: object) -> str | None:
    """A count of 1 or more."""
    return None if isinstance(value, int | float) and value >= 1 else "at least 1"


def number(value: object) -> bool:
    """True if the value is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def instance_of(kind: type, *, optional: bool = False) -> Check:
    """An object of this class, or None if it is `optional`."""
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    wanted = f"{article} {kind.__name__}{' or None' if optional else ''}"
    return lambda value: None if isinstance(value, kind) or (optional and value is None) else wanted


def function_or_none(value: object) -> str | None:
    """Something that can be called, or None."""
    return None if value is None or callable(value) else "an async function or None"


def mapping_or_none(value: object) -> str | None:
    """Values by name, or None."""
    return None if value is None or isinstance(value, Mapping) else "a mapping or None"


def check_argument(argument: str, value: object, check: Check) -> None:
    """Check an argument of a call or a function.

    Raises:
        ValueError: The value is not allowed.
    """
    if (wanted := check(value)) is not None:
        raise ValueError(f"{argument} must be {wanted}, not {_shown(value)}")


def check_setting(argument: str, value: object, check: Check, *, server: str | None = None) -> None:
    """Check a setting.

    Raises:
        ConfigError: The value is not allowed.
    """
    if (wanted := check(value)) is not None:
        raise ConfigError(f"must be {wanted}, not {_shown(value)}", server=server, field=argument)


def choice(check: Check) -> Callable[[Any, "Attribute[Any]", object], None]:
    """`check_argument` as a validator of attrs."""
    return lambda _call, attribute, value: check_argument(attribute.name, value, check)


def setting(check: Check) -> Callable[[Any, "Attribute[Any]", object], None]:
    """`check_setting` as a validator of attrs. A class with a `name` is that of a server."""
    return lambda one, attribute, value: (
        None if check(value) is None else check_setting(attribute.name, value, check, server=getattr(one, "name", None))
    )


def several(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts as a tuple: later changes of the given list do not count.

    Raises:
        ConfigError: The value is a single text: each letter would be taken for an entry, and `*` matches every name.
    """
    if isinstance(texts, str):
        raise ConfigError("a list of texts is needed, not one text: put it in brackets")
    return tuple(texts)


def copied(values: Mapping[str, str]) -> Mapping[str, str]:
    """A copy: later changes of the given mapping do not count."""
    return dict(values)


def _shown(value: object) -> str:
    """The value in one line, cut at 80 characters; of an object only its type."""
    if isinstance(value, int) and abs(value) > LARGEST:  # Python refuses to write very long ones
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.80}" if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
