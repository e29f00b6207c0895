"""How a server stands after an end that nobody asked for. Pure."""

from collections.abc import Callable
from typing import assert_never

from attrs import evolve

from mcp_nursery.actors.errors import one_line
from mcp_nursery.actors.messages import ExitKind, ExitReason, Loss, ServerState

from .policy import Decision, Finished, GiveUp, Restart
from .status import Snapshot


def snapshot_after(
    snapshot: Snapshot, reason: ExitReason, decision: Decision, *, redact: Callable[[str], str]
) -> Snapshot:
    """The snapshot that follows, with the time of the next start where one is due, and no secret in its error."""
    ended = evolve(snapshot, owner=None, connected_at=None, pid=None, woken=False, error=_told(reason.loss, redact))
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


def _told(loss: Loss, redact: Callable[[str], str]) -> str:
    """The failure in one line, with what the process said last. Nothing is cut before the secrets are out."""
    said = (line.strip() for line in redact(loss.stderr_tail).splitlines())
    telling = [line for line in said if line and "--help" not in line]  # where to find help is not what went wrong
    return ": ".join([one_line(redact(loss.message)), *(line[:200] for line in telling[-1:])])
