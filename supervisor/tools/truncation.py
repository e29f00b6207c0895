"""Cutting what a model is shown. Pure."""

MAX_RESULT_CHARS = 50_000
"""Characters of a result that a model is shown, unless the server's spec says otherwise."""


def truncate(text: str, limit: int) -> str:
    """The text, cut at `limit` characters and marked as cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n\n... (output truncated at {limit} chars, {len(text)} total)"
