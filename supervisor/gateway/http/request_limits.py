"""The limits of requests over HTTP, of each client and of all together.

They apply to requests under way, and to the bytes that are kept: of requests until they are answered, and of
answers until they are read. A client that sends much, or reads little, waits for room or is refused; others are not
affected.
"""

from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import trio

from mcp_nursery.actors.account import ANSWERS, REQUESTS, Account
from mcp_nursery.actors.argument_checks import at_least_one, choice, seconds
from mcp_nursery.actors.records import field, frozen
from mcp_nursery.actors.version import VERSION

from ..auth.principal import RETRY_AFTER, Principal, Refused, principal_name
from ..client_status import ClientStatus
from .exchange import HttpExchange

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class GatewayFigures:
    """The figures of sessions, requests under way and refusals. Without a provider of instruments nothing is
    counted."""

    def __init__(self, provider: "MeterProvider | None") -> None:
        self._instruments = None
        if provider is None:
            return
        meter = provider.get_meter("mcp_nursery", VERSION)
        self._instruments = (
            meter.create_up_down_counter(
                "mcp_nursery.gateway.sessions", unit="{session}", description="Sessions of clients that are open."
            ),
            meter.create_up_down_counter(
                "mcp_nursery.gateway.requests", unit="{request}", description="Requests of clients that are under way."
            ),
            meter.create_counter(
                "mcp_nursery.gateway.refused", unit="{request}", description="Requests of clients that were not let in."
            ),
        )

    def sessions(self, more: int) -> None:
        """Count so many more sessions."""
        if self._instruments is not None:
            self._instruments[0].add(more)

    def requests(self, more: int) -> None:
        """Count so many more requests under way."""
        if self._instruments is not None:
            self._instruments[1].add(more)

    def refused(self, status: HTTPStatus) -> None:
        """Count a request that was refused."""
        if self._instruments is not None:
            self._instruments[2].add(1, {"http.response.status_code": int(status)})


UNCOUNTED_BYTES: Final = 16 << 10
"""Bytes of a request or an answer that are not counted: the number of requests bounds them, and a client whose room is
used up can still cancel calls and answer questions."""

_COUNT: Final = choice(at_least_one)


def _some_seconds(value: object) -> str | None:
    """A check of seconds above 0: with 0, each request would be over before it is read."""
    return "seconds > 0" if value == 0 else seconds(value)


_SECONDS: Final = choice(_some_seconds)
_SECONDS_OR_NONE: Final = choice(lambda value: None if value is None else _some_seconds(value))


@frozen
class HttpLimits:
    """The limits of one client, or of all of them. Clients that are not authenticated are not told apart, and only the
    limits of all apply to them."""

    connections: int = field(default=1_000, validator=_COUNT)
    """Connections at once, of `mcp-nursery serve`: beyond that a connection without a request under way gives way to a
    new one, and if there is none, new ones wait. Elsewhere that is the web server's affair."""
    connections_of_address: int = field(default=500, validator=_COUNT)
    """Connections at once of one address, of `mcp-nursery serve` without `--behind-proxy`: beyond that one of its own
    gives way, and if none does, the new one is closed."""
    body: int = field(default=4 << 20, validator=_COUNT)
    """Bytes of a request."""
    kept: int = field(default=512 << 20, validator=_COUNT)
    """Bytes that are kept at once, of requests under way and of answers that are not read: calls wait for room, larger
    requests are refused, and an answer without room is replaced by an error."""
    kept_of_client: int = field(default=64 << 20, validator=_COUNT)
    """Bytes that are kept at once for one client."""
    body_seconds: float = field(default=30.0, validator=_SECONDS)
    """Seconds in which the whole body of a request has to arrive."""
    request_seconds: float | None = field(default=3_600.0, validator=_SECONDS_OR_NONE)
    """Seconds after which a request without an answer is cancelled; None: never. Streams of notifications go on."""
    sessions: int = field(default=1_000, validator=_COUNT)
    """Sessions at once."""
    sessions_of_client: int = field(default=100, validator=_COUNT)
    """Sessions of one client at once."""
    idle: float = field(default=1_800.0, validator=_SECONDS)
    """Seconds after which an unused session ends."""
    requests: int = field(default=2_500, validator=_COUNT)
    """Requests under way at once; streams of notifications count."""
    requests_of_client: int = field(default=250, validator=_COUNT)
    """Requests of one client under way at once; streams of notifications count."""


class BytesUnderWay:
    """The bytes that are kept, by client: `most` for all together, and `most_of_client` for one. Clients that are not
    authenticated are not told apart, and only `most` applies to them.

    One answer or request alone always fits: its size is bounded elsewhere.
    """

    def __init__(self, most: int, most_of_client: int) -> None:
        self.account: Final = Account(most)
        """The account of all clients."""
        self._most = most
        self._most_of_client = most_of_client
        self._clients: dict[Hashable, Account] = {}
        self._room = trio.lowlevel.ParkingLot()

    @property
    def total(self) -> int:
        """Bytes that are kept now."""
        return self.account.total

    def of(self, client: Hashable) -> int:
        """Bytes that are kept for this client now."""
        account = self._clients.get(client)
        return 0 if account is None else account.total

    def reserve(self, client: Hashable, count: int, kind: str = REQUESTS) -> bool:
        """Keep so many bytes more. False if there is no room: nothing is kept then."""
        account = self._clients.get(client) or self._account_for(client)
        has_room = account.take(kind, count)
        if has_room:
            self._clients[client] = account
        return has_room

    def _account_for(self, client: Hashable) -> Account:
        return Account(self._most if client is None else self._most_of_client, self.account)

    def release(self, client: Hashable, count: int, kind: str = REQUESTS) -> None:
        """Keep so many bytes less."""
        if count:
            account = self._clients[client]
            account.give_back(kind, count)
            if not account.total:
                del self._clients[client]

    def fits_all(self, count: int) -> bool:
        """True if so many bytes more fit within the bound for all clients together."""
        return self.account.fits(count)

    @contextmanager
    def hold_unread(self, client: Hashable, count: int, kind: str = ANSWERS) -> Generator[bool, None, None]:
        """A block in which an answer of so many bytes, or another message of this kind, is kept until it is read. Its
        value is True if there was room for it."""
        if count <= UNCOUNTED_BYTES:
            yield True
            return
        has_room = self.reserve(client, count, kind)
        try:
            yield has_room
        finally:
            self.release(client, count * has_room, kind)
            self._room.unpark_all()

    async def wait_for_room(self, client: Hashable) -> None:
        """Wait until there is room for an answer. Requests that are kept do not count: they may wait here as well."""
        while True:
            own = None if client is None else self._clients.get(client)
            is_full = own is not None and own.of(ANSWERS) >= self._most_of_client
            if not is_full and self.account.of(ANSWERS) < self._most:
                return
            await self._room.park()


class Admission:
    """The exchanges that are admitted, by client. When one ends, the bytes that are kept of it are released."""

    def __init__(self, limits: HttpLimits, figures: GatewayFigures, kept: BytesUnderWay) -> None:
        self._limits = limits
        self._figures = figures
        self._kept = kept
        self._exchanges: dict[Principal | None, set[HttpExchange]] = {}
        self._total = 0

    @contextmanager
    def admit(self, exchange: HttpExchange) -> Generator[None, None, None]:
        """Admit an exchange. The block runs in its scope.

        Raises:
            Refused: There are too many.
        """
        client = exchange.client
        own = self._exchanges.get(client, set())
        if self._total >= self._limits.requests:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once", RETRY_AFTER)
        if client is not None and len(own) >= self._limits.requests_of_client:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "too many requests of yours at once", RETRY_AFTER)
        self._exchanges[client] = own
        own.add(exchange)
        self._total += 1
        self._figures.requests(1)
        try:
            with exchange.scope:
                yield
        finally:
            self._kept.release(client, exchange.kept)
            self._figures.requests(-1)
            self._total -= 1
            own.remove(exchange)
            if not own:
                del self._exchanges[client]

    @property
    def status(self) -> tuple[ClientStatus, ...]:
        """The principals with exchanges under way."""
        return tuple(
            ClientStatus(principal_name(client), len(exchanges), self._kept.of(client))
            for client, exchanges in self._exchanges.items()
        )

    def refuse(self, of: Callable[[Principal | None], bool], refusal: Callable[[], Refused]) -> None:
        """End the exchanges of these clients."""
        for client, exchanges in self._exchanges.items():
            if of(client):
                for exchange in exchanges:
                    exchange.refuse(refusal())
