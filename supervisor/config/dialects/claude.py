"""Claude Code's `.mcp.json` and Claude Desktop's `claude_desktop_config.json`."""

from typing import Any

from attrs import field, frozen

from mcp_nursery.supervisor.config.values import Milliseconds, structurer

from .translation import Translation, oauth


@frozen(kw_only=True)
class _Words:
    call_timeout: Milliseconds | None = field(default=None, alias="timeout")


_words = structurer(_Words)


def translate(written: dict[str, Any]) -> Translation:
    """`timeout` is milliseconds for a call, `oauth` is `auth`."""
    translation = Translation(dict(written))
    translation.move("timeout", "callSeconds", _words(written).call_timeout)
    oauth(translation)
    return translation
