"""One server's resources, templates and prompts: what it has in the catalogue besides tools. Pure, made in pieces."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from attrs import field, frozen

from mcp_nursery.actors.enums import ServerState
from mcp_nursery.actors.pieces import Steps

from ..resources.prompt import Prompt
from ..resources.resource import Resource, ResourceTemplate
from ..state_machine import Snapshot
from ..tools.naming import naming_steps

T = TypeVar("T", Resource, ResourceTemplate, Prompt)


@frozen
class ServerOffers:
    """What one server offers besides tools."""

    resources: tuple[Resource, ...] = ()
    templates: tuple[ResourceTemplate, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    """Those that have a public name have it here; the others an empty one."""
    shown: bool = True
    """Whether its server is in a state that shows them."""
    available: bool = False
    """Whether its server is connected."""
    named_by: Collection[str] = field(default=frozenset(), repr=False, eq=False)
    """The names of all servers by which its prompts are named."""
    uris: Mapping[str, int] = field(factory=dict[str, int], repr=False, eq=False)
    """Where in `resources` each is, by its URI."""
    own_prompts: Mapping[str, int] = field(factory=dict[str, int], repr=False, eq=False)
    """Where in `prompts` each is, by the server's own name."""

    def template_of(self, uri: str) -> ResourceTemplate | None:
        """The first template that the URI may come of."""
        return next((template for template in self.templates if template.matches(uri)), None)


NO_OFFERS = ServerOffers()
"""The offers of a server that has nothing but tools, or has listed nothing."""


def offers_steps(
    snapshot: Snapshot,
    servers: Collection[str],
    template: str,
    offers: ServerOffers,
    before: Snapshot | None,
) -> Steps[ServerOffers]:
    """What the server offers now.

    Args:
        snapshot: The server now.
        servers: The names of all configured servers, by which prompts are named as tools are.
        template: How public names are made.
        offers: What it offered before. What has not changed is taken from it.
        before: The server then.
    """
    declared, known = snapshot.definitions, None if before is None else before.definitions
    if not (declared.resources or declared.templates or declared.prompts):
        return NO_OFFERS
    available = snapshot.state is ServerState.CONNECTED
    same = offers.available is available and known is not None and offers is not NO_OFFERS
    resources, templates, prompts = offers.resources, offers.templates, offers.prompts
    uris, own_prompts = offers.uris, offers.own_prompts
    name = snapshot.spec.name
    if known is None or not same or known.resources is not declared.resources:
        resources = yield from _made(
            resources, declared.resources, lambda each: Resource(name, each.uri, each, available)
        )
        uris = {resource.uri: place for place, resource in enumerate(resources)}
    if known is None or not same or known.templates is not declared.templates:
        templates = yield from _made(
            templates, declared.templates, lambda each: ResourceTemplate(name, each.uri_template, each, available)
        )
    if known is None or not same or known.prompts is not declared.prompts or offers.named_by is not servers:
        names = yield from naming_steps(name, [prompt.name for prompt in declared.prompts], servers, template)
        prompts = yield from _made(
            prompts, declared.prompts, lambda each: Prompt(names.get(each.name, ""), name, each.name, each, available)
        )
        own_prompts = {prompt.prompt: place for place, prompt in enumerate(prompts)}
    made = ServerOffers(resources, templates, prompts, True, available, servers, uris, own_prompts)  # noqa: FBT003
    return offers if made == offers and offers.named_by is servers else made


def _made(before: tuple[T, ...], declared: Sequence[Any], make: Callable[[Any], T]) -> Steps[tuple[T, ...]]:
    """What is as it was, in the same place, is the same object: a look at that tells most of what has not changed."""
    made: list[T] = []
    same = len(before) == len(declared)
    for place, each in enumerate(declared):
        yield
        now = make(each)
        kept = place < len(before) and before[place] == now
        same = same and kept
        made.append(before[place] if kept else now)
    return before if same else tuple(made)
