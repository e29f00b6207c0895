"""One request to a server, as it is traced and measured."""

import time
from typing import TYPE_CHECKING

from opentelemetry.context import Context, get_current
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, Tracer, set_span_in_context

from mcp_nursery.actors.enums import Delivery
from mcp_nursery.actors.reply import ReplySlot

from .attributes import (
    ATTEMPT,
    DELIVERY,
    ERROR,
    INCARNATION,
    METHOD,
    OUTCOME,
    REQUEST_ID,
    SERVER,
    Attributes,
    about_error,
    about_request,
    bounded,
    outcome_of,
    span_name,
)
from .harmless import harmless

if TYPE_CHECKING:
    from .instruments import Instruments


class Operation:
    """A request under way: a span, whose parent is the caller's, and then one measurement. Made in the caller's task.

    Args:
        method: The protocol's name of it.
        tracer: Makes the span; None: there is none.
        instruments: What measures it; None: nothing does.
    """

    def __init__(self, method: str, tracer: Tracer | None, instruments: "Instruments | None") -> None:
        self.context: Context = get_current()
        """What its server is told of the trace."""
        self._method = method
        self._tracer = tracer
        self._instruments = instruments
        self._span: Span = INVALID_SPAN
        self._about: Attributes = {}
        self._attempts = 0
        self._noted: ReplySlot | None = None
        """The slot of the attempt that was noted last."""
        self._duration: float | None = None
        self._decided_at: int | None = None

    @harmless
    def begin(self, server: Attributes | None, target: str | None) -> None:
        """Whose it is, and what it is about, is known, or still to be found."""
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
        """It has its outcome after so many seconds; what that means is found out later."""
        self._duration, self._decided_at = duration, time.time_ns()

    @harmless
    def note_attempt(self, slot: ReplySlot, delivery: Delivery, ended: object) -> None:
        """The attempt that waited in this slot is over. Noted once, by its first end."""
        if slot is self._noted:
            return
        self._noted = slot
        self._attempts += 1
        facts: dict[str, str | int] = {ATTEMPT: self._attempts, DELIVERY: str(delivery), **about_error(ended)}
        if slot.incarnation is not None:
            facts[INCARNATION] = slot.incarnation
        self._span.add_event("mcp_nursery.attempt", facts, self._decided_at)

    @harmless
    def finish(self, slot: ReplySlot, delivery: Delivery, ended: object, *, duration: float) -> None:
        """It is over.

        Args:
            slot: Where it waited last.
            delivery: Whether a server may have acted on it.
            ended: Its result, its error, or None if its caller gave up.
            duration: Seconds from its beginning to now.
        """
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
        self, instruments: "Instruments", delivery: Delivery, outcome: str, error: Attributes, duration: float
    ) -> None:
        instruments.duration.record(duration, {**self._about, **error}, self.context)
        counted = {METHOD: self._method, OUTCOME: outcome, DELIVERY: str(delivery)}
        for name, about in ((SERVER, self._about), (ERROR, error)):
            if name in about:
                counted[name] = str(about[name])
        instruments.calls.add(1, counted, self.context)
