"""The choice of OpenTelemetry's providers. A program that uses it has loaded the API; otherwise it is not loaded here
either, because it searches all installed packages."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from mcp_nursery.actors.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from .telemetry import Telemetry

_API: Final = ("opentelemetry.trace", "opentelemetry.metrics")
"""The modules whose providers do nothing."""


def telemetry_of(
    tracer_provider: "TracerProvider | None", meter_provider: "MeterProvider | None"
) -> "Telemetry | None":
    """Return the telemetry for these providers, or else the process's; None if neither records anything. Called
    once."""
    tracing = tracer_provider or _of_process("trace", "tracer")
    metering = meter_provider or _of_process("metrics", "meter")
    if not (_listens(tracing) or _listens(metering)):
        return None
    from .telemetry import Telemetry, instruments_of

    tracer = tracing.get_tracer("mcp_nursery", VERSION) if _listens(tracing) else None
    return Telemetry(tracer, instruments_of(metering, VERSION) if _listens(metering) else None)


def _listens(provider: object) -> bool:
    return provider is not None and not type(provider).__module__.startswith(_API)


def _of_process(module: str, kind: str) -> Any:
    """The provider of the process, if somebody has set one: in code, or by a variable of the environment."""
    if f"opentelemetry.{module}" not in sys.modules and f"OTEL_PYTHON_{kind.upper()}_PROVIDER" not in os.environ:
        return None
    return getattr(import_module(f"opentelemetry.{module}"), f"get_{kind}_provider")()
