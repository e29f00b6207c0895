"""The instruments of one meter provider. All supervisors of the process share them: a provider that is asked twice for
one instrument drops the second one's callbacks.

An exporter asks what servers there are in a thread of its own, at any time: all it reads is which snapshots there are,
which nobody changes, and how many messages wait in a mailbox.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from ..state_machine import Snapshot
from .attributes import SERVER, STATE

DURATION_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Seconds: what the semantic conventions advise."""


class Instruments:
    """What is counted and measured."""

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
        """An exporter sees this server so; None: not any more."""
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
        return [Observation(count, {SERVER: name, STATE: state}) for (name, state), count in counts.items()]

    def _waiting(self, _: CallbackOptions) -> Iterable[Observation]:
        counts = Counter[str]()
        for one in self._snapshots():
            if one.owner is not None:
                counts[one.spec.name] += one.owner.mailbox.statistics().waiting
        return [Observation(count, {SERVER: name}) for name, count in counts.items()]


_MADE: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()
_MAKING = threading.Lock()


def instruments_of(provider: MeterProvider, version: str) -> Instruments:
    """The instruments of this provider."""
    with _MAKING:
        made = _MADE.get(provider)
        if made is None:
            made = _MADE[provider] = Instruments(provider, version)
        return made
