"""How a server stands after an end that nobody asked for. Pure."""

from collections.abc import Callable
from typing import assert_never

from attrs import evolve

from mcp_nursery.actors.errors import one_line
from mcp_nursery.actors.messages import ExitKind, ExitReason, ServerState

from .last_words import kept_tail, telling_line
from .policy import Decision, Finished, GiveUp, Restart
from .status import Snapshot


def snapshot_after(
    snapshot: Snapshot, reason: ExitReason, decision: Decision, *, redact: Callable[[str], str]
) -> Snapshot:
    """The snapshot that follows, with the time of the next start where one is due, and no secret in its error."""
    tail = kept_tail(reason.loss.stderr_tail, redact)
    ended = evolve(
        snapshot,
        owner=None,
        connected_at=None,
        pid=None,
        woken=False,
        error=_told(redact(reason.loss.message), tail or ""),
        stderr_tail=tail,
    )
    match decision:
        case Restart():
            return evolve(ended, state=ServerState.WAITING, due_at=decision.at, attempt=decision.attempt)
        case GiveUp():
            return _given_up(ended, reason)
        case Finished():
            return evolve(ended, state=ServerState.STOPPED)
        case _:
            assert_never(decision)


def _given_up(ended: Snapshot, reason: ExitReason) -> Snapshot:
    """Started no more but by a person, or by what its spec says revives it."""
    if reason.kind is ExitKind.NEEDS_AUTH:
        return evolve(ended, state=ServerState.NEEDS_AUTH)
    if reason.kind is ExitKind.REFUSED:
        return evolve(ended, state=ServerState.BLOCKED)
    failed = evolve(ended, state=ServerState.FAILED)
    revive = ended.spec.revive
    if revive is None or reason.kind is ExitKind.UNUSABLE:
        return failed
    if revive == "on_call":
        return evolve(failed, revives_on_call=True)
    return evolve(failed, due_at=reason.at + float(revive))


def _told(message: str, tail: str) -> str:
    """The failure in one line, with what the process said of it."""
    said = telling_line(tail)
    return ": ".join([one_line(message), *([said[:200]] if said else [])])
