"""The circuit breakers of all servers: asked before a call is sent, given its outcome, and shown in status and events.
The rules are in `circuit_breaker`.

Lists have circuits of their own, by the same rules: many a server lists at once but does not answer calls, or the other
way round, so neither may close or open the breaker of the other. Nobody waits for a list while one of the two is open.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

import trio

from mcp_nursery.actors.outcomes import Answered, Dropped, Rejected
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.reply import ReplySlot

from ..decisions.circuit_breaker import BreakerStatus, Circuit, judge
from ..decisions.state_machine import Snapshot
from ..events import BreakerChanged
from ..security.untrusted_marks import clean_name
from .observable import Observable

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class CircuitBreakers:
    """The circuits of servers whose last request has failed; the others have none."""

    _snapshots: Mapping[str, Observable[Snapshot]]
    _publish: Callable[[BreakerChanged], None]
    circuits: dict[str, Circuit] = field(factory=dict[str, Circuit], init=False)
    """The circuits of calls, by server."""
    _lists: dict[str, Circuit] = field(factory=dict[str, Circuit], init=False)
    """The circuits of lists that are fetched again, by server."""

    def status(self, server: str) -> BreakerStatus | None:
        """The breaker of a server in its status; None if it has none."""
        circuit = self.circuits.get(server)
        return None if circuit is None else circuit.status(trio.current_time())

    # -- calls ----------------------------------------------------------------------------------------------------

    def is_closed(self, server: str) -> bool:
        """True if calls of this server are sent as if there were no breaker."""
        circuit = self.circuits.get(server)
        return circuit is None or circuit.state == "closed"

    def admit(self, call: object, server: str) -> BreakerStatus | None:
        """Admit a call, perhaps as a probe. Whatever becomes of it, `settle` is to be called.

        Returns:
            None; or the status of the breaker, if the call must not be sent.
        """
        if server not in self.circuits:
            return None  # as for nearly all
        circuit, now = self.circuits[server], trio.current_time()
        if not circuit.admits(now):
            return circuit.status(now)
        self._set(server, circuit.sent(call, now))
        return None

    def settle(self, call: object, server: str, slot: ReplySlot) -> None:
        """Take the outcome of a request of this call from its slot; none if nobody waits for it any more."""
        circuit = self.circuits.get(server)
        if circuit is None and type(slot.outcome) is Answered:
            return  # as nearly all
        owner = observable.value.owner if (observable := self._snapshots.get(server)) is not None else None
        if observable is None or owner is None or slot.incarnation not in (None, owner.incarnation):
            return  # it shows nothing of the present connection
        if circuit is None:
            if (breaker := observable.value.spec.breaker) is None:
                return
            circuit = Circuit(breaker)
        now, sent = trio.current_time(), slot.sent or circuit.probe is call  # a probe that it does not read has failed
        waited = math.inf if slot.waits_since is None else now - slot.waits_since
        lasts = slot.relay is not None and slot.relay.listens  # the end of a stream shows nothing
        answers = None if lasts else judge(slot.outcome, sent=sent, waited=waited, heard=slot.heard)
        rest = slot.outcome.retry_in if isinstance(slot.outcome, (Dropped, Rejected)) else None
        self._set(server, circuit.settled(call, answers=answers, now=now, rest=rest))

    # -- lists ----------------------------------------------------------------------------------------------------

    def admits_list(self, server: str) -> bool:
        """True if a caller may wait for a list of this server to be fetched again."""
        circuits, now = (self.circuits.get(server), self._lists.get(server)), trio.current_time()
        return all(circuit is None or circuit.admits(now) for circuit in circuits)

    def settle_list(self, server: str, *, came: bool) -> None:
        """Record that a list of this server was fetched again, or timed out. One is fetched at a time, so each is the
        probe of an open breaker."""
        breaker = self._snapshots[server].value.spec.breaker
        before = self._lists.pop(server, None)
        if came or breaker is None:
            return
        before = before or Circuit(breaker)
        circuit = self._lists[server] = before.settled(before.probe, answers=False, now=trio.current_time())
        if circuit.state == "open":
            logger.warning(
                "%s: %d lists in a row did not come; nobody waits for one for %g s",
                *(clean_name(server), circuit.failures, breaker.open_for),
            )

    # -- servers --------------------------------------------------------------------------------------------------

    def close(self, server: str) -> None:
        """Close the circuits of a server whose connection has come or gone."""
        self._lists.pop(server, None)
        circuit = self.circuits.get(server)
        if circuit is not None:
            self._set(server, Circuit(circuit.breaker))

    def _set(self, server: str, circuit: Circuit) -> None:
        before, at = self.circuits.get(server, Circuit(circuit.breaker)), trio.current_time()
        if circuit.failures:
            self.circuits[server] = circuit
        else:
            self.circuits.pop(server, None)
        if circuit.state != before.state:
            retry_in = None if circuit.probe_at is None else max(0.0, circuit.probe_at - at)
            self._publish(BreakerChanged(server, circuit.state, circuit.failures, retry_in, at))
