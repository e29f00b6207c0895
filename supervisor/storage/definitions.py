"""The definition cache: what a server declared when it was listed last. A host that has just been started offers that
before the server is connected."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, field

from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.limits import MOST_KEPT
from mcp_nursery.actors.messages import NOTHING_DECLARED, Definitions
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.session.recalled import recalling_steps

from ..security.redaction import Redactor
from ..spec import ServerSpec
from .store import Store
from .worker import PATIENCE, StoreWorker

if TYPE_CHECKING:
    from mcp_types import Prompt, Resource, ResourceTemplate, Tool

SAVED_EVERY: Final = 60.0
"""Seconds after which another list of a server is written down; when the connection ends, it is at once."""

_KINDS: Final = ("tools", "resources", "templates", "prompts")


@define(eq=False)
class DefinitionCache:
    """What is cached of one server, for its keeper.

    Nothing of a server that quotes in its definitions what it was given: no secret is written down. Nothing is read
    of one that its user has not agreed to.
    """

    _worker: StoreWorker
    _spec: ServerSpec
    _digest: str | None
    """Of how it is reached; None for what does not last: nothing is cached."""
    _redactor: Callable[[], Redactor]
    """What knows the server's secrets."""
    save_at: float = field(default=math.inf, init=False)
    """When to save what was noted last, on Trio's clock; `inf` if that is done."""
    _saved_at: float = field(default=-math.inf, init=False)
    _fetched: tuple[trio.Event, float] | None = field(default=None, init=False)
    """When it is read, and until when that is waited for."""
    _cached: bytes = field(default=b"", init=False)
    _unsaved: tuple[Definitions, float] | None = field(default=None, init=False)
    """What was noted last, and when by the wall clock."""
    _unwritten: deque[tuple[bytes, float]] = field(factory=lambda: deque(maxlen=1), init=False)
    """The last of it, for the store: one that hangs makes nobody keep more."""

    @property
    def lasts(self) -> bool:
        """Whether anything of the server can be cached."""
        return self._digest is not None

    def fetch(self) -> None:
        """Have it read."""
        if self._digest is not None:
            self._fetched = self._worker.submit(self._read), trio.current_time() + PATIENCE

    def _read(self, store: Store) -> None:
        """In the thread of the store."""
        request = self._spec.trust_request
        if self._digest is not None and (request is None or store.agreed(request.as_found().digest)):
            self._cached = store.definitions(self._spec.name, self._digest, most=self._spec.max_kept_bytes)

    async def recalled(self) -> Definitions:
        """What `fetch` has found; nothing if that cannot be used, whatever it is, or takes two seconds."""
        if self._fetched is not None:
            read, until = self._fetched
            with trio.move_on_at(until):
                await read.wait()
        cached, self._cached = self._cached, b""
        if not cached:
            return NOTHING_DECLARED
        try:
            return await by_turns(_decoding_steps(cached))
        except ValueError:
            return NOTHING_DECLARED

    def note(self, definitions: Definitions) -> None:
        """The server declares this now."""
        if self._digest is not None:
            self._unsaved = definitions, time.time()
            self.save_at = max(self._saved_at + SAVED_EVERY, trio.current_time())

    async def save(self) -> None:
        """Write down what was noted last, if that is not done. Does not wait for the store."""
        if self._unsaved is None or (digest := self._digest) is None:
            return
        (definitions, at), self._unsaved = self._unsaved, None
        self._saved_at, self.save_at = trio.current_time(), math.inf
        self._unwritten.append((await by_turns(self._encoding_steps(definitions)), at))
        self._worker.submit(partial(self._write, digest))

    def _write(self, digest: str, store: Store) -> None:
        """In the thread of the store."""
        with suppress(IndexError):  # an earlier job has written it
            declared, at = self._unwritten.pop()
            store.remember_definitions(self._spec.name, digest, declared, at)

    def _encoding_steps(self, definitions: Definitions) -> Steps[bytes]:
        """A line for each; nothing if one of them must not be written down, or they are too large."""
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
    for kind in _KINDS:
        for each in getattr(definitions, kind):
            yield kind, each


def _decoding_steps(cached: bytes) -> Steps[Definitions]:
    """What `DefinitionCache` has encoded.

    Raises:
        ValueError: These are not definitions.
    """
    from mcp_nursery.actors.jsonrpc.codec import decode

    lines = (line.partition(b" ") for line in cached.splitlines())
    return (yield from recalling_steps((kind.decode(), decode(said)) for kind, _, said in lines))
