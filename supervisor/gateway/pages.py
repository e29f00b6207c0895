"""Lists of what all servers have, encoded: thousands of definitions are not written anew for each request."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.jsonrpc import codec
from mcp_nursery.actors.pieces import Steps

from .eras import Json

if TYPE_CHECKING:
    from pydantic import BaseModel

PAGES: Final = 16
"""Lists of each kind that are kept, for clients that may use different parts."""
MOST_KEPT: Final = 16 << 20
"""Bytes of them; the latest is kept however large it is."""

Entry = tuple["BaseModel", str | None]
"""What a server declares, and the name that clients know it by; None: its own."""


@define(eq=False)
class Pages:
    """The lists of one kind. Kept until what they are made of changes; the same definition is written once."""

    _source: Sequence[object] | None = field(default=None, init=False)
    """What the lists are made of."""
    _pages: OrderedDict[Hashable, codec.Encoded] = field(factory=OrderedDict[Hashable, codec.Encoded], init=False)
    _written: dict[int, tuple["BaseModel", str | None, bytes]] = field(
        factory=dict[int, tuple["BaseModel", str | None, bytes]], init=False
    )
    """By the identity of their definitions."""
    _turn: trio.Lock = field(factory=trio.Lock, init=False)

    async def page(
        self, key: Hashable, offered: Callable[[], Sequence[Any]], shown: Callable[[Sequence[Any]], Iterable[Entry]]
    ) -> codec.Encoded:
        """A list.

        Args:
            key: Who sees the same.
            offered: All that there is now: the same object until it changes.
            shown: What of it is seen, in order.
        """
        async with self._turn:
            source = offered()
            if source is not self._source:
                self._pages.clear()
            if key not in self._pages:
                entries = list(shown(source))
                self._pages[key] = await by_turns(self._write(entries, anew=source is not self._source))
                self._source = source
                while len(self._pages) > PAGES or (len(self._pages) > 1 and self._size > MOST_KEPT):
                    self._pages.popitem(last=False)
            self._pages.move_to_end(key)
            return self._pages[key]

    @property
    def _size(self) -> int:
        return sum(len(page.json) for page in self._pages.values())

    def _write(self, entries: Iterable[Entry], *, anew: bool) -> Steps[codec.Encoded]:
        known, written = self._written, {} if anew else self._written
        parts: list[bytes] = []
        for definition, name in entries:
            before = known.get(id(definition))
            if before is None or before[1] != name:
                before = definition, name, codec.encode(declared(definition, name))
                yield
            written[id(definition)] = before
            parts.append(before[2])
        self._written = written
        yield
        return codec.Encoded(b"[" + b",".join(parts) + b"]")


def declared_steps(entries: Iterable[Entry]) -> Steps[list[Json]]:
    """What servers declare, in turns."""
    listed: list[Json] = []
    for entry in entries:
        listed.append(declared(*entry))
        yield
    return listed


def declared(definition: "BaseModel", name: str | None = None) -> Json:
    """What a server declares, under the name that clients know."""
    said: Json = definition.model_dump(by_alias=True, mode="json", exclude_unset=True)
    return said if name is None else said | {"name": name}
