"""Pins at work: the tools of one server are held against what they were when they were first used."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeVar

from .registrar import Registrar
from .spec import ServerSpec
from .store import MemoryStore, Store, StoreUnreadable
from .tools.pins import DefinitionChange, Review, changes_between, pinned_text

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

T = TypeVar("T")

PinMode = Literal["report", "block"]
"""What becomes of a tool that is not what it was when it was first used. `report`: it is told. `block`: it is held back
as well until a person accepts it, and so is everything while nobody can tell."""

_CHANGED = "its definition has changed since it was first used; see `mcp-nursery pins`, or Supervisor.accept_change"
_THIS_RUN = "this run"


class PinBook:
    """The pins of one server, for its keeper: in the store, or in memory where the spec has no digest that lasts."""

    def __init__(
        self,
        registrar: Registrar,
        spec: ServerSpec,
        digest: str | None,
        mode: PinMode,
        *,
        own: MemoryStore | None = None,
    ) -> None:
        self._registrar = registrar
        self._spec = spec
        self._digest = digest
        self._mode: PinMode = mode
        self._own = None if digest is not None else own or MemoryStore()

    def of(self, spec: ServerSpec) -> "PinBook":
        """The same pins for another spec of this server, which is reached in the same way."""
        return PinBook(self._registrar, spec, self._digest, self._mode, own=self._own)

    async def review(self, definitions: Iterable["Definition"]) -> Review:
        """Pin what is new, and say what differs. What is not offered anyway is not looked at."""
        name, digest = self._spec.name, self._digest or _THIS_RUN
        declared = {each.name: pinned_text(each) for each in definitions if self._spec.offers(each.name)}
        try:
            pinned = await self._ask(lambda store: store.pin(name, digest, declared))
        except StoreUnreadable as error:
            self._registrar.complain(error)
            if self._mode == "report":
                return Review()
            return Review(held=dict.fromkeys(declared, f"nobody can tell whether it is what it was: {error}"))
        changes = changes_between(name, pinned, declared)
        return Review(changes, held=dict.fromkeys(changes, _CHANGED) if self._mode == "block" else {})

    async def accept(self, change: DefinitionChange) -> None:
        """From now on the tool is pinned as it is after the change.

        Raises:
            StoreUnreadable: It cannot be written down.
        """
        digest = self._digest or _THIS_RUN
        await self._ask(lambda store: store.accept_change(digest, change))

    async def _ask(self, question: Callable[[Store], T]) -> T:
        return await self._registrar.ask(question) if self._own is None else question(self._own)
