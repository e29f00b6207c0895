"""The catalogue: all tools and routes at one moment. Pure: the same snapshots give the same catalogue, in any order."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from attrs import evolve, field, frozen

from mcp_nursery.actors.messages import Owner, RouteKey, ServerState

from .lifecycle import KEEPS_TOOLS
from .near_names import NearNames, near_names
from .status import Snapshot
from .table import Table
from .tools.naming import public_names
from .tools.tool import Invoke, Tool


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
    held: Mapping[RouteKey, HeldBack] = field(factory=dict[RouteKey, HeldBack])
    """What is not shown until a person accepts how it has changed."""
    departed: Collection[RouteKey] = frozenset()
    """What it offered before it came to a state that shows none: a call gets the server's state, not `UnknownTool`."""
    owner: Owner | None = field(default=None, repr=False)

    @property
    def is_blank(self) -> bool:
        """Whether it never told of a tool."""
        return not (self.tools or self.held or self.departed)


def build_part(
    snapshot: Snapshot,
    servers: Collection[str],
    *,
    template: str,
    reserved: Collection[str] = frozenset(),
    invoke: Invoke | None = None,
    before: tuple[Snapshot, ServerTools] | None = None,
) -> ServerTools:
    """The part of one server.

    Args:
        snapshot: The server now.
        servers: The names of all configured servers: a tool's name depends on them, on no other server's tools. Best
            the same `frozenset` for all parts: see `public_names`.
        template: How public names are made.
        reserved: Public names that the host keeps for itself.
        invoke: Given to the tools, for `await tool(arguments)`.
        before: The server's earlier snapshot and part; named tools are taken from it where nothing changed.
    """
    name = snapshot.spec.name
    kept = _kept(snapshot, before)
    tools, held = kept or _named(snapshot, servers, template, reserved, invoke)
    if snapshot.state not in KEEPS_TOOLS:
        return ServerTools(name, departed=_departed(tools, held))
    available = snapshot.state is ServerState.CONNECTED
    return ServerTools(
        name,
        tools=tuple(tool if tool.available is available else evolve(tool, available=available) for tool in tools),
        held=held,
        owner=snapshot.owner,
    )


def dismissed(part: ServerTools) -> ServerTools:
    """The part of a server that is configured no more."""
    if not part.tools and not part.held:
        return part
    return ServerTools(part.server, departed=_departed(part.tools, part.held))


_Parted = tuple[Sequence[Tool], Mapping[RouteKey, HeldBack]]
"""The tools that are offered, and those that are held back."""


def _departed(tools: Iterable[Tool], held: Iterable[RouteKey]) -> Collection[RouteKey]:
    return frozenset([*held, *(key for tool in tools for key in _keys(tool))])


def _kept(snapshot: Snapshot, before: tuple[Snapshot, ServerTools] | None) -> _Parted | None:
    if before is None or before[1].departed or before[0].definitions is not snapshot.definitions:
        return None
    same = before[0].review == snapshot.review and before[0].spec == snapshot.spec
    return (before[1].tools, before[1].held) if same else None


def _named(
    snapshot: Snapshot, servers: Collection[str], template: str, reserved: Collection[str], invoke: Invoke | None
) -> _Parted:
    tools = _named_tools(snapshot, servers, template, reserved, invoke)
    reasons = snapshot.review.held
    held = {
        key: HeldBack(tool.server, tool.tool, reasons[tool.tool])
        for tool in tools
        if tool.tool in reasons
        for key in _keys(tool)
    }
    return [tool for tool in tools if tool.tool not in reasons], held


def _named_tools(
    snapshot: Snapshot, servers: Collection[str], template: str, reserved: Collection[str], invoke: Invoke | None
) -> Sequence[Tool]:
    spec = snapshot.spec
    # All of them have their say in the names: what the user filters changes nobody else's.
    names = public_names(spec.name, [tool.name for tool in snapshot.definitions], servers, template, reserved)
    return [
        Tool(
            name=names.get(definition.name, ""),
            server=spec.name,
            tool=definition.name,
            definition=definition,
            available=False,
            trusted_hints=spec.trust_hints,
            max_result_chars=spec.max_result_chars,
            change=snapshot.review.changes.get(definition.name),
            invoke=invoke,
        )
        for definition in snapshot.definitions
        if spec.offers(definition.name)
    ]


def _keys(tool: Tool) -> tuple[RouteKey, ...]:
    raw = (tool.server, tool.tool)
    return (tool.name, raw) if tool.name else (raw,)


@frozen(slots=False, eq=False)
class Catalogue:
    """All tools and routes at one moment. Made by `build_catalogue` and `replace_part`."""

    parts: Table[str, ServerTools]
    routes: Table[RouteKey, Tool]
    """The tools by public name and by (server, the server's own name)."""
    owners: Table[RouteKey, Owner]
    """The live incarnation behind each route: the router's table."""
    contested: Collection[str] = frozenset()
    """Names that two tools would have: neither gets it, so that none can take over another's."""

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that have a public name, sorted by it."""
        public = {key: tool for key, tool in self.routes.items() if isinstance(key, str)}
        return tuple(public[name] for name in sorted(public))

    def find(self, key: RouteKey) -> Tool | None:
        """The tool behind a public name or (server, tool)."""
        return self.routes.get(key)

    def departed_from(self, key: RouteKey) -> str | None:
        """The server that offered this tool until it came to its present state."""
        return min((part.server for part in self.parts.each() if key in part.departed), default=None)

    def held_back(self, key: RouteKey) -> HeldBack | None:
        """The tool of this name that is not shown until a person accepts how it has changed."""
        return next((part.held[key] for part in self.parts.each() if key in part.held), None)

    def near(self, name: str, server: str | None = None) -> list[str]:
        """At most three names that may have been meant. Without `server` these are public names, and those of tools
        that a server calls so come first."""
        if server is not None:
            return near_names(name, [tool.tool for tool in self.parts[server].tools])
        called_so = [tool.name for tool in self.tools if tool.tool == name]
        return [*called_so, *(each for each in self._names.of(name) if each not in called_so)][:3]

    @cached_property
    def _names(self) -> NearNames:
        return NearNames(tool.name for tool in self.tools)


NO_TOOLS = Catalogue(Table(), Table(), Table())
"""Of no servers."""


def replace_part(catalogue: Catalogue, part: ServerTools) -> Catalogue:
    """The catalogue with one server's part exchanged, all others as they were."""
    parts = catalogue.parts.exchange((), [(part.server, part)])
    gone = {key for key, _ in _routes(catalogue.parts[part.server])}
    come = list(_routes(part))
    clash = len(dict(come)) < len(come) or any(key in catalogue.routes and key not in gone for key, _ in come)
    if clash or catalogue.contested:
        return _catalogue(parts)
    owned = [] if part.owner is None else [(key, part.owner) for key, _ in come]
    return Catalogue(parts, catalogue.routes.exchange(gone, come), catalogue.owners.exchange(gone, owned))


def _routes(part: ServerTools) -> Iterator[tuple[RouteKey, Tool]]:
    return ((key, tool) for tool in part.tools for key in _keys(tool))


def _catalogue(parts: Table[str, ServerTools]) -> Catalogue:
    names = Counter(tool.name for part in parts.each() for tool in part.tools if tool.name)
    contested = {name for name, count in names.items() if count > 1}
    routes: dict[RouteKey, Tool] = {}
    owners: dict[RouteKey, Owner] = {}
    for part in parts.each():
        own = {key: tool for key, tool in _routes(part) if key not in contested}
        routes.update(own)
        if part.owner is not None:
            owners.update(dict.fromkeys(own, part.owner))
    return Catalogue(parts, Table(routes.items()), Table(owners.items()), contested)


def build_catalogue(
    snapshots: Iterable[Snapshot],
    *,
    template: str,
    reserved: Collection[str] = frozenset(),
    invoke: Invoke | None = None,
) -> Catalogue:
    """The catalogue of these servers, and no other's."""
    known = sorted(snapshots, key=lambda snapshot: snapshot.spec.name)
    servers = frozenset(snapshot.spec.name for snapshot in known)
    parts = (build_part(snapshot, servers, template=template, reserved=reserved, invoke=invoke) for snapshot in known)
    return _catalogue(Table((part.server, part) for part in parts))
