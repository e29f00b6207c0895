"""Cursor's `mcp.json`."""

from typing import Any

from .translation import Translation, sse_by_path


def translate(written: dict[str, Any]) -> Translation:
    """Where nothing says how a URL is reached, its path tells: Cursor finds out by trying."""
    translation = Translation(dict(written))
    sse_by_path(translation)
    return translation
