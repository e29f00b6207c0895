"""OpenCode's `opencode.json`."""

import re
from collections.abc import Mapping
from typing import Any

from mcp_nursery.actors.records import field, frozen
from mcp_nursery.supervisor.config.document import as_object
from mcp_nursery.supervisor.config.values import FieldError, Milliseconds, structurer
from mcp_nursery.supervisor.config.variables import texts_of

from .translation import Translation, each_text, oauth

_OPENCODE_VARIABLE = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_FILE = re.compile(r"\{file:[^}]*\}")
_OPENCODE_TEXTS = ("command", "environment", "cwd", "url", "headers", "oauth")


@frozen(kw_only=True)
class _Words:
    command: tuple[str, ...] | None = None
    environment: dict[str, str] | None = None
    connect_timeout: Milliseconds | None = field(default=None, alias="timeout")


@frozen(kw_only=True)
class _Limits:
    """The limits of OpenCode 2: for the connect, for the listing, for a call."""

    startup: Milliseconds | None = None
    catalog: Milliseconds | None = None
    execution: Milliseconds | None = None


_words = structurer(_Words)
_limits = structurer(_Limits)
_SAYS_WHAT = {"type", "command", "url", "enabled"}


def servers(mcp: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries under `mcp`. OpenCode 2 has its entries in `servers`, and reads entries of OpenCode 1 beside
    `servers`, too.

    An entry that only switches off a server of the user's organisation is left out.
    """
    nested = nested_servers(mcp)
    found = mcp
    if nested is not None:
        found = {**{name: entry for name, entry in mcp.items() if name not in ("servers", "timeout")}, **nested}
    return {name: entry for name, entry in found.items() if entry != {"enabled": False}}


def nested_servers(mcp: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The `servers` of OpenCode 2; None if there are none, or if `servers` is the name of an entry."""
    nested = as_object(mcp.get("servers"))
    return None if nested is None or nested.keys() & _SAYS_WHAT else nested


def translate(written: dict[str, Any]) -> Translation:
    """Translate an entry: `command` is the program with its arguments, `environment` is `env`, `timeout` milliseconds
    to list the tools, or an object with one limit each.

    `{env:NAME}` means `${env:NAME:-}`, in headers `${env:NAME}`: empty there, and warned of. `{file:…}` is refused.
    """
    own = {key: each_text(value, _brace) if key in _OPENCODE_TEXTS else value for key, value in written.items()}
    if "headers" in own:
        own["headers"] = each_text(written["headers"], lambda text: _OPENCODE_VARIABLE.sub(r"${env:\1}", text))
    for key in _OPENCODE_TEXTS:
        if any(map(_FILE.search, texts_of(own.get(key)))):
            raise FieldError("{file:…} is not supported; in env and headers write !cat FILE", key)
    limits = as_object(own.get("timeout"))
    if limits is not None:
        del own["timeout"]
    words = _words(own)
    translation = Translation(own)
    if words.command is not None:
        _split(own, words.command)
    translation.move("environment", "env", words.environment)
    translation.move("timeout", "connectSeconds", words.connect_timeout)
    if limits is not None:
        _limit(translation, limits)
    oauth(translation)
    return translation


def _limit(translation: Translation, written: dict[str, Any]) -> None:
    try:
        limits = _limits({key: value for key, value in written.items() if value is not None})
    except FieldError as error:
        raise FieldError(str(error), f"timeout.{error.key}") from None
    connect = [limit for limit in (limits.startup, limits.catalog) if limit is not None]  # ours includes the listing
    translation.move("timeout", "connectSeconds", sum(connect) if connect else None)
    translation.move("timeout", "callSeconds", limits.execution)


def _split(own: dict[str, Any], command: tuple[str, ...]) -> None:
    if not command:
        raise FieldError("must be the program and its arguments, not an empty list", "command")
    if "args" in own:
        raise FieldError("must not be given: the arguments are part of command", "args")
    own["command"], own["args"] = command[0], list(command[1:])


def _brace(text: str) -> str:
    return _OPENCODE_VARIABLE.sub(r"${env:\1:-}", text)
