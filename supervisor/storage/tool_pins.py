"""The pins of one server, for its keeper: the store remembers its tools and skills as they were at their first use. The
comparison is in `tools.pins`."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import trio

from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import define, field

from ..security.untrusted_marks import clean_name
from ..skills import Skill, skill_pinning_steps
from ..spec import ServerSpec
from ..tools.pins import MOST_PINNED, MOST_PINS, DefinitionChange, Review, changes_between, pinning_steps, real_change
from .store import MemoryStore, Store, StoreUnreadable
from .worker import StoreWorker

if TYPE_CHECKING:
    from mcp_types import Tool as Definition

T = TypeVar("T")

PinMode = Literal["report", "block"]
"""The treatment of a tool or a skill that differs from its first use. `report`: an event says so. `block`: it is held
back as well until a person accepts it, and so is each of them while the pins cannot be read."""

_STORED_CHARACTERS = 256 * 1024
"""Characters of texts that are given to the store at once, which the last text may exceed: no server keeps the store
from the others for long."""
_PIECE_TOOLS = 256

_AGAIN, _AGAIN_AT_MOST = 5.0, 300.0
"""Seconds after which tools are reviewed again because the store gave no answer; twice as many each time."""

_CHANGED_SINCE = "its definition has changed since it was first used; see `mcp-nursery pins`"
_THIS_RUN = "this run"
_OF_SKILLS = "/skills"
"""The end of the digest under which skills are pinned: no tool takes the name, or the room, of a skill."""


@define(eq=False)
class ToolPins:
    """The pins of one server, for its keeper."""

    _worker: StoreWorker
    _spec: ServerSpec
    _digest: str | None
    """The digest of how it is reached; None if that does not last."""
    _mode: PinMode
    _own: MemoryStore = field(factory=MemoryStore)
    """The pins in memory, in place of the store, if the spec has no digest that lasts."""
    again_at: float = field(default=math.inf, init=False)
    """The time at which to review again because the pins could not be read, on Trio's clock."""
    _delay: float = field(default=_AGAIN / 2, init=False)

    def of(self, spec: ServerSpec) -> "ToolPins":
        """The same pins for another spec of this server, which is reached in the same way."""
        return ToolPins(self._worker, spec, self._digest, self._mode, self._own)

    async def review(self, definitions: Iterable["Definition"], *, live: bool = True) -> Review:
        """Pin new tools, and report those that differ. Tools that are not offered anyway are skipped. Cached
        definitions, which are not `live`, are not reviewed again: the server's will be.

        Goes to the store piece by piece, and stops once it gives no answer.
        """
        review = await self._compare(await by_turns(self._select_offered(definitions)))
        self._schedule_retry(certain=review.certain or not live)
        return review

    async def review_skills(self, skills: Mapping[str, Skill]) -> Review:
        """Pin new skills, given by URI, and report those that differ."""
        return await self._compare(skills, _OF_SKILLS)

    async def pinned_skills(self) -> Sequence[str] | None:
        """The URIs of all skills that are pinned; None if they cannot be read, or if nothing is held back anyway."""
        digest = (self._digest or _THIS_RUN) + _OF_SKILLS
        if self._mode == "block":
            try:
                return await self._ask(lambda store: store.pinned(self._spec.name, digest))
            except StoreUnreadable as error:
                self._worker.warn_once(str(error))
        return None

    async def _compare(self, offered: "Mapping[str, Definition | Skill]", of: str = "") -> Review:
        left = iter(offered.items())
        changes: dict[str, DefinitionChange] = {}
        unknown: dict[str, str] = {}
        while declared := await by_turns(_next_piece(left)):
            try:
                pinned = await self._pin(declared, of)
                for name, change in changes_between(self._spec.name, pinned, declared).items():
                    definition = offered[name]
                    if isinstance(definition, Skill):
                        changes[name] = change
                    elif (real := await by_turns(real_change(change, definition))) is not None:
                        changes[name] = real
                    else:  # pinned by an earlier version
                        await self.accept(change)
            except StoreUnreadable as error:
                unasked = [*declared, *(name for name, _ in left)]
                return self._report(changes, {**unknown, **dict.fromkeys(unasked, str(error))}, certain=False)
            unknown.update(dict.fromkeys(declared.keys() - pinned.keys(), self._too_many(of)))
        return self._report(changes, unknown, certain=True)

    def _schedule_retry(self, *, certain: bool) -> None:
        self._delay = _AGAIN / 2 if certain else min(self._delay * 2, _AGAIN_AT_MOST)
        self.again_at = math.inf if certain else trio.current_time() + self._delay

    def _select_offered(self, definitions: Iterable["Definition"]) -> Steps[Mapping[str, "Definition"]]:
        offered: dict[str, Definition] = {}
        for each in definitions:
            yield
            if self._spec.offers(each.name):
                offered[each.name] = each
        return offered

    async def _pin(self, declared: Mapping[str, str], of: str) -> Mapping[str, str]:
        name, digest = self._spec.name, (self._digest or _THIS_RUN) + of
        return await self._ask(lambda store: store.pin(name, digest, declared))

    def _too_many(self, of: str) -> str:
        size = f"more than {MOST_PINS} names by now, or definitions of more than {MOST_PINNED} characters"
        return f"{clean_name(self._spec.name)}: its {of[1:] or 'tools'} had {size}"

    def _report(self, changes: Mapping[str, DefinitionChange], unknown: Mapping[str, str], *, certain: bool) -> Review:
        for why in dict.fromkeys(unknown.values()):
            self._worker.warn_once(why)
        if self._mode == "report":
            return Review(changes, certain=certain)
        held = {tool: f"it is not known whether its definition has changed: {why}" for tool, why in unknown.items()}
        return Review(changes, {**held, **dict.fromkeys(changes, _CHANGED_SINCE)}, certain=certain)

    async def accept(self, change: DefinitionChange) -> None:
        """Pin the tool or the skill as it is after the change.

        Raises:
            StoreUnreadable: It cannot be recorded.
        """
        digest = (self._digest or _THIS_RUN) + (_OF_SKILLS if change.kind == "skill" else "")
        await self._ask(lambda store: store.accept_change(digest, change))

    async def _ask(self, question: Callable[[Store], T]) -> T:
        if self._digest is not None:
            return await self._worker.ask(question)
        await trio.lowlevel.checkpoint()
        return question(self._own)


def _next_piece(definitions: "Iterator[tuple[str, Definition | Skill]]") -> Steps[dict[str, str]]:
    """The pins of the next definitions or skills, by name; empty once none is left."""
    declared: dict[str, str] = {}
    size = 0
    for name, each in definitions:
        text = yield from skill_pinning_steps(each) if isinstance(each, Skill) else pinning_steps(each)
        declared[name] = text
        size += len(text)
        if size >= _STORED_CHARACTERS or len(declared) >= _PIECE_TOOLS:
            break
    return declared
