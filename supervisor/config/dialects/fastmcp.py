"""FastMCP's configuration of a client."""

from typing import Any

from attrs import field, frozen

from mcp_nursery.supervisor.config.values import Milliseconds, structurer

from .translation import Translation, sse_by_path, with_header


@frozen(kw_only=True)
class _Words:
    transport: str | None = None
    call_timeout: Milliseconds | None = field(default=None, alias="timeout")
    auth: str | None = None


_words = structurer(_Words)


def translate(written: dict[str, Any]) -> Translation:
    """`transport` is `type`, else the URL's path tells; `timeout` is milliseconds for a call, `auth` a bearer token."""
    words = _words(written)
    translation = Translation(dict(written))
    translation.move("transport", "type", words.transport)
    translation.move("timeout", "callSeconds", words.call_timeout)
    sse_by_path(translation)
    own = translation.own
    if words.auth not in (None, "oauth"):  # which says how to get one
        del own["auth"]
        own["headers"] = with_header(own.get("headers"), "Authorization", f"Bearer {words.auth}", key="auth")
    return translation
