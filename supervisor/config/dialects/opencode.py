"""OpenCode's `opencode.json`."""

import re
from typing import Any

from attrs import field, frozen

from mcp_nursery.supervisor.config.trust import texts_of
from mcp_nursery.supervisor.config.values import FieldError, Milliseconds, structurer

from .translation import Translation, each_text

_VARIABLE = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_FILE = re.compile(r"\{file:[^}]*\}")
_TEXTS = ("command", "environment", "cwd", "url", "headers")


@frozen(kw_only=True)
class _Words:
    command: tuple[str, ...] | None = None
    environment: dict[str, str] | None = None
    connect_timeout: Milliseconds | None = field(default=None, alias="timeout")


_words = structurer(_Words)


def translate(written: dict[str, Any]) -> Translation:
    """`command` is the program and its arguments, `environment` is `env`, `timeout` milliseconds to list the tools.

    `{env:NAME}` means `${env:NAME:-}`, in headers `${env:NAME}`: empty there, and warned of. `{file:…}` is refused.
    """
    own = {key: each_text(value, _braced) if key in _TEXTS else value for key, value in written.items()}
    if "headers" in own:
        own["headers"] = each_text(written["headers"], lambda text: _VARIABLE.sub(r"${env:\1}", text))
    for key in _TEXTS:
        if any(map(_FILE.search, texts_of(own.get(key)))):
            raise FieldError("{file:…} is not read here; in env and headers !cat FILE is", key)
    words = _words(own)
    translation = Translation(own)
    if words.command is not None:
        _split(own, words.command)
    translation.move("environment", "env", words.environment)
    translation.move("timeout", "connectSeconds", words.connect_timeout)
    return translation


def _split(own: dict[str, Any], command: tuple[str, ...]) -> None:
    if not command:
        raise FieldError("the program and its arguments wanted, not an empty list", "command")
    if "args" in own:
        raise FieldError("arguments stand in command", "args")
    own["command"], own["args"] = command[0], list(command[1:])


def _braced(text: str) -> str:
    return _VARIABLE.sub(r"${env:\1:-}", text)
