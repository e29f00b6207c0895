"""Gemini CLI's `settings.json`."""

import re
from typing import Any

from attrs import field, frozen

from mcp_nursery.supervisor.config.values import FieldError, Milliseconds, structurer

from .translation import Translation, each_text, oauth

_BARE_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_TEXTS = ("command", "args", "env", "cwd", "url", "httpUrl", "headers", "oauth")


@frozen(kw_only=True)
class _Words:
    http_url: str | None = field(default=None, alias="httpUrl")
    call_timeout: Milliseconds | None = field(default=None, alias="timeout")
    include_tools: tuple[str, ...] | None = field(default=None, alias="includeTools")
    exclude_tools: tuple[str, ...] | None = field(default=None, alias="excludeTools")


_words = structurer(_Words)


def translate(written: dict[str, Any]) -> Translation:
    """`url` is SSE unless `type` says otherwise, `httpUrl` streamable HTTP, `timeout` milliseconds for a call.

    `$NAME` means `${NAME}`. `trust` is left alone: what is asked before a call is the host's decision, not a file's.
    `oauth` is `auth`.
    """
    own = {key: each_text(value, _braced) if key in _TEXTS else value for key, value in written.items()}
    words = _words(own)
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


def _braced(text: str) -> str:
    return _BARE_VARIABLE.sub(r"${\1}", text)
