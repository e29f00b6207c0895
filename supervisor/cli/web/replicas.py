"""Replicas that share a database, each by its report about itself: a page shows also those that do not serve it."""

import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final

import trio
from cattrs import Converter
from cattrs.errors import BaseValidationError

from mcp_nursery.actors.json_parsing import parse_json
from mcp_nursery.actors.records import asdict, define, field, frozen
from mcp_nursery.actors.version import VERSION
from mcp_nursery.supervisor import Supervisor
from mcp_nursery.supervisor.gateway import HttpApplication
from mcp_nursery.supervisor.session_notes import SessionNotes
from mcp_nursery.supervisor.status import ServerStatus

from ..statuses import MOST_NAMES, counts, severity

REPORTED_EVERY: Final = 5.0
"""Seconds between two reports of a replica."""
COUNTS_FOR: Final = 20.0
"""Seconds after its last report for which a replica is shown."""
_CALM: Final = 4
"""The least severity number of a server that is in no trouble."""


@frozen
class ReplicaReport:
    """The report of one replica about itself."""

    version: str
    """The version of mcp-nursery that it runs."""
    began: float
    """The Unix time at which it began to serve."""
    servers: str
    """The number of its servers in each state, in words."""
    trouble: tuple[str, ...]
    """Servers that need a person, the first few."""
    sessions: int
    """Sessions that are open there."""
    requests: int
    """Requests and streams of clients that are under way there."""


_CONVERTER: Final = Converter()


def _read(text: str) -> ReplicaReport | None:
    """A report; None if it cannot be read: another version may write it in another form."""
    try:
        report = _CONVERTER.structure(parse_json(text), ReplicaReport)
        return report if math.isfinite(report.began) and len(report.trouble) <= MOST_NAMES else None
    except (ValueError, RecursionError, BaseValidationError):
        return None


def own_name(port: int) -> str:
    """The name of this replica for a person: its machine, its port, and its process."""
    return f"{socket.gethostname()}:{port} ({os.getpid()})"


@define(eq=False)
class Replicas:
    """The replicas of a gateway, this one among them. One task writes, pages read."""

    _notes: SessionNotes
    _name: str
    reports: Mapping[str, ReplicaReport] = field(factory=dict[str, ReplicaReport], init=False)
    """The last reports, by replica."""
    _began: float = field(factory=time.time, init=False)

    async def run(self, supervisor: Supervisor, application: HttpApplication) -> None:
        """Report, and read the reports of others, until cancelled."""
        while True:
            report = self._report(supervisor.status(), application)
            found = await self._notes.report(self._name, json.dumps(asdict(report)), COUNTS_FOR)
            if found is not None:
                self.reports = {name: each for name, said in found.items() if (each := _read(said)) is not None}
            await trio.sleep(REPORTED_EVERY)

    def _report(self, statuses: Sequence[ServerStatus], application: HttpApplication) -> ReplicaReport:
        clients = application.clients()
        return ReplicaReport(
            version=VERSION,
            began=self._began,
            servers=counts(statuses),
            trouble=tuple(each.name for each in statuses if severity(each) < _CALM)[:MOST_NAMES],
            sessions=len(clients.sessions),
            requests=sum(each.requests for each in clients.clients),
        )
