"""Codex's `config.toml`."""

import re
from typing import Any, cast

from mcp_nursery.actors.records import field, frozen
from mcp_nursery.supervisor.config.document import as_object
from mcp_nursery.supervisor.config.values import FieldError, Milliseconds, structurer

from .translation import Translation, with_header

_CODEX_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@frozen(kw_only=True)
class _Words:
    connect_timeout: float | None = field(default=None, alias="startup_timeout_sec")
    connect_milliseconds: Milliseconds | None = field(default=None, alias="startup_timeout_ms")
    call_timeout: float | None = field(default=None, alias="tool_timeout_sec")
    enabled_tools: tuple[str, ...] | None = None
    disabled_tools: tuple[str, ...] | None = None
    http_headers: dict[str, str] | None = None
    bearer: str | None = field(default=None, alias="bearer_token_env_var")
    env_headers: dict[str, str] = field(factory=dict[str, str], alias="env_http_headers")
    env_vars: tuple[str, ...] = ()


_words = structurer(_Words)


def translate(written: dict[str, Any]) -> Translation:
    """Translate times in seconds, tools by name, and variables of the host's environment, given by their names alone.

    The value of such a variable reaches headers by way of `env`: a header sees nothing else. The questions that Codex
    asks before a tool is called, under `tools`, are left alone: they are the host's decision.
    """
    own = dict(written)
    if isinstance(own.get("env_vars"), list):
        own["env_vars"] = [_name(item) for item in cast("list[object]", own["env_vars"])]
    if any("approval_mode" in (as_object(tool) or {}) for tool in (as_object(own.get("tools")) or {}).values()):
        own["tools.*.approval_mode"] = own.pop("tools")
    words = _words(own)
    translation = Translation(own)
    translation.move("startup_timeout_sec", "connectSeconds", words.connect_timeout)
    translation.move("startup_timeout_ms", "connectSeconds", words.connect_milliseconds)
    translation.move("tool_timeout_sec", "callSeconds", words.call_timeout)
    translation.offer("allow", "enabled_tools", words.enabled_tools)
    translation.offer("deny", "disabled_tools", words.disabled_tools)
    translation.move("http_headers", "headers", words.http_headers)
    for name in words.env_vars:
        _pass_on(translation.own, name, key="env_vars", default=True)
    if words.bearer is not None:
        _pass_on(translation.own, words.bearer, key="bearer_token_env_var", default=False)
        _add_header(translation.own, "Authorization", f"Bearer ${{{words.bearer}}}", key="bearer_token_env_var")
    for header, name in words.env_headers.items():
        _pass_on(translation.own, name, key="env_http_headers", default=True)
        _add_header(translation.own, header, f"${{{name}}}", key="env_http_headers")
    for key in ("env_vars", "bearer_token_env_var", "env_http_headers"):
        translation.own.pop(key, None)
    return translation


def _name(variable: object) -> object:
    """The name of a variable, which may be an object with the name and the place where it is set."""
    parts = as_object(variable)
    if parts is None:
        return variable
    if parts.get("source") not in (None, "local"):
        raise FieldError("a variable of another machine cannot be passed on", "env_vars")
    return parts.get("name")


def _pass_on(own: dict[str, Any], name: str, *, key: str, default: bool) -> None:
    """Pass a variable of the host on in `env`. If it is not set, it is empty with `default`, else an error at the
    connect."""
    if not _CODEX_VARIABLE.fullmatch(name):
        raise FieldError("must be the name of an environment variable", key)
    env = as_object(own.get("env", {}))
    if env is not None:
        own["env"] = {name: f"${{env:{name}:-}}" if default else f"${{env:{name}}}", **env}


def _add_header(own: dict[str, Any], header: str, text: str, *, key: str) -> None:
    own["headers"] = with_header(own.get("headers"), header, text, key=key)
