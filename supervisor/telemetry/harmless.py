"""Keeps what the host listens with from failing what it listens to: a result would be lost, and a supervisor ended."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec

P = ParamSpec("P")

logger: Final = logging.getLogger(__name__)

_TOLD: Final = set[type[BaseException]]()
"""Kinds of errors that were logged: a provider fails at each call."""


def harmless(work: Callable[P, None]) -> Callable[P, None]:
    """The same, where an error goes no further than into the log, once for each kind."""

    @wraps(work)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:
            if type(error) not in _TOLD:
                _TOLD.add(type(error))
                logger.exception(
                    "OpenTelemetry is told less than it should be: its provider, or what listens there, fails"
                )

    return guarded
