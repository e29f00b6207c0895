"""Figures as Prometheus reads them, by OpenTelemetry's exporter. Needs what the extra `gateway` installs."""

from typing import Final

import trio
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest


class Prometheus:
    """A meter provider, and what it was told."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._registry)
        self.provider: Final = MeterProvider([reader], shutdown_on_exit=False)
        """For `open_supervisor` and `open_http`."""

    async def text(self) -> bytes:
        """All figures as they are, in the text format of Prometheus."""
        return await trio.to_thread.run_sync(generate_latest, self._registry)
