"""The reports to OpenTelemetry: spans and measurements of calls, and of the servers of one supervisor.

`Telemetry` follows servers by their snapshots, `Operation` one request, in its caller's task. Both write to the tracer
of a supervisor and to `Instruments`, which all supervisors of the process share: a provider that is asked twice for one
instrument drops the second one's callbacks. An exporter reads them in a thread of its own, at any time; all that it
reads are snapshots, which nobody changes, and how many messages wait in a mailbox.

An exporter that fails costs no result and ends no supervisor: each report is `harmless`.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Final, ParamSpec
from weakref import WeakKeyDictionary

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, Tracer, set_span_in_context, use_span

from mcp_nursery.actors.enums import Delivery, ServerState
from mcp_nursery.actors.reply import ReplySlot

from ..decisions.state_machine import Snapshot
from .attributes import (
    ATTEMPT,
    DELIVERY,
    ERROR,
    INCARNATION,
    METHOD,
    OUTCOME,
    REQUEST_ID,
    SERVER_ATTRIBUTE,
    STATE,
    STATUS,
    Attributes,
    about_error,
    about_request,
    about_server,
    bounded,
    outcome_of,
    span_name,
)

P = ParamSpec("P")

logger: Final = logging.getLogger(__name__)

DURATION_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Bounds in seconds, as the semantic conventions advise."""
_RUNNING = (ServerState.CONNECTING, ServerState.CONNECTED)
_BROKEN = (ServerState.FAILED, ServerState.NEEDS_AUTH, ServerState.BLOCKED)

_LOGGED: Final = set[type[BaseException]]()
"""Kinds of errors that were logged: a provider fails at each call."""


def harmless(work: Callable[P, None]) -> Callable[P, None]:
    """Log an error of a report, once for each kind, and let it go no further."""

    @wraps(work)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:
            if type(error) not in _LOGGED:
                _LOGGED.add(type(error))
                logger.exception(
                    "OpenTelemetry is told less than it should be: its provider, or what listens there, fails"
                )

    return guarded


class Instruments:
    """The counters and histograms."""

    def __init__(self, provider: MeterProvider, version: str) -> None:
        meter = provider.get_meter("mcp_nursery", version)
        self.duration: Final = meter.create_histogram(
            "mcp.client.operation.duration",
            unit="s",
            description="The duration of a request to an MCP server, from its caller to its outcome.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        )
        self.calls: Final = meter.create_counter(
            "mcp_nursery.calls", unit="{call}", description="Requests that have their outcome, with their delivery."
        )
        self.restarts: Final = meter.create_counter(
            "mcp_nursery.restarts", unit="{restart}", description="Starts made by a restart policy."
        )
        self.failures: Final = meter.create_counter(
            "mcp_nursery.failures", unit="{failure}", description="Connections that failed or were lost."
        )
        self.tasks: Final = meter.create_up_down_counter(
            "mcp_nursery.tasks",
            unit="{task}",
            description="Tasks that servers made of calls, with their statuses.",
        )
        meter.create_observable_up_down_counter(
            "mcp_nursery.servers", [self._servers], unit="{server}", description="Servers, with their states."
        )
        meter.create_observable_up_down_counter(
            "mcp_nursery.mailbox.size", [self._waiting], unit="{call}", description="Calls that wait in a mailbox."
        )
        self._shown: dict[tuple[object, str], Snapshot] = {}
        """Every server, by its supervisor and its name. A copy for each change would cost as much as there are servers:
        it is changed and read under the lock, which nobody holds for longer than that takes."""
        self._lock = threading.Lock()

    def show(self, supervisor: object, server: str, now: Snapshot | None) -> None:
        """Show this server to exporters; None: it has gone."""
        with self._lock:
            if now is None:
                self._shown.pop((supervisor, server), None)
            else:
                self._shown[supervisor, server] = now

    def _snapshots(self) -> list[Snapshot]:
        with self._lock:
            return list(self._shown.values())

    def _servers(self, _: CallbackOptions) -> Iterable[Observation]:
        counts = Counter((one.spec.name, str(one.state)) for one in self._snapshots())
        return [Observation(count, {SERVER_ATTRIBUTE: name, STATE: state}) for (name, state), count in counts.items()]

    def _waiting(self, _: CallbackOptions) -> Iterable[Observation]:
        counts = Counter[str]()
        for one in self._snapshots():
            if one.owner is not None:
                counts[one.spec.name] += one.owner.mailbox.statistics().waiting
        return [Observation(count, {SERVER_ATTRIBUTE: name}) for name, count in counts.items()]


_OF_PROVIDER: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()
_CREATION = threading.Lock()


def instruments_of(provider: MeterProvider, version: str) -> Instruments:
    """Return the instruments of this provider, the same each time."""
    with _CREATION:
        instruments = _OF_PROVIDER.get(provider)
        if instruments is None:
            instruments = _OF_PROVIDER[provider] = Instruments(provider, version)
        return instruments


class Operation:
    """A request under way: a span, whose parent is the caller's, and then one measurement. Made in the caller's task.
    There is no span without a tracer, and no measurement without instruments."""

    def __init__(self, method: str, tracer: Tracer | None, instruments: Instruments | None) -> None:
        self.context: Context = get_current()
        """The trace's context, as it is sent to the server."""
        self._method = method
        self._tracer = tracer
        self._instruments = instruments
        self._span: Span = INVALID_SPAN
        self._about: Attributes = {}
        self._attempts = 0
        self._recorded: ReplySlot | None = None
        """The slot of the attempt that was recorded last."""
        self._duration: float | None = None
        self._decided_at: int | None = None

    @harmless
    def begin(self, server: Attributes | None, target: str | None) -> None:
        """Record the server and the target of the operation; None: still to be found."""
        about = about_request(server or {}, self._method, target)
        name, begun = span_name(self._method, target), bool(self._about)
        self._about = about
        if begun:
            self._span.update_name(name)
            self._span.set_attributes(about)
        elif self._tracer is not None:
            self._span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=about)
            self.context = set_span_in_context(self._span)

    def decide(self, duration: float) -> None:
        """Record the duration in seconds to the outcome; what the outcome means is found out later."""
        self._duration, self._decided_at = duration, time.time_ns()

    @harmless
    def record_attempt(self, slot: ReplySlot, delivery: Delivery, ended: object) -> None:
        """Record the end of the attempt that waited in this slot, once."""
        if slot is self._recorded:
            return
        self._recorded = slot
        self._attempts += 1
        facts: dict[str, str | int] = {ATTEMPT: self._attempts, DELIVERY: str(delivery), **about_error(ended)}
        if slot.incarnation is not None:
            facts[INCARNATION] = slot.incarnation
        self._span.add_event("mcp_nursery.attempt", facts, self._decided_at)

    @harmless
    def record_task(self, before: str | None, after: str) -> None:
        """Record the status of the task that the server has made of it, in place of the one `before`."""
        self._span.add_event("mcp_nursery.task", {STATUS: after})
        if self._instruments is not None:
            server = str(self._about.get(SERVER_ATTRIBUTE))
            self._instruments.tasks.add(1, {SERVER_ATTRIBUTE: server, STATUS: after}, self.context)
            if before is not None:
                self._instruments.tasks.add(-1, {SERVER_ATTRIBUTE: server, STATUS: before}, self.context)

    @harmless
    def finish(self, slot: ReplySlot, delivery: Delivery, ended: object, *, duration: float) -> None:
        """End the operation, `duration` seconds after its beginning. It waited last in this slot; `ended` is its
        result, its error, or None if its caller gave up."""
        error, outcome = about_error(ended), outcome_of(ended)
        if self._span.is_recording():
            facts: dict[str, str | int] = {DELIVERY: str(delivery), OUTCOME: outcome, **error}
            if slot.incarnation is not None:
                facts[INCARNATION] = slot.incarnation
            if slot.request_id is not None:
                facts[REQUEST_ID] = str(slot.request_id)
            self._span.set_attributes(facts)
            if error:
                self._span.set_status(StatusCode.ERROR)
        self._span.end(self._decided_at)
        if self._instruments is not None:
            self._measure(
                self._instruments,
                delivery,
                outcome,
                bounded(error),
                duration if self._duration is None else self._duration,
            )

    def _measure(
        self, instruments: Instruments, delivery: Delivery, outcome: str, error: Attributes, duration: float
    ) -> None:
        instruments.duration.record(duration, {**self._about, **error}, self.context)
        counted = {METHOD: self._method, OUTCOME: outcome, DELIVERY: str(delivery)}
        for name, about in ((SERVER_ATTRIBUTE, self._about), (ERROR, error)):
            if name in about:
                counted[name] = str(about[name])
        instruments.calls.add(1, counted, self.context)


class Telemetry:
    """The reports of one supervisor to OpenTelemetry, all of them in the supervisor's thread.

    A span `connect` for each incarnation, from its beginning until it is connected or over; around those that follow a
    failure a span `restart`, from the failure until the server is connected or stays down.
    """

    def __init__(self, tracer: Tracer | None, instruments: Instruments | None) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._about: dict[str, Attributes] = {}
        """The attributes of each server."""
        self._connects: dict[str, Span] = {}
        self._restarts: dict[str, Span] = {}

    # -- calls ----------------------------------------------------------------------------------------------------

    def operation(self, method: str) -> Operation:
        """Begin a request in this task."""
        return Operation(method, self._tracer, self._instruments)

    def about(self, server: str) -> Attributes | None:
        """The attributes of this server; None if there are none."""
        return self._about.get(server)

    # -- servers --------------------------------------------------------------------------------------------------

    @harmless
    def record_step(self, old: Snapshot | None, new: Snapshot) -> None:
        """Report the step of a server from one snapshot to the next; None: it was just added."""
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
        """Forget a server that is not configured any more."""
        if self._instruments is not None:
            self._instruments.show(self, server, None)
        self._about.pop(server, None)
        self._end(self._connects, server, {})
        self._end(self._restarts, server, {})

    def close(self) -> None:
        """Forget every server."""
        for server in list(self._about):
            self.forget(server)

    def connecting(self, server: str) -> AbstractContextManager[Any]:
        """The trace in which this server is being connected now."""
        span = self._connects.get(server)
        return nullcontext() if span is None else use_span(span, record_exception=False, set_status_on_exception=False)

    def _count(self, instruments: Instruments, old: ServerState | None, new: Snapshot, *, begins: bool) -> None:
        server = {SERVER_ATTRIBUTE: new.spec.name}
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
                context=None if restart is None else set_span_in_context(restart),
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
