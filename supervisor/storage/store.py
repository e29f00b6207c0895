"""What is remembered between runs: eras, definitions, processes, agreements and pins.

All of it is synchronous; whoever owns a store decides in which thread.
"""

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from attrs import asdict, define, field, frozen, has

from mcp_nursery.actors.enums import Era
from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.process.orphans import HostProcess, Orphan
from mcp_nursery.actors.process.table import ProcessId

from ..security.trust import TrustRequest
from ..spec import ServerSpec
from ..tools.pins import DefinitionChange, Pin, Room, noted_changes, pins_after

DOUBT = 24 * 3600.0
"""Seconds for which an era is believed that follows from a server's silence."""


@frozen
class EraNote:
    """What is remembered of a server's era."""

    era: Era
    seconds: float = math.inf
    """For how long it is to be believed; `inf` for what the server has answered itself."""


class StoreUnreadable(NurseryError):
    """The user's state file cannot be used: so nothing is trusted, and nothing is known of tools."""


class Store(Protocol):
    """Remembers. Eras, definitions and processes that cannot be read or written are as good as lost; agreements and
    pins are not."""

    @property
    def blocking(self) -> bool:
        """Whether its methods wait for a disk, so that they are not for the event loop's thread."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """What is done in the block is written down together, when it is left: none of it holds before.

        Raises:
            StoreUnreadable: On leaving: none of it could be written.
        """
        ...

    def era(self, server: str, spec: str) -> "EraNote | None":
        """What was found of a server with this digest of its spec, if anything that is still believed."""
        ...

    def remember_era(self, server: str, spec: str, era: Era, *, answered: bool) -> None:
        """It was found now; `answered`: by an answer of the server's, not by its silence."""
        ...

    def definitions(self, server: str, spec: str, *, most: int) -> bytes:
        """What a server with this digest of its spec declared when it was listed last, as `remember_definitions` was
        given it; nothing if that is not known, or is of more than so many bytes."""
        ...

    def remember_definitions(self, server: str, spec: str, declared: bytes, at: float) -> None:
        """It declared this, by the wall clock at that time; nothing: what it declares is not for the cache. What was
        declared later stays."""
        ...

    def add_process(self, marker: str, host: HostProcess) -> None:
        """A process tree is about to be started by this host."""
        ...

    def name_process(self, marker: str, leader: ProcessId) -> None:
        """Its first process."""
        ...

    def forget_process(self, marker: str) -> None:
        """No process of the tree is left."""
        ...

    def adopt_orphans(self, host: HostProcess, *, but: str | None) -> list[Orphan]:
        """The trees of hosts of this machine that are gone. They belong to this host then: no other host gets them.

        Args:
            host: This host.
            but: The marker of a tree that is left alone.
        """
        ...

    def agreed(self, digest: str) -> bool:
        """Whether the user has agreed to exactly this.

        Raises:
            StoreUnreadable: It cannot be told.
        """
        ...

    def agree(self, request: TrustRequest) -> None:
        """The user agrees.

        Raises:
            StoreUnreadable: It cannot be written down.
        """
        ...

    def pin(self, server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
        """Pin what a server with this digest of its spec declares now, where it is new, and note where it differs.

        Args:
            server: Its name.
            spec: The digest.
            declared: `tools.pins.pinned_text` of its tools, or of some of them, by its own names of them.

        Returns:
            What these tools were when they were first used. A tool has no pin if its server had too many before.

        Raises:
            StoreUnreadable: It cannot be told, or not be written down.
        """
        ...

    def accept_change(self, spec: str, change: DefinitionChange) -> None:
        """From now on the tool is pinned as it is after this change.

        Raises:
            StoreUnreadable: It cannot be written down.
        """
        ...

    def open_changes(self) -> list[tuple[str, DefinitionChange]]:
        """What differed when it was last seen, and was not accepted since, each with the digest of its server's spec.

        Raises:
            StoreUnreadable: It cannot be told.
        """
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


_EMPTY = Room(0, 0, 0)


@define(eq=False)
class MemoryStore:
    """Remembers as long as it lives, which is never longer than the processes it knows of."""

    blocking: bool = field(default=False, init=False)
    """See `Store`: nothing here waits."""
    _eras: dict[tuple[str, str], EraNote] = field(factory=dict[tuple[str, str], EraNote], init=False)
    _definitions: dict[tuple[str, str], tuple[bytes, float]] = field(
        factory=dict[tuple[str, str], tuple[bytes, float]], init=False
    )
    _agreements: set[str] = field(factory=set[str], init=False)
    _pins: dict[tuple[str, str], "_Pins"] = field(factory=dict[tuple[str, str], "_Pins"], init=False)

    def together(self) -> AbstractContextManager[None]:
        """See `Store`. Nothing can go wrong with it."""
        return nullcontext()

    def era(self, server: str, spec: str) -> EraNote | None:
        """See `Store`. It does not outlive its supervisor, which knows what time it is."""
        return self._eras.get((server, spec))

    def remember_era(self, server: str, spec: str, era: Era, *, answered: bool) -> None:
        """See `Store`."""
        self._eras[server, spec] = EraNote(era, math.inf if answered else DOUBT)

    def definitions(self, server: str, spec: str, *, most: int) -> bytes:
        """See `Store`."""
        declared, _ = self._definitions.get((server, spec), (b"", 0.0))
        return declared if len(declared) <= most else b""

    def remember_definitions(self, server: str, spec: str, declared: bytes, at: float) -> None:
        """See `Store`."""
        if at >= self._definitions.get((server, spec), (b"", at))[1]:
            self._definitions[server, spec] = declared, at

    def add_process(self, marker: str, host: HostProcess) -> None:
        """Nothing: who could read it after this host is gone?"""

    def name_process(self, marker: str, leader: ProcessId) -> None:
        """See `add_process`."""

    def forget_process(self, marker: str) -> None:
        """See `add_process`."""

    def adopt_orphans(self, host: HostProcess, *, but: str | None) -> list[Orphan]:
        """None."""
        del host, but
        return []

    def agreed(self, digest: str) -> bool:
        """See `Store`."""
        return digest in self._agreements

    def agree(self, request: TrustRequest) -> None:
        """See `Store`."""
        self._agreements.add(request.digest)

    def pin(self, server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
        """See `Store`."""
        pins = self._pins.setdefault((server, spec), _Pins())
        for tool, pin in pins_after(declared, pins.known, lambda: pins.taken).items():
            pins.put(tool, pin)
        return {tool: pins.known[tool].text for tool in declared if tool in pins.known}

    def accept_change(self, spec: str, change: DefinitionChange) -> None:
        """See `Store`."""
        pins = self._pins.setdefault((change.server, spec), _Pins())
        pins.put(change.tool, pins.known.get(change.tool, Pin(change.before)).accepted(change.after))

    def open_changes(self) -> list[tuple[str, DefinitionChange]]:
        """See `Store`."""
        return [
            (spec, change)
            for (server, spec), pins in self._pins.items()
            for change in noted_changes(server, pins.known)
        ]

    def close(self) -> None:
        """Nothing."""


@define(eq=False)
class _Pins:
    """Those of one server, and what they take up: who pins many, some at a time, counts each of them once."""

    known: dict[str, Pin] = field(factory=dict[str, Pin])
    taken: Room = _EMPTY

    def put(self, tool: str, pin: Pin) -> None:
        self.taken = self.taken.after(self.known.get(tool), pin)
        self.known[tool] = pin


_KEPT_NAMES = {"DeferredTransport": "Unresolved"}
"""What state files know a class by: with another name, everything known of its servers would be forgotten."""


def spec_digest(spec: ServerSpec) -> str | None:
    """SHA-256 of how a server is reached, unresolved; None if that is an object in memory and has no lasting value."""
    transport: Any = spec.transport
    try:
        fields = asdict(transport, filter=_lasts)
        if callable(fields.get("headers")):  # computed anew at each connect
            fields["headers"] = None
        name = type(transport).__name__
        value = [_KEPT_NAMES.get(name, name), fields]
        return sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError):  # no JSON, or no attrs class
        return None


def _lasts(attribute: Any, value: object) -> bool:
    """What authorises requests is no part of how a server is reached, unless words say it. What is not said of it has
    no name either: digests that were written down before there were words for it hold on."""
    if attribute.name == "inherit_env":
        return value is True
    if attribute.name == "require_pkce":
        return False  # nothing of how it is reached
    return attribute.name not in ("auth", "headers_helper") or has(type(value)) or isinstance(value, str)


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError
