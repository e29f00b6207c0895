"""The effects of an entry of a project's file to which its user has to agree first: see `security.trust`. Pure."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from mcp_nursery.supervisor.security.trust import FileRead, TrustRequest

from .document import as_object
from .variables import command_of, has_variables, inputs_in, texts_of

_HARMLESS = frozenset(
    {
        *("type", "url", "headers", "env", "description", "enabled", "disabled", "lazy", "restart", "revive"),
        *(
            "restartDelays",
            "stableAfterSeconds",
            "idleSeconds",
            "protocol",
            "connectSeconds",
            "installSeconds",
            "callSeconds",
            "humanSeconds",
            "onDisconnect",
            "maxInFlight",
            "mailboxSize",
            "trustHints",
            "maxResultChars",
            "limits",
            "tasks",
            "liveness",
            "breaker",
            "subscribe",
            "extensions",
            "tools",
        ),
    }
)
"""Keys of an entry that neither start nor read anything, whatever their values are, except for variables and commands.
A key that is not here has to be agreed to, even if it only lets a server cost its host more."""

_READS_FILE = "reads a file for env"
_DOES = {
    "headersHelper": "runs a command for headers",
    "auth": "uses your tokens",
    "caFile": "trusts the certificate authorities of a file",
    "roots": "is told of folders",
    "envFile": _READS_FILE,
}
"""The effects of some of the other keys, if the entry starts no process."""
_DOES_LOCALLY = {"envFile": _READS_FILE, "inheritEnv": "gets your whole environment"}
"""The effects of some of the other keys, if the entry starts a process."""

_DIGEST_FORMAT = 1
"""The number that is part of every digest: with another one, every user is asked again."""


def trust_request(
    server: str,
    entry: Mapping[str, Any],
    *,
    file: str,
    remote: bool,
    known: Collection[str],
    folder: str | None = None,
    argv: tuple[str, ...] = (),
    written: Mapping[str, Any] | None = None,
    reader: Callable[[], FileRead] | None = None,
) -> TrustRequest | None:
    """The request for agreement to this entry of a project's file, which is in our words; None if it needs none. A
    `remote` entry names a server to connect to, and no process to start; `argv` is the command of another entry, with
    its arguments. Keys that are not `known` have no meaning, and need no trust.

    `folder` is the project's, by default that of the file. `written` is the entry as the file has it, if that is in
    another dialect. `reader` reads the file whose text becomes part of the entry, if there is one.
    """
    reasons = tuple(dict.fromkeys(_reasons(entry, remote=remote, known=known)))
    if not reasons:
        return None
    path = _in_project(file, folder or os.path.dirname(file))
    shown = entry if written is None else written
    # The user agrees to the meaning of the words, too: it depends on the rest of the file.
    agreed = [_DIGEST_FORMAT, path, server, shown, *([] if shown == entry else [entry])]
    canonical = json.dumps(agreed, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return TrustRequest(server, path, reasons, dict(shown), digest, argv=argv, reader=reader)


def _in_project(file: str, folder: str) -> str:
    """The file's one name in its project. A link to a file of another project belongs to this one: the meaning of the
    words depends on the folder."""
    return os.path.join(os.path.realpath(folder), os.path.relpath(file, folder))


def _reasons(entry: Mapping[str, Any], *, remote: bool, known: Collection[str]) -> Iterator[str]:
    if not remote:
        yield "starts a process"
    for key in ("env", "headers", "auth"):
        for value in (as_object(entry.get(key)) or {}).values():
            if isinstance(value, str) and command_of(value) is not None:
                yield f"runs a command for {key}"
    for key, value in entry.items():
        # Variables of headers see the entry's own env block, and nothing else.
        if key in known and key not in ("headers", "description") and any(map(has_variables, texts_of(value))):
            yield f"reads variables for {key}"
        if key == "headers" and inputs_in(value):
            yield "uses inputs for headers"
        if not remote and key in _DOES_LOCALLY and value:
            yield _DOES_LOCALLY[key]
        if remote and key in known and key not in _HARMLESS:
            yield _DOES.get(key, f"uses {key}")
