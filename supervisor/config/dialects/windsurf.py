"""Windsurf's `mcp_config.json`."""

from typing import Any

from attrs import field, frozen

from mcp_nursery.supervisor.config.values import structurer

from .translation import Translation, sse_by_path


@frozen(kw_only=True)
class _Words:
    server_url: str | None = field(default=None, alias="serverUrl")
    disabled_tools: tuple[str, ...] | None = field(default=None, alias="disabledTools")


_words = structurer(_Words)


def translate(written: dict[str, Any]) -> Translation:
    """`serverUrl` is `url`, whose path tells how it is reached; tools can be switched off by name."""
    words = _words(written)
    translation = Translation(dict(written))
    translation.move("serverUrl", "url", words.server_url)
    translation.offer("deny", "disabledTools", words.disabled_tools)
    sse_by_path(translation)
    return translation
