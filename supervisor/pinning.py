"""Pins at work: the tools of one server are held against what they were when they were first used."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from .registrar import Registrar
from .spec import ServerSpec
from .store import MemoryStore, StoreUnreadable, spec_digest
from .tools.pins import DefinitionChange, Review, changes_between, pinned_text

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

PinMode = Literal["report", "block"]
"""What becomes of a tool that is not what it was when it was first used. `report`: it is told. `block`: it is held back
as well until a person accepts it, and so is everything while nobody can tell."""

_CHANGED = "its definition has changed since it was first used; `mcp-nursery pins` shows how, and accepts it"
_THIS_RUN = "this run"
"""In the place of the digest of a spec that has no lasting value."""


class PinBook:
    """The pins of one server, for its keeper: in the store, or with it where the spec has no lasting value."""

    def __init__(self, registrar: Registrar, spec: ServerSpec, mode: PinMode) -> None:
        self._registrar = registrar
        self._spec = spec
        self._mode: PinMode = mode
        self._digest = spec_digest(spec)
        self._own = MemoryStore()

    async def review(self, definitions: Iterable["Definition"]) -> Review:
        """Pin what is new, and say what differs. What is not offered anyway is not looked at."""
        declared = {each.name: pinned_text(each) for each in definitions if self._spec.offers(each.name)}
        try:
            pinned = await self._pin(declared)
        except StoreUnreadable as error:
            if self._mode == "report":
                return Review()
            return Review(held=dict.fromkeys(declared, f"nobody can tell whether it is what it was: {error}"))
        changes = changes_between(self._spec.name, pinned, declared)
        return Review(changes, held=dict.fromkeys(changes, _CHANGED) if self._mode == "block" else {})

    async def accept(self, change: DefinitionChange) -> None:
        """From now on the tool is pinned as it is after the change.

        Raises:
            StoreUnreadable: It cannot be written down.
        """
        digest = self._digest
        if digest is None:
            self._own.accept_change(_THIS_RUN, change)
        else:
            await self._registrar.ask(lambda store: store.accept_change(digest, change))

    async def _pin(self, declared: Mapping[str, str]) -> Mapping[str, str]:
        digest, name = self._digest, self._spec.name
        if digest is None:
            return self._own.pin(name, _THIS_RUN, declared)
        return await self._registrar.ask(lambda store: store.pin(name, digest, declared))
