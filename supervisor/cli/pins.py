"""`mcp-nursery pins`: how tools have changed since they were first used, and the user's agreement to that."""

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from mcp_nursery.supervisor.events import DefinitionChange
from mcp_nursery.supervisor.security.untrusted_marks import visible
from mcp_nursery.supervisor.storage.sqlite import SqliteStore

from .calling import can_ask, says_yes
from .failures import NOT_APPROVED, OK
from .output import warn, write_json, write_line
from .runtime import Options, run_async


@frozen
class PinsOptions:
    """What `pins` can be told besides."""

    server: str | None = None
    """Whose tools; None for everybody's."""
    yes: bool = False


def pins(options: Options, wanted: PinsOptions) -> int:
    """Show what differs, ask about each, write down what is accepted. Starts no server."""
    asking = can_ask() and not (wanted.yes or options.as_json)
    store = SqliteStore()
    try:
        found = [each for each in store.open_changes() if wanted.server in (None, each[1].server)]
        accepted = run_async(lambda: _agreed(found)) if asking else found if wanted.yes else []
        for spec, change in accepted:
            store.accept_change(spec, change)
    finally:
        store.close()
    if options.as_json:
        write_json({"changes": [_document(change, accepted=wanted.yes) for _, change in found]})
    elif not (asking and found):
        write_line("\n".join(_shown([change for _, change in found])))
    if left := len(found) - len(accepted):
        warn(f"{left} of {len(found)} changes not accepted{'' if asking else '; --yes accepts all that is shown'}")
        return NOT_APPROVED
    return OK


async def _agreed(found: Sequence[tuple[str, DefinitionChange]]) -> Sequence[tuple[str, DefinitionChange]]:
    return [each for each in found if await says_yes("\n".join([*_shown([each[1]]), "Accept it? [y/N] "]))]


def _shown(changes: Sequence[DefinitionChange]) -> list[str]:
    if not changes:
        return ["no tool has changed since it was first used"]
    return [line for change in changes for line in (_head(change), *change.diff.split("\n"), "")]


def _head(change: DefinitionChange) -> str:
    return visible(f"{change.server}: {change.tool}: {', '.join(change.fields)}")


def _document(change: DefinitionChange, *, accepted: bool) -> dict[str, Any]:
    return {
        "server": change.server,
        "tool": change.tool,
        "fields": list(change.fields),
        "diff": change.diff,
        "accepted": accepted,
    }
