"""The dialects of hosts (VS Code, Cursor …) that differ from ours in a few keys, each a function of a few lines.

Every function takes an entry as its host writes it, and returns it in our words; `_read` checks the keys that are named
in the function, by the fields of `_Words`. Codex and OpenCode, which differ more, have modules of their own.
"""

import re
from typing import Any

from mcp_nursery.actors.records import field, frozen
from mcp_nursery.supervisor.config.document import as_object
from mcp_nursery.supervisor.config.values import FieldError, Milliseconds, structurer

from .translation import Translation, each_text, oauth, sse_by_path, with_header


@frozen(kw_only=True)
class _Words:
    """The keys of these hosts that are not ours. A key that two hosts have has one type."""

    call_timeout: Milliseconds | None = field(default=None, alias="timeout")
    server_url: str | None = field(default=None, alias="serverUrl")
    disabled_tools: tuple[str, ...] | None = field(default=None, alias="disabledTools")
    http_url: str | None = field(default=None, alias="httpUrl")
    include_tools: tuple[str, ...] | None = field(default=None, alias="includeTools")
    exclude_tools: tuple[str, ...] | None = field(default=None, alias="excludeTools")
    transport: str | None = None
    auth: str | None = None


_structure = structurer(_Words)


def _read(written: dict[str, Any], *keys: str) -> _Words:
    """The values of these keys, checked; the same key of another host means nothing."""
    return _structure({key: written[key] for key in keys if key in written})


def claude(written: dict[str, Any]) -> Translation:
    """Claude: `timeout` is milliseconds for a call, `oauth` is `auth`."""
    translation = Translation(dict(written))
    translation.move("timeout", "callSeconds", _read(written, "timeout").call_timeout)
    oauth(translation)
    return translation


def vscode(written: dict[str, Any]) -> Translation:
    """VS Code: in `env`, a number is its digits, and null is absent."""
    translation = Translation(dict(written))
    env = as_object(written.get("env"))
    if env is not None:
        translation.own["env"] = {name: _digits(value) for name, value in env.items() if value is not None}
    return translation


def _digits(value: object) -> object:
    return str(value).removesuffix(".0") if isinstance(value, int | float) and not isinstance(value, bool) else value


def cursor(written: dict[str, Any]) -> Translation:
    """Cursor: the path of a URL without a transport decides; Cursor itself tries one after the other."""
    translation = Translation(dict(written))
    sse_by_path(translation)
    return translation


def codebuddy(written: dict[str, Any]) -> Translation:
    """CodeBuddy: the members of `transport` become members of the entry. `name` is the server's."""
    own = {key: value for key, value in written.items() if key not in ("name", "transport")}
    translation = Translation(own)
    nested = as_object(written.get("transport"))
    if nested is None:
        if "transport" in written:
            own["type"] = written["transport"]
            translation.words["type"] = "transport"
        return translation
    for key, value in nested.items():
        if key in own and value is not None:
            raise FieldError(f"says the same as {key}; remove one of them", f"transport.{key}")
        if value is not None:
            own[key] = value
            translation.words[key] = f"transport.{key}"
    return translation


def windsurf(written: dict[str, Any]) -> Translation:
    """Windsurf: `serverUrl` is `url`, whose path decides on the transport; tools are switched off by name."""
    words = _read(written, "serverUrl", "disabledTools")
    translation = Translation(dict(written))
    translation.move("serverUrl", "url", words.server_url)
    translation.offer("deny", "disabledTools", words.disabled_tools)
    sse_by_path(translation)
    return translation


_BARE_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_GEMINI_TEXTS = ("command", "args", "env", "cwd", "url", "httpUrl", "headers", "oauth")


def gemini(written: dict[str, Any]) -> Translation:
    """Gemini CLI: `url` is SSE unless `type` says otherwise, `httpUrl` streamable HTTP, `timeout` milliseconds for a
    call, `oauth` is `auth`, and `$NAME` means `${NAME}`.

    `trust` is left alone: what is asked before a call is the host's decision, not a file's.
    """
    own = {key: each_text(value, _brace) if key in _GEMINI_TEXTS else value for key, value in written.items()}
    words = _read(own, "httpUrl", "timeout", "includeTools", "excludeTools")
    translation = Translation(own)
    if "url" in own and words.http_url is not None:
        raise FieldError("says the same as url; remove one of them", "httpUrl")
    if "url" in own:
        own.setdefault("type", "sse")
    translation.move("httpUrl", "url", words.http_url)
    translation.move("timeout", "callSeconds", words.call_timeout)
    translation.offer("allow", "includeTools", words.include_tools)
    translation.offer("deny", "excludeTools", words.exclude_tools)
    oauth(translation)
    return translation


def _brace(text: str) -> str:
    return _BARE_VARIABLE.sub(r"${\1}", text)


def fastmcp(written: dict[str, Any]) -> Translation:
    """FastMCP: `transport` is `type`, else the URL's path decides; `timeout` is milliseconds for a call, `auth` a
    bearer token."""
    words = _read(written, "transport", "timeout", "auth")
    translation = Translation(dict(written))
    translation.move("transport", "type", words.transport)
    translation.move("timeout", "callSeconds", words.call_timeout)
    sse_by_path(translation)
    own = translation.own
    if words.auth not in (None, "oauth"):  # which is no token, but the way to get one
        del own["auth"]
        own["headers"] = with_header(own.get("headers"), "Authorization", f"Bearer {words.auth}", key="auth")
    return translation
