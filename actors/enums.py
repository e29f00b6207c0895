"""Enumerations: states of a server, delivery of a call, eras of the protocol, kinds of exit."""

from enum import StrEnum
from typing import Final, Literal


class ServerState(StrEnum):
    """The state of a server. `connected` means that handshake and every page of `tools/list` succeeded."""

    DISABLED = "disabled"
    """Switched off in its configuration."""
    BLOCKED = "blocked"
    """Not started, because its configuration is not trusted."""
    IDLE = "idle"
    """Not running, not yet or because nobody used it; the next call or list starts it."""
    CONNECTING = "connecting"
    """An incarnation is being opened."""
    CONNECTED = "connected"
    """Ready for calls."""
    NEEDS_AUTH = "needs_auth"
    """Waits for a person's authorisation."""
    WAITING = "waiting"
    """Lost or not reached; a restart is due."""
    FAILED = "failed"
    """No restart is due: all attempts failed, or another try cannot help."""
    STOPPED = "stopped"
    """Ended on purpose."""


class Delivery(StrEnum):
    """The delivery of a call: whether a server may have acted on it."""

    NOT_SENT = "not_sent"
    """No byte of the call left this process, or its server has reported that it refused it before acting."""
    UNKNOWN = "unknown"
    """The write of the call began, and no answer came."""
    ANSWERED = "answered"
    """The server answered."""


class Era(StrEnum):
    """The way in which a server opens a connection."""

    HANDSHAKE = "handshake"
    """By `initialize`: protocol 2024-11-05 to 2025-11-25."""
    MODERN = "modern"
    """By `server/discover`: protocol 2026-07-28."""


Remembered = Era | str
"""The memory of the way in which a server opens a connection: its era, or the version that `initialize` has to name,
because the server refuses the latest."""

Protocol = Literal[
    "auto", "handshake", "handshake-first", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"
]
"""The protocol to speak with a server: any (`auto`); any that `initialize` negotiates (`handshake`); these, and any
other only if the server refuses them (`handshake-first`); or one version."""

ANY_PROTOCOL: Final = frozenset(["auto", "handshake-first"])
"""The settings with which no server is out of reach."""


class ExitKind(StrEnum):
    """The kinds of an incarnation's end."""

    LOST = "lost"
    """The connection was lost after the server had been `connected`."""
    CONNECT_FAILED = "connect_failed"
    """The connection never reached `connected`."""
    PROBE_REFUSED = "probe_refused"
    """The server exited on the era probe: open again with `initialize`."""
    UNUSABLE = "unusable"
    """Trying again cannot help: an invalid configuration, a command that does not exist."""
    NEEDS_AUTH = "needs_auth"
    """Authorisation is missing: only a person can help."""
    REFUSED = "refused"
    """Ended before the start, which was not permitted."""
    STOPPED = "stopped"
    """Ended on request."""


class ListKind(StrEnum):
    """The kinds of a server's lists."""

    TOOLS = "tools"
    """`tools/list`: a server is not `connected` without it."""
    RESOURCES = "resources"
    """`resources/list`."""
    TEMPLATES = "resource templates"
    """`resources/templates/list`."""
    PROMPTS = "prompts"
    """`prompts/list`."""
