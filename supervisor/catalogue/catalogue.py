"""The catalogue: all tools, resources, prompts and routes at one moment, joined from the parts of the servers
(`server_tools.py`). Pure: the same snapshots give the same catalogue, in any order."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

from mcp_nursery.actors.errors import UnknownTool
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import frozen

from ..decisions.suggestions import NearNames, near_names
from ..resources import Prompt, Resource, ResourceTemplate
from ..tools.tool import Tool
from .server_tools import NO_OFFERS, HeldBack, ServerOffers, ServerTools


@frozen(slots=False, eq=False)
class Catalogue:
    """All tools and routes at one moment. Made by `replace_parts`."""

    parts: Mapping[str, ServerTools]
    """The part of each server. The router routes by it."""
    homes: Mapping[str, str]
    """The server behind each public name, also of a tool that is not shown. Nothing else spans the servers: a change of
    a server that keeps its names replaces its part and nothing else, however many names there are."""
    contested: Collection[str] = frozenset()
    """Names that two tools would have, shown or not: neither gets it, so that no tool can take over another's."""

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that have a public name, sorted by it."""
        public = {tool.name: tool for part in self.parts.values() for tool in part.tools if tool.name}
        return tuple(public[name] for name in sorted(public) if name not in self.contested)

    @cached_property
    def for_models(self) -> "Catalogue":
        """The catalogue as models are given it: without the tools that they may not call. Nobody else gets the names of
        those."""
        with_apps = [part for part in self.parts.values() if part.not_for_models]
        if not with_apps:
            return self
        parts = {**self.parts, **{part.server: part.without_apps() for part in with_apps}}
        return Catalogue(parts, self.homes, self.contested)

    def find(self, name: str, server: str | None = None) -> Tool | None:
        """The tool of this public name; with `server`, the tool of that server's own name.

        Raises:
            UnknownTool: The name is no text, as hosts pass it on from a model.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - it may be anything
            raise UnknownTool(f"{name!r:.80}", server=server)
        home = self.homes.get(name) if server is None else server
        part = None if home is None else self.parts.get(home)
        if part is None:
            return None
        place = (part.names if server is None else part.own).get(name)
        return None if place is None else part.tools[place]

    def departed(self, name: str, server: str | None = None) -> tuple[str, str] | None:
        """The server that last offered this tool but no longer does, and the tool's name on that server. `name` and
        `server`: see `find`."""
        key = name if server is None else (server, name)
        found = ((part.server, part.departed[key]) for part in self._about(server) if key in part.departed)
        return min(found, default=None)

    def held_back(self, name: str, server: str | None = None) -> HeldBack | None:
        """The tool of this name that is not shown until a person accepts how it has changed. See `find`."""
        key = name if server is None else (server, name)
        return next((part.held[key] for part in self._about(server) if key in part.held), None)

    @cached_property
    def _offers(self) -> tuple[ServerOffers, ...]:
        """The offers of servers that have anything but tools, and are in a state that shows it."""
        return tuple(part.offers for part in self.parts.values() if part.offers is not NO_OFFERS and part.offers.shown)

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """All resources, sorted by URI and server."""
        found = (resource for offers in self._offers for resource in offers.resources)
        return tuple(sorted(found, key=lambda resource: (resource.uri, resource.server)))

    @cached_property
    def resource_templates(self) -> tuple[ResourceTemplate, ...]:
        """All templates, sorted by their text and server."""
        found = (template for offers in self._offers for template in offers.templates)
        return tuple(sorted(found, key=lambda template: (template.uri_template, template.server)))

    @cached_property
    def _prompts(self) -> Mapping[str, Prompt]:
        """The prompts by public name. A name that two prompts would have, shown or not, belongs to neither."""
        counts = Counter(prompt.name for part in self.parts.values() for prompt in part.offers.prompts)
        named = (prompt for offers in self._offers for prompt in offers.prompts if prompt.name)
        return {prompt.name: prompt for prompt in named if counts[prompt.name] == 1}

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts that have a public name, sorted by it."""
        return tuple(self._prompts[name] for name in sorted(self._prompts))

    def claimants_of(self, uri: str, servers: Iterable[str]) -> Steps[list[str]]:
        """The servers, among these, that list the resource, have a template that it matches, or a tool whose page it
        is, in the same order. A server keeps its claims in a state that shows nothing: no other takes them over
        meanwhile."""
        claimants: list[str] = []
        for server in servers:
            part = self.parts.get(server)
            if part is None:
                continue
            if uri in part.pages or uri in part.offers.uris or (yield from part.offers.has_template_of(uri)):
                claimants.append(server)
        return claimants

    def find_prompt(self, name: str, server: str | None = None) -> Prompt | None:
        """The prompt of this public name; with `server`, the prompt of that server's own name."""
        if server is None:
            return self._prompts.get(name)
        part = self.parts.get(server)
        if part is None or not part.offers.shown or name not in part.offers.own_prompts:
            return None
        return part.offers.prompts[part.offers.own_prompts[name]]

    def departed_prompt(self, name: str) -> tuple[str, str] | None:
        """The server that last offered the prompt of this public name but no longer does, and the prompt's name on that
        server."""
        hidden = (part for part in self.parts.values() if not part.offers.shown)
        found = ((each.server, each.prompt) for part in hidden for each in part.offers.prompts if each.name == name)
        return min(found, default=None)

    def _about(self, server: str | None) -> Iterable[ServerTools]:
        """The parts that may have a tool: all for a public name, one for a server's own name."""
        if server is None:
            return self.parts.values()
        part = self.parts.get(server)
        return () if part is None else (part,)

    def near(self, name: str, server: str | None = None) -> list[str]:
        """At most three names that may have been meant, of tools that a model may call. Without `server` these are
        public names, and tools whose own name this is come first."""
        shown = self.for_models
        if server is not None:
            return near_names(name, [tool.tool for tool in shown.parts[server].tools])
        called_so = [tool.name for tool in shown.tools if tool.tool == name]
        return [*called_so, *(each for each in self._names.of(name) if each not in called_so)][:3]

    @cached_property
    def _names(self) -> NearNames:
        return NearNames(tool.name for tool in self.for_models.tools)


NO_TOOLS = Catalogue({}, {})
"""The catalogue of no servers."""


def replace_parts(catalogue: Catalogue, parts: Iterable[ServerTools], gone: Collection[str] = ()) -> Catalogue:
    """The catalogue with these servers' parts exchanged, and without those that are gone; all others as they were."""
    come = [part for part in parts if part is not catalogue.parts.get(part.server)]
    exchanged = {**catalogue.parts, **{part.server: part for part in come}}
    for server in gone:
        exchanged.pop(server, None)
    after: dict[str, frozenset[str]] = dict.fromkeys(gone, frozenset[str]())
    after.update((part.server, part.claimed) for part in come)
    before = {server: _claimed(catalogue, server) for server in after}
    left = [name for server, names in before.items() for name in names - after[server]]
    new = [(name, server) for server, names in after.items() for name in names - before[server]]
    if not (left or new or catalogue.contested):
        return Catalogue(exchanged, catalogue.homes)
    homes = {**catalogue.homes}
    for name in left:
        homes.pop(name, None)
    homes.update(new)
    if catalogue.contested or len(homes) != len(catalogue.homes) - len(left) + len(new):
        return _catalogue(exchanged)
    return Catalogue(exchanged, homes)


def _claimed(catalogue: Catalogue, server: str) -> frozenset[str]:
    part = catalogue.parts.get(server)
    return frozenset[str]() if part is None else part.claimed


def _catalogue(parts: Mapping[str, ServerTools]) -> Catalogue:
    counts = Counter(name for part in parts.values() for name in part.claimed)
    contested = {name for name, count in counts.items() if count > 1}
    homes = ((name, part.server) for part in parts.values() for name in part.claimed if name not in contested)
    return Catalogue(parts, dict(homes), contested)
