"""What OpenTelemetry is told of a gateway over HTTP, beside what its supervisor tells."""

from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class Figures:
    """Sessions, requests under way, and what was refused.

    Args:
        provider: Who is told; None: nobody.
    """

    def __init__(self, provider: "MeterProvider | None") -> None:
        self._made = None
        if provider is None:
            return
        meter = provider.get_meter("mcp_nursery", version("mcp-nursery"))
        self._made = (
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
        """So many more sessions are open."""
        if self._made is not None:
            self._made[0].add(more)

    def requests(self, more: int) -> None:
        """So many more requests are under way."""
        if self._made is not None:
            self._made[1].add(more)

    def refused(self, status: HTTPStatus) -> None:
        """A request was refused."""
        if self._made is not None:
            self._made[2].add(1, {"http.response.status_code": int(status)})
