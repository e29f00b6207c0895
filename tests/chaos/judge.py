"""What is promised of a fleet under chaos, and what was not kept of it.

Nothing here measures: the judge is given what clients were answered, what servers noted in their ledger, what was done
to whom and when, and what was seen of the processes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

from ..attack.figures import p99
from .plan import FAILING, UNNOTICED

CALL = 5.0
"""Seconds that a replica gives a call (`--timeout`)."""
MARGIN = 3.0
"""Seconds, over its limit and over the time for which anything was frozen meanwhile, after which an answer is late."""
IN_FLIGHT = 1.0
"""Seconds after a replica is killed or frozen in which a request may be on its way to it: haproxy has to notice."""
RECOVERY = 10.0
"""Seconds that a server which was killed or frozen may take to answer again: its ladder, and calls that time out."""
MEMORY = 250 << 20
"""Bytes of a replica: one of its servers floods."""
FILES = 300
"""Open files of a replica: 100 clients, ten servers."""
NOT_DONE = ("not_sent", "refused")
ANSWERED = "result"


@frozen
class Outcome:
    """What became of one request."""

    client: str
    server: str
    """That it was for; empty: the gateway itself."""
    tool: str
    """Or the method, for what calls no tool."""
    key: str
    said: str
    """`result`; `not_sent`, `unknown` or `answered`, by an error; `cut` if the connection ended; `refused` with 503 or
    429; `lost` if its session was not known, `forgotten` if its task was not; `none` or `wrong` if there was no answer,
    or not the right one."""
    words: str = field(repr=lambda words: repr(words[:300]))
    began: float
    took: float

    @property
    def ended(self) -> float:
        return self.began + self.took


@frozen
class Deed:
    """Something that was done to the fleet, from its beginning until it was over: a replica is killed in a moment, and
    while it starts again nobody may notice anything."""

    name: str
    replica: int
    server: str
    began: float
    ended: float

    def explains(self, outcome: Outcome) -> bool:
        """True if the failure of this request may be of it."""
        if self.name in UNNOTICED:
            return False
        if self.name.endswith("replica"):
            return outcome.began < self.ended + IN_FLIGHT and self.began < outcome.ended
        return self.server == outcome.server and self.began < outcome.ended and outcome.began < self.ended + RECOVERY


@frozen
class Report:
    """All that was seen of one run."""

    outcomes: Sequence[Outcome]
    ledger: Counter[str]
    deeds: Sequence[Deed]
    sessions: int
    """That clients had."""
    alive: int
    """Sessions that were answered when all was over."""
    memory: int
    """The most that a replica had at any time, in bytes."""
    files: int
    """The most that a replica had open at any time."""
    left: Sequence[str]
    """Processes, ports and files that were there when all had ended."""
    unusable: Sequence[str]
    """Replicas that could not use the database although it was back."""
    logged: Sequence[str]
    """Lines of the replicas' logs that tell of a fault of ours."""
    ends: Mapping[str, str]
    """By move: what was not right with the end of a replica, or with its start."""
    unrest: Sequence[tuple[float, float]]
    """When the process of the clients itself was late, and by how many seconds."""
    seconds: float

    def findings(self) -> Iterator[str]:
        """What is not as promised: the figure, and how far off."""
        for outcome in self.outcomes:
            yield from (f"{problem}, {outcome}" for problem in self._problems(outcome))
        unknown = self.ledger.keys() - {outcome.key for outcome in self.outcomes}
        if unknown:
            yield f"ledger: executed what nobody has called: {sorted(unknown)[:5]}"
        if self.alive < self.sessions:
            yield f"sessions: {self.sessions - self.alive} of {self.sessions} did not go on at the end"
        if self.memory > MEMORY:
            yield f"memory: {self.memory >> 20} MiB of a replica, over {MEMORY >> 20}"
        if self.files > FILES:
            yield f"files: {self.files} of a replica at once, over {FILES}"
        yield from (f"left: {each}" for each in self.left)
        yield from (f"database: {each}" for each in self.unusable)
        yield from (f"log: {each}" for each in self.logged)
        yield from (f"end: {replica}: {problem}" for replica, problem in self.ends.items())

    def _problems(self, outcome: Outcome) -> Iterator[str]:
        executed, most = self.ledger[outcome.key], 2 if outcome.tool == "again" else 1
        if outcome.said in ("none", "wrong"):
            yield f"answer: {outcome.said}"
        if outcome.said == "lost":
            yield "sessions: one was lost"
        if outcome.said == "forgotten":
            yield "tasks: nobody knew one"
        if outcome.key:
            if executed > most:
                yield f"ledger: executed {executed} times"
            if outcome.said == ANSWERED and not executed:
                yield "ledger: a result, and never executed"
            if outcome.said in NOT_DONE and executed:
                yield f"ledger: {outcome.said}, and executed {executed} times"
        if outcome.took > CALL + MARGIN and outcome.took > self._bound(outcome):
            yield f"late: after {outcome.took:.1f} s"
        if outcome.said != ANSWERED and outcome.server not in FAILING and not self._explained(outcome):
            yield "cause: a failure, and nothing was done that may fail it"

    def _bound(self, outcome: Outcome) -> float:
        """Seconds. What is frozen does not answer; what was waiting there is answered after it."""
        frozen_for = sum(
            deed.ended - deed.began
            for deed in self.deeds
            if deed.name.startswith("freeze") and deed.began < outcome.ended and outcome.began < deed.ended
        )
        late = sum(late for at, late in self.unrest if outcome.began < at < outcome.ended + late)
        return CALL + frozen_for + MARGIN + late

    def _explained(self, outcome: Outcome) -> bool:
        return any(deed.explains(outcome) for deed in self.deeds)

    @property
    def _undisturbed(self) -> list[float]:
        """Seconds of calls that no fault can have made longer. Some take 0.3 s by themselves."""
        calls = [outcome for outcome in self.outcomes if outcome.key and outcome.server not in FAILING]
        return [outcome.took for outcome in calls if not self._explained(outcome)]

    @property
    def longest(self) -> float:
        """Seconds that a request took at most."""
        return max((outcome.took for outcome in self.outcomes), default=0.0)

    def __str__(self) -> str:
        kinds = Counter(outcome.said for outcome in self.outcomes).most_common()
        good = [outcome for outcome in self.outcomes if outcome.server not in FAILING]
        failed = sum(outcome.said != ANSWERED for outcome in good)
        deeds = Counter(deed.name for deed in self.deeds).most_common()
        worst = max((late for _, late in self.unrest), default=0.0)
        return "\n".join(
            [
                f"{len(self.outcomes)} requests in {self.seconds:.0f} s: "
                + ", ".join(f"{count} {kind}" for kind, count in kinds),
                f"{failed} of {len(good)} failed whose server does not fail by itself",
                f"{sum(self.ledger.values())} executions; {self.alive} of {self.sessions} sessions went on",
                "done: " + ", ".join(f"{count} x {name}" for name, count in deeds),
                f"p99 of calls beside moves that nobody may notice, or none: {p99(self._undisturbed) * 1e3:.0f} ms",
                f"longest request {self.longest:.1f} s, a replica at most {self.memory >> 20} MiB "
                f"and {self.files} files; the clients were late by {worst:.1f} s at most",
            ]
        )
