"""The time that an answer asks for before it is asked again: `Retry-After` of RFC 9110, in seconds or as a date."""

import re
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

LONGEST_REST: Final = 3600.0
"""The longest rest in seconds that a server is given, whatever it asks for."""

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
_RESTING_STATUSES = (403, 408, 413, 425, 429)
"""Statuses of the 400s that may ask for time. With others the header means nothing: some proxies add it to each error,
and a server that refuses the probe of its era by 400 must get `initialize` all the same."""


def rest_of(status: int, retry_after: str | None, date: str | None) -> float | None:
    """Seconds for which a refusal asks to be asked nothing, by its status and its headers `Retry-After` and `Date`;
    None if it asks for no time, or cannot be read. A date counts from `Date`; without that header, from this machine's
    clock."""
    if retry_after is None or not (status in _RESTING_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR):
        return None
    said = retry_after.strip()
    seconds = float(said) if _SECONDS.fullmatch(said) else _seconds_until(said, date)
    return min(seconds, LONGEST_REST) if seconds is not None and seconds > 0 else None


def _seconds_until(said: str, date: str | None) -> float | None:
    until, now = _time_of(said), _time_of(date or "")
    return None if until is None else until - (time.time() if now is None else now)


def _time_of(date: str) -> float | None:
    """Seconds since 1970 of a date in HTTP; None if it is none."""
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def in_words(rest: float | None) -> str:
    """The rest as the end of a sentence about a refusal; empty if there is none."""
    return "" if rest is None else f", not to be asked again for {rest:g} s"
