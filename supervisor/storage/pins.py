"""Pins: the tools of one server are compared with what they were when they were first used."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

import trio
from attrs import define, field

from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.pieces import Steps

from ..security.untrusted_marks import clean_name
from ..spec import ServerSpec
from ..tools.pins import MOST_PINNED, MOST_PINS, DefinitionChange, Review, changes_between, pinning_steps, real_change
from .store import MemoryStore, Store, StoreUnreadable
from .worker import StoreWorker

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

T = TypeVar("T")

PinMode = Literal["report", "block"]
"""What becomes of a tool that is not what it was when it was first used. `report`: it is told. `block`: it is held back
as well until a person accepts it, and so is everything while nobody can tell."""

_PIECE = 256 * 1024
"""Characters of texts that are given to the store at once, the last of them perhaps beyond: no server keeps it for long
from the others'."""
_PIECE_TOOLS = 256

_AGAIN, _AGAIN_AT_MOST = 5.0, 300.0
"""Seconds after which tools are looked at again because the store gave no answer; twice as many each time."""

_CHANGED = "its definition has changed since it was first used; see `mcp-nursery pins`"
_THIS_RUN = "this run"


@define(eq=False)
class ToolPins:
    """The pins of one server, for its keeper."""

    _worker: StoreWorker
    _spec: ServerSpec
    _digest: str | None
    """Of how it is reached; None for what does not last."""
    _mode: PinMode
    _own: MemoryStore = field(factory=MemoryStore)
    """Where they are kept instead of the store if the spec has no digest that lasts."""
    again_at: float = field(default=math.inf, init=False)
    """When to review again because the pins could not be read, on Trio's clock."""
    _delay: float = field(default=_AGAIN / 2, init=False)

    def of(self, spec: ServerSpec) -> "ToolPins":
        """The same pins for another spec of this server, which is reached in the same way."""
        return ToolPins(self._worker, spec, self._digest, self._mode, self._own)

    async def review(self, definitions: Iterable["Definition"], *, live: bool = True) -> Review:
        """Pin what is new, and say what differs. What is not offered anyway is not looked at.

        Goes to the store piece by piece, and asks for nothing more once it gives no answer.

        Args:
            definitions: What is declared.
            live: By a server that is connected. What was cached is not looked at again: that server will be.
        """
        offered = await by_turns(self._offered(definitions))
        left = iter(offered.values())
        changes: dict[str, DefinitionChange] = {}
        unknown: dict[str, str] = {}
        while declared := await by_turns(_next_piece(left)):
            try:
                pinned = await self._pin(declared)
                for tool, change in changes_between(self._spec.name, pinned, declared).items():
                    if (real := await by_turns(real_change(change, offered[tool]))) is not None:
                        changes[tool] = real
                    else:  # pinned by an earlier version
                        await self.accept(change)
            except StoreUnreadable as error:
                unasked = [*declared, *(each.name for each in left)]
                self._note_answer(certain=not live)
                return self._reviewed(changes, {**unknown, **dict.fromkeys(unasked, str(error))}, certain=False)
            unknown.update(dict.fromkeys(declared.keys() - pinned.keys(), self._too_many))
        self._note_answer(certain=True)
        return self._reviewed(changes, unknown, certain=True)

    def _note_answer(self, *, certain: bool) -> None:
        self._delay = _AGAIN / 2 if certain else min(self._delay * 2, _AGAIN_AT_MOST)
        self.again_at = math.inf if certain else trio.current_time() + self._delay

    def _offered(self, definitions: Iterable["Definition"]) -> Steps[Mapping[str, "Definition"]]:
        offered: dict[str, Definition] = {}
        for each in definitions:
            yield
            if self._spec.offers(each.name):
                offered[each.name] = each
        return offered

    async def _pin(self, declared: Mapping[str, str]) -> Mapping[str, str]:
        name, digest = self._spec.name, self._digest or _THIS_RUN
        return await self._ask(lambda store: store.pin(name, digest, declared))

    @property
    def _too_many(self) -> str:
        size = f"more than {MOST_PINS} names by now, or definitions of more than {MOST_PINNED} characters"
        return f"{clean_name(self._spec.name)}: its tools had {size}"

    def _reviewed(
        self, changes: Mapping[str, DefinitionChange], unknown: Mapping[str, str], *, certain: bool
    ) -> Review:
        for why in dict.fromkeys(unknown.values()):
            self._worker.warn_once(why)
        if self._mode == "report":
            return Review(changes, certain=certain)
        held = {tool: f"it is not known whether its definition has changed: {why}" for tool, why in unknown.items()}
        return Review(changes, {**held, **dict.fromkeys(changes, _CHANGED)}, certain=certain)

    async def accept(self, change: DefinitionChange) -> None:
        """From now on the tool is pinned as it is after the change.

        Raises:
            StoreUnreadable: It cannot be written down.
        """
        digest = self._digest or _THIS_RUN
        await self._ask(lambda store: store.accept_change(digest, change))

    async def _ask(self, question: Callable[[Store], T]) -> T:
        if self._digest is not None:
            return await self._worker.ask(question)
        await trio.lowlevel.checkpoint()
        return question(self._own)


def _next_piece(definitions: Iterator["Definition"]) -> Steps[dict[str, str]]:
    """What is pinned of the next of them, by name; of none, once none is left."""
    declared: dict[str, str] = {}
    size = 0
    for definition in definitions:
        declared[definition.name] = text = yield from pinning_steps(definition)
        size += len(text)
        if size >= _PIECE or len(declared) >= _PIECE_TOOLS:
            break
    return declared
