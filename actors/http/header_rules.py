"""The headers that HTTP allows, as h11 checks them: checked before it, so that an error names the header and shows no
value."""

import re
from collections.abc import Mapping
from typing import Final

from ..errors import StartFailed, one_line

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


def problem_with_header(name: object, value: object, *, encoding: str = "ascii") -> str | None:
    """The fault of a header, in words that do not show its value; None if there is none."""
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        return f"{one_line(repr(name), 80)} is not a valid header name"
    if not isinstance(value, str):
        return f"the header {name} must be text, not {type(value).__name__}"
    if not (_VALUE.fullmatch(value) and _fits(value, encoding)):
        return f"the header {name} has a character that headers cannot hold"
    if value != value.strip(" \t"):
        return f"the header {name} begins or ends with a blank"
    return None


def check_headers(headers: Mapping[str, str]) -> None:
    """Check the headers that a server's entry or host gives.

    Raises:
        StartFailed: One is not valid.
    """
    for name, value in headers.items():
        problem = problem_with_header(name, value)
        if problem is not None:
            raise StartFailed(problem, retriable=False)


def _fits(value: str, encoding: str) -> bool:
    try:
        value.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
