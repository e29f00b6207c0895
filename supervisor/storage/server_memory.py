"""The memory of a server that outlasts a run, for its keeper: its era, since a spec is probed only once; the
definitions that it listed last, which a host that has just been started offers before the server is connected; and its
tools as they were at first use."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import trio
from attrs import define, field

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.limits import MOST_KEPT
from mcp_nursery.actors.messages import NOTHING_DECLARED, Definitions
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.session.lazy_definitions import cached_definitions_steps

from ..security.redaction import Redactor
from ..security.untrusted_marks import clean_name
from ..spec import ServerSpec
from ..tools.pins import MOST_PINNED, MOST_PINS, DefinitionChange, Review, changes_between, pinning_steps, real_change
from .store import DOUBT, MemoryStore, Store, StoreUnreadable
from .worker import STORE_TIMEOUT, StoreWorker

if TYPE_CHECKING:
    from mcp_types import Prompt, Resource, ResourceTemplate, Tool
    from mcp_types import Tool as Definition

SAVED_EVERY: Final = 60.0
"""Least seconds between two writes of a server's lists; when the connection ends, they are written at once."""

_DEFINITION_KINDS: Final = ("tools", "resources", "templates", "prompts")


@define(eq=False)
class DefinitionCache:
    """The cached definitions of one server, for its keeper.

    Definitions in which a server quotes what it was given are not cached: no secret is written to disk. Those of a
    server that its user has not agreed to are not read.
    """

    _worker: StoreWorker
    _spec: ServerSpec
    _digest: str | None
    """The digest of how it is reached; None if that does not last: then nothing is cached."""
    _redactor: Callable[[], Redactor]
    """The server's redactor at the moment of the call."""
    save_at: float = field(default=math.inf, init=False)
    """The time to save the definitions of the last `remember`, on Trio's clock; `inf` if nothing is unsaved."""
    _saved_at: float = field(default=-math.inf, init=False)
    _fetched: tuple[trio.Event, float] | None = field(default=None, init=False)
    """The event that ends the read under way, and the time at which waiting for it ends."""
    _cached: bytes = field(default=b"", init=False)
    _unsaved: tuple[Definitions, float] | None = field(default=None, init=False)
    """The definitions to be saved, and when they were listed, by the wall clock."""
    _unwritten: list[tuple[bytes, float]] = field(factory=list[tuple[bytes, float]], init=False)
    """The latest of these, encoded, for the thread of the store: while that hangs, no more are kept."""

    @property
    def lasts(self) -> bool:
        """True if definitions of the server can be cached."""
        return self._digest is not None

    def fetch(self) -> None:
        """Have the cache read."""
        if self._digest is not None:
            self._fetched = self._worker.submit(self._read), trio.current_time() + STORE_TIMEOUT

    def _read(self, store: Store) -> None:
        """Read the cache, in the thread of the store."""
        request = self._spec.trust_request
        if self._digest is not None and (request is None or store.agreed(request.as_found().digest)):
            self._cached = store.definitions(self._spec.name, self._digest, most=self._spec.max_kept_bytes)

    async def recalled(self) -> Definitions:
        """The definitions that `fetch` has found; none if they cannot be used, for any reason, or take two seconds."""
        if self._fetched is not None:
            read, until = self._fetched
            with trio.move_on_at(until):
                await read.wait()
        cached, self._cached = self._cached, b""
        if not cached:
            return NOTHING_DECLARED
        try:
            return await by_turns(_decoding_steps(cached, most=self._spec.max_definitions))
        except ValueError:
            return NOTHING_DECLARED

    def note(self, definitions: Definitions) -> None:
        """Note the present definitions of the server, to be saved."""
        if self._digest is not None:
            self._unsaved = definitions, time.time()
            self.save_at = max(self._saved_at + SAVED_EVERY, trio.current_time())

    async def save(self) -> None:
        """Save the definitions that were noted last, if that is not done. Does not wait for the store."""
        if self._unsaved is None or (digest := self._digest) is None:
            return
        (definitions, at), self._unsaved = self._unsaved, None
        self._saved_at, self.save_at = trio.current_time(), math.inf
        self._unwritten[:] = [(await by_turns(self._encoding_steps(definitions)), at)]
        self._worker.submit(partial(self._write, digest))

    def _write(self, digest: str, store: Store) -> None:
        """Write them, in the thread of the store."""
        with suppress(IndexError):  # an earlier job has written it
            declared, at = self._unwritten.pop()
            store.remember_definitions(self._spec.name, digest, declared, at)

    def _encoding_steps(self, definitions: Definitions) -> Steps[bytes]:
        """The definitions, one a line; nothing if one of them must not be cached, or they are too large."""
        redactor, most = self._redactor(), min(self._spec.max_kept_bytes, MOST_KEPT)
        lines: list[bytes] = []
        for kind, each in _all_of(definitions):
            yield
            try:
                said = each.model_dump_json(by_alias=True, exclude_unset=True)
            except ValueError:  # it has no JSON form, and came over no wire
                return b""
            if (yield from redactor.finds_configured(said)):
                return b""
            lines.append(f"{kind} {said}\n".encode())
            most -= len(lines[-1])
            if most < 0:
                return b""
        return b"".join(lines)


def _all_of(definitions: Definitions) -> "Iterator[tuple[str, Tool | Resource | ResourceTemplate | Prompt]]":
    for kind in _DEFINITION_KINDS:
        for each in getattr(definitions, kind):
            yield kind, each


def _decoding_steps(cached: bytes, *, most: int) -> Steps[Definitions]:
    """The definitions in a cached row, as `DefinitionCache` encodes them.

    Raises:
        ValueError: These are not definitions, or more than the server may have now.
    """
    from mcp_nursery.actors.jsonrpc.codec import decode

    if cached.count(b"\n") > most:
        raise ValueError("too many")
    lines = (line.partition(b" ") for line in cached.splitlines())
    return (yield from cached_definitions_steps((kind.decode(), decode(said)) for kind, _, said in lines))


@define(eq=False)
class EraMemory:
    """The era of one server: what earlier runs found, and what this one finds. For its keeper.

    A server that was mute for a moment, and then answered `initialize`, may still speak the modern era: what its
    silence implies is believed for a day.
    """

    _worker: StoreWorker
    """The worker of the store that keeps it."""
    _server: str
    """The server's name."""
    _spec: str | None
    """The digest of how it is reached; None if that does not last: then nothing is recorded."""
    _recalled: bool = field(default=False, init=False)
    _era: Era | None = field(default=None, init=False)
    _until: float = field(default=math.inf, init=False)
    """The time at which the memory expires, on Trio's clock; `inf` for an era that the server has answered itself."""

    @property
    def era(self) -> Era | None:
        """The era that is known now."""
        return self._era if trio.current_time() < self._until else None

    async def recall(self) -> None:
        """Read what earlier runs found, once. If it cannot be read, it is unknown."""
        if self._recalled:
            return
        if (spec := self._spec) is not None:
            with suppress(StoreUnreadable):
                note = await self._worker.ask(lambda store: store.era(self._server, spec))
                if note is not None:
                    self._believe(note.era, note.seconds)
        self._recalled = True

    def learn(self, era: Era | None, *, answered: bool) -> None:
        """Record the era that an incarnation has found. Before `recall` none was of this spec: nothing is recorded.

        Args:
            era: The era.
            answered: Whether it follows from an answer of the server's to the probe, and not from its silence.
        """
        if not self._recalled or era is None:
            return
        if era is self.era and (self._until == math.inf or not answered):
            return
        self._believe(era, math.inf if answered else DOUBT)
        if (spec := self._spec) is not None:
            self._worker.submit(lambda store: store.remember_era(self._server, spec, era, answered=answered))

    def _believe(self, era: Era, seconds: float) -> None:
        self._era, self._until = era, trio.current_time() + seconds


# -- pins: tools are compared with what they were when they were first used -------------------------------------------

T = TypeVar("T")

PinMode = Literal["report", "block"]
"""The treatment of a tool whose definition differs from that of its first use. `report`: an event says so. `block`: the
tool is held back as well until a person accepts it, and so is every tool while the pins cannot be read."""

_STORED_CHARACTERS = 256 * 1024
"""Characters of texts that are given to the store at once, which the last text may exceed: no server keeps the store
from the others for long."""
_PIECE_TOOLS = 256

_AGAIN, _AGAIN_AT_MOST = 5.0, 300.0
"""Seconds after which tools are reviewed again because the store gave no answer; twice as many each time."""

_CHANGED_SINCE = "its definition has changed since it was first used; see `mcp-nursery pins`"
_THIS_RUN = "this run"


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
        """Pin new tools, and report those that differ. Tools that are not offered anyway are skipped.

        Goes to the store piece by piece, and stops once it gives no answer.

        Args:
            definitions: Those declared.
            live: Whether a connected server declares them. Cached ones are not reviewed again: the server's will be.
        """
        offered = await by_turns(self._select_offered(definitions))
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
                self._schedule_retry(certain=not live)
                return self._report(changes, {**unknown, **dict.fromkeys(unasked, str(error))}, certain=False)
            unknown.update(dict.fromkeys(declared.keys() - pinned.keys(), self._too_many))
        self._schedule_retry(certain=True)
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

    async def _pin(self, declared: Mapping[str, str]) -> Mapping[str, str]:
        name, digest = self._spec.name, self._digest or _THIS_RUN
        return await self._ask(lambda store: store.pin(name, digest, declared))

    @property
    def _too_many(self) -> str:
        size = f"more than {MOST_PINS} names by now, or definitions of more than {MOST_PINNED} characters"
        return f"{clean_name(self._spec.name)}: its tools had {size}"

    def _report(self, changes: Mapping[str, DefinitionChange], unknown: Mapping[str, str], *, certain: bool) -> Review:
        for why in dict.fromkeys(unknown.values()):
            self._worker.warn_once(why)
        if self._mode == "report":
            return Review(changes, certain=certain)
        held = {tool: f"it is not known whether its definition has changed: {why}" for tool, why in unknown.items()}
        return Review(changes, {**held, **dict.fromkeys(changes, _CHANGED_SINCE)}, certain=certain)

    async def accept(self, change: DefinitionChange) -> None:
        """Pin the tool as it is after the change.

        Raises:
            StoreUnreadable: It cannot be recorded.
        """
        digest = self._digest or _THIS_RUN
        await self._ask(lambda store: store.accept_change(digest, change))

    async def _ask(self, question: Callable[[Store], T]) -> T:
        if self._digest is not None:
            return await self._worker.ask(question)
        await trio.lowlevel.checkpoint()
        return question(self._own)


def _next_piece(definitions: Iterator["Definition"]) -> Steps[dict[str, str]]:
    """The pins of the next definitions, by name; empty once none is left."""
    declared: dict[str, str] = {}
    size = 0
    for definition in definitions:
        declared[definition.name] = text = yield from pinning_steps(definition)
        size += len(text)
        if size >= _STORED_CHARACTERS or len(declared) >= _PIECE_TOOLS:
            break
    return declared
