"""The SDK of OpenTelemetry, kept in memory: what a supervisor tells it, as an exporter gets it."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Recording:
    """Providers of its own, for `open_supervisor(…, **recording.providers)`."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracer_provider = TracerProvider(shutdown_on_exit=False)
        tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer = tracer_provider.get_tracer("host")
        self.providers = {"tracer_provider": tracer_provider, "meter_provider": meter_provider}

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in this order."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def points(self, metric: str) -> list[Any]:
        """The data points of a metric now."""
        data = self._reader.get_metrics_data()
        scopes = [] if data is None else [scope for one in data.resource_metrics for scope in one.scope_metrics]
        metrics = [one for scope in scopes for one in scope.metrics if one.name == metric]
        return [point for one in metrics for point in one.data.data_points]

    def values(self, metric: str, *attributes: str) -> Mapping[tuple[Any, ...], Any]:
        """The values, or the counts of a histogram, by these attributes."""
        return {
            tuple(map(point.attributes.get, attributes)): point.value if hasattr(point, "value") else point.count
            for point in self.points(metric)
        }

    def everything(self) -> str:
        """All that was exported, as JSON."""
        metrics = self._reader.get_metrics_data()
        return "\n".join([*(span.to_json() for span in self.spans), "" if metrics is None else metrics.to_json()])


def events_of(span: ReadableSpan) -> list[dict[str, Any]]:
    """The attempts of a call."""
    return [dict(event.attributes or {}) for event in span.events if event.name == "mcp_nursery.attempt"]
