"""A host's servers as entries of a file of ours, behind the gateway, where the same is started as by the host.

The gateway is started by the host, with the host's environment and in its working directory, so that what is looked up
is the same. What cannot be the same is refused, and stays with the host. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from mcp_nursery.supervisor.transports import UnusableTransport

from .dialects import Dialect, entries_of
from .dialects.translation import each_text
from .discovery import Origin
from .document import as_object
from .entry import Entry, read_entry
from .hosts import HostProgram, foreign_variable, is_gateway
from .values import FieldError
from .variables import command_of, texts_of

_VARIABLE = re.compile(r"\$\{(env:)?([A-Za-z_][A-Za-z0-9_]*)(:-[^{}]*)?\}")


@frozen
class Adoption:
    """Which servers of a host's file can go behind the gateway."""

    entries: Mapping[str, Mapping[str, Any]]
    """Those that can, in our words."""
    stay: Mapping[str, str]
    """Why the others cannot, one line each."""
    notes: tuple[str, ...]
    """What is not the same behind it, one line each."""


def asked_for(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The variables of the host's environment that entries in our words ask for."""
    found: set[str] = set()
    for own in entries:
        known = as_object(own.get("env")) or {}
        for text in texts_of(dict(own)):
            found.update(name for outside, name, _ in _VARIABLE.findall(text) if outside or name not in known)
    return sorted(found)


def servers_in(file: str, document: Mapping[str, Any], dialect: Dialect, root: tuple[str, ...]) -> dict[str, Entry]:
    """The servers of a host's file by name. Those at another place in it are left out.

    Raises:
        ConfigError: They are not an object.
    """
    if root[0] not in document:
        return {}
    inner = document[root[0]][root[1]] if root[1:] else document[root[0]]
    origin = Origin(file, root=root[0])
    found: dict[str, Entry] = {}
    for number, (name, value) in enumerate(entries_of(file, document, dialect, root[0]), 1):
        if name in inner:
            entry = read_entry(name, value, number=number, origin=origin, dialect=dialect)
            found[name] = entry.off() if dialect.is_off(document, name) else entry
    return found


def adopt(host: HostProgram, document: Mapping[str, Any], servers: Mapping[str, Entry]) -> Adoption:
    """What becomes of each server of a host's file."""
    entries: dict[str, Mapping[str, Any]] = {}
    stay: dict[str, str] = {}
    notes: list[str] = []
    written = document
    for key in host.root(document):
        written = written.get(key, {})
    for name, entry in servers.items():
        try:
            entries[name] = _behind(host, written[name], entry)
        except FieldError as error:
            stay[name] = f"{error.key}: {error}" if error.key else str(error)
        else:
            notes += [f"{name}: {key!r} means nothing behind the gateway" for key in entry.spec.extra]
    return Adoption(entries, stay, tuple(notes))


def _behind(host: HostProgram, written: object, entry: Entry) -> dict[str, Any]:
    """The entry in our words.

    Raises:
        FieldError: It cannot be what it is for the host.
    """
    transport: Any = entry.spec.transport
    if isinstance(transport, UnusableTransport):
        raise FieldError(transport.error.problem, transport.error.field)
    if is_gateway(entry.own):
        raise FieldError("is mcp-nursery itself")
    for key, value in (as_object(written) or {}).items():
        for text in texts_of(value):
            variable = foreign_variable(host, text)
            if variable is not None:
                shown = variable.partition(":-")[0][:80]
                raise FieldError(f"${{{shown}}} is for {host.title} alone to make something of, or text", key)
    for key in ("env", "headers", "auth"):
        for value in (as_object(entry.own.get(key)) or {}).values():
            if isinstance(value, str) and command_of(value) is not None:
                raise FieldError("a value that begins with '!' would be run as a command", key)
    own = {**entry.own, **_outside(entry.own), **_headers(entry.own)}
    if transport.kind == "stdio":
        own.setdefault("inheritEnv", True)
    return own


def _outside(own: Mapping[str, Any]) -> dict[str, Any]:
    """A host looks variables up in its environment; here the entry's own `env` would go first."""
    known = as_object(own.get("env")) or {}

    def meant(match: re.Match[str]) -> str:
        return f"${{env:{match[2]}{match[3] or ''}}}" if match[2] in known else match[0]

    texts = {key: own[key] for key in ("command", "args", "cwd", "url") if key in own}
    return {key: each_text(value, lambda text: _VARIABLE.sub(meant, text)) for key, value in texts.items()}


def _headers(own: Mapping[str, Any]) -> dict[str, Any]:
    """What headers take from the host's environment is passed on in `env`: here they see nothing else."""
    headers, env = as_object(own.get("headers")), dict(as_object(own.get("env")) or {})
    if not headers:
        return {}

    def passed_on(match: re.Match[str]) -> str:
        name, default = match[2], match[3] or ""
        again = _VARIABLE.fullmatch(env.setdefault(name, f"${{env:{name}{':-' if default else ''}}}"))
        if again is None or again[2] != name:
            raise FieldError(f"${{{name}}} is not what {name} is in env", "headers")
        return f"${{{name}{default}}}"

    said = {name: _VARIABLE.sub(passed_on, text) for name, text in headers.items()}
    return {"headers": said, **({"env": env} if env else {})}
