"""The headers a user sets for a server: fixed, or computed at each connect. Their values are shown nowhere."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from mcp_nursery.actors.records import field, frozen

from ...callbacks import NO_HOST, Host
from ...errors import NurseryError, StartFailed
from ...http.header_rules import check_headers
from ...secrets import SECRETS

if TYPE_CHECKING:
    from ...server_actor import Connector
    from ...session.connection import Connection

Headers = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Fixed headers, or a function that computes them at each connect."""


async def resolve(headers: Headers) -> Mapping[str, str]:
    """The headers for one connection.

    Raises:
        StartFailed: They could not be computed, or are not valid.
    """
    found = _checked(await _compute(headers) if callable(headers) else headers)
    SECRETS.get().learn(found.values())
    return found


async def _compute(headers: Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]) -> object:
    try:
        found = headers()
        return await found if inspect.isawaitable(found) else found
    except NurseryError as error:
        raise StartFailed(f"the headers could not be computed: {error}", retriable=True) from error
    except Exception as error:
        # Only its type: the text may hold what was to become a header.
        raise StartFailed(f"the headers could not be computed: {type(error).__name__}", retriable=True) from None


def _checked(found: object) -> Mapping[str, str]:
    if not isinstance(found, Mapping):
        raise StartFailed(f"the headers must be a mapping, not {type(found).__name__}", retriable=False)
    headers = cast("Mapping[str, str]", found)
    check_headers(headers)
    return dict(headers)


@frozen
class WithHeaders:
    """A connector that is made at each connect, with the headers of that moment."""

    headers: Headers = field(repr=False)
    make: Callable[[Mapping[str, str]], "Connector"] = field(repr=False)

    @asynccontextmanager
    async def connect(self, host: Host = NO_HOST) -> "AsyncGenerator[Connection, None]":
        """Open one connection. The server may use what `host` offers.

        Raises:
            StartFailed: On entering: the headers could not be computed, or it cannot be opened.
        """
        connector = self.make(await resolve(self.headers))
        async with connector.connect(host) as connection:
            yield connection
