"""The figures of a gateway as Prometheus reads them, when somebody asks.

Those of servers are made of what is counted anyway: calls cost nothing more. Those that OpenTelemetry is told of cost a
call a quarter more, and need what the extra `gateway` installs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mcp_nursery.actors.enums import ServerState

from ..status import ServerStatus, SupervisorStatistics


class TelemetryFigures:
    """The figures of OpenTelemetry, for Prometheus.

    Raises:
        ModuleNotFoundError: The extra is not installed.
    """

    def __init__(self) -> None:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider

        self.registry: Final = CollectorRegistry()
        """The registry of these figures."""
        reader = PrometheusMetricReader(registry=self.registry)
        self.provider: Final[MeterProvider] = MeterProvider([reader], shutdown_on_exit=False)
        """For `open_supervisor` and `open_http`."""


def exposition(
    statuses: Sequence[ServerStatus],
    statistics: SupervisorStatistics,
    kept: Mapping[str, int] | None = None,
    telemetry: TelemetryFigures | None = None,
) -> bytes:
    """All figures in the text format of Prometheus.

    Args:
        statuses: Of the servers.
        statistics: Of their calls.
        kept: Bytes that wait for clients, by kind.
        telemetry: The figures of OpenTelemetry.
    """
    registry = CollectorRegistry()
    registry.register(_Counted(statuses, statistics, kept or {}))
    return generate_latest(registry) + (b"" if telemetry is None else generate_latest(telemetry.registry))


@frozen(eq=False)
class _Counted(Collector):
    statuses: Sequence[ServerStatus]
    statistics: SupervisorStatistics
    kept: Mapping[str, int]

    def collect(self) -> Iterator[Metric]:
        """The metrics, for `Collector`."""
        own = ["server"]
        connected = GaugeMetricFamily("mcp_nursery_server_connected", "Whether it is connected.", labels=own)
        for status in self.statuses:
            connected.add_metric([status.name], status.state is ServerState.CONNECTED)
        yield connected
        in_flight = GaugeMetricFamily("mcp_nursery_server_requests", "Requests that wait for it.", labels=own)
        done = CounterMetricFamily("mcp_nursery_server_results", "Requests that it has answered.", labels=own)
        restarts = CounterMetricFamily("mcp_nursery_server_restarts", "Starts by its restart policy.", labels=own)
        failures = CounterMetricFamily(
            "mcp_nursery_server_failures", "Requests that failed.", labels=["server", "error", "delivery"]
        )
        unchecked = CounterMetricFamily(
            "mcp_nursery_server_unchecked_results", "Results not held against too complex output schemas.", labels=own
        )
        kept = GaugeMetricFamily(
            "mcp_nursery_server_kept_bytes",
            "Bytes that wait for it, or of what it has said.",
            labels=["server", "kind"],
        )
        latency = GaugeMetricFamily(
            "mcp_nursery_server_latency_seconds", "What answered requests took.", labels=["server", "quantile"]
        )
        for name, server in self.statistics.by_server.items():
            in_flight.add_metric([name], server.calls.in_flight)
            done.add_metric([name], server.calls.done)
            restarts.add_metric([name], server.restarts)
            unchecked.add_metric([name], server.unchecked)
            for kind, count in server.kept.items():
                kept.add_metric([name, kind], count)
            for failure in server.failures:
                failures.add_metric([name, failure.error, failure.delivery], failure.count)
            if (took := server.latency) is not None:
                for quantile, seconds in (("0.5", took.p50), ("0.95", took.p95), ("0.99", took.p99)):
                    latency.add_metric([name, quantile], seconds)
        clients = GaugeMetricFamily("mcp_nursery_gateway_kept_bytes", "Bytes that wait for clients.", labels=["kind"])
        state = self.statistics.state
        yield GaugeMetricFamily("mcp_nursery_state_usable", "Whether the state can be used.", value=state.usable)
        yield CounterMetricFamily("mcp_nursery_state_refused", "Questions it gave no answer to.", value=state.refused)
        for kind, count in self.kept.items():
            clients.add_metric([kind], count)
        yield from (in_flight, done, restarts, failures, unchecked, kept, latency, clients)
