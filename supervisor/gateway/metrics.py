"""The figures of a gateway in the format of Prometheus, made when they are requested.

The figures of servers are made of what is counted anyway, so they add no cost to a call. Those that OpenTelemetry
records make a call cost a quarter more, and need what the extra `otel` installs; these alone are written by the client
library of Prometheus.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.records import define, field

from ..extras import needs_extra
from ..status import ServerStatus, SupervisorStatistics


class TelemetryFigures:
    """The figures of OpenTelemetry, for Prometheus.

    Raises:
        ModuleNotFoundError: The extra is not installed.
    """

    def __init__(self) -> None:
        with needs_extra("otel"):
            from opentelemetry.exporter.prometheus import PrometheusMetricReader
            from opentelemetry.sdk.metrics import MeterProvider
            from prometheus_client import CollectorRegistry

        self._registry: Final = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._registry)
        self.provider: Final[MeterProvider] = MeterProvider([reader], shutdown_on_exit=False)
        """The meter provider for `open_supervisor` and `open_http`."""

    def exposition(self) -> bytes:
        """The figures in the text format of Prometheus."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)


def exposition(
    statuses: Sequence[ServerStatus],
    statistics: SupervisorStatistics,
    kept: Mapping[str, int] | None = None,
    telemetry: TelemetryFigures | None = None,
) -> bytes:
    """All figures in the text format of Prometheus. `kept` are the bytes that wait for clients, by kind."""
    text = "".join(family.text() for family in _counted(statuses, statistics, kept or {}))
    return text.encode() + (b"" if telemetry is None else telemetry.exposition())


@define
class MetricFamily:
    """The samples of one name, in the text format 0.0.4 of Prometheus."""

    kind: Literal["counter", "gauge"]
    """The kind: a counter only grows."""
    name: str
    """The name; that of a counter ends with `_total`."""
    about: str
    """The description, of one line, for people."""
    labels: Sequence[str] = ()
    """The names of labels, in the order of a sample's values."""
    samples: list[tuple[Sequence[str], float]] = field(factory=list[tuple[Sequence[str], float]])
    """The samples: the values of the labels, and the value."""

    def add(self, values: Sequence[str], value: float) -> None:
        """Add a sample."""
        self.samples.append((values, value))

    def text(self) -> str:
        """The lines of the family."""
        lines = [f"# HELP {self.name} {self.about}", f"# TYPE {self.name} {self.kind}"]
        lines += [f"{self.name}{self._labels(values)} {float(value)!r}" for values, value in self.samples]
        return "".join(f"{line}\n" for line in lines)

    def _labels(self, values: Sequence[str]) -> str:
        pairs = (f'{label}="{_escaped(value)}"' for label, value in sorted(zip(self.labels, values, strict=True)))
        return f"{{{','.join(pairs)}}}" if values else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _counted(
    statuses: Sequence[ServerStatus], statistics: SupervisorStatistics, kept_for_clients: Mapping[str, int]
) -> Iterator[MetricFamily]:
    own = ["server"]
    connected = MetricFamily("gauge", "mcp_nursery_server_connected", "Whether it is connected.", own)
    for status in statuses:
        connected.add([status.name], status.state is ServerState.CONNECTED)
    yield connected
    in_flight = MetricFamily("gauge", "mcp_nursery_server_requests", "Requests that wait for it.", own)
    done = MetricFamily("counter", "mcp_nursery_server_results_total", "Requests that it has answered.", own)
    restarts = MetricFamily("counter", "mcp_nursery_server_restarts_total", "Starts by its restart policy.", own)
    failures = MetricFamily(
        "counter", "mcp_nursery_server_failures_total", "Requests that failed.", ["server", "error", "delivery"]
    )
    unchecked = MetricFamily(
        "counter",
        "mcp_nursery_server_unchecked_results_total",
        "Results not held against too complex output schemas.",
        own,
    )
    kept = MetricFamily(
        "gauge",
        "mcp_nursery_server_kept_bytes",
        "Bytes that wait for it, or of what it has said.",
        ["server", "kind"],
    )
    tasks = MetricFamily("gauge", "mcp_nursery_server_tasks", "Tasks made of requests.", ["server", "status"])
    latency = MetricFamily(
        "gauge", "mcp_nursery_server_latency_seconds", "What answered requests took.", ["server", "quantile"]
    )
    for name, server in statistics.by_server.items():
        in_flight.add([name], server.calls.in_flight)
        done.add([name], server.calls.done)
        restarts.add([name], server.restarts)
        unchecked.add([name], server.unchecked)
        for kind, count in server.kept.items():
            kept.add([name, kind], count)
        for status_of_task, count in server.tasks.items():
            tasks.add([name, status_of_task], count)
        for failure in server.failures:
            failures.add([name, failure.error, failure.delivery], failure.count)
        if (took := server.latency) is not None:
            for quantile, seconds in (("0.5", took.p50), ("0.95", took.p95), ("0.99", took.p99)):
                latency.add([name, quantile], seconds)
    clients = MetricFamily("gauge", "mcp_nursery_gateway_kept_bytes", "Bytes that wait for clients.", ["kind"])
    state = statistics.state
    yield MetricFamily(
        "gauge", "mcp_nursery_state_usable", "Whether the state can be used.", samples=[((), state.usable)]
    )
    yield MetricFamily(
        "counter", "mcp_nursery_state_refused_total", "Questions it gave no answer to.", samples=[((), state.refused)]
    )
    for kind, count in kept_for_clients.items():
        clients.add([kind], count)
    yield from (in_flight, done, restarts, failures, unchecked, kept, tasks, latency, clients)
