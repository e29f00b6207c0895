"""How a server stands after an end that nobody asked for. Pure."""

from typing import assert_never

from attrs import evolve

from mcp_nursery.actors.messages import ExitKind, ExitReason, ServerState

from .policy import Decision, Finished, GiveUp, Restart
from .status import Snapshot


def snapshot_after(snapshot: Snapshot, reason: ExitReason, decision: Decision) -> Snapshot:
    """The snapshot that follows, with the time of the next start where one is due."""
    ended = evolve(snapshot, owner=None, connected_at=None, pid=None, error=_told(reason))
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
    failed = evolve(ended, state=ServerState.FAILED)
    revive = ended.spec.revive
    if revive is None or reason.kind is ExitKind.UNUSABLE:
        return failed
    if revive == "on_call":
        return evolve(failed, revives_on_call=True)
    return evolve(failed, due_at=reason.at + float(revive))


def _told(reason: ExitReason) -> str:
    """The failure in one line, with what the process said last."""
    last = reason.loss.stderr_tail.strip().splitlines()[-1:]
    return ": ".join([reason.loss.message, *(line.strip()[:200] for line in last)])
