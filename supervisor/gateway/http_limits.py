"""What clients may cost over HTTP: each of them, and all together."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from attrs import field, frozen

from mcp_nursery.actors.argument_checks import at_least_one, choice, seconds

from .access import RETRY_AFTER, Principal, Refused
from .figures import Figures
from .http_request import UnderWay

_COUNT: Final = choice(at_least_one)


def _some_seconds(value: object) -> str | None:
    """With 0, each request would be over before it is read."""
    return "seconds > 0" if value == 0 else seconds(value)


_SECONDS: Final = choice(_some_seconds)
_SECONDS_OR_NONE: Final = choice(lambda value: None if value is None else _some_seconds(value))


@frozen
class HttpLimits:
    """What one client, or all of them, may cost. Clients whom nobody has authenticated are not told apart, and only the
    limits of all of them hold."""

    connections: int = field(default=1_000, validator=_COUNT)
    """Connections at once, of `mcp-nursery serve`: one on which no request is under way gives way to another, and where
    there is none, others wait. Elsewhere that is the web server's affair."""
    connections_of_address: int = field(default=500, validator=_COUNT)
    """Connections at once of one address, of `mcp-nursery serve` without `--behind-proxy`: beyond it one of its own
    gives way, and where none does, the new one is closed."""
    body: int = field(default=4 << 20, validator=_COUNT)
    """Bytes of a request."""
    kept: int = field(default=512 << 20, validator=_COUNT)
    """Bytes of requests under way, and of answers that are not read, that are kept at once: calls wait for room, larger
    requests are refused, and an answer for which there is none is an error."""
    kept_of_client: int = field(default=64 << 20, validator=_COUNT)
    """Bytes of those of one client that are kept at once."""
    body_seconds: float = field(default=30.0, validator=_SECONDS)
    """Seconds in which a request has to be there whole."""
    request_seconds: float | None = field(default=3_600.0, validator=_SECONDS_OR_NONE)
    """Seconds until a request is cancelled that has no answer; None: never. Streams of news go on."""
    sessions: int = field(default=1_000, validator=_COUNT)
    """Sessions at once."""
    sessions_of_client: int = field(default=100, validator=_COUNT)
    """Sessions of one client at once."""
    idle: float = field(default=1_800.0, validator=_SECONDS)
    """Seconds after which a session ends that nobody uses."""
    requests: int = field(default=2_500, validator=_COUNT)
    """Requests under way at once; streams of news count."""
    requests_of_client: int = field(default=250, validator=_COUNT)
    """Requests of one client under way at once; streams of news count."""


class Admission:
    """The requests that are under way, by whose they are."""

    def __init__(self, limits: HttpLimits, figures: Figures) -> None:
        self._limits = limits
        self._figures = figures
        self._under_way: set[UnderWay] = set()
        self._counts: dict[Principal | None, int] = {}

    async def run(self, request: UnderWay, serve: Callable[[UnderWay], Awaitable[None]]) -> None:
        """Let a request in, and serve it in its scope.

        Raises:
            Refused: There are too many.
        """
        client = request.client
        if len(self._under_way) >= self._limits.requests:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once", RETRY_AFTER)
        own = self._counts.get(client, 0)
        if client is not None and own >= self._limits.requests_of_client:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "too many requests of yours at once", RETRY_AFTER)
        self._under_way.add(request)
        self._counts[client] = own + 1
        self._figures.requests(1)
        try:
            with request.scope:
                await serve(request)
        finally:
            self._figures.requests(-1)
            self._under_way.remove(request)
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]

    def refuse(self, of: Callable[[Principal | None], bool], refusal: Callable[[], Refused]) -> None:
        """End what is under way for these clients."""
        for request in list(self._under_way):
            if of(request.client):
                request.refuse(refusal())
