"""One server's part of the catalogue. Pure, and made in pieces: a server may have ten thousand tools."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from attrs import evolve, field, frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.messages import Owner
from mcp_nursery.actors.pieces import Steps

from ..state_machine import Snapshot
from ..tools.naming import naming_steps
from ..tools.tool import Invoke, Tool
from .server_offers import NO_OFFERS, ServerOffers, offers_steps

ToolKey = str | tuple[str, str]
"""A public tool name, or (server, the server's own name of the tool)."""


@frozen
class HeldBack:
    """A tool that is not what it was when it was first used."""

    server: str
    tool: str
    """The server's own name of it."""
    why: str
    """One line."""


@frozen
class ServerTools:
    """One server's part of the catalogue: replaced as a unit."""

    server: str
    tools: tuple[Tool, ...] = ()
    """Empty in the states that show none."""
    held: Mapping[ToolKey, HeldBack] = field(factory=dict[ToolKey, HeldBack])
    """What is not shown until a person accepts how it has changed."""
    departed: Mapping[ToolKey, str] = field(factory=dict[ToolKey, str])
    """What it offered before it came to a state that shows none, by all its names, and its own name of each: a call
    gets the server's state, not `UnknownTool`."""
    offers: ServerOffers = NO_OFFERS
    """Its resources and prompts."""
    owner: Owner | None = field(default=None, repr=False)
    named_by: Collection[str] = field(default=frozenset(), repr=False, eq=False)
    """The names of all servers by which its tools are named."""
    names: Mapping[str, int] = field(factory=dict[str, int], repr=False, eq=False)
    """Where in `tools` each is, by its public name."""
    own: Mapping[str, int] = field(factory=dict[str, int], repr=False, eq=False)
    """The same, by the server's own name."""

    @property
    def is_blank(self) -> bool:
        """Whether it never told of anything."""
        return not (self.tools or self.held or self.departed or self.offers is not NO_OFFERS)


Before: TypeAlias = tuple[Snapshot, ServerTools]
"""A server's earlier snapshot, and its part then."""


def part_steps(
    snapshot: Snapshot,
    servers: Collection[str],
    *,
    template: str,
    reserved: Collection[str] = frozenset(),
    invoke: Invoke | None = None,
    before: Before | None = None,
) -> Steps[ServerTools]:
    """The part of one server.

    Args:
        snapshot: The server now.
        servers: The names of all configured servers: a tool's name depends on them, on no other server's tools. Best
            the same `frozenset` for all parts: see `public_names`.
        template: How public names are made.
        reserved: Public names that the host keeps for itself.
        invoke: Given to the tools, for `await tool(arguments)`.
        before: An earlier part, made with the same template, reserved names and `invoke`. What is as it was there is
            taken from it, so that a look at what is the same object tells most of what has not changed.
    """
    earlier = _unchanged(snapshot, before)
    if earlier is None or earlier.named_by is not servers:
        names = yield from naming_steps(
            snapshot.spec.name,
            # All of them have their say in the names: what the user filters changes nobody else's.
            [definition.name for definition in snapshot.definitions.tools],
            servers,
            template,
            reserved,
        )
        if earlier is not None and _is_named(earlier, names):
            earlier = evolve(earlier, named_by=servers)
        else:
            earlier = yield from _new_part(snapshot, names, servers, invoke, before)
    offers = yield from offers_steps(
        snapshot, servers, template, before[1].offers if before else NO_OFFERS, before[0] if before else None
    )
    if not snapshot.keeps_tools:
        return dismissed(evolve(earlier, offers=offers))
    tools = yield from _as_available(earlier.tools, available=snapshot.state is ServerState.CONNECTED)
    return evolve(earlier, tools=tools, offers=offers, owner=snapshot.owner)


def dismissed(part: ServerTools) -> ServerTools:
    """The part of a server that shows its tools no more."""
    offers = part.offers if part.offers is NO_OFFERS else evolve(part.offers, shown=False)
    if part.departed:
        return evolve(part, offers=offers)
    departed: dict[ToolKey, str] = {key: held.tool for key, held in part.held.items()}
    departed |= {name: part.tools[place].tool for name, place in part.names.items()}
    departed |= {(part.server, name): name for name in part.own}
    return ServerTools(part.server, departed=departed, offers=offers, named_by=part.named_by)


def _unchanged(snapshot: Snapshot, before: Before | None) -> ServerTools | None:
    """The earlier part, if all it was made of is the same now but perhaps the names and whether it is available."""
    if before is None or before[1].departed or before[0].definitions.tools is not snapshot.definitions.tools:
        return None
    same = before[0].review == snapshot.review and before[0].spec == snapshot.spec
    return before[1] if same else None


def _is_named(part: ServerTools, names: Mapping[str, str]) -> bool:
    return not part.held and all(tool.name == names.get(tool.tool, "") for tool in part.tools)


def _new_part(
    snapshot: Snapshot,
    names: Mapping[str, str],
    servers: Collection[str],
    invoke: Invoke | None,
    before: Before | None,
) -> Steps[ServerTools]:
    spec, review = snapshot.spec, snapshot.review
    earlier = ServerTools(spec.name) if before is None else before[1]
    tools: list[Tool] = []
    held: dict[ToolKey, HeldBack] = {}
    for definition in snapshot.definitions.tools:
        yield
        if not spec.offers(definition.name):
            continue
        tool = Tool(
            name=names.get(definition.name, ""),
            server=spec.name,
            tool=definition.name,
            definition=definition,
            available=snapshot.state is ServerState.CONNECTED,
            trusted_hints=spec.trust_hints,
            max_result_chars=spec.max_result_chars,
            change=review.changes.get(definition.name),
            invoke=invoke,
        )
        if tool.tool in review.held:
            held.update(dict.fromkeys(_keys(tool), HeldBack(tool.server, tool.tool, review.held[tool.tool])))
        else:
            place = earlier.own.get(tool.tool)
            before_it = None if place is None else earlier.tools[place]
            tools.append(before_it if before_it is not None and before_it == tool else tool)
    return ServerTools(
        spec.name,
        tools=_same(earlier.tools, tools),
        held=held,
        named_by=servers,
        names={tool.name: place for place, tool in enumerate(tools) if tool.name},
        own={tool.tool: place for place, tool in enumerate(tools)},
    )


def _same(before: tuple[Tool, ...], tools: Sequence[Tool]) -> tuple[Tool, ...]:
    same = len(before) == len(tools) and all(one is other for one, other in zip(before, tools, strict=True))
    return before if same else tuple(tools)


def _as_available(tools: tuple[Tool, ...], *, available: bool) -> Steps[tuple[Tool, ...]]:
    if not tools or tools[0].available is available:  # as all of them
        return tools
    changed: list[Tool] = []
    for tool in tools:
        yield
        changed.append(evolve(tool, available=available))
    return tuple(changed)


def _keys(tool: Tool) -> Iterable[ToolKey]:
    raw = (tool.server, tool.tool)
    return (tool.name, raw) if tool.name else (raw,)
