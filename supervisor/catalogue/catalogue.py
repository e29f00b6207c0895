"""The catalogue: all tools and routes at one moment. Pure: the same snapshots give the same catalogue, in any order."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from attrs import frozen

from mcp_nursery.actors.messages import Owner, RouteKey

from ..status import Snapshot
from ..tools.tool import Invoke, Tool
from .persistent_map import Table
from .server_tools import HeldBack, ServerTools, build_part
from .suggestions import NearNames, near_names


def _part_with(key: RouteKey, parts: Table[str, ServerTools], homes: Table[str, str]) -> ServerTools | None:
    server = homes.get(key) if isinstance(key, str) else key[0]
    return None if server is None else parts.get(server)


class Owners(Mapping[RouteKey, Owner]):
    """The live incarnation behind each route: the router's table. Nothing is copied when a server's changes.

    Args:
        parts: The parts of all servers.
        homes: The server behind each public name.
    """

    def __init__(self, parts: Table[str, ServerTools], homes: Table[str, str]) -> None:
        self._parts = parts
        self._homes = homes

    def __getitem__(self, key: RouteKey) -> Owner:
        part = _part_with(key, self._parts, self._homes)
        if part is None or part.owner is None or part.find(key) is None:
            raise KeyError(key)
        return part.owner

    def __iter__(self) -> Iterator[RouteKey]:
        for part in self._parts.each():
            if part.owner is not None:
                yield from (name for name in part.names if self._homes.get(name) == part.server)
                yield from ((part.server, own) for own in part.own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@frozen(slots=False, eq=False)
class Catalogue:
    """All tools and routes at one moment. Made by `build_catalogue` and `replace_part`."""

    parts: Table[str, ServerTools]
    homes: Table[str, str]
    """The server behind each public name. It alone tells routes of different servers apart: what becomes of a server
    that keeps its names changes its part and nothing else, however many they are."""
    contested: Collection[str] = frozenset()
    """Names that two tools would have: neither gets it, so that none can take over another's."""

    @property
    def owners(self) -> Mapping[RouteKey, Owner]:
        """The live incarnation behind each route."""
        return Owners(self.parts, self.homes)

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that have a public name, sorted by it."""
        public = {tool.name: tool for part in self.parts.each() for tool in part.tools if tool.name}
        return tuple(public[name] for name in sorted(public) if name not in self.contested)

    def find(self, key: RouteKey) -> Tool | None:
        """The tool behind a public name or (server, tool)."""
        part = _part_with(key, self.parts, self.homes)
        return None if part is None else part.find(key)

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


NO_TOOLS = Catalogue(Table(), Table())
"""Of no servers."""


def replace_part(catalogue: Catalogue, part: ServerTools) -> Catalogue:
    """The catalogue with one server's part exchanged, all others as they were."""
    parts = catalogue.parts.exchange((), [(part.server, part)])
    before = catalogue.parts.get(part.server)
    known = frozenset[str]() if before is None else before.names.keys()
    come = part.names.keys() - known
    if catalogue.contested or any(name in catalogue.homes for name in come):
        return _catalogue(parts)
    gone = known - part.names.keys()
    return Catalogue(parts, catalogue.homes.exchange(gone, ((name, part.server) for name in come)))


def _catalogue(parts: Table[str, ServerTools]) -> Catalogue:
    counts = Counter(name for part in parts.each() for name in part.names)
    contested = {name for name, count in counts.items() if count > 1}
    homes = ((name, part.server) for part in parts.each() for name in part.names if name not in contested)
    return Catalogue(parts, Table(homes), contested)


def build_catalogue(
    snapshots: Iterable[Snapshot],
    *,
    template: str,
    reserved: Collection[str] = frozenset(),
    invoke: Invoke | None = None,
    before: Mapping[str, ServerTools] | None = None,
) -> Catalogue:
    """The catalogue of these servers, and no other's.

    Args:
        snapshots: Where they stand.
        template: How public names are made.
        reserved: Public names that the host keeps for itself.
        invoke: Given to the tools.
        before: Parts that were made of the same snapshots for another set of servers: most names stay as they are.
    """
    known = sorted(snapshots, key=lambda snapshot: snapshot.spec.name)
    servers = frozenset(snapshot.spec.name for snapshot in known)
    earlier: Mapping[str, ServerTools] = before or {}

    def part(snapshot: Snapshot) -> ServerTools:
        at = earlier.get(snapshot.spec.name)
        made = None if at is None else (snapshot, at)
        return build_part(snapshot, servers, template=template, reserved=reserved, invoke=invoke, before=made)

    return _catalogue(Table((snapshot.spec.name, part(snapshot)) for snapshot in known))
