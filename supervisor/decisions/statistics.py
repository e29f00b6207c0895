"""Figures of servers, tools and calls: how they are counted, and how a user reads them. Pure.

One place counts: a `ServerTally` for each server, with a `Tally` for each tool that was called. The figures that a user
reads are made of these on request. A tally is bounded, also for a server that invents tools without end.

Latencies are kept as a histogram whose buckets are a sixteenth of a power of two wide: a percentile is exact to 3 %, a
tool has at most 650 small numbers, and an answer costs a third of a microsecond. ddsketch, which does the same, takes
twice as long.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from math import frexp, ldexp
from typing import TYPE_CHECKING, Final

from mcp_nursery.actors.account import Account
from mcp_nursery.actors.records import define, field, frozen

if TYPE_CHECKING:
    from mcp_nursery.actors.mailbox import MailboxStatistics

MOST_TOOLS: Final = 1000
"""Tools of one server that are counted by name; further ones count in the server's figures alone."""

MOST_RECENT: Final = 100
"""The latest calls of a server that are remembered singly, at most."""

_SHORTEST, _LONGEST = 1e-6, 1e6
"""Seconds: shorter or longer durations count as these."""
_STEPS = 16
"""Buckets for each power of two."""


# -- what a user reads --------------------------------------------------------------------------------------------


@frozen
class CallCounts:
    """Calls of one server since the supervisor was opened."""

    in_flight: int = 0
    """Calls that wait for an outcome now."""
    done: int = 0
    """Calls the server answered with a result, `isError` included."""
    failed: int = 0
    """Calls that ended with an error."""
    tasks: int = 0
    """Calls in flight of which the server has made tasks."""
    asking: int = 0
    """Tasks among these that wait for answers."""


@frozen
class CallRecord:
    """One call that has its outcome."""

    tool: str | None
    """The server's own name of the tool; None for a call of anything else."""
    duration: float
    """Seconds from its beginning to its outcome."""
    error: str | None
    """The name of the error's class; `Cancelled` where the caller gave up; None for a result, `isError` included."""
    delivery: str
    """`not_sent`, `unknown` or `answered`: whether the server may have acted on it."""
    at: float
    """The time of the outcome, on Trio's clock."""


@frozen
class FailureCount:
    """Calls that failed in the same way."""

    error: str
    """The name of the error's class; `Cancelled` where the caller gave up."""
    delivery: str
    """The delivery of the calls: `not_sent`, `unknown` or `answered`."""
    count: int
    """The number of calls."""


@frozen
class Latency:
    """The durations of calls that were answered with a result, from their beginning, in seconds. Exact to 3 %."""

    p50: float
    """Half of the calls took no longer."""
    p95: float
    """Of a hundred, 95 took no longer."""
    p99: float
    """Of a hundred, 99 took no longer."""


@frozen
class ToolStatistics:
    """Calls of one tool that have their outcome."""

    done: int
    """Calls that were answered with a result, `isError` included."""
    failed: int
    """Calls that ended with an error."""
    failures: tuple[FailureCount, ...]
    """The failed calls, by their errors; the most frequent first."""
    latency: Latency | None
    """The durations; None before the first result."""


@frozen
class ServerStatistics:
    """One server since it was configured."""

    calls: CallCounts
    """The server's calls, of whatever kind."""
    failures: tuple[FailureCount, ...]
    """The failed calls, by their errors; the most frequent first."""
    latency: Latency | None
    """The durations; None before the first result."""
    unchecked: int
    """Results of tools that were not checked against their output schemas, as that would have taken too long."""
    restarts: int
    """Starts made by its restart policy."""
    tools: int
    """Tools with a public name."""
    last_refresh: float | None
    """Seconds since it listed its tools last; None if it never did."""
    kept: Mapping[str, int]
    """Bytes of messages that wait for it, or that it has sent, by kind: `answers`, `notices`, `progress`,
    `questions`."""
    tasks: Mapping[str, int]
    """Tasks that the server has made of calls, by status: `working` and `input_required` now; since it was configured
    `completed`, `failed` and `cancelled` by its own word, `lost` where nobody can say, and
    `given_up` by its caller or to another host."""
    by_tool: Mapping[str, ToolStatistics]
    """Tools that were called, by the server's own names: the first thousand. Empty if they were not asked for."""


@frozen
class StoreStatistics:
    """The state file or database, as far as it was asked."""

    usable: bool
    """False if it could not be used the last time, or does not respond."""
    refused: int
    """Questions that it gave no answer to."""
    waiting: int
    """Questions and notes that wait for it."""


@frozen
class SupervisorStatistics:
    """A supervisor at one moment, for debugging and metrics."""

    servers: int
    """Servers that are configured, in whatever state."""
    connected: int
    """Servers in `connected`."""
    tools: int
    """Tools with a public name."""
    unique_tools: int
    """Names that these have on their servers, each counted once."""
    calls: CallCounts
    """The calls of all servers together."""
    failures: tuple[FailureCount, ...]
    """The failed calls, by their errors; the most frequent first."""
    latency: Latency | None
    """The durations for all servers together; None before the first result."""
    restarts: int
    """Starts made by restart policies."""
    last_refresh: float | None
    """Seconds since some server listed its tools last; None if none ever did."""
    router: "MailboxStatistics"
    """The fill of the router's mailbox."""
    state: StoreStatistics
    """The state file or database."""
    by_server: Mapping[str, ServerStatistics]
    """The servers that are configured, in that order."""


# -- how it is counted --------------------------------------------------------------------------------------------


@define(eq=False)
class Tally:
    """The outcomes of calls, counted."""

    done: int = 0
    failures: dict[tuple[str, str], int] = field(factory=dict[tuple[str, str], int])
    """The failures, by error and delivery."""
    buckets: dict[int, int] = field(factory=dict[int, int])
    """The results, by how long they took."""

    def fail(self, error: str, delivery: str, count: int = 1) -> None:
        """Count calls that failed in this way."""
        self.failures[error, delivery] = self.failures.get((error, delivery), 0) + count

    def add(self, seconds: float) -> None:
        """Count a call that was answered with a result."""
        self.done += 1
        fraction, exponent = frexp(min(max(seconds, _SHORTEST), _LONGEST))
        bucket = exponent * _STEPS + int(fraction * (2 * _STEPS))
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def statistics(self) -> ToolStatistics:
        """The figures as a user reads them."""
        counts = failure_counts([self])
        return ToolStatistics(self.done, sum(self.failures.values()), counts, latency_of([self]))


@define(eq=False)
class ServerTally:
    """The outcomes of the calls of one server, and its incarnations, counted."""

    account: Account = field(factory=Account)
    """The account of what waits for it."""
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    unchecked: int = 0
    restarts: int = 0
    listed_at: float | None = None
    """The time at which its tools were listed last, on Trio's clock."""
    recent: list[tuple[str | None, float, str | None, str, float]] = field(
        factory=list[tuple[str | None, float, str | None, str, float]]
    )
    """The last `MOST_RECENT` calls that have their outcome, as fields of a `CallRecord`. No deque: one takes 760 bytes
    before anything is called."""
    tasks: dict[str, int] = field(factory=dict[str, int])
    """The tasks of its calls, by status."""
    tools: dict[str, Tally] = field(factory=dict[str, Tally])
    others: Tally = field(factory=Tally)
    """The calls of no tool, or of one that is not counted by name."""

    def of(self, tool: str | None) -> Tally:
        """The tally in which a call of this tool is counted; None: of no tool."""
        tally = self.others if tool is None else self.tools.get(tool)
        if tally is None:
            if len(self.tools) >= MOST_TOOLS:
                return self.others
            tally = self.tools[tool or ""] = Tally()
        return tally

    @property
    def counts(self) -> CallCounts:
        """The server's calls."""
        asking = self.tasks.get("input_required", 0)
        return CallCounts(self.in_flight, self.done, self.failed, self.tasks.get("working", 0) + asking, asking)

    def total(self) -> Tally:
        """The tally of all its calls that have their outcome."""
        total = Tally()
        for each in (*self.tools.values(), self.others):
            for (error, delivery), count in each.failures.items():
                total.fail(error, delivery, count)
            for bucket, count in each.buckets.items():
                total.buckets[bucket] = total.buckets.get(bucket, 0) + count
        return total

    def statistics(self, total: Tally, *, tools: int, now: float, by_tool: bool) -> ServerStatistics:
        """The figures as a user reads them; `tools`: how many have a public name; `by_tool`: include the figures of
        each."""
        return ServerStatistics(
            calls=self.counts,
            failures=failure_counts([total]),
            latency=latency_of([total]),
            unchecked=self.unchecked,
            restarts=self.restarts,
            tools=tools,
            last_refresh=None if self.listed_at is None else now - self.listed_at,
            kept=self.account.kept,
            tasks=dict(self.tasks),
            by_tool={name: tally.statistics() for name, tally in sorted(self.tools.items())} if by_tool else {},
        )


def failure_counts(tallies: Iterable[Tally]) -> tuple[FailureCount, ...]:
    """All failures of these, the most frequent first."""
    total: Counter[tuple[str, str]] = Counter()
    for tally in tallies:
        total.update(tally.failures)
    ordered = sorted(total.items(), key=lambda one: (-one[1], one[0]))
    return tuple(FailureCount(error, delivery, count) for (error, delivery), count in ordered)


def latency_of(tallies: Iterable[Tally]) -> Latency | None:
    """The durations of all their results, if any."""
    buckets: dict[int, int] = {}
    for tally in tallies:
        for bucket, count in tally.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
    if not buckets:
        return None
    ordered, total = sorted(buckets.items()), sum(buckets.values())
    return Latency(*(_percentile(ordered, total * hundredths / 100) for hundredths in (50, 95, 99)))


def _percentile(ordered: list[tuple[int, int]], rank: float) -> float:
    """The middle of the bucket in which `rank` results are reached."""
    reached = accumulate(count for _, count in ordered)
    bucket = next(bucket for (bucket, _), so_far in zip(ordered, reached, strict=True) if so_far >= rank)
    exponent, step = divmod(bucket - _STEPS, _STEPS)
    return ldexp((step + _STEPS + 0.5) / (2 * _STEPS), exponent)


def statistics_of(
    tallies: Mapping[str, ServerTally],
    *,
    tools: Mapping[str, Collection[str]],
    connected: int,
    router: "MailboxStatistics",
    state: StoreStatistics,
    now: float,
    by_tool: bool,
) -> SupervisorStatistics:
    """All figures that a user reads, with those of each tool if `by_tool`. The tallies are those of the configured
    servers; `tools` has the own names of each server's tools; `now` is a time on Trio's clock."""
    totals = {name: tally.total() for name, tally in tallies.items()}
    by_server = {
        name: tally.statistics(totals[name], tools=len(tools[name]), now=now, by_tool=by_tool)
        for name, tally in tallies.items()
    }
    listed_at = [one.listed_at for one in tallies.values() if one.listed_at is not None]
    return SupervisorStatistics(
        servers=len(by_server),
        connected=connected,
        tools=sum(map(len, tools.values())),
        unique_tools=len({tool for names in tools.values() for tool in names}),
        calls=CallCounts(
            in_flight=sum(one.in_flight for one in tallies.values()),
            done=sum(one.done for one in tallies.values()),
            failed=sum(one.failed for one in tallies.values()),
            tasks=sum(one.counts.tasks for one in tallies.values()),
            asking=sum(one.counts.asking for one in tallies.values()),
        ),
        failures=failure_counts(totals.values()),
        latency=latency_of(totals.values()),
        restarts=sum(one.restarts for one in tallies.values()),
        last_refresh=now - max(listed_at) if listed_at else None,
        router=router,
        state=state,
        by_server=by_server,
    )
