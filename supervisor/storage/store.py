"""The contract of a store of state between runs: eras, definitions, processes, agreements, pins and tasks.

All of it is synchronous; the owner of a store decides in which thread.
"""

import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

from mcp_nursery.actors.enums import Remembered
from mcp_nursery.actors.errors import NurseryError
from mcp_nursery.actors.process.orphans import HostProcess, Orphan
from mcp_nursery.actors.process.table import ProcessId
from mcp_nursery.actors.records import define, evolve, field, frozen

from ..security.trust import TrustRequest
from ..session_notes import NoteChange, SessionNote
from ..tools.pins import DefinitionChange, Pin, Room, pins_after, recorded_changes
from .task_rows import TaskRows, in_memory

T = TypeVar("T")

DOUBT = 24 * 3600.0
"""Seconds for which an era that follows from a server's silence is believed."""

MOST_NOTES = 65_536
"""Notes about sessions; beyond it the oldest are forgotten."""

DIGEST = 64
"""Characters of the digest of a spec."""

MOST_LISTS = 16
"""Cached definitions of one server for hosts that differ in their capabilities; beyond that the oldest go."""


@frozen
class EraNote:
    """The era that is remembered of a server."""

    era: Remembered
    seconds: float = math.inf
    """Seconds for which it is to be believed; `inf` if the server has answered it itself."""


class StoreUnreadable(NurseryError):
    """The error of a state file that cannot be used: so nothing is trusted, and nothing is known of tools."""


class Store(Protocol):
    """The memory of earlier runs. Eras, definitions and processes that cannot be read or written count as lost;
    agreements and pins do not."""

    @property
    def blocking(self) -> bool:
        """True if its methods wait for a disk, so that they are not for the event loop's thread."""
        ...

    @property
    def shared(self) -> bool:
        """True if several machines share it: processes, which the reader of a record ends, are then recorded elsewhere,
        and the methods for them do nothing."""
        ...

    @property
    def problem(self) -> str | None:
        """The reason why it could not be used the last time; None if it could."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """A block of many writes. A store may write them together when it is left; none of them is certain before then.

        Raises:
            StoreUnreadable: On leaving: none of it could be written.
        """
        ...

    def era(self, server: str, spec: str) -> "EraNote | None":
        """The era that was found of a server with this digest of its spec; None if there is none or it has expired."""
        ...

    def remember_era(self, server: str, spec: str, era: Remembered, *, answered: bool) -> None:
        """Remember an era that was found now; `answered`: by an answer of the server's, not by its silence."""
        ...

    def definitions(self, server: str, spec: str, *, most: int) -> bytes:
        """The definitions of a server with this digest of its spec, as `remember_definitions` was given them last;
        empty if none are known, or if they are more than `most` bytes."""
        ...

    def remember_definitions(self, server: str, spec: str, declared: bytes, at: float) -> None:
        """Remember the definitions that a server declared at a time of the wall clock; empty: they must not be cached.
        Definitions of a later time stay. What follows the `DIGEST` in `spec` is for what else a list depends on; about
        the latest `MOST_LISTS` of one spec are kept."""
        ...

    def add_process(self, marker: str, host: HostProcess) -> None:
        """Record that this host is about to start a process tree."""
        ...

    def name_process(self, marker: str, leader: ProcessId) -> None:
        """Remember the leader of a marked process group."""
        ...

    def forget_process(self, marker: str) -> None:
        """Forget a process tree of which nothing is left."""
        ...

    def adopt_orphans(self, host: HostProcess, *, but: str | None) -> list[Orphan]:
        """Take over for this host the process trees of hosts of this machine that are gone: no other host gets them.
        The tree with the marker `but` is left alone."""
        ...

    def agreed(self, digest: str) -> bool:
        """True if the user has agreed to exactly this.

        Raises:
            StoreUnreadable: That cannot be found out.
        """
        ...

    def agree(self, request: TrustRequest) -> None:
        """Record that the user agrees to this.

        Raises:
            StoreUnreadable: It cannot be recorded.
        """
        ...

    def pin(self, server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
        """Pin what a server with this digest of its spec declares now, if it is new, and record differences. `declared`
        has `tools.pins.pinned_text` of its tools, or of some of them, by its own names of them.

        Returns:
            These tools as they were at first use. A tool has no pin if its server had too many before.

        Raises:
            StoreUnreadable: The pins cannot be read, or not be recorded.
        """
        ...

    def pinned(self, server: str, spec: str) -> Sequence[str]:
        """The names of all tools that are pinned of a server with this digest of its spec.

        Raises:
            StoreUnreadable: The pins cannot be read.
        """
        ...

    def accept_change(self, spec: str, change: DefinitionChange) -> None:
        """Pin the tool as it is after this change.

        Raises:
            StoreUnreadable: It cannot be recorded.
        """
        ...

    def open_changes(self) -> list[tuple[str, DefinitionChange]]:
        """The changes that were seen and not accepted since, each with the digest of its server's spec.

        Raises:
            StoreUnreadable: That cannot be found out.
        """
        ...

    def session_note(self, session: str) -> SessionNote:
        """The note about a session; one without a change if there is none, or if it is not needed any more."""
        ...

    def note_session(self, session: str, until: float, change: NoteChange) -> SessionNote | None:
        """Change the note about a session, as `SessionNotes` has it; None if it could not be written."""
        ...

    def changed_notes(self, seconds: float) -> Mapping[str, SessionNote] | None:
        """The notes that have changed in the last `seconds`, by session; None if they cannot be read."""
        ...

    def tasks(self, work: Callable[[TaskRows], T]) -> T:
        """Do this with the rows of tasks. It must do no harm if it is done twice.

        Raises:
            StoreUnreadable: They cannot be read, or not be written.
        """
        ...

    def report(self, replica: str, report: str, seconds: float) -> Mapping[str, str] | None:
        """Write the report of a replica, as `SessionNotes` has it. A store of one machine has none."""
        del replica, report, seconds
        return None

    def close(self) -> None:
        """Release everything."""
        ...


_NO_ROOM_TAKEN = Room(0, 0, 0)
_NO_NOTE = SessionNote(), -math.inf, -math.inf


def next_note(note: SessionNote, change: NoteChange) -> SessionNote:
    """The note after a change. A session that was ended stays so."""
    return evolve(note if note.ended else change(note), version=note.version + 1)


@define(eq=False)
class MemoryStore(Store):
    """The store in memory. It never lives longer than the processes it knows of."""

    blocking: bool = field(default=False, init=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    """False: nothing here waits."""
    shared: bool = field(default=False, init=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    """False: nothing here is shared."""
    problem: str | None = field(default=None, init=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    """None: it can always be used."""
    _eras: dict[tuple[str, str], EraNote] = field(factory=dict[tuple[str, str], EraNote], init=False)
    _definitions: dict[tuple[str, str], dict[str, tuple[bytes, float]]] = field(
        factory=lambda: defaultdict[tuple[str, str], dict[str, tuple[bytes, float]]](dict), init=False
    )
    """The definitions of a server, by the digest of its spec, and then by all of `spec`."""
    _agreements: set[str] = field(factory=set[str], init=False)
    _pins: dict[tuple[str, str], "_Pins"] = field(factory=dict[tuple[str, str], "_Pins"], init=False)
    _notes: OrderedDict[str, tuple[SessionNote, float, float]] = field(
        factory=OrderedDict[str, tuple[SessionNote, float, float]], init=False
    )
    """The notes, each with the times until which it is needed, and at which it was changed."""
    _tasks: TaskRows | None = field(default=None, init=False)
    """The rows of tasks, once there are any."""

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def era(self, server: str, spec: str) -> EraNote | None:
        return self._eras.get((server, spec))  # its supervisor, which it does not outlive, knows what time it is

    def remember_era(self, server: str, spec: str, era: Remembered, *, answered: bool) -> None:
        self._eras[server, spec] = EraNote(era, math.inf if answered else DOUBT)

    def definitions(self, server: str, spec: str, *, most: int) -> bytes:
        declared, _ = self._definitions[server, spec[:DIGEST]].get(spec, (b"", 0.0))
        return declared if len(declared) <= most else b""

    def remember_definitions(self, server: str, spec: str, declared: bytes, at: float) -> None:
        lists = self._definitions[server, spec[:DIGEST]]
        if at >= lists.get(spec, (b"", at))[1]:
            lists[spec] = declared, at
        if len(lists) > MOST_LISTS:
            del lists[min(lists, key=lambda each: lists[each][1])]

    def add_process(self, marker: str, host: HostProcess) -> None:
        pass  # nobody could read it after this host is gone

    def name_process(self, marker: str, leader: ProcessId) -> None:
        pass

    def forget_process(self, marker: str) -> None:
        pass

    def adopt_orphans(self, host: HostProcess, *, but: str | None) -> list[Orphan]:
        del host, but
        return []

    def agreed(self, digest: str) -> bool:
        return digest in self._agreements

    def agree(self, request: TrustRequest) -> None:
        self._agreements.add(request.digest)

    def pin(self, server: str, spec: str, declared: Mapping[str, str]) -> Mapping[str, str]:
        pins = self._pins.setdefault((server, spec), _Pins())
        for tool, pin in pins_after(declared, pins.known, lambda: pins.taken).items():
            pins.put(tool, pin)
        return {tool: pins.known[tool].text for tool in declared if tool in pins.known}

    def pinned(self, server: str, spec: str) -> Sequence[str]:
        pins = self._pins.get((server, spec))
        return [] if pins is None else list(pins.known)

    def accept_change(self, spec: str, change: DefinitionChange) -> None:
        pins = self._pins.setdefault((change.server, spec), _Pins())
        pins.put(change.tool, pins.known.get(change.tool, Pin(change.before)).accepted(change.after))

    def open_changes(self) -> list[tuple[str, DefinitionChange]]:
        return [
            (spec, change)
            for (server, spec), pins in self._pins.items()
            for change in recorded_changes(server, pins.known)
        ]

    def session_note(self, session: str) -> SessionNote:
        note, until, _ = self._notes.get(session, _NO_NOTE)
        return note if until > time.time() else SessionNote()

    def note_session(self, session: str, until: float, change: NoteChange) -> SessionNote | None:
        note = next_note(self.session_note(session), change)
        self._notes.pop(session, None)
        self._notes[session] = note, until, time.time()
        if len(self._notes) > MOST_NOTES:
            self._notes.popitem(last=False)
        return note

    def changed_notes(self, seconds: float) -> Mapping[str, SessionNote]:
        since = time.time() - seconds
        return {session: note for session, (note, _, at) in self._notes.items() if at > since}

    def tasks(self, work: Callable[[TaskRows], T]) -> T:
        if self._tasks is None:
            self._tasks = in_memory()
        return work(self._tasks)

    def close(self) -> None:
        pass


@define(eq=False)
class _Pins:
    """The pins of one server, and the room that they take: a server may pin many, some at a time, and each counts
    once."""

    known: dict[str, Pin] = field(factory=dict[str, Pin])
    taken: Room = _NO_ROOM_TAKEN

    def put(self, tool: str, pin: Pin) -> None:
        self.taken = self.taken.after(self.known.get(tool), pin)
        self.known[tool] = pin
