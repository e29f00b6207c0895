"""What an entry of a project's file would do that its user has to agree to first. Pure."""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from attrs import field, frozen

from .document import as_object
from .expansion import command_of, has_variables

_HARMLESS = frozenset(
    {
        *("type", "url", "headers", "env", "description", "enabled", "disabled", "lazy", "restart", "revive"),
        *(
            "restartDelays",
            "stableAfterSeconds",
            "connectSeconds",
            "callSeconds",
            "maxInFlight",
            "mailboxSize",
            "trustHints",
            "maxResultChars",
            "tools",
        ),
    }
)
"""Keys of an entry that neither start anything nor read anything, whatever stands under them but variables and
commands. A key that is not here has to be agreed to."""

_FORMAT = 1
"""Part of every digest: with another number, everybody is asked again."""


@frozen
class TrustRequest:
    """An entry of a project's file that does nothing before its user has agreed to it. Compared by its digest."""

    server: str
    """Its name."""
    file: str
    """The project's file, an absolute path."""
    reasons: tuple[str, ...] = field(eq=False)
    """What it would do, one phrase each."""
    entry: Mapping[str, Any] = field(repr=False, eq=False)
    """The entry as written, nothing of it resolved: what is agreed to, to the letter."""
    digest: str = field(repr=False)
    """SHA-256 of file, server and entry: any change makes another request."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The command and its arguments as written; empty if the entry starts no process itself."""
        command, args = self.entry.get("command"), self.entry.get("args")
        parts = [command, *cast("list[object]", args if isinstance(args, list) else [])]
        return tuple(str(part) for part in parts) if command is not None else ()


def trust_request(
    server: str, entry: Mapping[str, Any], *, file: str, remote: bool, known: Collection[str]
) -> TrustRequest | None:
    """What has to be agreed to before this entry of a project's file may be used; None if nothing.

    Args:
        server: Its name.
        entry: As written.
        file: The project's file.
        remote: Whether it names a server to connect to, and no process to start.
        known: The keys that mean anything; others are ignored and need no consent.
    """
    reasons = tuple(dict.fromkeys(_reasons(entry, remote=remote, known=known)))
    if not reasons:
        return None
    path = os.path.realpath(file)
    canonical = json.dumps([_FORMAT, path, server, entry], sort_keys=True, separators=(",", ":"))
    return TrustRequest(server, path, reasons, dict(entry), hashlib.sha256(canonical.encode()).hexdigest())


def _reasons(entry: Mapping[str, Any], *, remote: bool, known: Collection[str]) -> Iterator[str]:
    if not remote:
        yield "starts a process"
    for key in ("env", "headers"):
        for value in (as_object(entry.get(key)) or {}).values():
            if isinstance(value, str) and command_of(value) is not None:
                yield f"runs a command for {key}"
    for key, value in entry.items():
        # Variables of headers see the entry's own env block, and nothing else.
        if key in known and key not in ("headers", "description") and any(map(has_variables, _texts(value))):
            yield f"reads variables for {key}"
        if remote and key in known and key not in _HARMLESS:
            yield f"uses {key}"


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in cast("list[object]", value):
                yield from _texts(item)
        case dict():
            for item in cast("dict[str, object]", value).values():
                yield from _texts(item)
        case _:
            return
