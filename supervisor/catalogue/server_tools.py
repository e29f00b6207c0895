"""One server's part of the catalogue: its tools, and its other offers. Pure, and made in pieces: a server may declare
thousands of tools."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.messages import Owner
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import evolve, field, frozen

from ..decisions.state_machine import Snapshot
from ..resources import Prompt, Resource, ResourceTemplate, first_match
from ..tools.naming import public_names, rivals_of
from ..tools.tool import Invoke, Tool, as_available
from ..tools.ui import ToolUI, pages_of, ui_of

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

_FOR_ALL: Final = ToolUI(None)
T = TypeVar("T", Resource, ResourceTemplate, Prompt)


@frozen
class ServerOffers:
    """The offers of one server besides tools."""

    resources: tuple[Resource, ...] = ()
    templates: tuple[ResourceTemplate, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    """The prompts, each with its public name, which is empty if it has none."""
    shown: bool = True
    """True if its server is in a state that shows them."""
    available: bool = False
    """True if its server is connected."""
    uris: Mapping[str, int] = field(factory=dict[str, int], repr=False, eq=False)
    """The place of each resource in `resources`, by URI."""
    own_prompts: Mapping[str, int] = field(factory=dict[str, int], repr=False, eq=False)
    """The place of each prompt in `prompts`, by the server's own name."""

    _matches: dict[str, bool] = field(factory=dict[str, bool], init=False, repr=False, eq=False)
    """The URIs that were held against all templates lately, with whether one matches."""

    def has_template_of(self, uri: str) -> Steps[bool]:
        """True if a template matches the URI. The answer is remembered: who has found out in steps may ask at once."""
        if uri not in self._matches:
            found = yield from first_match(self.templates, uri)
            if len(self._matches) >= _MOST_REMEMBERED:
                self._matches.clear()
            self._matches[uri] = found is not None
        return self._matches[uri]


_MOST_REMEMBERED: Final = 64
"""URIs of which a server remembers whether one of its templates matches."""

NO_OFFERS = ServerOffers()
"""The offers of a server that has nothing but tools, or has listed nothing."""


def offers_of(
    snapshot: Snapshot,
    servers: frozenset[str],
    template: str,
    offers: ServerOffers,
    before: Snapshot | None,
) -> ServerOffers:
    """The offers of the server now. Prompts are named by the template and the names of all configured servers, as tools
    are. Whatever has not changed since `before` is taken from `offers`, those of then. `before` is None if prompts
    would have had other names."""
    declared, known = snapshot.definitions, None if before is None else before.definitions
    if not (declared.resources or declared.templates or declared.prompts):
        return NO_OFFERS
    available = snapshot.state is ServerState.CONNECTED
    same = offers.available is available and known is not None and offers is not NO_OFFERS
    resources, templates, prompts = offers.resources, offers.templates, offers.prompts
    uris, own_prompts = offers.uris, offers.own_prompts
    name = snapshot.spec.name
    if known is None or not same or known.resources is not declared.resources:
        resources = _reuse_equal(resources, declared.resources, lambda each: Resource(name, each.uri, each, available))
        uris = {resource.uri: place for place, resource in enumerate(resources)}
    if known is None or not same or known.templates is not declared.templates:
        templates = _reuse_equal(
            templates, declared.templates, lambda each: ResourceTemplate(name, each.uri_template, each, available)
        )
    if known is None or not same or known.prompts is not declared.prompts:
        names = public_names(name, [prompt.name for prompt in declared.prompts], servers, template)
        prompts = _reuse_equal(
            prompts, declared.prompts, lambda each: Prompt(names.get(each.name, ""), name, each.name, each, available)
        )
        own_prompts = {prompt.prompt: place for place, prompt in enumerate(prompts)}
    made = ServerOffers(resources, templates, prompts, True, available, uris, own_prompts)  # noqa: FBT003
    return offers if made == offers else made


def _reuse_equal(before: tuple[T, ...], declared: Sequence[Any], make: Callable[[Any], T]) -> tuple[T, ...]:
    """The items; an unchanged one in the same place is the same object, so that comparing identities finds most of
    them."""
    made: list[T] = []
    same = len(before) == len(declared)
    for place, each in enumerate(declared):
        now = make(each)
        kept = place < len(before) and before[place] == now
        same = same and kept
        made.append(before[place] if kept else now)
    return before if same else tuple(made)


ToolKey = str | tuple[str, str]
"""A public tool name, or (server, the server's own name of the tool)."""


@frozen
class HeldBack:
    """A tool that is held back, as it differs from what it was at first use."""

    server: str
    tool: str
    """The server's own name of it."""
    why: str
    """The reason, one line."""


@frozen
class ServerTools:
    """One server's part of the catalogue: replaced as a unit."""

    server: str
    tools: tuple[Tool, ...] = ()
    """The tools; none in the states that show none."""
    held: Mapping[ToolKey, HeldBack] = field(factory=dict[ToolKey, HeldBack])
    """The tools that are not shown until a person accepts how they have changed."""
    departed: Mapping[ToolKey, str] = field(factory=dict[ToolKey, str])
    """The own name of each tool that it offered before it came to a state that shows none, by all the tool's names: a
    call gets the server's state, not `UnknownTool`."""
    offers: ServerOffers = NO_OFFERS
    """The resources and prompts."""
    owner: Owner | None = field(default=None, repr=False)
    rivals: frozenset[str] = field(default=frozenset(), repr=False, eq=False)
    """The part of all servers' names that its tools' names depend on: see `rivals_of`."""
    public: Mapping[str, str] = field(factory=dict[str, str], repr=False, eq=False)
    """The public names of all tools that it declares, those that are not shown included, by its own names."""
    claimed: frozenset[str] = field(default=frozenset(), repr=False, eq=False)
    """The same public names: no tool of another server gets such a name, in any state of this server."""
    names: Mapping[str, int] = field(factory=dict[str, int], repr=False, eq=False)
    """The place of each tool in `tools`, by public name."""
    own: Mapping[str, int] = field(factory=dict[str, int], repr=False, eq=False)
    """The same, by the server's own name."""
    for_apps: frozenset[str] = field(default=frozenset(), repr=False, eq=False)
    """The tools that its pages may call, by its own names, those that are filtered out or not shown included; none if
    it has no pages."""
    not_for_models: frozenset[str] = field(default=frozenset(), repr=False, eq=False)
    """The tools that no model may call, likewise."""
    pages: frozenset[str] = field(default=frozenset(), repr=False)
    """The URIs of the pages of its tools, likewise."""

    def without_apps(self) -> "ServerTools":
        """The part as a model is given it: without the tools that it may not call."""
        tools = tuple(tool for tool in self.tools if tool.tool not in self.not_for_models)
        held = {key: each for key, each in self.held.items() if each.tool not in self.not_for_models}
        return evolve(self, tools=tools, held=held, names=_places_by_name(tools), own=_places_by_own_name(tools))

    @property
    def is_blank(self) -> bool:
        """True if the server has never listed anything."""
        return not (self.tools or self.held or self.departed or self.offers is not NO_OFFERS)

    def find(self, own: str) -> Tool | None:
        """The tool with this own name."""
        place = self.own.get(own)
        return None if place is None else self.tools[place]


Before: TypeAlias = tuple[Snapshot, ServerTools]
"""A server's earlier snapshot, and its part then."""


def part_of(
    snapshot: Snapshot,
    servers: frozenset[str],
    *,
    template: str,
    reserved: Collection[str] = frozenset(),
    invoke: Invoke | None = None,
    before: Before | None = None,
) -> Steps[ServerTools]:
    """The part of one server. A tool's name depends on the names of all configured servers, and not on other servers'
    tools; the host keeps the reserved names for itself. `invoke` is given to the tools, for `await tool(arguments)`.

    `before` is an earlier part, made with the same template, reserved names and `invoke`. Whatever has not changed is
    taken from it, so that comparing identities finds most of that.
    """
    name, rivals = snapshot.spec.name, rivals_of(snapshot.spec.name, servers, template)
    then, earlier = (None, ServerTools(name)) if before is None else before
    if earlier.rivals != rivals:
        then = None  # its names were others then
    part = earlier if then is not None and _is_unchanged(snapshot, then, earlier) else None
    if part is None:
        # All of them count for the names: a filter of the user's changes no other tool's name.
        declared = dict.fromkeys(definition.name for definition in snapshot.definitions.tools)
        kept = then is not None and earlier.public.keys() == declared.keys()
        names = earlier.public if kept else public_names(name, list(declared), servers, template, reserved)
        part = yield from _new_part(snapshot, names, invoke, earlier)
    offers = offers_of(snapshot, servers, template, earlier.offers, then)
    if not snapshot.keeps_tools:
        return dismiss(evolve(part, offers=offers, rivals=rivals))
    tools = _as_available(part.tools, available=snapshot.state is ServerState.CONNECTED)
    return evolve(part, tools=tools, offers=offers, owner=snapshot.owner, rivals=rivals)


def dismiss(part: ServerTools) -> ServerTools:
    """The part of a server that no longer shows its tools."""
    offers = part.offers if part.offers is NO_OFFERS else evolve(part.offers, shown=False)
    if part.departed:
        return evolve(part, offers=offers)
    departed: dict[ToolKey, str] = {key: held.tool for key, held in part.held.items()}
    departed |= {name: part.tools[place].tool for name, place in part.names.items()}
    departed |= {(part.server, name): name for name in part.own}
    return evolve(part, tools=(), held={}, names={}, own={}, owner=None, departed=departed, offers=offers)


def _is_unchanged(snapshot: Snapshot, then: Snapshot, part: ServerTools) -> bool:
    """True if all that the part was made of is the same now, except perhaps its availability."""
    return (
        not part.departed
        and then.definitions.tools is snapshot.definitions.tools
        and then.review == snapshot.review
        and then.spec == snapshot.spec
    )


def _new_part(
    snapshot: Snapshot, names: Mapping[str, str], invoke: Invoke | None, earlier: ServerTools
) -> Steps[ServerTools]:
    spec, review = snapshot.spec, snapshot.review
    available, change = snapshot.state is ServerState.CONNECTED, review.changes.get
    server, trusted_hints, max_result_chars = spec.name, spec.trust_hints, spec.max_result_chars
    tools: list[Tool] = []
    held: dict[ToolKey, HeldBack] = {}
    everything: Collection[Definition] = snapshot.definitions.tools
    declared = [each for each in everything if spec.offers(each.name)] if spec.is_filtered else everything
    for definition in declared:
        yield
        own_name = definition.name
        tool = Tool(
            name=names.get(own_name, ""),
            server=server,
            tool=own_name,
            definition=definition,
            available=available,
            trusted_hints=trusted_hints,
            max_result_chars=max_result_chars,
            change=change(own_name),
            invoke=invoke,
        )
        if tool.tool in review.held:
            held.update(dict.fromkeys(_keys(tool), HeldBack(tool.server, tool.tool, review.held[tool.tool])))
        else:
            before_it = earlier.find(tool.tool)
            tools.append(before_it if before_it is not None and before_it == tool else tool)
    uis: dict[str, ToolUI] = {}
    pages: set[str] = set()
    for each in everything:
        yield
        if (ui := ui_of(each.meta)) is not None:
            uis[each.name] = ui
        pages.update(pages_of(each.meta))
    has_pages = bool(uis) and any(each.name in uis for each in declared)
    callers = (each.name for each in everything if uis.get(each.name, _FOR_ALL).for_apps)
    same = len(earlier.tools) == len(tools) and all(map(is_, earlier.tools, tools))
    return ServerTools(
        spec.name,
        tools=earlier.tools if same else tuple(tools),
        held=held,
        public=names,
        claimed=earlier.claimed if names is earlier.public else frozenset(names.values()),
        names=_places_by_name(tools),
        own=_places_by_own_name(tools),
        for_apps=frozenset(callers if has_pages else ()),
        not_for_models=frozenset(name for name, ui in uis.items() if not ui.for_models),
        pages=frozenset(pages),
    )


def _places_by_name(tools: Iterable[Tool]) -> dict[str, int]:
    return {tool.name: place for place, tool in enumerate(tools) if tool.name}


def _places_by_own_name(tools: Iterable[Tool]) -> dict[str, int]:
    return {tool.tool: place for place, tool in enumerate(tools)}


def _as_available(tools: tuple[Tool, ...], *, available: bool) -> tuple[Tool, ...]:
    if not tools or tools[0].available is available:  # as all of them
        return tools
    return tuple(as_available(tool, available=available) for tool in tools)


def _keys(tool: Tool) -> Iterable[ToolKey]:
    raw = (tool.server, tool.tool)
    return (tool.name, raw) if tool.name else (raw,)
