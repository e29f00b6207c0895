"""What follows from a snapshot that is about to be written, made ready in pieces: a server with ten thousand tools
holds up nobody while they are named and compared, and what was made ready is shown by one assignment. Pure."""

from collections.abc import Sequence

from attrs import frozen

from mcp_nursery.actors.steps import Steps

from ..catalogue.server_tools import ServerTools, part_steps
from ..events import DefinitionChanged, ToolsChanged, definition_events, tools_event_steps
from ..state_machine import Snapshot
from ..tools.tool import Invoke
from .settings import FleetSettings


@frozen(eq=False)
class Publication:
    """The part of the catalogue that a snapshot leads to, and what is told of it. Made by `publication_steps`."""

    old: Snapshot
    new: Snapshot
    before: ServerTools
    """The part that it replaces."""
    servers: frozenset[str]
    """The names of all servers by which its tools are named."""
    part: ServerTools
    told: ToolsChanged | None
    differing: Sequence[DefinitionChanged]


def publication_steps(
    old: Snapshot,
    new: Snapshot,
    before: ServerTools,
    servers: frozenset[str],
    *,
    settings: FleetSettings,
    invoke: Invoke,
    now: float,
) -> Steps[Publication]:
    """What one snapshot leads to after another.

    Args:
        old: Where the server stands.
        new: Where it will stand.
        before: Its part of the catalogue.
        servers: The names of all configured servers.
        settings: How tools are named.
        invoke: Given to the tools.
        now: When, on Trio's clock.
    """
    part = yield from part_steps(
        new,
        servers,
        template=settings.template,
        reserved=settings.reserved,
        invoke=invoke,
        before=(old, before),
    )
    told = yield from tools_event_steps(before, part, now)
    differing = yield from definition_events(old, new, now)
    return Publication(old, new, before, servers, part, told, differing)
