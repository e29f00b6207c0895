"""Tells OpenTelemetry of one supervisor's servers, as pure functions of the snapshot before and after, and of calls."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from opentelemetry.environment_variables import OTEL_PYTHON_METER_PROVIDER
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, TracerProvider, get_tracer_provider, use_span
from opentelemetry.trace import set_span_in_context as with_span

from mcp_nursery.actors.enums import ServerState

from ..state_machine import Snapshot
from .attributes import ATTEMPT, ERROR, INCARNATION, OUTCOME, SERVER, Attributes, about_server
from .harmless import harmless
from .operation import Operation

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from .instruments import Instruments

_API = ("opentelemetry.trace", "opentelemetry.metrics")
"""The modules whose providers do nothing."""

_RUNNING = (ServerState.CONNECTING, ServerState.CONNECTED)
_BROKEN = (ServerState.FAILED, ServerState.NEEDS_AUTH, ServerState.BLOCKED)


class Telemetry:
    """What OpenTelemetry is told of one supervisor, in whose thread all of this runs.

    A span `connect` for each incarnation, from its beginning until it is connected or over; around those that follow a
    failure a span `restart`, from the failure until the server is connected or stays down.
    """

    def __init__(self, tracer: Tracer | None, instruments: "Instruments | None") -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._about: dict[str, Attributes] = {}
        """What is said of each server."""
        self._connects: dict[str, Span] = {}
        self._restarts: dict[str, Span] = {}

    # -- calls ----------------------------------------------------------------------------------------------------

    def operation(self, method: str) -> Operation:
        """A request begins in this task."""
        return Operation(method, self._tracer, self._instruments)

    def about(self, server: str) -> Attributes | None:
        """What is said of this server; None if there is none."""
        return self._about.get(server)

    # -- servers --------------------------------------------------------------------------------------------------

    @harmless
    def note(self, old: Snapshot | None, new: Snapshot) -> None:
        """A server is as the new snapshot says; None: it is new as well."""
        name = new.spec.name
        if self._instruments is not None:
            self._instruments.show(self, name, new)
        if old is None or old.spec is not new.spec or old.introduction is not new.introduction:
            self._about[name] = about_server(new)
        before, number = (None, 0) if old is None else (old.state, old.incarnation)
        if (before, number) == (new.state, new.incarnation):
            return
        begins = new.state is ServerState.CONNECTING and new.incarnation > number
        if self._instruments is not None:
            self._count(self._instruments, before, new, begins=begins)
        if self._tracer is not None:
            self._trace(self._tracer, new, begins=begins)

    @harmless
    def forget(self, server: str) -> None:
        """It is configured no more."""
        if self._instruments is not None:
            self._instruments.show(self, server, None)
        self._about.pop(server, None)
        self._end(self._connects, server, {})
        self._end(self._restarts, server, {})

    def close(self) -> None:
        """There are no servers any more."""
        for server in list(self._about):
            self.forget(server)

    def connecting(self, server: str) -> AbstractContextManager[Any]:
        """The trace in which this server is being connected now."""
        span = self._connects.get(server)
        return nullcontext() if span is None else use_span(span, record_exception=False, set_status_on_exception=False)

    def _count(self, instruments: "Instruments", old: ServerState | None, new: Snapshot, *, begins: bool) -> None:
        server = {SERVER: new.spec.name}
        if begins and old is ServerState.WAITING:
            instruments.restarts.add(1, server)
        if old in _RUNNING and new.state not in _RUNNING and new.ended is not None:
            instruments.failures.add(1, {**server, ERROR: str(new.ended)})

    def _trace(self, tracer: Tracer, new: Snapshot, *, begins: bool) -> None:
        name, about = new.spec.name, self._about[new.spec.name]
        failed: Attributes = {} if new.ended is None else {ERROR: str(new.ended)}
        if begins:
            self._end(self._connects, name, {OUTCOME: "replaced"})
        elif new.state is not ServerState.CONNECTING:
            self._end(self._connects, name, {**about, OUTCOME: str(new.state), **failed})
        if new.state is ServerState.WAITING:
            if name not in self._restarts:
                self._restarts[name] = tracer.start_span(f"restart {name}", attributes={**about, **failed})
        elif new.state is not ServerState.CONNECTING:
            error = failed if new.state in _BROKEN else {}
            facts: Attributes = {INCARNATION: new.incarnation, ATTEMPT: new.attempt, OUTCOME: str(new.state)}
            self._end(self._restarts, name, {**facts, **error}, failed=bool(error))
        if begins:
            restart = self._restarts.get(name)
            self._connects[name] = tracer.start_span(
                f"connect {name}",
                context=None if restart is None else with_span(restart),
                kind=SpanKind.CLIENT,
                attributes={**about, INCARNATION: new.incarnation, ATTEMPT: new.attempt},
            )

    @staticmethod
    def _end(spans: dict[str, Span], server: str, facts: Attributes, *, failed: bool | None = None) -> None:
        span = spans.pop(server, None)
        if span is None:
            return
        span.set_attributes(dict(facts))
        if (ERROR in facts) if failed is None else failed:
            span.set_status(StatusCode.ERROR)
        span.end()


def telemetry_of(tracer_provider: TracerProvider | None, meter_provider: "MeterProvider | None") -> Telemetry | None:
    """What tells these providers, or in their place the process's; None if nobody listens, which is found out once."""
    tracing = tracer_provider or get_tracer_provider()
    metering = meter_provider or _global_meter_provider()
    tracer = tracing.get_tracer("mcp_nursery", version("mcp-nursery")) if _listens(tracing) else None
    instruments = None
    if metering is not None and _listens(metering):
        from .instruments import instruments_of

        instruments = instruments_of(metering, version("mcp-nursery"))
    return None if tracer is None and instruments is None else Telemetry(tracer, instruments)


def _listens(provider: object) -> bool:
    return not type(provider).__module__.startswith(_API)


def _global_meter_provider() -> "MeterProvider | None":
    """The process's, if somebody has set one: who has done that has imported the module, which takes 20 ms."""
    if "opentelemetry.metrics" not in sys.modules and OTEL_PYTHON_METER_PROVIDER not in os.environ:
        return None
    from opentelemetry.metrics import get_meter_provider

    return get_meter_provider()
