"""Notes about the sessions that a gateway has with clients. They outlive the gateway, and other gateways read them."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from mcp_nursery.actors.records import frozen


@frozen
class SessionNote:
    """The facts about a session that its id does not hold."""

    ended: bool = False
    """True once its client has ended it, or has lost its rights."""
    level: str | None = None
    """The least severe level of log messages that its client wants; None if it has set none."""
    subscribed: frozenset[str] = frozenset()
    """The URIs of the resources that its client subscribes to."""
    version: int = 0
    """The number of changes so far; 0: nothing was noted."""


NoteChange: TypeAlias = Callable[[SessionNote], SessionNote]
"""A change of a note. It may be made more than once before it takes effect."""


class SessionNotes(Protocol):
    """The notes about sessions. Notes that cannot be read or written count as lost."""

    @property
    def others_write(self) -> bool:
        """True if other gateways may change them at the same time."""
        ...

    async def session_note(self, session: str) -> SessionNote:
        """The note about a session."""
        ...

    async def note_session(self, session: str, until: float, change: NoteChange) -> SessionNote | None:
        """Change the note about a session in one step: a change that others make at the same time is not lost. From the
        Unix time `until` on, the note is not needed any more.

        Returns:
            The note after the change; None if it could not be written.
        """
        ...

    async def report(self, replica: str, report: str, seconds: float) -> Mapping[str, str] | None:
        """Write the report of this replica in place of its last one, for so many seconds. The replica has a name of its
        own among the gateways that share the notes.

        Returns:
            The reports that count, by replica, this one among them; None if they cannot be read, or the notes are not
            shared.
        """
        ...

    async def changed_notes(self, seconds: float) -> Mapping[str, SessionNote] | None:
        """The notes that have changed in the last `seconds`, by session; None if they cannot be read."""
        ...
