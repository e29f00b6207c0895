"""The cached definitions of one server, for its keeper: a host that has just been started offers what the server listed
last before the server is connected, and introduces the server as it introduced itself last."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from mcp_nursery.actors.fairness import by_turns
from mcp_nursery.actors.json_depth import nested_too_deep
from mcp_nursery.actors.limits import MOST_KEPT
from mcp_nursery.actors.messages import NOTHING_DECLARED, Definitions
from mcp_nursery.actors.pieces import Steps
from mcp_nursery.actors.records import define, field
from mcp_nursery.actors.session.lazy_definitions import cached_definitions_steps

from ..security.redaction import ServerSecrets
from ..spec import ServerSpec
from .store import Store
from .worker import STORE_TIMEOUT, StoreWorker

if TYPE_CHECKING:
    from mcp_types import Prompt, Resource, ResourceTemplate, Tool

SAVED_EVERY: Final = 60.0
"""Least seconds between two writes of a server's lists; when the connection ends, they are written at once."""

_DEFINITION_KINDS: Final = ("tools", "resources", "templates", "prompts")
_HELLO: Final = "hello"
"""The beginning of a line with an introduction, in place of a kind of definitions."""

Cached = tuple[Definitions, dict[str, Any] | None]
"""Definitions, and the introduction of their server as it came, if that is cached."""
NOTHING_CACHED: Final[Cached] = (NOTHING_DECLARED, None)


def cache_key(digest: str, capabilities: Mapping[str, Any]) -> str:
    """The key, in a store, of the definitions that a server with this digest of its spec lists for a host with these
    capabilities."""
    return f"{digest}/{sha256(json.dumps(capabilities, sort_keys=True).encode()).hexdigest()}"


@define(eq=False)
class DefinitionCache:
    """The cached definitions of one server, for its keeper.

    A server may choose its tools by the capabilities of its host: what it has listed for others is not read. A lazy
    server, which is not started for its list, shows at least what it has listed for a host that has no capabilities, as
    for `mcp-nursery tools`.
    Definitions in which a server quotes what it was given are not cached: no secret is written to disk. Those of a
    server that its user has not agreed to are not read.
    """

    _worker: StoreWorker
    _spec: ServerSpec
    _digest: str | None
    """The digest of how it is reached; None if that does not last: then nothing is cached."""
    _secrets: ServerSecrets
    """The secrets of the server."""
    _key: str = field(init=False)
    """The digest, and that of the capabilities of the host."""
    save_at: float = field(default=math.inf, init=False)
    """The time to save the definitions of the last `remember`, on Trio's clock; `inf` if nothing is unsaved."""
    _saved_at: float = field(default=-math.inf, init=False)
    _fetched: tuple[trio.Event, float] | None = field(default=None, init=False)
    """The event that ends the read under way, and the time at which waiting for it ends."""
    _cached: bytes = field(default=b"", init=False)
    _unsaved: tuple[Definitions, Mapping[str, Any] | None, float] | None = field(default=None, init=False)
    """The definitions to be saved, the introduction, and when they were listed, by the wall clock."""
    _unwritten: list[tuple[str, bytes, float]] = field(factory=list[tuple[str, bytes, float]], init=False)
    """The latest of these, encoded, with their key, for the thread of the store: while that hangs, no more are kept."""

    @property
    def lasts(self) -> bool:
        """True if definitions of the server can be cached."""
        return self._digest is not None

    def declare(self, capabilities: Mapping[str, Any]) -> None:
        """Set the capabilities of the host, without what each host of ours declares: definitions that are read, and
        noted, from now on are for a host with these."""
        self._key = cache_key(self._digest or "", capabilities)

    def fetch(self) -> None:
        """Have the cache read."""
        if self._digest is not None:
            self._fetched = self._worker.submit(self._read), trio.current_time() + STORE_TIMEOUT

    def _read(self, store: Store) -> None:
        """Read the cache, in the thread of the store."""
        request = self._spec.trust_request
        if request is None or store.agreed(request.as_found().digest):
            most = self._spec.max_kept_bytes
            self._cached = store.definitions(self._spec.name, self._key, most=most)
            if not self._cached and self._spec.lazy is True:  # nobody would start it for its list
                self._cached = store.definitions(self._spec.name, cache_key(self._digest or "", {}), most=most)

    async def recalled(self) -> Cached:
        """The definitions that `fetch` has found, and the introduction; none if they cannot be used, for any reason, or
        take two seconds."""
        if self._fetched is not None:
            read, until = self._fetched
            with trio.move_on_at(until):
                await read.wait()
        cached, self._cached = self._cached, b""
        if not cached:
            return NOTHING_CACHED
        try:
            return await by_turns(_decoding_steps(cached, most=self._spec.max_definitions))
        except ValueError:
            return NOTHING_CACHED

    def note(self, definitions: Definitions, hello: Mapping[str, Any] | None) -> None:
        """Note the present definitions of the server, and its introduction as it came, to be saved."""
        if self._digest is not None:
            self._unsaved = definitions, hello, time.time()
            self.save_at = max(self._saved_at + SAVED_EVERY, trio.current_time())

    async def save(self) -> None:
        """Save the definitions that were noted last, if that is not done. Does not wait for the store."""
        if self._unsaved is None:
            return
        (definitions, hello, at), self._unsaved = self._unsaved, None
        self._saved_at, self.save_at = trio.current_time(), math.inf
        self._unwritten[:] = [(self._key, await by_turns(self._encoding_steps(definitions, hello)), at)]
        self._worker.submit(self._write)

    def _write(self, store: Store) -> None:
        """Write them, in the thread of the store."""
        with suppress(IndexError):  # an earlier job has written it
            key, declared, at = self._unwritten.pop()
            store.remember_definitions(self._spec.name, key, declared, at)

    def _encoding_steps(self, definitions: Definitions, hello: Mapping[str, Any] | None) -> Steps[bytes]:
        """The definitions, one a line; nothing if a definition must not be cached, or all together are too large. The
        introduction follows under the same conditions."""
        from mcp_nursery.actors.jsonrpc.codec import encode

        redactor, most = self._secrets.redactor, min(self._spec.max_kept_bytes, MOST_KEPT)
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
        if lines and hello is not None:
            said = encode(hello).decode()
            if len(said) < most and not (yield from redactor.finds_configured(said)):
                lines.append(f"{_HELLO} {said}\n".encode())
        return b"".join(lines)


def _all_of(definitions: Definitions) -> "Iterator[tuple[str, Tool | Resource | ResourceTemplate | Prompt]]":
    for kind in _DEFINITION_KINDS:
        for each in getattr(definitions, kind):
            yield kind, each


def _decoding_steps(cached: bytes, *, most: int) -> Steps[Cached]:
    """The definitions and the introduction in a cached row, as `DefinitionCache` encodes them.

    Raises:
        ValueError: These are not definitions, or more than the server may have now.
    """
    from mcp_nursery.actors.jsonrpc.codec import decode

    lines = cached.splitlines()
    hello: dict[str, Any] | None = None
    if len(lines) > most + 1:
        raise ValueError("too many")
    if lines and lines[-1].startswith(f"{_HELLO} ".encode()):
        said: object = decode(lines.pop().partition(b" ")[2])
        yield
        if type(said) is not dict or nested_too_deep(cast("object", said)):
            raise ValueError("no introduction")
        hello = cast("dict[str, Any]", said)
    parts = (line.partition(b" ") for line in lines)
    return (yield from cached_definitions_steps((kind.decode(), decode(said)) for kind, _, said in parts)), hello
