"""Figures of servers as Prometheus reads them. They are made of what is counted anyway, when somebody asks: calls cost
nothing more, and those that OpenTelemetry is told of a quarter more."""

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mcp_nursery.actors.enums import ServerState

from ..status import ServerStatus, SupervisorStatistics


def exposition(
    statuses: Sequence[ServerStatus], statistics: SupervisorStatistics, kept: Mapping[str, int] | None = None
) -> bytes:
    """These figures in the text format of Prometheus; `kept`: bytes that wait for clients, by kind."""
    registry = CollectorRegistry()
    registry.register(_Servers(statuses, statistics))
    registry.register(_Clients(kept or {}))
    return generate_latest(registry)


@frozen(eq=False)
class _Servers(Collector):
    statuses: Sequence[ServerStatus]
    statistics: SupervisorStatistics

    def collect(self) -> Iterator[Metric]:
        """What `Collector` asks for."""
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
        yield from (in_flight, done, restarts, failures, unchecked, kept, latency)


@frozen(eq=False)
class _Clients(Collector):
    kept: Mapping[str, int]

    def collect(self) -> Iterator[Metric]:
        """What `Collector` asks for."""
        kept = GaugeMetricFamily("mcp_nursery_gateway_kept_bytes", "Bytes that wait for clients.", labels=["kind"])
        for kind, count in self.kept.items():
            kept.add_metric([kind], count)
        yield kept
