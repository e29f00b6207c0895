"""What follows from a snapshot that is about to be written, made ready in pieces: a server with ten thousand tools
holds up nobody while they are named and compared, and what was made ready is shown by one assignment. Pure."""

from collections.abc import Collection, Sequence

from attrs import evolve, frozen

from mcp_nursery.actors.states import ServerState
from mcp_nursery.actors.steps import Steps

from ..catalogue.server_tools import ServerTools, part_steps
from ..events import DefinitionChanged, ToolsChanged, definition_events, tools_event_steps
from ..lifecycle import KEEPS_TOOLS
from ..status import Snapshot
from ..tools.tool import Invoke
from .settings import FleetSettings


@frozen(eq=False)
class Draft:
    """The part of the catalogue that a snapshot leads to, and what is told of it. Made by `draft_steps`."""

    old: Snapshot
    new: Snapshot
    before: ServerTools
    """The part that it replaces."""
    servers: frozenset[str]
    """The names of all servers by which its tools are named."""
    part: ServerTools
    told: ToolsChanged | None
    differing: Sequence[DefinitionChanged]

    def fits(self, old: Snapshot, new: Snapshot, before: ServerTools | None, servers: Collection[str]) -> bool:
        """Whether it is what these lead to, but for the owner: nothing that it was made of has changed meanwhile."""
        same_ground = self.old is old and self.before is before and self.servers is servers
        made_of = self.new.spec is new.spec and self.new.definitions is new.definitions
        return same_ground and made_of and self.new.review is new.review and _shows(self.new) == _shows(new)

    def part_of(self, new: Snapshot) -> ServerTools:
        """The part that a snapshot leads to which fits."""
        return self.part if self.part.owner is new.owner else evolve(self.part, owner=new.owner)


def _shows(snapshot: Snapshot) -> tuple[bool, bool]:
    return snapshot.state in KEEPS_TOOLS, snapshot.state is ServerState.CONNECTED


def draft_steps(
    old: Snapshot,
    new: Snapshot,
    before: ServerTools,
    servers: frozenset[str],
    *,
    settings: FleetSettings,
    invoke: Invoke,
    now: float,
) -> Steps[Draft]:
    """What one snapshot leads to after another.

    Args:
        old: Where the server stands.
        new: Where it will stand. Of the state it counts only whether its tools are kept, and available.
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
    return Draft(old, new, before, servers, part, told, differing)
