"""The catalogue: all tools and routes at one moment. Pure: the same snapshots give the same catalogue, in any order."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property

from attrs import frozen

from ..tools.tool import Tool
from .persistent_map import Table
from .server_tools import HeldBack, ServerTools
from .suggestions import NearNames, near_names


@frozen(slots=False, eq=False)
class Catalogue:
    """All tools and routes at one moment. Made by `replace_parts`."""

    parts: Mapping[str, ServerTools]
    """Of each server. The router routes by it."""
    homes: Table[str, str]
    """The server behind each public name. It alone tells routes of different servers apart: what becomes of a server
    that keeps its names changes its part and nothing else, however many they are."""
    contested: Collection[str] = frozenset()
    """Names that two tools would have: neither gets it, so that none can take over another's."""

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that have a public name, sorted by it."""
        public = {tool.name: tool for part in self.parts.values() for tool in part.tools if tool.name}
        return tuple(public[name] for name in sorted(public) if name not in self.contested)

    def find(self, name: str, server: str | None = None) -> Tool | None:
        """The tool of this public name; with `server`, of that server's own name."""
        home = self.homes.get(name) if server is None else server
        part = None if home is None else self.parts.get(home)
        if part is None:
            return None
        place = (part.names if server is None else part.own).get(name)
        return None if place is None else part.tools[place]

    def departed_from(self, name: str, server: str | None = None) -> str | None:
        """The server that offered this tool until it came to its present state. `name` and `server`: see `find`."""
        key = name if server is None else (server, name)
        return min((part.server for part in self._about(server) if key in part.departed), default=None)

    def held_back(self, name: str, server: str | None = None) -> HeldBack | None:
        """The tool of this name that is not shown until a person accepts how it has changed. See `find`."""
        key = name if server is None else (server, name)
        return next((part.held[key] for part in self._about(server) if key in part.held), None)

    def _about(self, server: str | None) -> Iterable[ServerTools]:
        """The parts that may know of a tool: any of a public name, one server's of its own name."""
        if server is None:
            return self.parts.values()
        part = self.parts.get(server)
        return () if part is None else (part,)

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


NO_TOOLS = Catalogue({}, Table())
"""Of no servers."""


def replace_parts(catalogue: Catalogue, parts: Iterable[ServerTools], gone: Collection[str] = ()) -> Catalogue:
    """The catalogue with these servers' parts exchanged, and without those that are gone; all others as they were. What
    it takes depends on the names that come and go, not on how many there are, but for one copy of a plain mapping."""
    come = [part for part in parts if part is not catalogue.parts.get(part.server)]
    exchanged = {**catalogue.parts, **{part.server: part for part in come}}
    for server in gone:
        exchanged.pop(server, None)
    after: dict[str, AbstractSet[str]] = dict.fromkeys(gone, frozenset[str]())
    after.update((part.server, part.names.keys()) for part in come)
    before = {server: _names(catalogue, server) for server in after}
    left = [name for server, names in before.items() for name in names - after[server]]
    new = [(name, server) for server, names in after.items() for name in names - before[server]]
    if not (left or new or catalogue.contested):
        return Catalogue(exchanged, catalogue.homes)
    homes = catalogue.homes.exchange(left, new)
    if catalogue.contested or len(homes) != len(catalogue.homes) - len(left) + len(new):
        return _catalogue(exchanged)
    return Catalogue(exchanged, homes)


def _names(catalogue: Catalogue, server: str) -> AbstractSet[str]:
    part = catalogue.parts.get(server)
    return frozenset[str]() if part is None else part.names.keys()


def _catalogue(parts: Mapping[str, ServerTools]) -> Catalogue:
    counts = Counter(name for part in parts.values() for name in part.names)
    contested = {name for name, count in counts.items() if count > 1}
    homes = ((name, part.server) for part in parts.values() for name in part.names if name not in contested)
    return Catalogue(parts, Table(homes), contested)
