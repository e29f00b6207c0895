"""Where a server stands when its keeper has been told something: one snapshot to the next. Pure."""

from attrs import evolve

from mcp_nursery.actors.messages import ServerState

from .policy import RestartPolicy
from .spec import ServerSpec
from .status import Snapshot


def initial_snapshot(spec: ServerSpec, policy: RestartPolicy) -> Snapshot:
    """Where a server stands before its keeper has done anything; `policy` is for one that brings none."""
    state = ServerState.CONNECTING
    if not spec.enabled:
        state = ServerState.DISABLED
    elif spec.lazy:
        state = ServerState.IDLE
    return Snapshot(spec, state, max_attempts=(spec.policy or policy).max_attempts)


def renewed_snapshot(old: Snapshot, spec: ServerSpec, policy: RestartPolicy) -> Snapshot:
    """Where a server stands when its spec has changed: as one that was just configured, with incarnations counted on.

    What it said of itself and its tools are known as before if it is reached in the same way; otherwise it may be quite
    another server, and they are forgotten.
    """
    new = evolve(initial_snapshot(spec, policy), incarnation=old.incarnation)
    if spec.transport != old.spec.transport:
        return new
    return evolve(new, definitions=old.definitions, review=old.review, introduction=old.introduction)
